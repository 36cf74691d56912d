"""Claims whose answer was lost: what a session owns and its process does not know of is released.

::

    sure ──a claim ends without an answer──▶ unsure ──refuse older claims; release──▶ sure

A claim that failed for its process may still run in the server, or reach it later. So whoever settles first raises the
number that claims of this session must carry, which waits for claims in progress and refuses later ones; only then is
it certain what the session owns. No claim of the same kind is under way meanwhile, so that what is known is complete.
That number is raised in a statement of its own, because it locks out the session's renewals, and the release beside it
takes several round trips.
The database is authoritative for what is owned, this process for what is known. See docs/adr/0024.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import structlog

from tickwright.ports.session import Session
from tickwright.store.pool import Connection
from tickwright.store.queries import load

_SQL = load("tickwright.engine.sql", "workers.sql")
_log = structlog.get_logger("tickwright.claims")

Connect = Callable[[], AbstractAsyncContextManager[Connection]]

Strays = Callable[[Connection, int], Awaitable[int]]
"""Releases what a session, by its token, owns beside what is known, as if it had not been claimed; says how many."""


class Ticket(NamedTuple):
    """What a claim carries: the session's token, and the number below which the session refuses claims."""

    owner: int
    number: int


class ClaimGate:
    """All claims of one kind under one session pass here.

    Args:
        connect: Lends a connection, such as ``pool.acquire``.
        kind: For the log.
        strays: See :data:`Strays`.

    Attributes:
        unsure: Something may be owned that is not known.

    Invariants:
        CLG-1: what is released was known to nobody, and no claim sent before can take anything behind it.
        CLG-2: nothing is claimed while the gate is unsure.
    """

    def __init__(self, connect: Connect, session: Session, kind: str, strays: Strays) -> None:
        self._connect, self._session, self._kind, self._strays = connect, session, kind, strays
        self.unsure = False
        self._entering = asyncio.Lock()
        self._flying = 0
        self._none_flies = asyncio.Event()
        self._none_flies.set()
        session.add_gate(self)

    @asynccontextmanager
    async def claiming(self) -> AsyncIterator[Ticket]:
        """Make one claim in the body, and note there what it brought; a body that raises leaves the gate unsure.

        Raises:
            One of ``UNAVAILABLE``: An earlier claim could not be settled, and nothing was claimed.
        """
        async with self._entering:
            await self._settle()
            self._flying += 1
            self._none_flies.clear()
        try:
            yield Ticket(self._session.token, self._session.claim_number)
        except BaseException:
            self.unsure = True
            raise
        finally:
            self._flying -= 1
            if not self._flying:
                self._none_flies.set()

    async def settle(self) -> None:
        """Release what is owned and not known, if there may be such; waits for claims under way."""
        async with self._entering:
            await self._settle()

    async def _settle(self) -> None:
        if not self.unsure:
            return
        await self._none_flies.wait()
        token, number = self._session.token, self._session.next_claim_number()
        self.unsure = False
        try:
            async with self._connect() as connection:
                await connection.fetchval(_SQL["refuse_claims"], token, number)
                async with connection.transaction():
                    ours = await connection.fetchval(_SQL["hold_session"], token) is not None
                    released = await self._strays(connection, token) if ours else 0
        except BaseException:
            self.unsure = True
            raise
        if released:
            _log.warning("claims.released_unknown", kind=self._kind, session=token, count=released)
