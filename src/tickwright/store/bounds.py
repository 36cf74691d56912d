"""Limits of a piece of work: how long its statements may take together, and how many connections it may use at once.

*Time.* The code that answers a request sets the limit once, for its task and what it calls. Every statement on a
connection of :func:`tickwright.store.pool.open_pool` then has the remaining time; the server cancels one that takes
longer. Tasks that outlive the work have no limit.

A stopped server process receives no cancel, and continues later with what it was sent. A whole transaction does not
take effect, because its COMMIT was not sent; a single statement or a COMMIT may. So the outcome of a change that took
too long is unknown.

*Shares.* The API names the caller once per request, for the task and what it calls. Each connection that a pool then
lends counts for that caller, which may have half of the pool at most. Its other requests wait in its own queue, first
come, first served. All callers together leave a fifth of the pool for work that serves every caller, such as the lookup
of keys. When they use up the rest, they take turns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import structlog

from tickwright.domain.errors import Contended, Unavailable
from tickwright.ports.ids import monotonic

LEAST_S = 0.25
"""For final statements, such as ROLLBACK, when the time is over."""
CHECK_OR_SEND_AGAIN = (
    "check the result, or send the request again with the same Idempotency-Key; without it there may be two jobs"
)
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


async def run_within(call: Callable[..., Awaitable[Any]], *args: Any, timeout: float | None, **more: Any) -> Any:
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
        f"the database did not answer in time, so it is unknown whether this was done: {CHECK_OR_SEND_AGAIN}",
        status=504,
    )


WAITING_MAX = 512
"""Waiting requests of one caller; the next one is refused. An address has as many connections, so one client waits
instead of repeating a refused request at once.
"""
_log = structlog.get_logger("tickwright.store")


class Abandoned(Exception):
    """The client closed its connection before its request got a database connection."""


class Request:
    """A request, for its duration.

    Attributes:
        begun: It had a connection, so a change may have happened.
        held: Places that it has; a second connection beside the first needs none.
        over: It has been answered; tasks that outlive it count for no caller.
    """

    __slots__ = ("begun", "caller_id", "held", "is_gone", "over")

    def __init__(self, caller_id: Hashable, is_gone: Callable[[], bool]) -> None:
        self.caller_id, self.is_gone = caller_id, is_gone
        self.begun = self.over = False
        self.held = 0


class _Caller:
    __slots__ = ("held", "waiting")

    def __init__(self) -> None:
        self.held = 0
        self.waiting: dict[asyncio.Future[None], Request] = {}


_request: ContextVar[Request | None] = ContextVar("tickwright.current_request", default=None)


@contextmanager
def on_behalf_of(caller_id: Hashable, is_gone: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Count the block's connections for ``caller_id``; ``is_gone`` returns whether the client has left."""
    request = Request(caller_id, is_gone)
    token = _request.set(request)
    try:
        yield
    finally:
        request.over = True
        _request.reset(token)


@contextmanager
def for_all_callers() -> Iterator[None]:
    """Count the block's connections for no caller: the result serves every caller."""
    token = _request.set(None)
    try:
        yield
    finally:
        _request.reset(token)


def current_request() -> Request | None:
    """Return the request of the running code, while the request lasts."""
    request = _request.get()
    return None if request is None or request.over else request


class Shares:
    """The shares of one pool of ``size`` connections, 1 or more."""

    def __init__(self, size: int) -> None:
        self._each = max(1, size // 2)
        self._all = max(1, size - max(1, size // 5))
        self._callers: dict[Hashable, _Caller] = {}
        self._held = 0

    async def enter(self, request: Request, timeout_s: float | None) -> bool:
        """Wait for a place of the request's caller; ``False`` if the request has one already.

        Raises:
            Contended: ``too_many_at_once`` (429): the caller's other requests use up its share. Retry.
            TimeoutError: No place was free in time: other callers have all, or the request has begun already.
            Abandoned: Its client has left.
        """
        if request.held:
            return False
        caller = self._callers.setdefault(request.caller_id, _Caller())
        if self._may_begin(caller):
            self._begin(request, caller)
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait(request, caller)
        except TimeoutError:
            if request.begun or caller.held < self._each:
                raise
            raise _too_many(request.caller_id) from None
        return True

    def leave(self, request: Request) -> None:
        """Release the place."""
        caller = self._callers[request.caller_id] = self._callers.pop(request.caller_id)  # last in the order
        request.held -= 1
        caller.held -= 1
        self._held -= 1
        self._forget(request.caller_id, caller)
        self._begin_waiting()

    async def _wait(self, request: Request, caller: _Caller) -> None:
        if len(caller.waiting) >= WAITING_MAX and not request.begun:
            self._drop_gone(caller)
            if len(caller.waiting) >= WAITING_MAX:
                raise _too_many(request.caller_id)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        caller.waiting[waiter] = request
        try:
            await waiter
        except BaseException:
            if caller.waiting.pop(waiter, None) is None and not waiter.cancelled() and waiter.exception() is None:
                self.leave(request)  # it got its place at the same moment
            self._forget(request.caller_id, caller)
            raise

    def _may_begin(self, caller: _Caller) -> bool:
        return self._held < self._all and caller.held < self._each

    def _begin(self, request: Request, caller: _Caller) -> None:
        request.begun = True
        request.held += 1
        caller.held += 1
        self._held += 1

    def _begin_waiting(self) -> None:
        """Let requests begin while there is room, one per caller, in rotation."""
        while (caller_id := self._next()) is not None:
            caller = self._callers[caller_id] = self._callers.pop(caller_id)
            waiter = next(iter(caller.waiting))
            request = caller.waiting.pop(waiter)
            if waiter.done():
                continue
            if request.is_gone():
                waiter.set_exception(Abandoned())
                continue
            self._begin(request, caller)
            waiter.set_result(None)

    def _next(self) -> Hashable | None:
        found = (caller_id for caller_id, caller in self._callers.items() if caller.waiting and self._may_begin(caller))
        return next(found, None)

    @staticmethod
    def _drop_gone(caller: _Caller) -> None:
        for waiter in [waiter for waiter, request in caller.waiting.items() if request.is_gone()]:
            del caller.waiting[waiter]
            if not waiter.done():
                waiter.set_exception(Abandoned())

    def _forget(self, caller_id: Hashable, caller: _Caller) -> None:
        if not caller.held and not caller.waiting and self._callers.get(caller_id) is caller:
            del self._callers[caller_id]


def _too_many(caller_id: Hashable) -> Contended:
    _log.warning("database.share_used_up", caller=caller_id)
    return Contended(
        "too_many_at_once",
        "too many requests of this key, or without a key of this address, wait for its share of the database's "
        "connections; wait for responses, and send fewer at once",
        status=429,
    )
