"""Workers that take turns: who listens, who is notified of what, and what the others learn without notifications."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from types import MappingProxyType

import asyncpg
import pytest

from kit.engine import SHORT, Engine, connect, insert, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Job
from tickwright.capabilities.jobs.worker import claimer, claims, worker
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.idle_sleep import LATER_LOCK, LOCK
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.wakeup.turns import Turns, group_of

NEVER_S = 3600.0
LONG = LeaseTerms(timedelta(seconds=600), timedelta(seconds=60))
HOLD = "SELECT pg_advisory_lock(7313, $1)"


async def nothing(_job: Job) -> None:
    """Do nothing."""


@asynccontextmanager
async def fleet(url: str, size: int, **options: object) -> AsyncIterator[list[Engine]]:
    """Run workers that know of each other."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(running_engine(url, {"tick": nothing}, terms=SHORT, **options))  # type: ignore[arg-type]
            for _ in range(size)
        ]
        await eventually_async(
            lambda: not any(one.worker.claimer._turns.alone for one in engines), what="all are known"
        )
        yield engines


def listening(engines: list[Engine]) -> int:
    """Return how many workers listen."""
    return sum(one.worker.wakeup.listening for one in engines)


async def test_of_several_workers_one_listens(database_url: str) -> None:
    """Also after its end: a worker that stops leaves the group."""
    async with fleet(database_url, 3) as engines:
        await eventually_async(lambda: listening(engines) == 1)
        listener = next(one for one in engines if one.worker.wakeup.listening)
        engines.remove(listener)
        await listener.worker.stop()
        await listener.session.stop()
        await eventually_async(lambda: listening(engines) == 1)


@pytest.mark.mutant
async def test_the_suite_notices_workers_that_all_listen(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each notification would cost a transaction of each."""
    monkeypatch.setattr(Turns, "listens", lambda *_args, **_more: True)
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.3)
    with pytest.raises(AssertionError, match="not within"):
        await test_of_several_workers_one_listens(database_url)


async def _found_at_a_turn(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "listens", lambda *_args, **_more: False)
    monkeypatch.setattr(claimer, "POLL_S", NEVER_S)
    async with fleet(url, 3) as engines:
        await eventually_async(lambda: listening(engines) == 0)
        for ahead in ("now()", "now() + interval '1 second'"):
            await engines[0].until(await engines[0].insert("tick", at=ahead), "completed")


async def test_a_job_is_found_at_a_turn_where_no_worker_listens(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener may be dead, stopped or full: the next turn finds the job, and no lease has to expire for it."""
    await _found_at_a_turn(database_url, monkeypatch)


@pytest.mark.mutant
async def test_the_suite_notices_workers_without_turns(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job would wait for a listener."""
    monkeypatch.setattr(Turns, "next_in_s", lambda _: NEVER_S)
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.3)
    with pytest.raises(AssertionError, match="not within"):
        await _found_at_a_turn(database_url, monkeypatch)


async def _hears_of_a_later_job(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimer, "POLL_S", NEVER_S)
    monkeypatch.setattr(claimer, "HEARD_POLL_S", NEVER_S)
    async with running_engine(url, {"tick": nothing}) as engine:
        await eventually_async(lambda: engine.worker.wakeup.armed)
        job_id = await engine.insert("tick", at="clock_timestamp() + interval '1 second'")
        await engine.until(job_id, "completed")


async def test_a_worker_alone_hears_of_a_job_that_is_due_in_a_second(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It polls once in two seconds only."""
    await _hears_of_a_later_job(database_url, monkeypatch)


@pytest.mark.mutant
async def test_the_suite_notices_a_worker_alone_that_hears_of_the_next_jobs_only(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the listener of a group is, which has turns."""
    monkeypatch.setattr("tickwright.capabilities.jobs.worker.idle_sleep.LATER_LOCK", LOCK)
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.3)
    with pytest.raises(AssertionError, match="not within"):
        await _hears_of_a_later_job(database_url, monkeypatch)


@pytest.mark.parametrize(
    ("locks", "due", "payload"),
    [
        ([LOCK], "now()", ""),
        ([LOCK], "now() + interval '200 milliseconds'", ""),
        ([LOCK], "now() + interval '800 milliseconds'", None),
        ([LOCK, LATER_LOCK], "now() + interval '800 milliseconds'", "later"),
        ([LOCK, LATER_LOCK], "now() + interval '5 seconds'", None),
        ([LATER_LOCK], "now()", None),
        ([], "now()", None),
    ],
)
async def test_an_insert_notifies_of_what_the_sleepers_would_not_see(
    database_url: str, locks: list[int], due: str, payload: str | None
) -> None:
    """The locks say who sleeps, and for how long."""
    heard: list[str] = []
    listener, sleeper = await connect(database_url), await connect(database_url)
    await listener.add_listener("tickwright_jobs", lambda *said: heard.append(said[-1]))
    for lock in locks:
        await sleeper.execute(HOLD, lock)
    await insert(listener, "tick", at=due)
    await sleeper.execute("NOTIFY tickwright_jobs, 'end'")
    await eventually_async(lambda: heard[-1:] == ["end"])
    await listener.close()
    await sleeper.close()
    assert heard[:-1] == ([] if payload is None else [payload])


async def test_a_full_worker_leaves_its_group(database_url: str) -> None:
    """Otherwise its turns would be missed for as long as its jobs run."""
    held = asyncio.Event()

    async def hold(_job: Job) -> None:
        await held.wait()

    limits = worker.WorkerLimits(concurrency=1, threads=1)
    groups = "SELECT work_groups FROM tickwright.workers"
    async with running_engine(database_url, {"tick": hold}, terms=SHORT, limits=limits) as engine:
        assert await engine.pool.fetchval(groups) == [
            group_of("jobs", sorted(handler.defaults.target for handler in engine.worker._handlers.all()), [])
        ]
        await engine.insert("tick")
        await engine.insert("tick")
        await eventually_async(lambda: _empty(engine.pool, groups), what="it is in no group")
        held.set()
        await eventually_async(lambda: _filled(engine.pool, groups), what="it is back")


async def _empty(pool: asyncpg.Pool, groups: str) -> bool:
    return bool(await pool.fetchval(groups) == [])


async def _filled(pool: asyncpg.Pool, groups: str) -> bool:
    return bool(await pool.fetchval(groups) != [])


async def _claimed_of_a_paused_type(url: str) -> int:
    async with running_engine(url, {"other": nothing}) as engine:
        await engine.pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('tick', 'python:tick')")
        await engine.pool.execute("UPDATE tickwright.task_types SET paused_at = now() WHERE name = 'tick'")
        await engine.insert("tick")
        plan, ranges = ClaimPlan(("tick",), (10,), 10), [ClaimRange("tick", 0)]
        number = engine.session.claim_number
        request = ClaimRequest(engine.session.token, plan, ranges, timedelta(seconds=1), number=number)
        return len((await ClaimStore(engine.pool).claim(request)).rows)


async def test_a_claim_takes_nothing_of_a_type_that_is_paused(database_url: str) -> None:
    """A worker that does not listen reads the types with its next heartbeat only."""
    assert await _claimed_of_a_paused_type(database_url) == 0


@pytest.mark.mutant
async def test_the_suite_notices_claims_of_paused_types(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the claim trusts what the worker has read."""
    text = claims._CLAIMS["claim"].replace("t.paused_at IS NOT NULL OR", "")
    assert text != claims._CLAIMS["claim"]
    monkeypatch.setattr(claims, "_CLAIMS", MappingProxyType({**claims._CLAIMS, "claim": text}))
    assert await _claimed_of_a_paused_type(database_url) == 1


async def _cancelled_without_a_notification(url: str) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(_job: Job) -> None:
        running.set()
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            cancelled.set()

    async with running_engine(url, {"tick": wait}, terms=LONG, direct=False) as engine:
        job_id = await engine.insert("tick")
        await asyncio.wait_for(running.wait(), 30)
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)
        await eventually_async(cancelled.is_set, what="the handler is cancelled")
        await engine.until(job_id, "cancelled")


async def test_a_running_job_is_cancelled_in_a_worker_that_does_not_listen(database_url: str) -> None:
    """Its next heartbeat is minutes away."""
    await _cancelled_without_a_notification(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_cancels_that_wait_for_a_heartbeat(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if only notifications and heartbeats told of them."""
    monkeypatch.setattr(worker, "UNHEARD_S", NEVER_S)
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.3)
    with pytest.raises(AssertionError, match="the handler is cancelled"):
        await _cancelled_without_a_notification(database_url)
