"""A database at a distance: the round trips of each step, and a worker whose round trips take long."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from kit.engine import insert, job_row, running_engine
from kit.nodes import running, settings_of
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.app.declarations import Declarations
from tickwright.capabilities.jobs.handlers import HandlerRegistry, make_handler
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Job, TaskType
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.worker import JobWorker
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.process.node import Node
from tickwright.store.pool import RoundTrips, open_pool

pytestmark = pytest.mark.storm

RATE_PER_S = 20
BRIEF = LeaseTerms(timedelta(seconds=6), timedelta(seconds=1))
PATIENCE_S = 120.0
"""For conditions at seconds of latency; no test waits for all of it."""


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[TcpProxy]:
    """The connection to the test's database."""
    async with TcpProxy("127.0.0.1", int(database_url.rpartition(":")[2].partition("/")[0])) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def near() -> None:
    """Reset what an earlier test measured."""
    RoundTrips._last_s.clear()


def _program(ran: list[int]) -> Declarations:
    async def work(job: Job) -> None:
        ran.append(job.id)

    program = Declarations()
    program.registrations.of(HandlerRegistry).add(make_handler(TaskType("far", "python:far"), work))
    return program


async def test_a_start_takes_a_known_number_of_round_trips(database_url: str, proxy: TcpProxy, tmp_path: Path) -> None:
    """From nothing to a built worker: three connections one after the other."""
    settings = settings_of(proxy.rewrite(database_url), tmp_path, "")
    async with running(settings, _program([]), "worker"):
        built = (proxy.accepted_count, proxy.turn_count)
    assert built <= (3, 33)


async def test_a_claim_a_renewal_and_a_result_take_one_round_trip_each(database_url: str, proxy: TcpProxy) -> None:
    """On a connection with prepared statements; a further one takes five beside TCP, and six for its first claim."""
    pool = await open_pool(proxy.rewrite(database_url), max_size=3)
    session = WorkerSession(pool, name="far", roles=["worker"], version="0")
    store = ClaimStore(pool)
    round_trips: dict[str, int] = {}

    async def count(name: str, work: Any) -> None:
        before = proxy.turn_count
        await work()
        round_trips[name] = proxy.turn_count - before

    async def claim(connection: Any = None) -> None:
        plan, lanes = ClaimPlan(("far",), (5,), 5), (ClaimRange("far", 0),)
        await store.claim(ClaimRequest(session.token, plan, lanes, timedelta(), bounded=False, number=0), connection)

    await session.open()
    for _ in range(2):
        await count("renewal", session.renew)
        await count("empty claim", claim)
        await count("result", lambda: store.write("complete", session.token, [1]))
    async with pool.acquire():
        before = proxy.turn_count
        async with pool.acquire() as further:
            round_trips["connection"] = proxy.turn_count - before
            await count("its first claim", lambda: claim(further))
    pool.terminate()
    assert round_trips == {"renewal": 1, "empty claim": 1, "result": 1, "connection": 5, "its first claim": 6}


async def _readiness(node: Node) -> dict[str, Any]:
    url = f"http://127.0.0.1:{node.health.port}/readyz"
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        found: dict[str, Any] = await answer.json()
        return found


@pytest.mark.parametrize("each_way_s", [0.1, 0.5, 1])
async def test_a_worker_far_from_its_database_keeps_its_session_and_drains(
    database_url: str, proxy: TcpProxy, other: asyncpg.Connection, tmp_path: Path, each_way_s: float
) -> None:
    """It works slowly under one session, its readiness and its row say why, and it stops with nothing held."""
    ran: list[int] = []
    async with running(settings_of(proxy.rewrite(database_url), tmp_path, ""), _program(ran), "worker") as node:
        await eventually_async(
            lambda: node.get(JobWorker) is not None and node.get(JobWorker).last_tick_age_s() is not None
        )
        token = node.session.token
        proxy.delay(each_way_s)
        job_id = await insert(other, "far")
        for _ in range(3):
            renewed_s = node.session._renewed_s
            await eventually_async(lambda: node.session._renewed_s > renewed_s, PATIENCE_S)  # noqa: B023
        await eventually_async(lambda: RoundTrips.shortest_ms() >= 2000 * each_way_s, PATIENCE_S)
        await eventually_async(lambda: job_id in ran, PATIENCE_S)
        reported = (await _readiness(node))["database"]
        assert node.session.token == token
        assert ("database_slow" in reported) == (each_way_s >= 0.5), reported
    assert ran == [job_id]
    assert (await job_row(other, job_id))["status"] == "completed"
    assert await other.fetchval("SELECT count(*) FROM tickwright.workers") == 0, "its session is still there"


async def test_a_claim_without_an_answer_costs_a_far_worker_no_session(
    database_url: str, proxy: TcpProxy, other: asyncpg.Connection, tmp_path: Path
) -> None:
    """Unanswered claims are released at 1 s each way, twice, and the same session continues to claim."""
    ran: list[int] = []
    async with running(settings_of(proxy.rewrite(database_url), tmp_path, ""), _program(ran), "worker") as node:
        await eventually_async(
            lambda: node.get(JobWorker) is not None and node.get(JobWorker).last_tick_age_s() is not None
        )
        assert node.get(JobWorker) is not None
        token = node.session.token
        proxy.delay(1)
        for _ in range(2):
            node.get(JobWorker).gate.unsure = True
            node.get(JobWorker).claimer.wake()
            job_id = await insert(other, "far")
            await eventually_async(lambda: job_id in ran, PATIENCE_S)  # noqa: B023
            assert node.session.token == token, "a settling costs the session"


async def test_a_database_that_is_too_slow_is_reported_and_nothing_is_lost(
    database_url: str, proxy: TcpProxy, other: asyncpg.Connection, tmp_path: Path
) -> None:
    """At two seconds each way transactions time out in the server: no service crashes, and all jobs end afterwards."""
    ran: list[int] = []
    async with running(settings_of(proxy.rewrite(database_url), tmp_path, ""), _program(ran), "worker") as node:
        await eventually_async(
            lambda: node.get(JobWorker) is not None and node.get(JobWorker).last_tick_age_s() is not None
        )
        proxy.delay(2)
        job_ids = [await insert(other, "far") for _ in range(5)]
        await eventually_async(lambda: RoundTrips.shortest_ms() >= 4000, PATIENCE_S)
        reported = re.fullmatch(r".*database_slow: a round trip takes (\d+)\b.*", (await _readiness(node))["database"])
        assert reported is not None
        assert int(reported[1]) >= 4000
        restarts = {state.name: state.restarts for state in node.supervisor.states() if state.restarts}
        proxy.heal()
        await eventually_async(lambda: set(ran) >= set(job_ids), PATIENCE_S)
        for job_id in job_ids:
            await eventually_async(lambda: _is_done(other, job_id), PATIENCE_S)  # noqa: B023
    assert restarts == {}


async def _is_done(other: asyncpg.Connection, job_id: int) -> bool:
    return bool((await job_row(other, job_id))["status"] == "completed")


@pytest.mark.parametrize("max_attempts", [3, 1])
async def test_late_starts_of_a_rate_limited_type_keep_its_rate(
    database_url: str, proxy: TcpProxy, max_attempts: int
) -> None:
    """One worker exceeds the rate in no second by more than 5 % and one start, however late its answers are."""
    starts_s: list[float] = []

    async def work(_: Job) -> None:
        starts_s.append(time.time())  # the database runs on this machine

    kinds = {"paced": TaskType("paced", "python:paced", rate_per_s=RATE_PER_S)}
    async with running_engine(proxy.rewrite(database_url), {"paced": work}, kinds=kinds) as engine:
        await engine.pool.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, max_attempts) "
            "SELECT now(), 'paced', $1 FROM generate_series(1, 80)",
            max_attempts,
        )
        for latency_s in (0.3, 0.0, 0.25, 0.02, 0.3, 0.0):
            count = len(starts_s)
            await eventually_async(lambda: len(starts_s) >= count + 11, PATIENCE_S)  # noqa: B023
            proxy.delay(latency_s)
        await eventually_async(lambda: len(starts_s) == 80, PATIENCE_S)
    starts_s.sort()
    busiest = max(sum(1 for at in starts_s if begin <= at < begin + 1) for begin in starts_s)
    assert busiest <= RATE_PER_S * 1.05 + 1


async def test_a_session_whose_connection_breaks_renews_on_another_one(database_url: str, proxy: TcpProxy) -> None:
    """Between two renewals or during one: the pool has the broken connection back, and the session takes the next."""
    pool = await open_pool(proxy.rewrite(database_url), max_size=2)
    session = WorkerSession(pool, name="cut", roles=["worker"], version="0", terms=BRIEF)
    running = asyncio.create_task(session.run())
    await eventually_async(lambda: session._connection is not None)
    for _ in range(3):
        renewed_s = session._renewed_s
        proxy.reset()
        await eventually_async(lambda: session._renewed_s > renewed_s, what="it renews again")  # noqa: B023
    assert session.token == 1
    await session.stop()
    await running
    assert session._connection is None
    await pool.close()


_SAME = "SELECT xmin::text = pg_current_xact_id()::text FROM tickwright.workers WHERE id = $1"


async def test_heartbeat_work_shares_the_renewals_transaction_until_it_is_held_up(database_url: str) -> None:
    """An idle process needs half of the transactions, and work that does not end costs no session."""
    pool = await open_pool(database_url, max_size=3)
    session = WorkerSession(pool, name="near", roles=["worker"], version="0", terms=BRIEF)
    shared = list[bool]()
    is_held_up = asyncio.Event()

    async def beat(connection: asyncpg.Connection) -> Callable[[], None]:
        same = await connection.fetchval(_SAME, session.token)
        if is_held_up.is_set():
            await asyncio.sleep(3600 if same else 0)
        return lambda: shared.append(same)

    session.on_beat(beat)
    running = asyncio.create_task(session.run())
    await eventually_async(lambda: len(shared) >= 2, PATIENCE_S, what="two heartbeats")
    assert set(shared) == {True}
    is_held_up.set()
    shared.clear()
    await eventually_async(lambda: len(shared) >= 2, PATIENCE_S, what="two more")
    assert (set(shared), session.token) == ({False}, 1)
    await session.stop()
    await running
    await pool.close()
