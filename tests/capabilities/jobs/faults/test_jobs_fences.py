"""The three guards of a claim, and the mutants that prove that each of them is tested.

A zombie is a worker whose heartbeat has stopped while its handler continues. Another worker takes the
job over and still runs it when the zombie reports: the report must find no row.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest

from kit.engine import SHORT, Engine, policy, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import ClaimedRow, ClaimPlan, ClaimRange, Fail, Job, Snooze, TaskType
from tickwright.capabilities.jobs.worker import claims as claims_store
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.engine import session as session_module
from tickwright.engine.session import WorkerSession
from tickwright.store.pool import open_pool

WAITS = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

ENDINGS: dict[str, Callable[[], Any]] = {
    "returns nothing": lambda: None,
    "returns a result": lambda: "zombie",
    "fails": lambda: _raise(ValueError("zombie")),
    "fails for good": lambda: _raise(Fail("zombie")),
    "snoozes": lambda: _raise(Snooze(timedelta(hours=1))),
}
KINDS = {"kept": policy("h"), "forgotten": policy("h", keep_history=False)}


def _raise(error: Exception) -> None:
    raise error


async def _zombie_reports_during_a_second_attempt(
    url: str, outcome: Callable[[], Any], kind: TaskType
) -> Mapping[str, Any]:
    """Return the job's row after the zombie's report, while the second attempt still runs."""
    zombie_may_end, second_may_end = asyncio.Event(), asyncio.Event()
    second_started = asyncio.Event()

    async def overrunning(_job: Job) -> Any:
        while not zombie_may_end.is_set():
            try:
                await zombie_may_end.wait()
            except asyncio.CancelledError:
                continue
        return outcome()

    async def second(_job: Job) -> str:
        second_started.set()
        await second_may_end.wait()
        return "second"

    async with running_engine(url, {"h": overrunning}, kinds={"h": kind}, terms=SHORT) as zombie:
        job_id = await zombie.insert("h")
        await eventually_async(lambda: zombie.worker.runner.busy == 1)
        await _stop_heart(zombie)
        async with running_engine(url, {"h": second}, kinds={"h": kind}, terms=SHORT) as taker:
            try:
                await asyncio.wait_for(second_started.wait(), 20)
                zombie_may_end.set()
                await eventually_async(lambda: zombie.worker.runner.busy == 0)
                await zombie.worker.result_writer.drained()
                rows = await taker.pool.fetch("SELECT * FROM tickwright.scheduled_tasks WHERE id = $1", job_id)
            finally:
                zombie_may_end.set()
                second_may_end.set()
    return rows[0] if rows else {"status": "gone"}


async def _stop_heart(engine: Engine) -> None:
    heart = engine.tasks.pop(0)
    heart.cancel()
    await asyncio.wait([heart])


UNTOUCHED = ("processing", 2, 2, claims_store.LEASE_EXPIRED)


def _of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["status"], row.get("attempts"), row.get("fence"), row.get("error_message"))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outcome", ENDINGS)
async def test_a_zombies_report_changes_nothing_while_another_attempt_runs(
    database_url: str, outcome: str, kind: str
) -> None:
    """J3: every outcome of an attempt is fenced, not only success."""
    row = await _zombie_reports_during_a_second_attempt(database_url, ENDINGS[outcome], KINDS[kind])
    assert _of(row) == UNTOUCHED


@pytest.mark.parametrize(
    ("outcome", "kind", "query"),
    [
        ("returns nothing", "kept", "complete"),
        ("returns nothing", "forgotten", "complete_and_forget"),
        ("returns a result", "kept", "complete_with_result"),
        ("fails", "kept", "retry"),
        ("fails for good", "kept", "fail"),
        ("snoozes", "kept", "snooze"),
    ],
)
async def test_the_suite_notices_results_without_a_fence(
    database_url: str, monkeypatch: pytest.MonkeyPatch, outcome: str, kind: str, query: str
) -> None:
    """Without both fences in a result's SQL the zombie's report counts."""
    original = claims_store._RESULTS[query].replace(" AND t.fence = o.fence", "")
    mutated = original.replace(" AND t.owner = $1", "").replace("t.id = ANY", "$1::bigint IS NOT NULL AND t.id = ANY")
    assert mutated.count("t.owner = $1") == 0
    monkeypatch.setattr(claims_store, "_RESULTS", MappingProxyType({**claims_store._RESULTS, query: mutated}))
    row = await _zombie_reports_during_a_second_attempt(database_url, ENDINGS[outcome], KINDS[kind])
    assert _of(row) != UNTOUCHED


async def _claim_beside_the_loss_of_its_session(url: str) -> ClaimedJobs:
    """Return what a session claims while a transaction, begun earlier and committed later, declares it lost."""
    pool = await open_pool(url)
    session = WorkerSession(pool, name="test", roles=["worker"], version="0")
    await session.open()
    await pool.execute("INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now(), 'h')")
    plan, ranges = ClaimPlan(("h",), (10,), 10), [ClaimRange("h", 0)]
    request = ClaimRequest(session.token, plan, ranges, timedelta(seconds=1), number=session.claim_number)
    await pool.execute("UPDATE tickwright.workers SET lease_until = 'epoch' WHERE id = $1", session.token)
    async with pool.acquire() as declaring, pool.acquire() as watching:
        async with declaring.transaction():
            assert len(await declaring.fetch(session_module._SQL["declare_lost"])) == 1
            claiming = asyncio.create_task(ClaimStore(pool).claim(request))
            await eventually_async(lambda: True if claiming.done() else watching.fetchval(WAITS), what="the claim")
        claimed = await claiming
    await pool.close()
    return claimed


async def test_a_claim_waits_for_the_transaction_that_declares_its_session_lost(database_url: str) -> None:
    """The claim takes nothing then."""
    assert (await _claim_beside_the_loss_of_its_session(database_url)).rows == []


async def test_the_suite_notices_a_claim_that_does_not_lock_its_session(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock a claim commits jobs for a session whose jobs were reclaimed already."""
    original = claims_store._CLAIMS["claim"]
    mutated = original.replace(" AND w.claims_from <= $12 FOR KEY SHARE", " AND w.claims_from <= $12")
    assert mutated != original
    monkeypatch.setattr(claims_store, "_CLAIMS", MappingProxyType({**claims_store._CLAIMS, "claim": mutated}))
    assert len((await _claim_beside_the_loss_of_its_session(database_url)).rows) == 1


async def _a_second_worker_checks_leases_while_the_first_works(url: str) -> Mapping[str, Any]:
    """Return the job of a healthy worker after another one has checked for expired leases."""
    may_end = asyncio.Event()

    async def slow(_job: Job) -> str:
        await may_end.wait()
        return "first"

    async def thief(_job: Job) -> str:
        return "thief"

    async with running_engine(url, {"h": slow}, terms=SHORT) as first:
        job_id = await first.insert("h")
        await eventually_async(lambda: first.worker.runner.busy == 1)
        token = first.session.token
        async with running_engine(url, {"h": thief}, terms=SHORT) as second:
            await eventually_async(lambda: second.session.last_tick_age_s() is not None)
            renewed_s = first.session._renewed_s
            await eventually_async(lambda: first.session._renewed_s > renewed_s or first.session.token != token)
            may_end.set()
            if first.session.token == token:
                await second.until(job_id, "completed")
            return await second.job(job_id)


async def test_a_live_lease_is_not_taken_over(database_url: str) -> None:
    """L3: no worker takes a job over before its holder's lease has run out by the database's clock."""
    row = await _a_second_worker_checks_leases_while_the_first_works(database_url)
    assert (row["result"], row["attempts"]) == ('"first"', 1)


async def test_the_suite_notices_a_takeover_that_ignores_the_deadline(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lease's deadline a healthy worker loses its job."""
    original = session_module._SQL["declare_lost"]
    mutated = original.replace(" AND lease_until < clock_timestamp()", "")
    assert mutated != original
    monkeypatch.setattr(session_module, "_SQL", MappingProxyType({**session_module._SQL, "declare_lost": mutated}))
    try:
        row = await _a_second_worker_checks_leases_while_the_first_works(database_url)
    except AssertionError:
        return  # no worker keeps a lease for long enough to work at all
    assert (row["result"], row["attempts"]) != ('"first"', 1)


async def test_the_suite_notices_leases_that_never_end(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With leases that never run out, a dead worker's job stays stuck."""
    mutated = session_module._SQL["declare_lost"].replace("lease_until < clock_timestamp()", "false")
    monkeypatch.setattr(session_module, "_SQL", MappingProxyType({**session_module._SQL, "declare_lost": mutated}))
    with pytest.raises((AssertionError, TimeoutError)):
        await _zombie_reports_during_a_second_attempt(database_url, ENDINGS["fails"], KINDS["kept"])


async def _two_workers_run_each_job(url: str, jobs: int) -> Counter[int]:
    starts: Counter[int] = Counter()

    async def handler(job: Job) -> None:
        starts[job.id] += 1

    async with running_engine(url, {"h": handler}) as one, running_engine(url, {"h": handler}):
        await one.pool.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now() + interval '500 milliseconds', 'h' FROM generate_series(1, $1)",
            jobs,
        )
        await eventually_async(lambda: _nothing_live(one), 30)
    return starts


async def _nothing_live(engine: Engine) -> bool:
    return not await engine.pool.fetchval("SELECT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks)")


async def test_two_workers_never_start_the_same_attempt(database_url: str) -> None:
    """J2: one worker per job, however many workers claim."""
    starts = await _two_workers_run_each_job(database_url, 3000)
    assert len(starts) == 3000
    assert set(starts.values()) == {1}


async def test_the_suite_notices_a_claim_in_two_steps(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SELECT, then UPDATE in another transaction, as the source document has it, runs jobs twice.

    Between the two steps of its first claim each worker waits for the other one's, so the race happens every time.
    """
    both_have_picked, picked_once = asyncio.Barrier(2), set[int]()

    async def two_steps(store: ClaimStore, request: ClaimRequest, _connection: Any = None) -> ClaimedJobs:
        pool = store._pool
        picked = await pool.fetch(
            "SELECT id FROM ONLY tickwright.scheduled_tasks WHERE status = 'pending' AND execute_at <= now() "
            "ORDER BY execute_at FOR UPDATE SKIP LOCKED LIMIT 200"
        )
        if picked and id(store) not in picked_once:
            picked_once.add(id(store))
            await both_have_picked.wait()
        rows = await pool.fetch(
            "UPDATE ONLY tickwright.scheduled_tasks t SET status = 'processing', owner = $1, attempts = attempts + 1 "
            "WHERE id = ANY($2) RETURNING id, task_type, payload, priority, attempts, max_attempts, fence, timeout_ms, "
            "date_part('epoch', execute_at), date_part('epoch', execute_at), NULL, NULL",
            request.token,
            [row["id"] for row in picked],
        )
        now_s = await pool.fetchval("SELECT date_part('epoch', clock_timestamp())")
        return ClaimedJobs([ClaimedRow(*row) for row in rows], now_s, None, now_s, [])

    monkeypatch.setattr(ClaimStore, "claim", two_steps)
    starts = await _two_workers_run_each_job(database_url, 3000)
    assert max(starts.values()) > 1
