"""A type whose jobs hang leaves slots to the others, however its jobs came there."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from kit.engine import Engine, policy, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.entries import Ended
from tickwright.capabilities.jobs.model import ClaimPlan, Job, most_of_one
from tickwright.capabilities.jobs.runner import Runner
from tickwright.capabilities.jobs.worker import WorkerLimits

SLOTS = 256
MANY = 40_000
INSERT = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
    "SELECT now(), 'target' FROM generate_series(1, $1::integer)"
)
DONE = (
    "SELECT count(*) = $1 AND max(attempts) = 1 FROM tickwright.scheduled_tasks "
    "WHERE status = 'completed' AND task_type = 'target'"
)


@dataclass
class Target:
    """What the jobs of one type call: it answers, or hangs.

    Attributes:
        gate: A call returns when that of its beginning is set.
        stops_at: It ceases to answer once the worker holds so many of its jobs.
        most: Calls that hung at once.
        waiting: Calls that hang.
    """

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    stops_at: float = math.inf
    most: int = 0
    waiting: int = 0

    async def __call__(self, job: Job) -> None:
        """Answer, or hang."""
        if job.entry.held > self.stops_at:
            self.gate, self.stops_at = asyncio.Event(), math.inf
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.gate.wait()
        self.waiting -= 1

    async def hangs(self) -> None:
        """Wait until most of its slots are taken."""
        await eventually_async(lambda: self.waiting >= SLOTS // 2, 30, what="calls hang")


async def _from_the_start(engine: Engine, target: Target) -> None:
    """A backlog of a target that has never answered."""
    await engine.pool.execute(INSERT, MANY)
    await target.hangs()
    await asyncio.sleep(0.3)
    assert engine.worker.entries()["target"].held <= SLOTS * 3 // 4


async def _behind_a_burst(engine: Engine, target: Target) -> None:
    """Its calls end together, as behind a timeout, and the next ones hang again."""
    await _from_the_start(engine, target)
    for _ in range(3):
        await asyncio.sleep(0.3)
        former, target.gate = target.gate, asyncio.Event()
        former.set()
        await asyncio.sleep(0.3)
        await target.hangs()
        assert engine.worker.entries()["target"].held <= 2 * SLOTS


async def _of_a_sudden(engine: Engine, target: Target) -> None:
    """It has answered quickly, so that many are held ahead, and stops."""
    target.gate.set()
    target.stops_at = 4 * SLOTS
    await engine.pool.execute(INSERT, MANY)
    await target.hangs()


async def _sound(_job: Job) -> None:
    return


How = Callable[[Engine, Target], Awaitable[None]]


async def check_others_run(url: str, how: How) -> None:
    """Others run while every call of the type hangs; when it answers again, none of its jobs has lost an attempt."""
    target = Target()
    kinds = {"target": policy("target", max_attempts=3), "sound": policy("sound")}
    handlers, limits = {"target": target.__call__, "sound": _sound}, WorkerLimits(concurrency=SLOTS)
    async with running_engine(url, handlers, kinds=kinds, limits=limits) as engine:
        await how(engine, target)
        for _ in range(5):
            await engine.until(await engine.insert("sound"), "completed")
        assert target.waiting <= target.most <= SLOTS - SLOTS // 16
        target.gate.set()
        await eventually_async(lambda: engine.pool.fetchval(DONE, MANY), 120, what="all of them have run, once")


@pytest.mark.parametrize("how", [_from_the_start, _behind_a_burst, _of_a_sudden])
async def test_others_run_beside_a_type_that_hangs(database_url: str, how: How) -> None:
    """They waited for minutes: claims that a sweep doubled and jobs that were fetched ahead had every slot."""
    await check_others_run(database_url, how)


@pytest.mark.parametrize(
    ("slots", "types", "most"),
    [(1, 2, 1), (3, 2, 3), (4, 2, 3), (8, 2, 7), (31, 2, 30), (32, 5, 30), (256, 2, 240), (256, 1, 256), (8, 0, 8)],
)
def test_one_type_has_all_slots_but_a_few_where_there_are_others(slots: int, types: int, most: int) -> None:
    """A worker with one type has no use for a slot that this type may not have."""
    assert most_of_one(slots, types=types) == most


@pytest.mark.parametrize(
    ("how", "mutant"),
    [
        (_from_the_start, (ClaimPlan.split, "rows - parts.get(name, 0)", "rows")),
        (_behind_a_burst, (Ended.rate, "max(within_s, self.took_s / at_once)", "within_s")),
        (_of_a_sudden, (Runner._places, "self.most - entry.running", "self.slots")),
    ],
)
async def test_the_mutants_are_caught(
    database_url: str, monkeypatch: pytest.MonkeyPatch, how: How, mutant: tuple[object, str, str]
) -> None:
    """A sweep claims beside what a claim asks for; a burst counts as a rate; a start asks for a free slot only."""
    mutate(monkeypatch, *mutant)
    with pytest.raises(AssertionError):
        await check_others_run(database_url, how)
