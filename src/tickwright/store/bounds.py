"""How long a piece of work may have the database, all its statements together.

Whoever answers a request says it once, for the task and what it calls: every statement on a connection of
:func:`tickwright.store.pool.open_pool` then has what is left of that time, and one that takes longer is cancelled on
the server too. What the work leaves behind (a task of its own that outlives it) is not bound any more.

A server process that is stopped hears no cancel, and does what it was sent once it goes on: a whole transaction
never, for its COMMIT was not sent, but a single statement or a COMMIT may. So nobody knows the outcome of a change that
took too long.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import monotonic

LEAST_S = 0.25
"""For what has to be said at the end, such as ROLLBACK, when the time is over."""
LOOK_OR_SEND_AGAIN = "look, or send it again; what makes a job with the same Idempotency-Key, or there may be two"
"""What whoever changed something does when nobody knows whether it was done."""


class TookTooLong(Exception):
    """The time of :func:`within` is over, and the statement is cancelled.

    No ``TimeoutError``: that one says, where it is caught, that the database is away.
    """


class _Bound:
    __slots__ = ("over", "seconds", "until_s")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.over = seconds, False
        self.until_s: float | None = monotonic() + seconds

    def again(self) -> None:
        """Give what comes next the whole time, from its first statement on: what was before it took nothing."""
        self.until_s = None

    def left_s(self) -> float:
        """Return what is left, a quarter of a second at least."""
        if self.until_s is None:
            self.until_s = monotonic() + self.seconds
        return max(LEAST_S, self.until_s - monotonic())


_bound: ContextVar[_Bound | None] = ContextVar("tickwright.bound", default=None)


@contextmanager
def within(seconds: float) -> Iterator[_Bound]:
    """Bound every statement of what is done inside; together they have ``seconds``."""
    bound = _Bound(seconds)
    token = _bound.set(bound)
    try:
        yield bound
    finally:
        bound.over = True
        _bound.reset(token)


def left_s() -> float | None:
    """Return what the code that runs has left; ``None`` where nothing is bound."""
    bound = _bound.get()
    return None if bound is None or bound.over else bound.left_s()


async def bounded(call: Callable[..., Awaitable[Any]], *args: Any, timeout: float | None, **more: Any) -> Any:
    """Run a statement of the driver in what is left.

    Raises:
        TookTooLong: It took longer. Nothing that it did stays, unless its transaction was committed before.
    """
    left = left_s()
    if left is None or (timeout is not None and timeout < left):
        return await call(*args, timeout=timeout, **more)
    try:
        return await call(*args, timeout=left, **more)
    except TimeoutError as error:
        raise TookTooLong("the time for this is over") from error


def outcome_unknown() -> Unavailable:
    """Return what the caller of a change hears that took too long."""
    return Unavailable(
        "outcome_unknown",
        f"the database did not answer in time, so it is unknown whether this was done: {LOOK_OR_SEND_AGAIN}",
        status=504,
    )
