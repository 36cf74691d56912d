"""Queues: slots of their own, pauses, and workers that run some types only."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kit.engine import Engine, insert, policy, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.queues import Queues
from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.jobs.pools import read_scope
from tickwright.capabilities.jobs.worker import claimer
from tickwright.capabilities.jobs.worker.queue_slots import QueueSlots
from tickwright.capabilities.jobs.worker.worker import WorkerLimits
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
async def worker(url: str, queues: str, hanging: Hanging, **limits: str) -> AsyncIterator[Engine]:
    """Run a worker with types in three queues: slow and slow2 hang, quick and other do not."""
    queue_of = {"slow": "bulk", "slow2": "bulk", "quick": "critical", "other": "other"}
    handlers = {name: hanging.run if name.startswith("slow") else _sound for name in queue_of}
    kinds = {name: policy(name, queue=queue) for name, queue in queue_of.items()}
    scope = WorkerLimits(scope=read_scope(queues, **limits))
    async with running_engine(url, handlers, kinds=kinds, limits=scope) as engine:
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
        limits=WorkerLimits(scope=read_scope("bulk:5,critical:2")),
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
    async with asyncio.timeout(60):
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
            await eventually_async(lambda: len(ran) >= turns // 2, 30, what="it works")
            assert waiting.keys() <= set(ran[: turns // 2]), "a job of lower priority starves"


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
    monkeypatch.setattr(claimer, "FAIR_EVERY", 1_000_000_000)
    with pytest.raises(AssertionError, match="starves"):
        await check_no_starvation(database_url, turns=20_000)
