"""Time limits: how long all database statements of a piece of work may take together.

The code that answers a request sets the limit once, for its task and what it calls. Every statement on a connection of
:func:`tickwright.store.pool.open_pool` then has the remaining time; the server cancels one that takes longer. Tasks
that outlive the work have no limit.

A stopped server process receives no cancel, and continues later with what it was sent. A whole transaction does not
take effect, because its COMMIT was not sent; a single statement or a COMMIT may. So the outcome of a change that took
too long is unknown.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import monotonic

LEAST_S = 0.25
"""For final statements, such as ROLLBACK, when the time is over."""
LOOK_OR_SEND_AGAIN = "look, or send it again; what makes a job with the same Idempotency-Key, or there may be two"
"""Advice for the sender of a change with an unknown outcome."""


class TookTooLong(Exception):
    """The time of :func:`within` is over, and the statement is cancelled.

    Not a ``TimeoutError``, which handlers take for an unavailable database.
    """


class _Bound:
    __slots__ = ("over", "seconds", "until_s")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.over = seconds, False
        self.until_s: float | None = monotonic() + seconds

    def again(self) -> None:
        """Restart the time with the next statement: the work so far used no database time."""
        self.until_s = None

    def left_s(self) -> float:
        """Return the remaining seconds, a quarter of a second at least."""
        if self.until_s is None:
            self.until_s = monotonic() + self.seconds
        return max(LEAST_S, self.until_s - monotonic())


_bound: ContextVar[_Bound | None] = ContextVar("tickwright.bound", default=None)


@contextmanager
def within(seconds: float) -> Iterator[_Bound]:
    """Limit all statements in the block together to ``seconds``."""
    bound = _Bound(seconds)
    token = _bound.set(bound)
    try:
        yield bound
    finally:
        bound.over = True
        _bound.reset(token)


def left_s() -> float | None:
    """Return the remaining seconds of the running code; ``None`` without a limit."""
    bound = _bound.get()
    return None if bound is None or bound.over else bound.left_s()


async def bounded(call: Callable[..., Awaitable[Any]], *args: Any, timeout: float | None, **more: Any) -> Any:
    """Run a statement of the driver within the remaining time.

    Raises:
        TookTooLong: It took longer. It has no effect, unless its transaction was committed before.
    """
    left = left_s()
    if left is None or (timeout is not None and timeout < left):
        return await call(*args, timeout=timeout, **more)
    try:
        return await call(*args, timeout=left, **more)
    except TimeoutError as error:
        raise TookTooLong("the time for this is over") from error


def outcome_unknown() -> Unavailable:
    """Return the error for the caller of a change that took too long."""
    return Unavailable(
        "outcome_unknown",
        f"the database did not answer in time, so it is unknown whether this was done: {LOOK_OR_SEND_AGAIN}",
        status=504,
    )
