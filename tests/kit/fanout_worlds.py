"""Several worlds of fan-out at once, with Redis and without, so that their waits run in parallel."""

import asyncio
import json
import os
import secrets
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.fanout import MODULE, FanoutWorld, fanout_world
from kit.forks import Child
from kit.processes import kill_group
from kit.servers import PostgresServer, RabbitServer, RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.windows import Window

DAY_S = 86_400
KINDS = ("redis", "postgres")
_WITNESS = """
CREATE TABLE public.wins (
  id bigserial PRIMARY KEY, entity_code text, task_type text, window_s bigint, fence bigint, at_s float8
);
CREATE FUNCTION public.note_win() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.last_window_at > '-infinity'
     AND (TG_OP = 'INSERT' OR NEW.last_window_at IS DISTINCT FROM OLD.last_window_at) THEN
    INSERT INTO public.wins (entity_code, task_type, window_s, fence, at_s)
    VALUES (NEW.entity_code, NEW.task_type, date_part('epoch', NEW.last_window_at), NEW.fence,
            date_part('epoch', clock_timestamp()));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note_win AFTER INSERT OR UPDATE ON tickwright.fanout_cursors
  FOR EACH ROW EXECUTE FUNCTION public.note_win();
"""
"""Every success that the ledger takes, in order; a cursor has the last one only."""


@dataclass
class Worlds:
    """Makes worlds of one test; all have the module ``LOCATIONS`` with windows of a day."""

    stack: AsyncExitStack
    postgres: PostgresServer
    template: str
    rabbit: RabbitServer
    redis: RedisServer
    folder: Path

    async def make(self, kind: str) -> FanoutWorld:
        """Make a world in which Redis decides which scheduler publishes, or PostgreSQL alone."""
        name = f"f{secrets.token_hex(6)}"
        url = await asyncio.to_thread(self.postgres.create_database, name, template=self.template)
        self.stack.push_async_callback(asyncio.to_thread, self.postgres.drop_database, name)
        world = await self.stack.enter_async_context(
            fanout_world(url, self.rabbit.url, self.redis.url if kind == "redis" else None)
        )
        await world.put_module(interval_s=DAY_S)
        await world.pool.execute(_WITNESS)
        return world

    async def each(self, *checks: Callable[..., Awaitable[None]] | tuple[Callable[..., Awaitable[None]], Any]) -> None:
        """Run each ``check(world, log)``, or ``check(world, log, case)`` if there is a case, in both kinds of worlds.

        All at once, since most of them wait for a lease.
        """
        made = [(await self.make(kind), kind, one) for kind in KINDS for one in checks]
        async with asyncio.TaskGroup() as group:
            for number, (world, kind, one) in enumerate(made):
                check, *case = one if isinstance(one, tuple) else (one,)
                log = self.folder / f"{kind}-{number}.log"
                group.create_task(_named(check(world, log, *case), f"{check.__name__} {kind} {case}"))


async def _named(checking: Awaitable[None], which: str) -> None:
    try:
        await checking
    except Exception as error:
        error.add_note(which)
        raise


@asynccontextmanager
async def killed_at_the_end(*children: Child) -> AsyncIterator[None]:
    """Kill the processes at the end of the block."""
    try:
        yield
    finally:
        for child in children:
            kill_group(child)


async def wins(world: FanoutWorld) -> list[tuple[str, str, int, int]]:
    """Return the successes that the ledger took, in order: entity, task type, window, fence."""
    rows = await world.pool.fetch("SELECT entity_code, task_type, window_s, fence FROM public.wins ORDER BY id")
    return [tuple(row) for row in rows]


async def won(world: FanoutWorld, codes: list[str], window: Window, within_s: float = 20) -> None:
    """Wait until the ledger has one success of each, and no run is under way."""

    async def all_of_them() -> bool:
        owned = await world.pool.fetchval("SELECT count(*) FROM tickwright.fanout_cursors WHERE owner IS NOT NULL")
        return owned == 0 and len(await wins(world)) >= len(codes)

    await eventually_async(all_of_them, within_s, what="the ledger has them all")
    assert Counter(await wins_of(world)) == Counter((code, MODULE, window.start_s) for code in codes)


async def wins_of(world: FanoutWorld) -> list[tuple[str, str, int]]:
    """Return entity, task type and window of each success of the ledger, in order."""
    return [win[:3] for win in await wins(world)]


def told(log: Path, what: str) -> list[dict[str, Any]]:
    """Return the entries of a log of one kind: ``run``, ``done``, ``reached``, ``acked`` or ``missed``."""
    found = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        if line.startswith(f'{{"{what}"'):
            found.append(json.loads(line))
    return found


async def stopped(process: Child, within_s: float = 20) -> None:
    """Wait until a process has stopped itself by SIGSTOP."""
    stat = Path(f"/proc/{process.pid}/stat")

    def is_stopped() -> bool:
        assert process.poll() is None, f"the process ended with {process.returncode}"
        return stat.read_text().rpartition(")")[2].split()[0] == "T"

    await eventually_async(is_stopped, within_s, what="the process is stopped")


def wake(process: Child) -> None:
    """Let a stopped process continue."""
    os.kill(process.pid, signal.SIGCONT)
