"""A task type that changes, disappears or is suspended while its jobs are under way."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from kit.engine import SHORT, Engine, connect, running_engine
from kit.receivers import TARGETS, HttpReceiver
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.search import EXPLAIN
from tickwright.capabilities.jobs.admin.views import explain
from tickwright.capabilities.jobs.model import Job, TaskType
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.capabilities.jobs.task_types import TaskTypes, load_types
from tickwright.capabilities.jobs.worker import shared_limits, worker
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.worker import WorkerLimits
from tickwright.domain.leases import LeaseTerms
from tickwright.ports.caller import Caller, Role
from tickwright.transports.http.broker import HttpBroker

OPERATOR = Caller("operator", Role.ADMIN)
SETTLED = ("pending", 0, None)
LONG = LeaseTerms(timedelta(minutes=10), timedelta(minutes=1))


@dataclass
class Gated:
    """A handler whose attempts start and wait until they may end.

    Attributes:
        timeouts_s: The timeout of each attempt, in the order of starts.
        running: Attempts that run now.
        most: Attempts that ran at once.
    """

    timeouts_s: list[float] = field(default_factory=list)
    running: int = 0
    most: int = 0
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, job: Job) -> None:
        """Count, and wait."""
        self.timeouts_s.append(job.deadline_s)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.may_end.wait()
        await asyncio.sleep(0)
        self.running -= 1


async def _nothing(_job: Job) -> None:
    return None


async def claim_once_more(engine: Engine) -> None:
    """Return when a claim has read every type again: a job that is inserted now has run."""
    job_id = await engine.insert("tick")
    await engine.until(job_id, "completed")


@pytest.mark.matrix
@pytest.mark.parametrize(("before", "after"), [(2, 5), (3, 3), (5, 2), (None, 3)])
async def test_a_type_whose_settings_change_keeps_its_limit(database_url: str, before: int | None, after: int) -> None:
    """Running attempts continue and count; later ones have the new target, timeout and limit exactly."""
    old, new = Gated(), Gated()

    async def old_call(job: Job) -> None:
        await old(job)

    async def new_call(job: Job) -> None:
        await new(job)

    kinds = {"few": TaskType("few", "python:few", concurrency=before)}
    handlers = {"few": old_call, "other": new_call, "tick": _nothing}
    async with running_engine(database_url, handlers, kinds=kinds) as engine:
        entry = engine.worker.types()["few"]
        first = [await engine.insert("few") for _ in range(before or 5)]
        await eventually_async(lambda: old.running == len(first))
        await engine.pool.execute(
            "UPDATE tickwright.task_types SET concurrency = $1, timeout_ms = 7000, target = 'python:other' "
            "WHERE name = 'few'",
            after,
        )
        await eventually_async(lambda: engine.worker.types()["few"].task_type.target == "python:other")
        more = [await engine.insert("few") for _ in range(20)]
        await eventually_async(lambda: new.running == max(0, after - len(first)))
        await claim_once_more(engine)
        assert new.running == max(0, after - len(first))
        old.may_end.set()
        await eventually_async(lambda: new.running >= after)
        await claim_once_more(engine)
        assert new.running == after
        new.may_end.set()
        for job_id in [*first, *more]:
            assert (await engine.until(job_id, "completed"))["attempts"] == 1
        await eventually_async(lambda: engine.worker.types()["few"].held == 0)
        assert engine.worker.types()["few"] is entry
    assert (old.most, new.most) == (len(first), after)
    assert set(new.timeouts_s) == {7.0}


async def test_a_worker_that_comes_later_gets_its_share_of_a_limited_type(database_url: str) -> None:
    """A worker with more than its share starts no job beyond it, however much work is waiting."""
    running: Counter[str] = Counter()
    kinds = {"few": TaskType("few", "python:few", concurrency=4)}
    places = asyncio.Semaphore(0)

    async def first(_job: Job) -> None:
        running["first"] += 1
        await places.acquire()

    async def second(_job: Job) -> None:
        running["second"] += 1
        await asyncio.Event().wait()

    async with running_engine(database_url, {"few": first}, kinds=kinds, terms=SHORT) as one:
        for _ in range(20):
            await one.insert("few")
        await eventually_async(lambda: running["first"] == 4)
        async with running_engine(database_url, {"few": second}, kinds=kinds, terms=SHORT):
            for _ in range(2):  # the first worker's heartbeat has seen the second one
                beat_s = one.session._renewed_s
                await eventually_async(lambda: one.session._renewed_s > beat_s)  # noqa: B023  waited for right here
            for _ in range(4):
                places.release()
            await eventually_async(lambda: running["second"] == 2)


@pytest.mark.parametrize("why", ["stops", "full"])
async def test_a_worker_that_claims_nothing_leaves_its_share_of_a_limited_type(database_url: str, why: str) -> None:
    """While a worker stops, or its slots are full, workers with room run what the type's concurrency allows."""
    ran, gated = list[int](), Gated()
    kinds = {"few": TaskType("few", "python:few", concurrency=1)}

    async def few(job: Job) -> None:
        ran.append(job.id)

    handlers, limits = {"few": few, "slow": gated.__call__, "slow_too": gated.__call__}, WorkerLimits(concurrency=4)
    async with running_engine(database_url, handlers, kinds=kinds, terms=SHORT, limits=limits) as one:
        await eventually_async(lambda: one.worker.types()["few"].granted == 1)
        for name in ("slow", "slow_too") * 4:
            await one.insert(name)
        await eventually_async(lambda: one.worker.runner.busy == 4)
        async with running_engine(database_url, {"few": few}, kinds=kinds, terms=SHORT) as two:
            stopping = asyncio.create_task(one.worker.quiesce() if why == "stops" else asyncio.sleep(0))
            job_id = await two.insert("few")
            await two.until(job_id, "completed", within_s=30)
            assert one.worker.runner.busy == 4
            gated.may_end.set()
            await stopping
    assert (ran, gated.most) == ([job_id], 4)


async def test_a_worker_that_has_room_again_gets_its_share_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it claims, from what is free; what the others hold is released without their heartbeats."""
    monkeypatch.setattr(shared_limits, "AGAIN_MAX", 1000)  # on a busy machine the others take long to notice
    gated, kinds = Gated(), {"few": TaskType("few", "python:few", concurrency=4)}
    handlers, limits = (
        {"few": _nothing, "slow": gated.__call__, "slow_too": gated.__call__},
        WorkerLimits(concurrency=4),
    )
    async with running_engine(database_url, handlers, kinds=kinds, terms=SHORT, limits=limits) as one:
        for name in ("slow", "slow_too") * 2:
            await one.insert(name)
        await eventually_async(lambda: one.worker._limits.withheld, 30)
        assert one.worker.types()["few"].granted == 0
        job_id = await one.insert("few")
        reasons = explain(await one.pool.fetchrow(EXPLAIN, job_id) or {}).reasons
        assert [reason.code for reason in reasons] == ["workers_full"]
        async with running_engine(database_url, {"few": _nothing}, kinds=kinds, terms=LONG) as two:
            await eventually_async(lambda: two.worker.types()["few"].granted == 4, 30)
            one.session.terms = LONG
            gated.may_end.set()
            granted = [engine.worker.types()["few"] for engine in (one, two)]
            renewed = two.session._renewed_s
            await eventually_async(lambda: [entry.granted for entry in granted] == [2, 2], 30)
            assert two.session._renewed_s == renewed
            assert await one.pool.fetchval("SELECT sum(granted) FROM tickwright.type_grants") == 4


async def test_a_rate_that_is_raised_by_less_than_a_factor_of_two_counts_at_once(database_url: str) -> None:
    """The former rate has assigned instants further ahead than any claim at this rate takes."""
    kinds = {"paced": TaskType("paced", "python:paced", rate_per_s=1 / 4000)}
    async with running_engine(database_url, {"paced": _nothing}, kinds=kinds, terms=SHORT) as engine:
        await engine.until(await engine.insert("paced"), "completed")
        job_id = await engine.insert("paced")
        await engine.pool.execute("UPDATE tickwright.task_types SET rate_per_s = 1.0 / 2100, version = version + 1")
        await engine.until(job_id, "processing", within_s=30)


async def test_a_limited_type_runs_beside_a_backlog_that_fills_every_slot(database_url: str) -> None:
    """A worker requests its share before it fills the slot that became free."""
    gated, kinds = Gated(), {"few": TaskType("few", "python:few", concurrency=1)}
    handlers, limits = (
        {"few": _nothing, "slow": gated.__call__, "slow_too": gated.__call__},
        WorkerLimits(concurrency=4),
    )
    async with running_engine(database_url, handlers, kinds=kinds, terms=SHORT, limits=limits) as engine:
        for name in ("slow", "slow_too") * 20:
            await engine.insert(name)
        await eventually_async(lambda: engine.worker._limits.withheld, 30)
        job_id = await engine.insert("few")
        gated.may_end.set()
        await engine.until(job_id, "completed", within_s=30)


@pytest.mark.matrix
@pytest.mark.parametrize(("concurrency", "runs"), [(1, 0), (4, 0), (4, 1)])
async def test_a_worker_leaves_its_share_of_a_type_that_it_can_no_longer_run(
    database_url: str, concurrency: int, runs: int
) -> None:
    """The target moves to a handler of newer workers: they run all that may run beside the older worker's jobs."""
    old, new, kinds = Gated(), Gated(), {"few": TaskType("few", "python:few", concurrency=concurrency)}
    handlers = {"few": old.__call__}
    async with running_engine(database_url, handlers, kinds=kinds, terms=SHORT) as one:
        for _ in range(runs):
            await one.insert("few")
        await eventually_async(lambda: old.running == runs, what="the old one runs some")
        handlers = {"few": old.__call__, "few_v2": new.__call__}
        async with running_engine(database_url, handlers, kinds=kinds, terms=SHORT) as two:
            share = two.worker.types()["few"]
            await eventually_async(lambda: share.granted == concurrency // 2, 30, what="each has its share")
            await two.pool.execute(
                "UPDATE tickwright.task_types SET target = 'python:few_v2', version = version + 1 WHERE name = 'few'"
            )
            await eventually_async(lambda: "few" not in one.worker.types(), what="the old one has read it")
            for _ in range(12):
                await two.insert("few")
            await eventually_async(lambda: new.running == concurrency - runs, 30, what="the new one has the rest")
            old.may_end.set()
            await eventually_async(lambda: new.running == concurrency, 30, what="the new one has all")
            new.may_end.set()
    assert (old.most, new.most) == (runs, concurrency)


@asynccontextmanager
async def held_between_claim_and_take_over(monkeypatch: pytest.MonkeyPatch, name: str) -> AsyncIterator[asyncio.Event]:
    """Hold the answer of the first claim that has jobs of a type; the event says that it arrived."""
    claim, arrived, may_go_on = ClaimStore.claim, asyncio.Event(), asyncio.Event()

    async def slow(store: ClaimStore, request: ClaimRequest, connection: Any = None) -> ClaimedJobs:
        claimed = await claim(store, request, connection)
        if not arrived.is_set() and any(row.task_type == name for row in claimed.rows):
            arrived.set()
            await may_go_on.wait()
        return claimed

    monkeypatch.setattr(ClaimStore, "claim", slow)
    try:
        yield arrived
    finally:
        may_go_on.set()


async def test_a_share_kept_for_a_claim_that_returns_nothing_is_released(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: the others waited for it until the next heartbeat of its worker."""
    claim, arrived, may_go_on = ClaimStore.claim, asyncio.Event(), asyncio.Event()

    async def slow(store: ClaimStore, request: ClaimRequest, connection: Any = None) -> ClaimedJobs:
        claimed = await claim(store, request, connection)
        if request.token == one.session.token and not may_go_on.is_set():
            arrived.set()
            await may_go_on.wait()
        return claimed

    kinds = {"few": TaskType("few", "python:few", concurrency=4)}
    async with running_engine(database_url, {"few": _nothing}, kinds=kinds, terms=LONG) as one:
        share = one.worker.types()["few"]
        await eventually_async(lambda: share.granted == 4, what="it has the whole share")
        monkeypatch.setattr(ClaimStore, "claim", slow)
        await arrived.wait()
        try:
            async with running_engine(database_url, {"few": _nothing}, kinds=kinds, terms=LONG) as two:
                one.worker._types_changed()  # as with a heartbeat
                await eventually_async(lambda: share.granted == 2, what="the first one has its half")
                kept = "SELECT granted FROM tickwright.type_grants WHERE worker = $1"
                assert await two.pool.fetchval(kept, one.session.token) == 4
                may_go_on.set()

                async def is_released() -> bool:
                    return bool(await two.pool.fetchval(kept, one.session.token) == 2)

                await eventually_async(is_released, what="it keeps no more than its half")
        finally:
            may_go_on.set()


async def test_a_change_during_a_read_of_the_types_is_read_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: it was notified while the worker read them, and was read at the next heartbeat."""
    load, has_read, may_go_on = load_types, asyncio.Event(), asyncio.Event()

    async def slow(connection: Any) -> Any:
        read = await load(connection)
        has_read.set()
        await may_go_on.wait()
        return read

    change = "UPDATE tickwright.task_types SET max_attempts = $1, version = version + 1"
    async with running_engine(database_url, {"t": _nothing}, terms=LONG) as engine:
        monkeypatch.setattr(worker, "load_types", slow)
        await engine.pool.execute(change, 7)
        await has_read.wait()
        await engine.pool.execute(change, 8)
        await eventually_async(lambda: engine.worker._types_notified, what="it is notified of the change")
        may_go_on.set()
        await eventually_async(lambda: engine.worker.types()["t"].task_type.max_attempts == 8, what="it has read it")


async def test_a_grant_counts_the_jobs_of_a_claim_under_way(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """J6: a worker that waits for its claim's answer leaves no share to others that the answer will use."""
    may_end = asyncio.Event()
    kinds = {"few": TaskType("few", "python:few", concurrency=4)}

    async def few(_job: Job) -> None:
        await may_end.wait()

    async with (
        running_engine(database_url, {"few": few}, kinds=kinds, terms=SHORT) as one,
        held_between_claim_and_take_over(monkeypatch, "few") as arrived,
    ):
        await one.pool.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now(), 'few' FROM generate_series(1, 40)"
        )
        await arrived.wait()
        async with running_engine(database_url, {"few": few}, kinds=kinds, terms=SHORT) as two:
            for engine in (one, two, two):
                beat_s = engine.session._renewed_s
                await eventually_async(lambda: engine.session._renewed_s > beat_s)  # noqa: B023  waited for right here
            granted = await one.pool.fetchval(
                "SELECT granted FROM tickwright.type_grants WHERE worker = $1", two.session.token
            )
            on_their_way = await one.pool.fetchval(
                "SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE owner = $1", one.session.token
            )
            may_end.set()
    assert granted + on_their_way <= 4


async def test_claimed_jobs_of_a_type_that_is_deleted_are_released(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait like those of any unknown type, no attempt counted; others of the claim run; the worker continues."""
    ran: list[int] = []

    async def handler(job: Job) -> None:
        ran.append(job.id)

    async with running_engine(database_url, {"doomed": handler, "tick": _nothing}) as engine:
        async with held_between_claim_and_take_over(monkeypatch, "doomed") as arrived:
            async with engine.pool.acquire() as connection, connection.transaction():
                rows = await connection.fetch(
                    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
                    "SELECT now(), unnest(ARRAY['doomed', 'tick', 'doomed', 'tick']) RETURNING id, task_type"
                )
            doomed = [row["id"] for row in rows if row["task_type"] == "doomed"]
            ticks = [row["id"] for row in rows if row["task_type"] == "tick"]
            await arrived.wait()
            await TaskTypes(engine.pool, lambda _: None).delete("doomed", caller=OPERATOR)
            await eventually_async(lambda: "doomed" not in engine.worker.types())
        for job_id in ticks:
            await engine.until(job_id, "completed")
        for job_id in doomed:
            row = await engine.until(job_id, "pending")
            assert (row["status"], row["attempts"], row["owner"]) == SETTLED
        await claim_once_more(engine)
        assert ran == []
        await engine.pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('doomed', 'python:doomed')")
        for job_id in doomed:
            assert (await engine.until(job_id, "completed"))["attempts"] == 1
    assert sorted(ran) == doomed


async def recreated(engine: Engine, name: str, **settings: Any) -> None:
    """Delete a type and create it again; the worker has read both."""
    types = TaskTypes(engine.pool, lambda _: None)
    await types.delete(name, caller=OPERATOR)
    await eventually_async(lambda: name not in engine.worker.types(), what="the worker has read that it is deleted")
    await types.put(name, TaskTypeRequest(target=f"python:{name}", **settings), caller=OPERATOR)
    await eventually_async(lambda: name in engine.worker.types(), what="the worker has read that it is there")
    await claim_once_more(engine)


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_type_that_is_deleted_and_recreated_keeps_its_concurrency(database_url: str, threaded: bool) -> None:
    """J6: its running attempts count, however often it is recreated; none beyond its concurrency starts."""
    gated, may_end = Gated(), threading.Event()

    async def few(job: Job) -> None:
        await gated(job)

    def few_in_threads(_job: Job) -> None:
        gated.running += 1
        gated.most = max(gated.most, gated.running)
        may_end.wait(60)
        gated.running -= 1

    kinds = {"few": TaskType("few", "python:few", concurrency=1)}
    handlers = {"few": few_in_threads if threaded else few, "tick": _nothing}
    async with running_engine(database_url, handlers, kinds=kinds) as engine:
        ids = [await engine.insert("few") for _ in range(4)]
        await eventually_async(lambda: gated.running == 1, what="one runs")
        for _ in range(3):
            await recreated(engine, "few", concurrency=1)
            entry = engine.worker.types()["few"]
            assert (gated.running, entry.held, entry.threads) == (1, 1, int(threaded))
        gated.may_end.set()
        may_end.set()
        for job_id in ids:
            assert (await engine.until(job_id, "completed"))["attempts"] == 1
        await eventually_async(lambda: entry.held == 0, what="none is held")
    assert gated.most == 1


async def test_a_type_that_is_deleted_and_recreated_keeps_its_rate(database_url: str) -> None:
    """The next start is an hour after the last one, although the rate's row was deleted with the type."""
    ran: list[int] = []

    async def seldom(job: Job) -> None:
        ran.append(job.id)

    kinds = {"seldom": TaskType("seldom", "python:seldom", rate_per_s=1 / 3600)}
    async with running_engine(database_url, {"seldom": seldom, "tick": _nothing}, kinds=kinds) as engine:
        await engine.until(await engine.insert("seldom"), "completed")
        await recreated(engine, "seldom", rate_per_s=1 / 3600)
        later = await engine.insert("seldom")
        await eventually_async(lambda: engine.worker.runner.queued == 1, what="it is claimed and waits")
        await claim_once_more(engine)
        assert later not in ran


@asynccontextmanager
async def calling(url: str, receiver: HttpReceiver) -> AsyncIterator[Engine]:
    """Run a worker whose type ``call`` goes to ``receiver``."""
    kinds = {"call": TaskType("call", receiver.url)}
    async with (
        aclosing(HttpBroker(allow=TARGETS)) as broker,
        running_engine(url, {"tick": _nothing}, kinds=kinds, brokers={"http": broker}) as engine,
    ):
        yield engine


async def test_a_type_whose_endpoint_is_gone_waits_for_an_operator(database_url: str) -> None:
    """HTTP 410 suspends the type: its jobs are not sent again, no attempt counts, and all run once it is enabled."""
    async with HttpReceiver() as receiver, calling(database_url, receiver) as engine:
        receiver.status = 410
        refused = await engine.insert("call")
        row = await eventually_async(lambda: _released(engine, refused))
        assert (row["status"], row["attempts"], row["owner"]) == SETTLED
        assert await engine.pool.fetchval("SELECT gone_at IS NOT NULL FROM tickwright.task_types WHERE name = 'call'")
        later = await engine.insert("call")
        await claim_once_more(engine)
        assert len(receiver.received) == 1
        assert (await engine.job(later))["status"] == "pending"
        receiver.status = 200
        await TaskTypes(engine.pool, lambda _: None).switch("call", "enable", caller=OPERATOR)
        rows = [await engine.until(job_id, "completed") for job_id in (refused, later)]
    assert [row["attempts"] for row in rows] == [1, 1]
    assert sorted(message.id for message in receiver.received) == sorted(
        [f"job_{refused}", f"job_{refused}", f"job_{later}"]
    )


async def test_a_job_whose_endpoint_is_gone_is_held_until_its_type_is_suspended(database_url: str) -> None:
    """No worker may claim it between the answer and the suspension."""
    async with HttpReceiver() as receiver, calling(database_url, receiver) as engine:
        receiver.status = 410
        connection = await connect(database_url)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT FROM tickwright.task_types WHERE name = 'call' FOR UPDATE")
        job_id = await engine.insert("call")
        await eventually_async(lambda: engine.pool.fetchval("SELECT count(*) = 1 FROM pg_locks WHERE NOT granted"))
        await claim_once_more(engine)
        await engine.worker.result_writer.drained()
        assert (await engine.job(job_id))["status"] == "processing"
        await transaction.commit()
        await connection.close()
        assert (await eventually_async(lambda: _released(engine, job_id)))["attempts"] == 0
    assert len(receiver.received) == 1


async def _released(engine: Engine, job_id: int) -> Any:
    row = await engine.job(job_id)
    return row if row["status"] == "pending" and row["fence"] == 1 else None
