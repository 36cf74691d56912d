"""Claims without an answer: releases what a session owns and its process does not know of.

::

    sure ──a claim ends without an answer──▶ unsure ──refuse older claims; release──▶ sure

A claim that failed for its process may still run in the server, or reach it later. The gate therefore first raises the
number that claims of this session must carry. That waits for claims in progress and refuses later ones; only then is
it certain what the session owns. Meanwhile the process makes no claim of the same kind, so its own list is complete.
The number is raised in a statement of its own, because the statement blocks the session's renewals and the release
takes several round trips.

The database is authoritative for what the session owns, the process for what it knows of. See docs/adr/0024.
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

ReleaseUnknown = Callable[[Connection, int], Awaitable[int]]
"""Releases what a session (by its token) owns and its process does not know of, as if unclaimed; returns the count."""


class Ticket(NamedTuple):
    """What a claim carries: the session's token, and its own number. The session refuses numbers below its bound."""

    owner: int
    number: int


class ClaimGate:
    """The gate for all claims of one kind under one session; ``unsure`` if there may be claims without an answer.

    ``owns_any_sql``: whether the session $1 owns any of them. Without it, a session that leaves may own some.

    Invariants:
        CLG-1: the process did not know of what is released, and no earlier claim can take anything afterwards.
        CLG-2: nothing is claimed while the gate is unsure.
    """

    def __init__(
        self,
        connect: Connect,
        session: Session,
        kind: str,
        release_unknown: ReleaseUnknown,
        *,
        owns_any_sql: str | None = None,
    ) -> None:
        self._connect, self._session, self._kind, self._release_unknown = connect, session, kind, release_unknown
        self.owns_any_sql = owns_any_sql
        self.unsure = False
        self._entering = asyncio.Lock()
        self._in_progress = 0
        self._none_in_progress = asyncio.Event()
        self._none_in_progress.set()
        session.add_gate(self)

    @asynccontextmanager
    async def claiming(self) -> AsyncIterator[Ticket]:
        """Make one claim in the body, and record the claimed work there; a body that raises leaves the gate unsure.

        Raises:
            One of ``UNAVAILABLE``: What an earlier claim left could not be released; nothing was claimed. Retry.
        """
        async with self._entering:
            await self._settle()
            self._in_progress += 1
            self._none_in_progress.clear()
        try:
            yield Ticket(self._session.token, self._session.claim_number)
        except BaseException:
            self.unsure = True
            raise
        finally:
            self._in_progress -= 1
            if not self._in_progress:
                self._none_in_progress.set()

    async def settle(self) -> None:
        """Release claims that the process does not know of, if there may be any; waits for claims in progress."""
        async with self._entering:
            await self._settle()

    async def _settle(self) -> None:
        if not self.unsure:
            return
        await self._none_in_progress.wait()
        token, number = self._session.token, self._session.next_claim_number()
        self.unsure = False
        try:
            async with self._connect() as connection:
                await connection.fetchval(_SQL["refuse_claims"], token, number)
                async with connection.transaction():
                    ours = await connection.fetchval(_SQL["hold_session"], token) is not None
                    released = await self._release_unknown(connection, token) if ours else 0
        except BaseException:
            self.unsure = True
            raise
        if released:
            _log.warning("claims.released_unknown", kind=self._kind, session=token, count=released)
