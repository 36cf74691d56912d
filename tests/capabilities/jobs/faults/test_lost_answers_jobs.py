"""Jobs whose claim or result was answered by a connection that broke: nothing hangs, and nothing counts twice."""

import asyncio
from collections import Counter
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import asyncpg
import pytest

from kit.database_faults import AnswerCuts, How, first_line
from kit.engine import connect, policy, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Fail, Job, Retry, Snooze, TaskType
from tickwright.capabilities.jobs.worker import claims as claims_store
from tickwright.capabilities.jobs.worker.claimer import Claimer
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.engine.claim_gate import ClaimGate
from tickwright.engine.session import WorkerSession
from tickwright.store.pool import UNAVAILABLE, Connection, Pool, open_pool

CLAIM = first_line("capabilities.jobs", "claims.sql", "claim")
FILL = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) SELECT now(), $2 FROM generate_series(1, $1)"
STATES = "SELECT status, attempts, count(*) AS n FROM tickwright.scheduled_tasks GROUP BY 1, 2 ORDER BY 1, 2"
ROW = "SELECT status, attempts, fence FROM tickwright.scheduled_tasks WHERE id = $1"
CANCEL_FIRST = (
    "UPDATE tickwright.scheduled_tasks SET status = 'cancelled' "
    "WHERE id = (SELECT min(id) FROM ONLY tickwright.scheduled_tasks)"
)
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"


REFUSE_RESULTS = """
CREATE SEQUENCE refusals;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM nextval('public.refusals'); RAISE EXCEPTION 'later' USING ERRCODE = '{state}'; END $$;
CREATE TRIGGER refuse BEFORE DELETE ON tickwright.scheduled_tasks FOR EACH ROW EXECUTE FUNCTION refuse()
"""
REFUSED = "SELECT last_value >= 3 FROM refusals"


async def _states(connection: asyncpg.Connection) -> list[tuple[str, int, int]]:
    return [tuple(row) for row in await connection.fetch(STATES)]


async def _none_left(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval(LIVE) == 0)


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["unsent", "unheard", "late"])
@pytest.mark.parametrize("kind", [{}, {"rate_per_s": 400.0}, {"concurrency": 7}], ids=["free", "rate", "limited"])
async def test_a_claim_that_is_cut_costs_no_job_and_no_attempt(
    database_url: str, how: How, kind: dict[str, Any]
) -> None:
    """J1: each job runs once as its first attempt, whether the answers of its claims arrive or not."""
    runs: Counter[int] = Counter()

    async def work(job: Job) -> None:
        runs[job.id] += 1

    other = await connect(database_url)
    kinds = {"work": TaskType("work", "python:work", **kind)}
    async with AnswerCuts(database_url) as cuts, running_engine(cuts.url, {"work": work}, kinds=kinds):
        cuts.cut(CLAIM, how, times=3, rows_min=2)
        await other.execute(FILL, 200, "work")
        await eventually_async(lambda: cuts.made == 3, 60, what="three cuts")
        await cuts.send_late()
        await eventually_async(lambda: _none_left(other), 60, what="all jobs done")
        states = await _states(other)
    await other.close()
    assert states == [("completed", 1, 200)]
    assert len(runs) == 200
    assert set(runs.values()) == {1}


async def check_a_claimer_that_is_cancelled_as_its_claim_is_answered_holds_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins again, and the jobs of that claim run as first attempts."""
    runs: Counter[int] = Counter()
    claim, cancelled = ClaimStore.claim, asyncio.Event()

    async def answered_too_late(store: ClaimStore, request: ClaimRequest) -> ClaimedJobs:
        claimed = await claim(store, request)
        if claimed.rows and not cancelled.is_set():
            [task] = [one for one in asyncio.all_tasks() if "Claimer.run" in repr(one.get_coro())]
            asyncio.get_running_loop().call_soon(task.cancel)
            cancelled.set()
        return claimed

    async def work(job: Job) -> None:
        runs[job.id] += 1

    monkeypatch.setattr(ClaimStore, "claim", answered_too_late)
    other = await connect(database_url)
    async with running_engine(database_url, {"work": work}) as engine:
        await other.execute(FILL, 5, "work")
        await asyncio.wait_for(cancelled.wait(), 30)
        await engine.worker.claimer.wait_stopped()
        again = asyncio.create_task(engine.worker.claimer.run())
        await eventually_async(lambda: _none_left(other), 10, what="all jobs done")
        states = await _states(other)
    await again
    await other.close()
    assert (states, runs.total()) == ([("completed", 1, 5)], 5)


async def test_a_claimer_that_is_cancelled_as_its_claim_is_answered_holds_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J1: a live session owns no job whose claim its claimer did not receive."""
    await check_a_claimer_that_is_cancelled_as_its_claim_is_answered_holds_nothing(database_url, monkeypatch)


async def test_the_suite_notices_a_cancelled_claimer_that_takes_its_claims_for_settled(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the guard: only a claim that failed marks the gate as unsure."""
    mutate(monkeypatch, Claimer.run, "self._gate.unsure = True", "pass")
    with pytest.raises(AssertionError, match="all jobs done"):
        await check_a_claimer_that_is_cancelled_as_its_claim_is_answered_holds_nothing(database_url, monkeypatch)


RESULTS = {
    name: first_line("capabilities.jobs", "results.sql", query)
    for name, query in {
        "complete": "complete",
        "result": "complete_with_result",
        "retry": "retry",
        "fail": "fail",
        "snooze": "snooze",
    }.items()
}


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["unsent", "unheard", "late"])
@pytest.mark.parametrize("name", RESULTS)
async def test_a_result_that_is_cut_is_written_once(database_url: str, how: How, name: str) -> None:
    """J1: the outcome of an attempt counts once and for its own attempt, however often it is sent."""
    runs: Counter[int] = Counter()

    async def work(job: Job) -> Any:
        runs[job.id] += 1
        first = runs[job.id] == 1
        if name == "fail":
            raise Fail("no luck")
        if name == "retry" and first:
            raise Retry("no luck")
        if name == "snooze" and first:
            raise Snooze(timedelta(milliseconds=50))
        return {"runs": runs[job.id]} if name == "result" else None

    other = await connect(database_url)
    async with (
        AnswerCuts(database_url) as cuts,
        running_engine(cuts.url, {"work": work}, kinds={"work": policy("work")}) as engine,
    ):
        cuts.cut(RESULTS[name], how, times=3)
        await other.execute(FILL, 60, "work")
        await eventually_async(lambda: cuts.made >= 1, 60, what="a cut")
        await eventually_async(lambda: _none_left(other), 60, what="all jobs over")
        await cuts.send_late()
        states, lost = await _states(other), engine.worker.lost_results
    await other.close()
    runs_each = 2 if name in {"retry", "snooze"} else 1
    assert (set(runs.values()), len(runs), lost) == ({runs_each}, 60, 0)
    attempts = 2 if name == "retry" else 1
    assert states == [("failed" if name == "fail" else "completed", attempts, 60)]


async def _claimable(pool: Pool, session: WorkerSession) -> ClaimRequest:
    await pool.execute(FILL, 3, "t")
    plan = ClaimPlan(("t",), (5,), 5)
    return ClaimRequest(session.token, plan, [ClaimRange("t", 0)], timedelta(milliseconds=200))


async def test_progress_of_an_attempt_is_not_written_to_a_later_one_of_the_same_session(database_url: str) -> None:
    """It has the fence of its attempt: sent late, it finds no row."""
    pool = await open_pool(database_url)
    session = WorkerSession(pool, name="test", roles=["worker"], version="0")
    await session.open()
    request, store = await _claimable(pool, session), ClaimStore(pool)
    [first, *_] = (await store.claim(request)).rows
    assert await store.report_progress(session.token, first.id, first.fence, "1")
    await store.write("retry", session.token, [first.id], [first.fence], [0.0], ["failed"], ["no luck"])
    [again] = (await store.claim(request)).rows
    assert again.id == first.id
    assert not await store.report_progress(session.token, first.id, first.fence, "2")
    assert await store.report_progress(session.token, again.id, again.fence, "3")
    await pool.close()


async def check_a_late_result_does_not_reach_the_next_attempt(database_url: str) -> None:
    """The first retry is delayed; the second is answered and the job claimed again: then the first finds no row."""
    pool = await open_pool(database_url)
    async with AnswerCuts(database_url) as cuts, await open_pool(cuts.url) as cut_pool:
        session = WorkerSession(pool, name="test", roles=["worker"], version="0")
        await session.open()
        request = await _claimable(pool, session)
        [first, *_] = (await ClaimStore(pool).claim(request)).rows
        arguments = "retry", session.token, [first.id], [first.fence], [0.0], ["failed"], ["no luck"]
        cuts.cut(RESULTS["retry"], "late")
        with pytest.raises(UNAVAILABLE):
            await ClaimStore(cut_pool).write(*arguments)
        assert await ClaimStore(pool).write(*arguments) == 1
        [again] = (await ClaimStore(pool).claim(request)).rows
        await cuts.send_late()
        row = await pool.fetchrow(
            "SELECT status, attempts, fence FROM tickwright.scheduled_tasks WHERE id = $1", again.id
        )
        assert tuple(row) == ("processing", 2, 2), "J3 broken: a result reached a later attempt"
    await pool.close()


async def test_a_result_that_arrives_late_does_not_reach_the_next_attempt(database_url: str) -> None:
    """J3, under one session."""
    await check_a_late_result_does_not_reach_the_next_attempt(database_url)


async def test_the_suite_notices_a_retry_without_the_fence_of_the_job(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's token alone does not tell two attempts of one session apart."""
    mutated = claims_store._RESULTS["retry"].replace(" AND t.fence = o.fence", "")
    monkeypatch.setattr(claims_store, "_RESULTS", MappingProxyType({**claims_store._RESULTS, "retry": mutated}))
    with pytest.raises(AssertionError, match="J3 broken"):
        await check_a_late_result_does_not_reach_the_next_attempt(database_url)


async def test_a_result_that_the_database_refuses_fails_its_job_and_no_other(database_url: str) -> None:
    """JSON allows values that ``jsonb`` refuses: the results written together with it count, and nothing hangs."""

    async def work(job: Job) -> Any:
        return {"text": "\x00" if job.payload["bad"] else "good"}

    other = await connect(database_url)
    sql = (
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) "
        "SELECT now(), 'work', jsonb_build_object('bad', n = 7) FROM generate_series(1, 40) AS n"
    )
    async with running_engine(database_url, {"work": work}):
        await other.execute(sql)
        await eventually_async(lambda: _none_left(other), 60, what="all jobs over")
    error = "SELECT error_message FROM tickwright.scheduled_tasks WHERE status = 'failed'"
    assert await _states(other) == [("completed", 1, 39), ("failed", 1, 1)]
    assert (await other.fetchval(error)).startswith("result_refused")
    await other.close()


@pytest.mark.parametrize("state", ["25006", "40P01", "57014", "58030"])
async def test_a_result_that_is_refused_for_a_while_is_written_later(database_url: str, state: str) -> None:
    """A read-only server, a deadlock, an error of its disk: none of them concerns the result."""
    runs: list[int] = []

    async def work(job: Job) -> None:
        runs.append(job.id)

    other = await connect(database_url)
    await other.execute(REFUSE_RESULTS.format(state=state))
    async with running_engine(database_url, {"work": work}):
        await other.execute(FILL, 40, "work")
        await eventually_async(lambda: other.fetchval(REFUSED), 60, what="three refusals")
        await other.execute("DROP TRIGGER refuse ON tickwright.scheduled_tasks")
        await eventually_async(lambda: _none_left(other), 60, what="all jobs over")
    assert await _states(other) == [("completed", 1, 40)]
    assert len(runs) == 40
    await other.close()


@pytest.mark.storm
async def test_five_thousand_jobs_are_done_under_seventy_cuts(database_url: str) -> None:
    """J1: answers of claims and of results are lost repeatedly; each job is done, as its first attempt."""
    runs: Counter[int] = Counter()

    async def work(job: Job) -> None:
        runs[job.id] += 1

    other = await connect(database_url)
    async with AnswerCuts(database_url) as cuts, running_engine(cuts.url, {"work": work}):
        cuts.cut("tickwright.scheduled_tasks t", "unheard", times=70)
        await other.execute(FILL, 5000, "work")
        await eventually_async(lambda: cuts.made == 70, 240, what="seventy cuts")
        await eventually_async(lambda: _none_left(other), 120, what="all jobs done")
        states = await _states(other)
    await other.close()
    assert states == [("completed", 1, 5000)]
    assert set(runs.values()) == {1}


async def test_a_job_that_is_cancelled_during_a_lost_claim_ends_as_cancelled(database_url: str) -> None:
    """No worker knows of the job, so none can stop it: its release ends it."""
    pool = await open_pool(database_url)
    async with AnswerCuts(database_url) as cuts, await open_pool(cuts.url) as cut_pool:
        session = WorkerSession(pool, name="test", roles=["worker"], version="0")
        await session.open()
        store, request = ClaimStore(cut_pool), await _claimable(pool, session)

        async def release_unknown(connection: Connection, token: int) -> int:
            return (await store.release_unknown(connection, token, []))[0]

        gate = ClaimGate(cut_pool.acquire, session, "jobs", release_unknown)
        cuts.cut(CLAIM, "unheard")
        with pytest.raises(UNAVAILABLE):
            async with gate.claiming():
                await store.claim(request)
        await pool.execute(CANCEL_FIRST)
        await gate.settle()
        assert await _states(pool) == [("cancelled", 0, 1), ("pending", 0, 2)]
    await pool.close()
