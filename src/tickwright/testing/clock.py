"""Time travel: the clock of a test database moves, and with it all that asks the database for the time.

Rows are not edited. A database of :mod:`tickwright.testing.databases` has functions of its own in the place of
PostgreSQL's ``now()``, ``clock_timestamp()``, ``statement_timestamp()`` and ``transaction_timestamp()``, which add an
offset. So every connection sees the moved time, in statements, defaults, triggers and functions, your own included. Not
moved are the keywords ``CURRENT_TIMESTAMP``, ``CURRENT_DATE`` and their like, times that the server notes itself, and
the clock of Python. A database that a fixture did not make has no such clock.
"""

from collections.abc import Generator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any

from tickwright import Tickwright
from tickwright.app.declarations import Duration, as_duration
from tickwright.app.draining import NO_CLOCK
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.testing.sql", "clock.sql")


class DatabaseClock:
    """The clock of one test database; a :class:`tickwright.app.draining.MovableClock`.

    In an isolated test its moves are rolled back with everything else.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def ahead(self) -> timedelta:
        """Return how far it is ahead."""
        ahead: timedelta = await self._pool.fetchval(_SQL["ahead"])
        return ahead

    async def set_ahead(self, ahead: timedelta) -> None:
        """Set how far it is ahead; it may go back."""
        await self._pool.execute(_SQL["set_ahead"], ahead)

    async def advance_to(self, at: datetime) -> None:
        """Let it be at ``at``, or later where it is later already."""
        await self._pool.execute(_SQL["advance_to"], at)

    async def advance_by(self, by: timedelta) -> None:
        """Move it forward."""
        await self._pool.execute(_SQL["advance_by"], by)


class travel:  # noqa: N801  used as a function
    """Move the clock of an app's test database forward.

    ::

        await travel(app, "3d")                # until the end of the test

        async with travel(app, to=noon):       # until the end of the block
            ...

    No job runs by itself then: ``await app.drain()`` runs what is due, and ``app.drain(until="3d")`` does both.

    Args:
        app: Opened with the fixture ``tickwright_app``.
        by: How far, such as ``"3d"`` or a ``timedelta``.
        to: Instead of ``by``: an instant with a time zone; a past one moves nothing.

    Raises:
        Rejected: ``no_test_clock``: the app's database is not one whose clock can be moved; ``invalid_travel``,
            ``invalid_duration``. Permanent.
    """

    def __init__(self, app: Tickwright, by: Duration | None = None, *, to: datetime | None = None) -> None:
        if (by is None) == (to is None):
            raise Rejected(
                "invalid_travel", "say how far, or to which instant: travel(app, '3d'), travel(app, to=noon)"
            )
        if to is not None and to.tzinfo is None:
            raise Rejected("invalid_travel", "to: give an instant with a time zone")
        self._clock = _clock_of(app)
        self._by, self._to = as_duration("by", by), to
        self._before = timedelta()

    def __await__(self) -> Generator[Any, None, None]:
        return self._move().__await__()

    async def _move(self) -> None:
        if self._by is not None:
            await self._clock.advance_by(self._by)
        elif self._to is not None:
            await self._clock.advance_to(self._to)

    async def __aenter__(self) -> None:
        self._before = await self._clock.ahead()
        await self._move()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._clock.set_ahead(self._before)


def travel_sync(app: Tickwright, by: Duration | None = None, *, to: datetime | None = None) -> None:
    """Do what ``await travel(…)`` does in a synchronous test, inside ``with tickwright_app(…)``."""
    app.run_sync(travel(app, by, to=to)._move())  # noqa: SLF001  of this module


def _clock_of(app: Tickwright) -> DatabaseClock:
    clock = None if app.bench is None else app.bench.clock
    if not isinstance(clock, DatabaseClock):
        raise Rejected("no_test_clock", NO_CLOCK)
    return clock
