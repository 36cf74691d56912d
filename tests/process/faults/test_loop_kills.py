"""Loops of the scheduler killed, or paused beyond their lease, in the middle of a write: another process repeats it."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.forks import Child
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from kit.wheels import REGISTER, Wheels, open_wheels

PROGRAM = Path(__file__).parents[2] / "kit" / "loop_process.py"
TRACKERS, OLD, YOUNG = 600, 2_500, 10
LEASE_S = 2.0
Step = Callable[[Wheels], Awaitable[None]]
HOW = ("kill -9", "SIGSTOP")
_WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass)"
_VERSION = "SELECT version FROM tickwright.job_config WHERE job_name = $1"
_ON_WHEEL = """
SELECT count(*) FROM tickwright.trackers t JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60
 WHERE s.interval_minutes = $1
"""
_YESTERDAY = (
    "UPDATE tickwright.trackers SET created_at = now() - interval '1 day', placed_at = now() - interval '1 day'",
    "UPDATE tickwright.polling_schedule_config SET promised_since = now() - interval '1 day'",
    "UPDATE tickwright.partners SET promised_since = now() - interval '1 day'",
)
_TO_JUDGE = """
UPDATE tickwright.poll_wheels SET judged_until = date_trunc('minute', now() - interval '341 seconds')
RETURNING judged_until
"""
_JUDGED = "SELECT bool_and(judged_until > now() - interval '3 minutes') FROM tickwright.poll_wheels"
_COUNTED = """
SELECT (SELECT sum(polls) FROM tickwright.account_freshness) AS counted,
       (SELECT count(*) FROM tickwright.poll_wheels w
         CROSS JOIN LATERAL generate_series(
           $1::timestamptz + interval '1 minute', w.judged_until, '1 minute') AS turn (at)
          JOIN tickwright.trackers t
            ON t.place / 60 = w.first_slot_id + date_part('epoch', turn.at)::bigint / 60 % w.interval_minutes) AS placed
"""
_DEAD = """
INSERT INTO tickwright.scheduled_tasks_dead
  (id, execute_at, task_type, attempts, max_attempts, created_at, completed_at, error_message)
SELECT n, now(), 'noop', 1, 1, now(), now() - $3::interval, 'x' FROM generate_series($1::bigint, $2::bigint) AS n
"""
_ALMOST_OLD = timedelta(days=30, seconds=-2)


@pytest.fixture
async def wheels(database_url: str) -> AsyncIterator[Wheels]:
    """An account that polls every six minutes."""
    async with open_wheels(database_url) as wheels:
        await wheels.account("a", 6)
        yield wheels


@contextmanager
def running(url: str, folder: Path, loop: str, name: str) -> Iterator[Child]:
    """Run a loop in a process until the end of the block."""
    child = spawn([sys.executable, str(PROGRAM), url, loop, str(LEASE_S)], folder / f"{name}.log")
    try:
        yield child
    finally:
        kill_group(child)


@asynccontextmanager
async def strike(
    wheels: Wheels, folder: Path, loop: str, table: str, how: str, *, warm: Step, work: Step
) -> AsyncIterator[None]:
    """Kill or pause a loop while it writes into ``table``; another process works for the length of the block.

    A loop that was only paused goes on at the end of the block, with what it had read, and leads again. It has done the
    same before, since a statement that is paused between its preparation and its first use holds its locks until
    ``statement_timeout``.
    """
    with running(wheels.url, folder, loop, "first") as first:
        await warm(wheels)
        holder = await asyncpg.connect(wheels.url)
        await holder.execute(f"BEGIN; LOCK TABLE tickwright.{table} IN SHARE MODE")
        await work(wheels)
        await eventually_async(
            lambda: holder.fetchval(_WAITS, f"tickwright.{table}"), 30, what=f"{loop} writes {table}"
        )
        version = await wheels.pool.fetchval(_VERSION, loop)
        if how == "SIGSTOP":
            os.kill(first.pid, signal.SIGSTOP)
        else:
            kill_group(first)
        with running(wheels.url, folder, loop, "second") as second:
            holder.terminate()
            yield
            assert await wheels.pool.fetchval(_VERSION, loop) > version, "the other one has led"
            if how == "SIGSTOP":
                kill_group(second)
                version = await wheels.pool.fetchval(_VERSION, loop)
                os.kill(first.pid, signal.SIGCONT)
                await eventually_async(lambda: _is_above(wheels, loop, version), 60, what="the paused one leads again")


async def _is_above(wheels: Wheels, loop: str, version: int) -> bool:
    return bool(await wheels.pool.fetchval(_VERSION, loop) > version)


async def until(wheels: Wheels, query: str, *arguments: Any, is_: Any) -> None:
    """Wait until the database answers so."""

    async def said() -> bool:
        return bool(await wheels.pool.fetchval(query, *arguments) == is_)

    await eventually_async(said, 60, what=query)


async def _register(wheels: Wheels, prefix: str) -> None:
    await wheels.pool.execute(REGISTER, "a", "dhl", prefix, TRACKERS)


async def _placed(wheels: Wheels) -> None:
    await until(wheels, "SELECT count(*) FROM tickwright.tracker_intake", is_=0)


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOW)
async def test_each_tracker_is_placed_once(wheels: Wheels, tmp_path: Path, how: str) -> None:
    """What the registrar had taken from the intake is there again, or is placed, never both."""

    async def warm(wheels: Wheels) -> None:
        await _register(wheels, "W")
        await _placed(wheels)

    async def work(wheels: Wheels) -> None:
        await _register(wheels, "AWB")

    async with strike(wheels, tmp_path, "registrar", "trackers", how, warm=warm, work=work):
        await _placed(wheels)
    assert await wheels.pool.fetchval(_ON_WHEEL, 6) == 2 * TRACKERS
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers") == 2 * TRACKERS


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOW)
async def test_each_tracker_moves_once(wheels: Wheels, tmp_path: Path, how: str) -> None:
    """The account has another interval: the corrector leaves no tracker between two wheels, and none on both."""
    await wheels.register(TRACKERS)

    async def warm(wheels: Wheels) -> None:
        await wheels.account("a", 8)
        await until(wheels, _ON_WHEEL, 8, is_=TRACKERS)

    async def work(wheels: Wheels) -> None:
        await wheels.account("a", 10)

    async with strike(wheels, tmp_path, "corrector", "trackers", how, warm=warm, work=work):
        await until(wheels, _ON_WHEEL, 10, is_=TRACKERS)
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers") == TRACKERS
    assert await wheels.pool.fetchval(_ON_WHEEL, 10) == TRACKERS


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOW)
async def test_each_scheduled_poll_is_judged_once(wheels: Wheels, tmp_path: Path, how: str) -> None:
    """Each tracker of a time slot counts once."""
    await wheels.register(TRACKERS)
    for statement in _YESTERDAY:
        await wheels.pool.execute(statement)
    since = await wheels.pool.fetchval(_TO_JUDGE)

    async def warm(wheels: Wheels) -> None:
        await until(wheels, _JUDGED, is_=True)

    async def work(wheels: Wheels) -> None:
        await wheels.pool.execute("DELETE FROM tickwright.account_freshness")
        nonlocal since
        since = await wheels.pool.fetchval(_TO_JUDGE)

    async with strike(wheels, tmp_path, "freshness", "account_lags", how, warm=warm, work=work):
        await until(wheels, _JUDGED, is_=True)
    counted, placed = await wheels.pool.fetchrow(_COUNTED, since)
    assert counted == placed > 0


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOW)
async def test_upkeep_deletes_expired_rows_and_no_others(wheels: Wheels, tmp_path: Path, how: str) -> None:
    """Upkeep deletes in batches of a thousand; the next holder deletes a batch that was interrupted."""
    dead = "SELECT count(*) FROM tickwright.scheduled_tasks_dead"

    async def warm(wheels: Wheels) -> None:
        await wheels.pool.execute(_DEAD, OLD + 1, OLD + YOUNG, timedelta(days=1))
        await wheels.pool.execute(_DEAD, 1, 10, timedelta(days=40))
        await until(wheels, dead, is_=YOUNG)
        await wheels.pool.execute(_DEAD, 1, OLD, _ALMOST_OLD)

    async def work(_: Wheels) -> None:
        """The rows are there already, and expire in a moment; the table is locked now."""

    async with strike(wheels, tmp_path, "upkeep", "scheduled_tasks_dead", how, warm=warm, work=work):
        await until(wheels, dead, is_=YOUNG)
    assert await wheels.pool.fetchval("SELECT min(id) FROM tickwright.scheduled_tasks_dead") == OLD + 1
