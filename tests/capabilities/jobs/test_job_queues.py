"""Queues: slots of their own, pauses, and workers that run some types only."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.engine import SHORT, Engine, WorkerProcess, insert, policy, read_events, running_engine
from kit.mutants import mutate_sql
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.queues import Queues
from tickwright.capabilities.jobs.admin.search import EXPLAIN
from tickwright.capabilities.jobs.admin.views import explain
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Job
from tickwright.capabilities.jobs.worker import claimer, claims, frontier
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.groups import GroupClaims
from tickwright.capabilities.jobs.worker.pools import WorkerScope, read_scope
from tickwright.capabilities.jobs.worker.queue_slots import QueueSlots
from tickwright.capabilities.jobs.worker.worker import WorkerLimits
from tickwright.domain.leases import LeaseTerms
from tickwright.ports.caller import Caller, Role

OPERATOR = Caller("test", Role.OPERATOR)


class Hanging:
    """A handler whose attempts run until they are released, and how many ran at once."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.running = Counter[str]()
        self.most = Counter[str]()

    async def run(self, job: Job) -> None:
        self.running[job.type] += 1
        self.most[job.type] = max(self.most[job.type], self.running[job.type])
        try:
            await self.open.wait()
        finally:
            self.running[job.type] -= 1


async def _sound(_job: Job) -> None:
    return


@asynccontextmanager
async def worker(url: str, queues: str, hanging: Hanging, *, terms: LeaseTerms | None = None) -> AsyncIterator[Engine]:
    """Run a worker with types in three queues: slow and slow2 hang, quick and other do not."""
    queue_of = {"slow": "bulk", "slow2": "bulk", "quick": "critical", "other": "other"}
    handlers = {name: hanging.run if name.startswith("slow") else _sound for name in queue_of}
    kinds = {name: policy(name, queue=queue) for name, queue in queue_of.items()}
    async with running_engine(url, handlers, kinds=kinds, scope=read_scope(queues), terms=terms) as engine:
        try:
            yield engine
        finally:
            hanging.open.set()


async def check_full_queue(url: str, *, turns: int = 40) -> None:
    """Jobs of a queue that hangs take its slots, and no slot of another queue."""
    hanging = Hanging()
    async with worker(url, "bulk:4,critical:2", hanging) as engine:
        for _ in range(30):
            await engine.insert("slow")
        await eventually_async(lambda: hanging.running["slow"] >= 3, what="its slots are taken")
        for _ in range(turns):
            await engine.until(await engine.insert("quick"), "completed", within_s=10)
        assert hanging.most["slow"] <= 4
        waiting = await engine.pool.fetchval(
            "SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE task_type = 'slow' AND owner IS NOT NULL"
        )
        assert waiting <= 4 + 2, "more are claimed than may run, beside one a type"


async def test_a_queue_that_hangs_takes_no_slot_of_another(database_url: str) -> None:
    """A worker claims for a queue what fits into its slots; other queues keep theirs."""
    await check_full_queue(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_a_queue_that_takes_all_slots(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: a queue without free slots may start attempts."""
    monkeypatch.setattr(QueueSlots, "free", property(lambda _queue: 10))
    monkeypatch.setattr(claimer.Claimer, "_slot_shares", lambda self, _a: dict.fromkeys(self._receiver.types(), 30))
    with pytest.raises(AssertionError):
        await check_full_queue(database_url, turns=1)


async def test_shared_slots_go_to_every_queue_and_reserved_ones_stay_free(database_url: str) -> None:
    """With ``*``, a queue may have its reserve and the shared slots; a queue without a reserve has the shared ones."""
    hanging = Hanging()
    async with worker(database_url, "bulk:2,critical:2,*:8", hanging) as engine:
        for _ in range(40):
            await engine.insert("slow")
        await eventually_async(lambda: hanging.running["slow"] >= 6, what="it has shared slots, too")
        for name in ["quick", "other"] * 5:
            await engine.until(await engine.insert(name), "completed", within_s=10)
        assert hanging.most["slow"] <= 2 + 8 - 1, "it leaves a shared slot to the other types"


async def test_one_type_of_a_queue_leaves_slots_to_the_others(database_url: str) -> None:
    """Any type may hang at once: two types of one queue do not starve each other."""
    hanging = Hanging()
    async with worker(database_url, "bulk:8", hanging) as engine:
        for _ in range(40):
            await engine.insert("slow")
        await eventually_async(lambda: hanging.running["slow"] >= 6, what="most slots are taken")
        await engine.insert("slow2")
        await eventually_async(lambda: hanging.running["slow2"] == 1, what="the other type runs")
        assert hanging.most["slow"] <= 7


async def test_the_only_type_of_a_queue_has_all_its_slots(database_url: str) -> None:
    """A reserve is not kept back for types that do not exist."""
    hanging = Hanging()
    async with running_engine(
        database_url,
        {"slow": hanging.run},
        kinds={"slow": policy("slow", queue="bulk")},
        scope=read_scope("bulk:5,critical:2"),
    ) as engine:
        for _ in range(10):
            await engine.insert("slow")
        await eventually_async(lambda: hanging.running["slow"] == 5, what="all slots of the queue are taken")
        hanging.open.set()


async def test_a_queue_that_is_not_listed_is_not_served_without_shared_slots(database_url: str) -> None:
    """Its jobs wait; with ``*`` they run."""
    async with worker(database_url, "critical:2", Hanging()) as engine:
        job = await engine.insert("other")
        await engine.until(await engine.insert("quick"), "completed")
        assert (await engine.job(job))["status"] == "pending"
        assert set(engine.worker.types()) == {"quick"}
        async with worker(database_url, "critical:1,*:1", Hanging()):
            await engine.until(job, "completed")


async def test_a_paused_queue_starts_no_job_and_its_running_ones_go_on(database_url: str) -> None:
    """The pause holds for all types of the queue, and ends with ``enable``."""
    hanging = Hanging()
    async with worker(database_url, "", hanging) as engine:
        queues = Queues(engine.pool)
        running = await engine.insert("slow")
        await eventually_async(lambda: hanging.running["slow"] == 1, what="it runs")
        assert (await queues.switch("bulk", "pause", caller=OPERATOR)).paused_at is not None
        waiting = [await engine.insert(name) for name in ("slow", "slow2")]
        await engine.until(await engine.insert("quick"), "completed")
        await eventually_async(lambda: engine.worker.types()["slow2"].task_type.waits, what="the worker knows")
        hanging.open.set()
        await engine.until(running, "completed")
        await engine.until(await engine.insert("quick"), "completed")
        assert {(await engine.job(job))["status"] for job in waiting} == {"pending"}
        await queues.switch("bulk", "enable", caller=OPERATOR)
        for job in waiting:
            await engine.until(job, "completed")


async def check_no_starvation(url: str, *, turns: int) -> None:
    """One slot, and at every moment a due job of priority 10: jobs of lower priorities run nevertheless."""
    ran: list[str] = []
    waiting = {"oldest": 0, "lowest": -50, "middle": 5}
    async with asyncio.timeout(120):
        async with running_engine(
            url,
            {"busy": _noting(ran)},
            kinds={"busy": policy("busy", keep_history=False)},
            limits=WorkerLimits(concurrency=1, threads=1),
        ) as engine:
            async with engine.pool.acquire() as connection, connection.transaction():
                for name, priority in waiting.items():
                    await insert(
                        connection, "busy", payload={"name": name}, priority=priority, at="now() - interval '1 hour'"
                    )
                await connection.execute(
                    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, priority)"
                    " SELECT now(), 'busy', '{\"name\": \"important\"}', 10 FROM generate_series(1, $1::integer)",
                    turns,
                )
            await eventually_async(
                lambda: waiting.keys() <= set(ran) or len(ran) >= turns // 2,
                100,
                what="all have run, or half the turns",
            )
            assert waiting.keys() <= set(ran), "a job of lower priority starves"


def _noting(ran: list[str]) -> Callable[[Job], Awaitable[None]]:
    async def run(job: Job) -> None:
        ran.append(job.payload["name"])
        await asyncio.sleep(0.002)

    return run


async def test_no_priority_starves(database_url: str) -> None:
    """Every sixteenth claim that leaves jobs over begins with another priority, one after the other."""
    await check_no_starvation(database_url, turns=20_000)


@pytest.mark.mutant
async def test_the_suite_notices_that_a_low_priority_starves(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: every claim begins with the highest priority."""
    monkeypatch.setattr(frontier, "FAIR_EVERY", 1_000_000_000)
    with pytest.raises(AssertionError, match="starves"):
        await check_no_starvation(database_url, turns=20_000)


async def test_a_type_is_claimed_by_a_worker_that_serves_it_whatever_group_has_the_turn(database_url: str) -> None:
    """Workers with different limits are different groups, so no turn of one is a turn of the other."""
    async with (
        worker(database_url, "bulk:2", Hanging()) as bulk,
        worker(database_url, "critical:2,other:2", Hanging()) as critical,
        worker(database_url, "critical:2,other:2", Hanging()) as second,
    ):
        assert bulk.session.token != critical.session.token
        for _ in range(10):
            job = await critical.insert("quick")
            assert (await critical.until(job, "completed"))["status"] == "completed"
        ran = await critical.pool.fetch("SELECT work_groups FROM tickwright.workers ORDER BY id")
        assert ran[1]["work_groups"] == ran[2]["work_groups"] != ran[0]["work_groups"]
        assert second.worker.types().keys() == critical.worker.types().keys()


async def test_a_type_runs_where_its_needs_are(database_url: str) -> None:
    """A worker without them leaves it alone, and a worker that is kept for them runs nothing else."""
    where: dict[str, str] = {}

    def handlers(place: str) -> Mapping[str, Callable[[Job], Awaitable[None]]]:
        async def run(job: Job) -> None:
            where[job.type] = place

        return {"train": run, "plain": run}

    kinds = {"train": policy("train", needs=frozenset({"gpu"})), "plain": policy("plain")}
    gpu = read_scope(needs="gpu,disk")
    async with running_engine(database_url, handlers("anywhere"), kinds=kinds) as engine:
        waiting = await engine.insert("train")
        await engine.until(await engine.insert("plain"), "completed")
        assert (await engine.job(waiting))["status"] == "pending"
        explained = explain(await engine.pool.fetchrow(EXPLAIN, waiting))
        assert [reason.code for reason in explained.reasons] == ["not_served"]
        assert "train is in queue default, and needs gpu" in explained.summary
        async with running_engine(database_url, handlers("gpu"), kinds=kinds, scope=gpu) as other:
            await other.until(waiting, "completed")
            await other.until(await other.insert("plain"), "completed")
    assert where == {"train": "gpu", "plain": "anywhere"}


async def test_a_type_that_moves_to_another_queue_takes_slots_there(database_url: str) -> None:
    """Running attempts keep the slots of the former queue until they end."""
    hanging = Hanging()
    async with worker(database_url, "bulk:2,critical:2", hanging) as engine:
        for _ in range(2):
            await engine.insert("slow")
        await eventually_async(lambda: hanging.running["slow"] == 2, what="the queue is full")
        await engine.pool.execute("UPDATE tickwright.task_types SET queue = 'critical' WHERE name = 'slow'")
        await eventually_async(lambda: engine.worker.types()["slow"].task_type.queue == "critical", what="it moved")
        assert engine.worker.queues_full() == ["bulk"]
        await engine.insert("slow")
        await eventually_async(lambda: hanging.running["slow"] == 3, what="it has a slot there")
        await engine.pool.execute("UPDATE tickwright.task_types SET queue = 'nowhere' WHERE name = 'slow'")
        await eventually_async(lambda: "slow" not in engine.worker.types(), what="it is not served any more")
        hanging.open.set()
        await eventually_async(lambda: not engine.worker.runner.busy, what="all have ended")
        pools = engine.worker.runner.pools
        assert pools is not None
        assert [pools.of(name).running for name in ("bulk", "critical")] == [0, 0]


async def test_jobs_of_a_killed_worker_wait_for_one_that_serves_them(database_url: str, tmp_path: Path) -> None:
    """Any worker reclaims them; only one with their queue runs them."""
    log = tmp_path / "log"
    killed = WorkerProcess(database_url, log, lease_s=2, work_s=60, environment={"ENGINE_QUEUES": "default:5"})
    async with worker(database_url, "critical:2", Hanging(), terms=SHORT) as engine:
        await eventually_async(lambda: _registered(engine, "work"), 30, what="its type is there")
        job = await engine.insert("work")
        await engine.until(job, "processing", within_s=30)
        await eventually_async(lambda: bool(read_events(log)), 30, what="it runs")
        await asyncio.to_thread(killed.kill9)
        await engine.until(job, "pending", within_s=30)
        await engine.until(await engine.insert("quick"), "completed")
        assert (await engine.job(job))["status"] == "pending"
        rescuer = WorkerProcess(database_url, log, work_s=0, environment={"ENGINE_QUEUES": "default:5"})
        try:
            row = await engine.until(job, "completed", within_s=30)
        finally:
            await asyncio.to_thread(rescuer.stop)
        assert row["attempts"] == 2


async def _registered(engine: Engine, name: str) -> bool:
    return bool(await engine.pool.fetchval("SELECT count(*) FROM tickwright.task_types WHERE name = $1", name))


async def _claimed_of_a_paused_queue(url: str) -> int:
    async with worker(url, "critical:1", Hanging()) as engine:
        await engine.pool.execute("INSERT INTO tickwright.queues (name, paused_at) VALUES ('bulk', now())")
        await engine.insert("slow")
        request = ClaimRequest(
            engine.session.token,
            ClaimPlan(("slow",), (10,), 10),
            [ClaimRange("slow", 0)],
            timedelta(seconds=1),
            number=engine.session.claim_number,
        )
        return len((await ClaimStore(engine.pool).claim(request)).rows)


async def test_a_claim_takes_nothing_of_a_queue_that_is_paused(database_url: str) -> None:
    """Also a claim of a worker that has not read the pause yet."""
    assert await _claimed_of_a_paused_queue(database_url) == 0


@pytest.mark.mutant
async def test_the_suite_notices_claims_of_paused_queues(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: the claim trusts what the worker has read."""
    text = claims._CLAIMS["claim"].replace("OR q.paused_at IS NOT NULL", "")
    assert text != claims._CLAIMS["claim"]
    monkeypatch.setattr(claims, "_CLAIMS", MappingProxyType({**claims._CLAIMS, "claim": text}))
    assert await _claimed_of_a_paused_queue(database_url) == 1


async def _claimed_of_a_group_in_a_paused_queue(url: str) -> int:
    async with worker(url, "critical:1", Hanging()) as engine:
        await engine.pool.execute("INSERT INTO tickwright.queues (name, paused_at) VALUES ('bulk', now())")
        await engine.insert("slow", group_key="g")
        plan = ClaimPlan(("slow",), (10,), 10)
        request = ClaimRequest(engine.session.token, plan, [], timedelta(seconds=1), number=engine.session.claim_number)
        async with engine.pool.acquire() as connection:
            kind = policy("slow", queue="bulk")
            return len((await GroupClaims("slow").claim(request, connection, kind=kind)).rows)


async def test_a_claim_of_groups_takes_nothing_of_a_queue_that_is_paused(database_url: str) -> None:
    """Also a claim of a worker that has not read the pause yet."""
    assert await _claimed_of_a_group_in_a_paused_queue(database_url) == 0


@pytest.mark.mutant
async def test_the_suite_notices_claims_of_groups_in_paused_queues(database_url: str) -> None:
    """A mutant: the claim trusts what the worker has read."""
    await mutate_sql(database_url, "claim_groups", "q.name = k.queue AND q.paused_at IS NOT NULL", "false")
    assert await _claimed_of_a_group_in_a_paused_queue(database_url) == 1


async def test_explain_names_a_paused_and_a_full_queue(database_url: str) -> None:
    """With the queue, and since when."""
    hanging = Hanging()
    async with worker(database_url, "bulk:1,critical:1", hanging, terms=SHORT) as engine:
        await engine.insert("slow")
        await eventually_async(lambda: hanging.running["slow"] == 1, what="the queue is full")
        job = await engine.insert("slow2")

        async def codes() -> list[str]:
            found = explain(await engine.pool.fetchrow(EXPLAIN, job))
            return [f"{reason.code}: {reason.text}" for reason in found.reasons]

        async def is_full() -> bool:
            return any("no free slot for its queue bulk" in text for text in await codes())

        await eventually_async(is_full, what="a heartbeat says it")
        await Queues(engine.pool).switch("bulk", "pause", caller=OPERATOR)
        assert (await codes())[0].startswith("queue_paused: its queue bulk is paused since ")


SCOPES = st.builds(
    WorkerScope,
    st.dictionaries(st.sampled_from(["a", "b"]), st.just(1)),
    st.none() | st.just(3),
    st.lists(st.sampled_from(["t", "t*", "t.x", "u*", "t.%*", "t_x"]), unique=True, max_size=2).map(tuple),
    st.frozensets(st.sampled_from(["gpu", "disk"])),
)


@given(data=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_database_agrees_about_what_a_worker_runs(database_url: str, data: st.DataObject) -> None:
    """The function that explain and the alerts call has the rule of the worker."""
    cases = data.draw(
        st.lists(
            st.tuples(
                SCOPES,
                st.sampled_from(["t", "t.x", "t.%y", "u", "v", "tax"]),
                st.sampled_from(["a", "b", "c"]),
                st.frozensets(st.sampled_from(["gpu", "disk"])),
            ),
            min_size=20,
            max_size=50,
        )
    )
    facts = [json.dumps({"scope": scope.facts()}) for scope, *_ in cases]
    said = asyncio.run(_serves(database_url, facts, cases))
    assert said == [scope.serves(name, queue, needs) for scope, name, queue, needs in cases]


async def _serves(url: str, facts: list[str], cases: list[Any]) -> list[bool]:
    connection = await asyncpg.connect(url)
    try:
        sql = "SELECT tickwright.serves('{worker}', $1::text::jsonb, 'python:t', $2, $3, $4::text[])"
        return [
            await connection.fetchval(sql, fact, name, queue, sorted(needs))
            for fact, (_, name, queue, needs) in zip(facts, cases, strict=True)
        ]
    finally:
        await connection.close()
