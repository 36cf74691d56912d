"""What the database notifies a worker of: inserts, jobs that a user cancels, types that change.

How it sleeps without a NOTIFY with every insert is in :mod:`tickwright.engine.wakeup`. Without a direct connection the
worker polls once a second.
"""

from collections.abc import Callable

from tickwright.engine.wakeup import ArmedWakeup

JOBS_CHANNEL = "tickwright_jobs"
CANCEL_CHANNEL = "tickwright_cancel"
TYPES_CHANNEL = "tickwright_types"
LOCK = (7313, 1)
ID_DIGITS_MAX = 18


def worker_wakeup(
    url: str | None, *, cancelled: Callable[[int], None], types_changed: Callable[[], None]
) -> ArmedWakeup:
    """Return the wake-up of one worker.

    Args:
        url: A direct URL; ``None`` for polling only.
        cancelled: Is told the id of a job that may have been cancelled. Every user of the database may notify, so ask
            the row.
        types_changed: Is told that types of jobs changed.
    """

    def cancel(payload: str) -> None:
        if payload.isascii() and payload.isdigit() and len(payload) <= ID_DIGITS_MAX:
            cancelled(int(payload))

    others = {CANCEL_CHANNEL: cancel, TYPES_CHANNEL: lambda _: types_changed()}
    return ArmedWakeup(url, channel=JOBS_CHANNEL, lock=LOCK, others=others)
