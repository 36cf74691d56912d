"""Shares: how many of a pool's connections one caller may use at once.

The API names the caller once per request, for the task and what it calls. Each connection that a pool of
:func:`tickwright.store.pool.open_pool` then lends counts for that caller, which may have half of the pool at most. Its
other requests wait in its own queue, first come, first served. All callers together leave a fifth of the pool for work
that serves every caller, such as the lookup of keys. When they use up the rest, they take turns.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import structlog

from tickwright.domain.errors import Contended

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

    __slots__ = ("begun", "held", "is_gone", "over", "who")

    def __init__(self, who: Hashable, is_gone: Callable[[], bool]) -> None:
        self.who, self.is_gone = who, is_gone
        self.begun = self.over = False
        self.held = 0


class _Caller:
    __slots__ = ("held", "waiting")

    def __init__(self) -> None:
        self.held = 0
        self.waiting: dict[asyncio.Future[None], Request] = {}


_asking: ContextVar[Request | None] = ContextVar("tickwright.asking", default=None)


@contextmanager
def on_behalf_of(who: Hashable, is_gone: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Count the block's connections for ``who``; ``is_gone`` returns whether the client has left."""
    request = Request(who, is_gone)
    token = _asking.set(request)
    try:
        yield
    finally:
        request.over = True
        _asking.reset(token)


@contextmanager
def for_everybody() -> Iterator[None]:
    """Count the block's connections for no caller: the result serves every caller."""
    token = _asking.set(None)
    try:
        yield
    finally:
        _asking.reset(token)


def asking() -> Request | None:
    """Return the request of the running code, while the request lasts."""
    request = _asking.get()
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
        caller = self._callers.setdefault(request.who, _Caller())
        if self._may_begin(caller):
            self._begin(request, caller)
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait(request, caller)
        except TimeoutError:
            if request.begun or caller.held < self._each:
                raise
            raise _too_many(request.who) from None
        return True

    def leave(self, request: Request) -> None:
        """Release the place."""
        caller = self._callers[request.who] = self._callers.pop(request.who)  # last in the order
        request.held -= 1
        caller.held -= 1
        self._held -= 1
        self._forget(request.who, caller)
        self._hand_on()

    async def _wait(self, request: Request, caller: _Caller) -> None:
        if len(caller.waiting) >= WAITING_MAX and not request.begun:
            self._let_gone_go(caller)
            if len(caller.waiting) >= WAITING_MAX:
                raise _too_many(request.who)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        caller.waiting[turn] = request
        try:
            await turn
        except BaseException:
            if caller.waiting.pop(turn, None) is None and not turn.cancelled() and turn.exception() is None:
                self.leave(request)  # it got its place at the same moment
            self._forget(request.who, caller)
            raise

    def _may_begin(self, caller: _Caller) -> bool:
        return self._held < self._all and caller.held < self._each

    def _begin(self, request: Request, caller: _Caller) -> None:
        request.begun = True
        request.held += 1
        caller.held += 1
        self._held += 1

    def _hand_on(self) -> None:
        """Let requests begin while there is room, one per caller in turn."""
        while (who := self._next()) is not None:
            caller = self._callers[who] = self._callers.pop(who)
            turn = next(iter(caller.waiting))
            request = caller.waiting.pop(turn)
            if turn.done():
                continue
            if request.is_gone():
                turn.set_exception(Abandoned())
                continue
            self._begin(request, caller)
            turn.set_result(None)

    def _next(self) -> Hashable | None:
        found = (who for who, caller in self._callers.items() if caller.waiting and self._may_begin(caller))
        return next(found, None)

    @staticmethod
    def _let_gone_go(caller: _Caller) -> None:
        for turn in [turn for turn, request in caller.waiting.items() if request.is_gone()]:
            del caller.waiting[turn]
            if not turn.done():
                turn.set_exception(Abandoned())

    def _forget(self, who: Hashable, caller: _Caller) -> None:
        if not caller.held and not caller.waiting and self._callers.get(who) is caller:
            del self._callers[who]


def _too_many(who: Hashable) -> Contended:
    _log.warning("database.share_used_up", caller=who)
    return Contended(
        "too_many_at_once",
        "too many requests of this key, or without a key of this address, wait for its share of the database's "
        "connections; wait for responses, and send fewer at once",
        status=429,
    )
