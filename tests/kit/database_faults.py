"""What strikes PostgreSQL under whoever writes: a crash, a disk without room, connections cut at their COMMIT."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import asyncpg

from kit.answer_cuts import AnswerCuts, How
from kit.postgres import PostgresServer
from kit.waiting import eventually_async

Strike = Callable[[], Awaitable[None]]
CUTS: tuple[How, ...] = ("unsent", "unheard", "late")
_WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass)"
_SEEN_S = 40
SHUTTING_DOWN = """
CREATE FUNCTION tickwright.shutting_down() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'terminating connection due to administrator command' USING ERRCODE = '57P01';
END $$;
CREATE TRIGGER shutting_down BEFORE UPDATE ON tickwright.audit
  FOR EACH STATEMENT EXECUTE FUNCTION tickwright.shutting_down();
"""
"""Every write of the audit trail fails as if PostgreSQL were being shut down."""


class Fault(Protocol):
    """One way to strike the database ``url``."""

    url: str
    """What who is struck connects to."""

    def under_writes(self, table: str) -> AbstractAsyncContextManager[Strike]:
        """Make ready; what is given waits for a write into ``table`` (without its schema), and strikes it."""


class Crash:
    """Holds whoever writes into the table, and lets PostgreSQL crash and recover under the open statement."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.url, self._server = url, server

    @asynccontextmanager
    async def under_writes(self, table: str) -> AsyncIterator[Strike]:
        """See :class:`Fault`."""
        name = f"tickwright.{table}"
        holder = await asyncpg.connect(self.url)
        await holder.execute(f"BEGIN; LOCK TABLE {name} IN SHARE MODE")

        async def strike() -> None:
            await eventually_async(lambda: holder.fetchval(_WAITS, name), _SEEN_S, what=f"somebody writes into {name}")
            await asyncio.to_thread(self._server.restart, "immediate")

        try:
            yield strike
        finally:
            holder.terminate()


class NoRoom:
    """Has no room for any table until three writes were refused: nobody writes but who is struck."""

    def __init__(self, server: PostgresServer, mark: Path, url: str) -> None:
        self.url, self._server, self._mark = url, server, mark

    @asynccontextmanager
    async def under_writes(self, table: str) -> AsyncIterator[Strike]:
        """See :class:`Fault`; of whatever table the transaction writes first."""
        before = self._refused()
        self._mark.touch()

        async def strike() -> None:
            await eventually_async(
                lambda: self._refused() >= before + 3, _SEEN_S, what=f"who writes {table} is refused"
            )
            self._mark.unlink()

        try:
            yield strike
        finally:
            self._mark.unlink(missing_ok=True)

    def _refused(self) -> int:
        return self._server.log.read_text(errors="replace").count("No space left on device")


class CutCommits:
    """Breaks connections at a COMMIT: not sent, then done and not answered, then done later."""

    def __init__(self, cuts: AnswerCuts) -> None:
        self.url, self._cuts = cuts.url, cuts

    @asynccontextmanager
    async def under_writes(self, table: str) -> AsyncIterator[Strike]:
        """See :class:`Fault`; of whatever table the transaction wrote."""
        cuts = self._cuts

        async def strike() -> None:
            for made, how in enumerate(CUTS, 1):
                if made > 1:
                    cuts.cut("COMMIT", how)
                await eventually_async(partial(self._has_made, made), _SEEN_S, what=f"a COMMIT is {how}")
            await cuts.send_late()

        cuts.cut("COMMIT", CUTS[0])
        yield strike

    def _has_made(self, cuts: int) -> bool:
        return self._cuts.made >= cuts
