"""One-shot jobs under kill -9, pauses and restarts: nothing is lost, nothing counts twice."""

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.engine import SHORT, Engine, WorkerProcess, connect, insert, job_row, read_events, running_engine
from kit.mutants import mutate
from kit.servers import PostgresServer, started
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Job, TaskType
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.runner import Runner
from tickwright.capabilities.jobs.worker.type_state import SLACK_S, TIMER_S
from tickwright.domain.leases import LeaseTerms
from tickwright.ports.ids import monotonic
from tickwright.store.migrate import migrate

LOST_SESSION = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "VALUES (nextval('tickwright.fence_seq'), 'lost', '{worker}', '0', clock_timestamp() + interval '1 second') "
    "RETURNING id"
)
CANCEL = "UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1"
IS_LOST = "SELECT lost_at IS NOT NULL FROM tickwright.workers WHERE id = $1"
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"


async def _fill(connection: asyncpg.Connection, count: int, task_type: str = "work") -> None:
    await connection.execute(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) SELECT now(), $2 FROM generate_series(1, $1)",
        count,
        task_type,
    )


async def test_kill_9_of_a_worker_loses_nothing_and_repeats_only_what_was_in_flight(
    database_url: str, tmp_path: Path
) -> None:
    """A2, J1: every job ends once; only jobs that ran at the kill run again, as a further attempt."""
    connection = await connect(database_url)
    await _fill(connection, 0)
    first = WorkerProcess(database_url, tmp_path / "1.log", lease_s=2)
    await eventually_async(lambda: connection.fetchval("SELECT count(*) FROM tickwright.task_types"), 20)
    await _fill(connection, 1000)
    await eventually_async(lambda: len(read_events(tmp_path / "1.log")) > 600, 20)
    first.kill9()
    before = read_events(tmp_path / "1.log")
    second = WorkerProcess(database_url, tmp_path / "2.log", lease_s=2)
    await eventually_async(lambda: _gone(connection), 30)
    second.stop()
    states = await connection.fetch("SELECT status, count(*) AS n FROM tickwright.scheduled_tasks GROUP BY status")
    await connection.close()
    events = [*before, *read_events(tmp_path / "2.log")]
    starts = Counter(event.job_id for event in events if event.tag == "S")
    ended_before = {event.job_id for event in before if event.tag == "E"}
    twice = {job_id for job_id, count in starts.items() if count > 1}
    assert [(row["status"], row["n"]) for row in states] == [("completed", 1000)]
    assert len(starts) == 1000
    assert max(starts.values()) <= 2
    in_flight = {event.job_id for event in before if event.tag == "S"} - ended_before
    unwritten = twice - in_flight
    assert len(unwritten) <= 2 * 50, "at most one flush of finished work may run again"


async def test_a_paused_workers_results_do_not_count(database_url: str, tmp_path: Path) -> None:
    """J3: SIGSTOP past the lease, then SIGCONT: results of the zombie change nothing."""
    connection = await connect(database_url)
    zombie = WorkerProcess(database_url, tmp_path / "1.log", lease_s=1.5, work_s=0.5)
    await eventually_async(lambda: connection.fetchval("SELECT count(*) FROM tickwright.task_types"), 20)
    await _fill(connection, 20)
    await eventually_async(lambda: len(read_events(tmp_path / "1.log")) >= 20, 20)
    zombie.pause()
    second = WorkerProcess(database_url, tmp_path / "2.log", lease_s=1.5, work_s=0.05)
    await eventually_async(lambda: _gone(connection), 20)
    done = {row["id"]: row["fence"] for row in await _finished(connection)}
    zombie.resume()
    await eventually_async(
        lambda: connection.fetchval("SELECT count(*) = 2 FROM tickwright.workers WHERE lost_at IS NULL"), 20
    )  # it works again under a new token
    after = {row["id"]: row["fence"] for row in await _finished(connection)}
    zombie.stop()
    second.stop()
    await connection.close()
    assert done == after
    assert set(done.values()) == {2}
    last = {event.job_id: event.fence for event in read_events(tmp_path / "2.log") if event.tag == "E"}
    assert last == done


async def test_a_job_that_kills_its_worker_ends_after_its_attempts(database_url: str, tmp_path: Path) -> None:
    """J4: attempts are counted when they are claimed, so a job that kills its worker does not loop."""
    connection = await connect(database_url)
    workers = [WorkerProcess(database_url, tmp_path / "0.log", lease_s=1)]
    await eventually_async(lambda: connection.fetchval("SELECT count(*) FROM tickwright.task_types"), 20)
    job_id = await insert(connection, "poison", max_attempts=2)
    for number in (1, 2):
        await eventually_async(lambda: workers[-1].process.poll() is not None, 20)
        workers.append(WorkerProcess(database_url, tmp_path / f"{number}.log", lease_s=1))
    row = await eventually_async(lambda: _final(connection, job_id), 20)
    workers[-1].stop()
    await connection.close()
    starts = [event for log in range(3) for event in read_events(tmp_path / f"{log}.log")]
    assert (row["status"], row["attempts"], row["fence"]) == ("failed", 2, 2)
    assert row["error_message"].startswith("lease_expired")
    assert [event.attempt for event in starts] == [1, 2]


async def test_a_last_attempt_that_never_began_does_not_count(database_url: str) -> None:
    """J4: a claimed job whose worker is lost before it began is released, uncounted, and runs."""
    runs: list[int] = []

    async def work(job: Job) -> None:
        runs.append(job.attempt)

    async with running_engine(database_url, {"other": work}) as engine:
        job_id = await engine.insert("work", max_attempts=1)
        token = await engine.pool.fetchval(LOST_SESSION)
        request = ClaimRequest(
            token, ClaimPlan(("work",), (5,), 5), [ClaimRange("work", 0)], timedelta(milliseconds=200)
        )
        assert len((await ClaimStore(engine.pool).claim(request)).rows) == 1
        await eventually_async(lambda: engine.pool.fetchval(IS_LOST, token), 20)
        row = await engine.until(job_id, "pending")
        assert (row["attempts"], row["fence"], row["error_message"]) == (0, 1, None)
    async with running_engine(database_url, {"work": work}) as engine:
        row = await engine.until(job_id, "completed")
    assert (row["attempts"], runs) == (1, [1])


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The begin of last attempts waits until this is set, as for a database that does not answer."""
    opened, begin_last = asyncio.Event(), ClaimStore.begin_last

    async def waits(store: ClaimStore, token: int, ids: list[int], fences: list[int]) -> dict[int, bool]:
        await opened.wait()
        return await begin_last(store, token, ids, fences)

    monkeypatch.setattr(ClaimStore, "begin_last", waits)
    return opened


TWELVE_LAST = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, max_attempts)
SELECT now(), 'paced', 1 FROM generate_series(1, 12)"""


async def check_last_attempts_keep_their_rate(database_url: str, gate: asyncio.Event) -> None:
    """Twelve last attempts wait together for the write of their begin, and start at the distance of their rate."""
    starts_s: list[float] = []

    async def work(_: Job) -> None:
        starts_s.append(monotonic())

    kinds = {"paced": TaskType("paced", "python:paced", rate_per_s=20)}
    async with running_engine(database_url, {"paced": work}, kinds=kinds) as engine:
        await engine.pool.execute(TWELVE_LAST)
        await eventually_async(lambda: engine.worker.runner.busy == 12, 30, what="all wait for their begin")
        opened_s = monotonic()
        gate.set()
        await eventually_async(lambda: len(starts_s) == 12, 30, what="all started")
    for number, start_s in enumerate(starts_s):
        assert start_s >= opened_s - SLACK_S - TIMER_S * (number + 1) + number / 20, "a rate is not kept"


async def test_last_attempts_of_a_rate_limited_type_start_apart_after_a_held_up_begin(
    database_url: str, gate: asyncio.Event
) -> None:
    """Their distance is kept after the write of their begin, wherever that waits."""
    await check_last_attempts_keep_their_rate(database_url, gate)


async def test_a_raised_rate_holds_no_last_attempt_back(database_url: str, gate: asyncio.Event) -> None:
    """Last attempts that have begun wait for starts hours apart; at the new rate they start."""
    ran: list[int] = []

    async def work(job: Job) -> None:
        ran.append(job.id)

    async def set_rate(engine: Engine, rate_per_s: float) -> None:
        await engine.pool.execute("UPDATE tickwright.task_types SET rate_per_s = $1", rate_per_s)
        await eventually_async(lambda: engine.worker.types()["paced"].task_type.rate_per_s == rate_per_s)

    kinds = {"paced": TaskType("paced", "python:paced", rate_per_s=20)}
    async with running_engine(database_url, {"paced": work}, kinds=kinds) as engine:
        await engine.pool.execute(TWELVE_LAST)
        await eventually_async(lambda: engine.worker.runner.busy == 12, 30, what="all wait for their begin")
        await set_rate(engine, 0.0001)
        gate.set()
        await eventually_async(lambda: ran, what="the first one runs")
        await set_rate(engine, 20)
        await eventually_async(lambda: len(ran) == 12, 30, what="all have run")


async def test_the_suite_notices_last_attempts_without_a_distance(
    database_url: str, gate: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the guard: an attempt that has begun starts at once."""
    mutate(monkeypatch, Runner._begins, "not await job.type_state.wait_for_start()", "False")
    with pytest.raises(AssertionError, match="a rate is not kept"):
        await check_last_attempts_keep_their_rate(database_url, gate)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ("cancelled", ("cancelled", 0, None, "cancelled before it started", None)),
        ("interrupted", ("pending", 0, None, None, None)),
    ],
)
async def test_a_last_attempt_that_ends_while_its_begin_is_held_up_does_not_count(
    database_url: str, gate: asyncio.Event, ended: str, expected: tuple[Any, ...]
) -> None:
    """Cancelled by its user or stopped with its worker: it never started, so it is neither counted nor recorded."""
    runs: list[int] = []

    async def work(job: Job) -> None:
        runs.append(job.id)

    async with running_engine(database_url, {"work": work}) as engine:
        job_id = await engine.insert("work", max_attempts=1)
        await eventually_async(lambda: engine.worker.runner.busy == 1, 20, what="it waits for its begin")
        if ended == "cancelled":
            await engine.pool.execute(CANCEL, job_id)
        else:
            await engine.worker.stop()
        row = await engine.until(job_id, expected[0])
        gate.set()
    written = (*(row[name] for name in ("status", "attempts", "started_at", "error_message", "attempt_errors")),)
    assert (written, runs) == (expected, [])


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["released", "unknown to its process", "reclaimed"])
async def test_a_job_cancelled_between_its_claim_and_its_start_has_no_attempt(database_url: str, way: str) -> None:
    """It ends like a job that is cancelled before its claim: no attempt is counted, and it never started."""
    async with running_engine(database_url) as engine:
        token = await engine.pool.fetchval(LOST_SESSION)
        job_id = await engine.insert("work", max_attempts=1 if way == "reclaimed" else 3)
        request = ClaimRequest(
            token, ClaimPlan(("work",), (5,), 5), [ClaimRange("work", 0)], timedelta(milliseconds=200)
        )
        store = ClaimStore(engine.pool)
        [claimed] = (await store.claim(request)).rows
        await engine.pool.execute(CANCEL, job_id)
        if way == "released":
            assert await store.write("release", token, [job_id], [claimed.fence]) == 1
        elif way == "unknown to its process":
            async with engine.pool.acquire() as connection, connection.transaction():
                assert await store.release_unknown(connection, token, []) == (1, [])
        row = await engine.until(job_id, "cancelled", within_s=20)
    assert (row["attempts"], row["started_at"], row["attempt_errors"]) == (0, None, None)


@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_a_last_attempt_that_kills_its_worker_counts(
    database_url: str, tmp_path: Path, max_attempts: int
) -> None:
    """J4: it began, so it counts, though it is the only one."""
    connection = await connect(database_url)
    workers = [WorkerProcess(database_url, tmp_path / "0.log", lease_s=1)]
    await eventually_async(lambda: connection.fetchval("SELECT count(*) FROM tickwright.task_types"), 20)
    job_id = await insert(connection, "poison", max_attempts=max_attempts)
    for number in range(1, max_attempts + 1):
        await eventually_async(lambda: workers[-1].process.poll() is not None, 20)
        workers.append(WorkerProcess(database_url, tmp_path / f"{number}.log", lease_s=1))
    row = await eventually_async(lambda: _final(connection, job_id), 20)
    workers[-1].stop()
    await connection.close()
    starts = [event for log in range(max_attempts + 1) for event in read_events(tmp_path / f"{log}.log")]
    assert (row["status"], row["attempts"]) == ("failed", max_attempts)
    assert [event.attempt for event in starts] == [*range(1, max_attempts + 1)]


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["immediate", "kill9"])
async def test_a_database_crash_loses_no_job(tmp_path: Path, mode: str) -> None:
    """A crash of PostgreSQL under load: every acknowledged job is there, and every job ends."""
    with started(PostgresServer()) as server:
        url = server.create_database("crash")
        await asyncio.to_thread(migrate, url)
        worker = WorkerProcess(url, tmp_path / "1.log", lease_s=3)
        connection = await connect(url)
        await eventually_async(lambda: connection.fetchval("SELECT count(*) FROM tickwright.task_types"), 20)
        await _fill(connection, 1500)
        await eventually_async(lambda: len(read_events(tmp_path / "1.log")) > 500, 20)
        if mode == "kill9":
            server.kill9()
            server.start()
        else:
            server.restart("immediate")
        connection = await connect(url)
        await eventually_async(lambda: _gone(connection), 40)
        states = await connection.fetch("SELECT status, count(*) AS n FROM tickwright.scheduled_tasks GROUP BY 1")
        await connection.close()
        worker.stop()
    assert [(row["status"], row["n"]) for row in states] == [("completed", 1500)]


async def test_a_worker_that_cannot_renew_stops_starting_work(pg_server: PostgresServer, database_url: str) -> None:
    """Self-fencing: without the database the holder stops by its own clock before the deadline."""
    stopped = asyncio.Event()

    async def handler(_job: Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with TcpProxy("127.0.0.1", pg_server.port) as proxy:
        terms = LeaseTerms(timedelta(seconds=1.5), timedelta(seconds=0.5))
        async with running_engine(proxy.rewrite(database_url), {"h": handler}, terms=terms) as engine:
            connection = await connect(database_url)
            await insert(connection, "h")
            await eventually_async(lambda: engine.worker.runner.busy == 1)
            token = engine.session.token
            proxy.refuse()
            proxy.reset()
            await eventually_async(lambda: not engine.session.holds())
            await asyncio.wait_for(stopped.wait(), 30)
            proxy.heal()
            await eventually_async(lambda: engine.session.holds() and engine.session.token > token, 15)
            await connection.close()


async def test_results_that_cannot_be_written_wait_for_the_database(
    pg_server: PostgresServer, database_url: str
) -> None:
    """A short outage costs no attempt: results are written when the database is available, while the lease holds."""
    finished = asyncio.Event()

    async def handler(_job: Job) -> str:
        await finished.wait()
        return "kept"

    proxy = TcpProxy("127.0.0.1", pg_server.port)
    async with proxy, running_engine(proxy.rewrite(database_url), {"h": handler}) as engine:
        connection = await connect(database_url)
        job_id = await insert(connection, "h")
        await eventually_async(lambda: engine.worker.runner.busy == 1)
        proxy.refuse()
        proxy.reset()
        finished.set()
        await eventually_async(lambda: engine.worker.runner.busy == 0)
        proxy.heal()
        row = await eventually_async(lambda: _final(connection, job_id), 15)
        await connection.close()
    assert (row["status"], row["attempts"], row["result"]) == ("completed", 1, '"kept"')


async def test_a_lost_session_never_claims_again(database_url: str) -> None:
    """A claim with the token of a session that was declared lost takes nothing."""
    async with running_engine(database_url, {}, terms=SHORT) as engine:
        await insert(engine.pool, "elsewhere")
        token = await engine.pool.fetchval(
            "INSERT INTO tickwright.workers (id, name, roles, version, lease_until, lost_at) "
            "VALUES (nextval('tickwright.fence_seq'), 'z', '{}', '0', now() + interval '1 hour', now()) RETURNING id"
        )
        request = ClaimRequest(
            token, ClaimPlan(("elsewhere",), (10,), 10), [ClaimRange("elsewhere", 0)], timedelta(seconds=1)
        )
        assert (await ClaimStore(engine.pool).claim(request)).rows == []


async def _gone(connection: asyncpg.Connection) -> bool:
    live: int = await connection.fetchval(LIVE)
    return live == 0


async def _finished(connection: asyncpg.Connection) -> list[Any]:
    return list(await connection.fetch("SELECT id, fence FROM tickwright.scheduled_tasks WHERE status = 'completed'"))


async def _final(connection: asyncpg.Connection, job_id: int) -> asyncpg.Record | None:
    row = await job_row(connection, job_id)
    return row if row["status"] not in {"pending", "processing"} else None
