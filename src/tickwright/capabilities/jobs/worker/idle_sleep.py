"""The sleep of a claimer that found no more jobs, and the notifications that end it."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import ArmedWakeup
from tickwright.engine.wakeup.turns import TURN_S
from tickwright.ports.ids import monotonic

AWAKE_GAP_S = 0.003
AWAKE_FOR_S = 0.03
AWAKE_GAP_MAX_S = 0.25
FLOOD, FLOOD_S = 8, 0.05
"""Notifications within a time after which inserts need not notify."""
OFTEN_PER_S = 5
RELIED_S = 5.0
ARMED_FROM_S = 0.02
LOCK, LATER_LOCK = 1, 5


class IdleSleep:
    """The sleep of a claimer: until a job can be due, and never past a wake-up notification.

    ::

        busy ──no more jobs──▶ arm the wake-up ──claim once more──▶ asleep ──time is up, or a wake-up──▶ busy
                                 │ an insert is running               └──many──▶ awake ──30 ms without jobs──▶ busy
                                 └──▶ awake for a moment, try again, less and less often

    While awake, it claims every few milliseconds, and inserts need not notify. A worker that sleeps longer than a turn
    has a second lock, so that inserts also notify of jobs that are due later than the next turn; it need not look at
    once for these.
    """

    def __init__(self, wakeup: ArmedWakeup) -> None:
        self._wakeup = wakeup
        wakeup.later = self._look_soon
        self._awake_until_s = 0.0
        self._relied_until_s = 0.0
        self._notified_s: deque[float] = deque(maxlen=FLOOD)
        self._looked_s = 0.0
        self._soon: asyncio.TimerHandle | None = None
        self._counted_s, self._found, self._found_before = 0.0, 0, 0
        self.arm_failures = 0

    def found_work(self, jobs: int) -> None:
        """Count jobs that a claim found; prolong the time awake, if awake: inserts come in bursts."""
        self._count(jobs)
        if monotonic() < self._awake_until_s:
            self._awake_until_s = monotonic() + AWAKE_FOR_S

    def _count(self, jobs: int) -> None:
        if (passed_s := monotonic() - self._counted_s) >= 1.0:
            self._counted_s = monotonic()
            self._found_before, self._found = (self._found if passed_s < 2.0 else 0), 0
        self._found += jobs

    def finds_often(self) -> bool:
        """Return whether claims found so many jobs in this second or the one before that one look finds several."""
        self._count(0)
        return max(self._found, self._found_before) >= OFTEN_PER_S

    def _look_soon(self) -> None:
        """Look for a job that is due in a while, and for those that are announced meanwhile."""
        if self._soon is None:
            wait_s = max(0.0, self._looked_s + TURN_S - monotonic())
            self._soon = asyncio.get_running_loop().call_later(wait_s, self._wakeup.woken.set)

    async def sleep(self, wait_s: float, *, late: bool = False) -> None:
        """Return when the next claim is due: after ``wait_s`` seconds, or earlier.

        Args:
            wait_s: Until the next look.
            late: Inserts also have to notify of jobs that are due later than the next turn of a group.
        """
        try:
            await self._sleep(wait_s, late=late)
        finally:
            self._looked_s = monotonic()
            if self._soon is not None:
                self._soon.cancel()
                self._soon = None

    async def _sleep(self, wait_s: float, *, late: bool) -> None:
        if monotonic() < self._awake_until_s:
            await self._wakeup.nap(AWAKE_GAP_S)
            return
        if not late:
            await self._wakeup.disarm(LATER_LOCK)
        if wait_s > ARMED_FROM_S and self._wakeup.works and not await self._armed(late=late):
            return
        if await self._wakeup.nap(wait_s):
            await self._count_notification()

    async def _count_notification(self) -> None:
        """Stay awake where many come, so that inserts need not notify."""
        if not self._wakeup.notified:
            return
        self._wakeup.notified = False
        self._notified_s.append(monotonic())
        if len(self._notified_s) == FLOOD and monotonic() - self._notified_s[0] < FLOOD_S:
            self._awake_until_s = monotonic() + AWAKE_FOR_S
            await self._wakeup.disarm()

    async def _armed(self, *, late: bool) -> bool:
        """Ensure that an insert wakes this loop; return ``False`` when one more claim is due before it sleeps."""
        if self._wakeup.relied and monotonic() < self._relied_until_s:
            return True
        if self._wakeup.woken.is_set():  # since the last claim began, which may have missed what was announced
            self._wakeup.woken.clear()
            await self._count_notification()
            return False
        answer = await self._wakeup.arm(*([LATER_LOCK] if late else []))
        if answer == "refused":  # an insert is running, or its transaction stays open
            self.arm_failures += 1
            await self._wakeup.nap(min(AWAKE_GAP_MAX_S, AWAKE_GAP_S * 2 ** min(self.arm_failures, 10)))
            return False
        self.arm_failures = 0
        self._relied_until_s = monotonic() + RELIED_S
        return answer == "kept" and not self._wakeup.relied


JOBS_CHANNEL = "tickwright_jobs"
CANCEL_CHANNEL = "tickwright_cancel"
"""Of running jobs that are cancelled, or awaited from now on."""
TYPES_CHANNEL = "tickwright_types"
ID_DIGITS_MAX = 18


def worker_wakeup(
    direct: DirectConnection,
    *,
    cancelled: Callable[[int], None],
    types_changed: Callable[[], None],
    more: Mapping[str, Callable[[str], None]] = MappingProxyType({}),
) -> ArmedWakeup:
    """Return the wake-up of one worker.

    Args:
        direct: The connection that listens; where it is not open, the worker polls.
        cancelled: Called with the id of a job that may be cancelled. Every user of the database may notify, so read its
            row.
        types_changed: Called when task types changed.
        more: Other channels, each with the function for its payloads.
    """

    def cancel(payload: str) -> None:
        if payload.isascii() and payload.isdigit() and len(payload) <= ID_DIGITS_MAX:
            cancelled(int(payload))

    others = {CANCEL_CHANNEL: cancel, TYPES_CHANNEL: lambda _: types_changed(), **more}
    return ArmedWakeup(direct, channel=JOBS_CHANNEL, lock=LOCK, others=others)
