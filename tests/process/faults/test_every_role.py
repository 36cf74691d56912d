"""Every role under load in two processes, while their database fails in one way after the other."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kit.cli import tickwright
from kit.fleets import DECLARED, DOERS, MAKERS, SETTINGS, Fleet, Load, all_over, are_done, has
from kit.postgres import PostgresServer, Standby, make_synchronous
from kit.preloads import full_disk
from kit.servers import started
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.store.pool import Pool, open_pool

pytestmark = pytest.mark.storm

REFUSALS = 40
NO_SPACE = "No space left on device"
FAR_S = 0.1


@asynccontextmanager
async def _working(fleet: Fleet) -> AsyncIterator[tuple[Pool, Load]]:
    """Two processes with all roles, and a load; after the block everything that was requested has to end."""
    # in a thread: a proxy of the database lives in the loop of the test
    migrated = await asyncio.to_thread(tickwright, "migrate", env=fleet.environment("new"))
    assert migrated.code == 0, migrated.err
    made = ("keys", "create", "loader", "--role", "operator")
    key = (await asyncio.to_thread(tickwright, *made, env=fleet.environment("new"))).out.strip()
    try:
        makers, doers = fleet.start("new", MAKERS), fleet.start("new", DOERS)
        async with await open_pool(fleet.url, max_size=4) as pool:
            await eventually_async(lambda: has(pool, DECLARED, 2), 60, what="the program is declared")
            await pool.execute(SETTINGS)
            load = Load(pool, fleet, key)
            async with load.running():
                await are_done(fleet, "new", "before the fault")
                yield pool, load
                await are_done(fleet, "new", "after the fault")
            await eventually_async(load.none_open, 120, what="every job is over")
            await eventually_async(lambda: all_over(pool), 120, what="every report and execution is over")
        assert (makers.poll(), doers.poll()) == (None, None), "a fault of the database ends no process"
    finally:
        fleet.kill()


def _check(fleet: Fleet, load: Load, *, sessions_end: bool) -> None:
    """Nothing acknowledged is lost, and nothing runs twice unless its session has ended."""
    runs = fleet.runs()
    jobs = Counter(int(run[1]) for run in runs if run[0] == "job")
    assert load.jobs <= set(jobs), "an acknowledged job was lost"
    assert load.unexpected == []
    if not sessions_end:  # one that was under way when its session ended runs again
        assert set(jobs.values()) == {1}
    # a poll is recorded with its due time, which stays when it is tried again after the end of its session
    for kind in ("job", "entity") if sessions_end else ("job", "entity", "poll"):
        twice = [run for run, times in Counter(run for run in runs if run[0] == kind).items() if times > 1]
        assert not twice, f"one attempt, one fence: {twice[:3]}"


@pytest.mark.timeout(900)  # it waits for polls twice, the first ones for two minutes
async def test_every_role_goes_on_after_a_full_disk_and_a_crash(tmp_path: Path) -> None:
    """53100 under every writer, then a crash under all: each goes on by itself, and each effect is there once."""
    server = PostgresServer()
    server.environment, mark = full_disk(server.folder)
    with started(server):
        fleet = Fleet(server.create_database("shop"), tmp_path)
        async with _working(fleet) as (_, load):
            mark.touch()
            await eventually_async(lambda: _refused(server) >= REFUSALS, 120, what="writes are refused")
            mark.unlink()
            await are_done(fleet, "new", "there is room again")
            await asyncio.to_thread(server.restart, "immediate")
        _check(fleet, load, sessions_end=False)


def _refused(server: PostgresServer) -> int:
    return server.log.read_text(errors="replace").count(NO_SPACE)


@pytest.mark.timeout(900)
async def test_every_role_goes_on_after_a_failover(tmp_path: Path) -> None:
    """Kill -9 of the primary, promotion of its synchronous standby: work of every kind goes on."""
    with started(PostgresServer()) as primary:
        primary.create_database("shop")
        with started(Standby(primary)) as standby:
            make_synchronous(primary, standby)
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            fleet = Fleet(f"postgresql://postgres:{primary.password}@{hosts}/shop", tmp_path)
            async with _working(fleet) as (_, load):
                primary.kill9()
                standby.promote()
            _check(fleet, load, sessions_end=True)


@pytest.mark.timeout(900)
async def test_every_role_works_100_ms_away_from_its_database(empty_database_url: str, tmp_path: Path) -> None:
    """Slowly, but each of them: no session is lost, and nothing runs twice."""
    port = int(empty_database_url.rpartition(":")[2].partition("/")[0])
    async with TcpProxy("127.0.0.1", port) as proxy:
        fleet = Fleet(proxy.rewrite(empty_database_url), tmp_path)
        async with _working(fleet) as (pool, load):
            proxy.delay(FAR_S)
            await are_done(fleet, "new", f"{FAR_S} s each way")
            proxy.heal()
            assert await pool.fetchval("SELECT count(*) FROM tickwright.workers WHERE lost_at IS NOT NULL") == 0
        _check(fleet, load, sessions_end=False)
