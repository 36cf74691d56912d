"""A type whose jobs hang leaves slots to the other types, however its jobs were claimed."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kit.engine import Engine, policy, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import ClaimPlan, Job, TaskType, type_slots_max
from tickwright.capabilities.jobs.worker.places import PlaceQueues
from tickwright.capabilities.jobs.worker.runner import Runner
from tickwright.capabilities.jobs.worker.type_state import EndedAttempts, TypeState
from tickwright.capabilities.jobs.worker.worker import WorkerLimits
from tickwright.domain.dbclock import DbClock

SLOTS = 256
MANY = 20_000
BEYOND = "it has slots of others"
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
    """The target of one type's jobs: it answers, or hangs.

    Attributes:
        gate: A call returns when the gate of its beginning is set.
        stops_at: The target hangs once the worker holds so many of its jobs.
        begun: Calls so far.
        waiting: Calls that hang.
        most: Calls that hung at once.
    """

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    stops_at: float = math.inf
    begun: int = 0
    waiting: int = 0
    most: int = 0

    async def __call__(self, job: Job) -> None:
        """Answer, or hang."""
        if job.type_state.held > self.stops_at:
            self.gate, self.stops_at = asyncio.Event(), math.inf
        self.begun += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.gate.wait()
        self.waiting -= 1

    async def hangs(self, begun: int = 0) -> None:
        """Wait until half of the slots are taken by calls after the first ``begun``."""
        await eventually_async(lambda: self.begun >= begun + SLOTS // 2, 30, what="calls hang")


async def _others_end(engine: Engine) -> None:
    for _ in range(5):
        await engine.until(await engine.insert("sound"), "completed")


async def _from_the_start(engine: Engine, target: Target) -> None:
    """A backlog of a target that has never answered."""
    await engine.pool.execute(INSERT, MANY)
    await target.hangs()
    await _others_end(engine)
    assert engine.worker.types()["target"].held <= SLOTS * 3 // 4


async def _after_a_burst(engine: Engine, target: Target) -> None:
    """Its calls end together, as after a timeout, and the next ones hang again."""
    await _from_the_start(engine, target)
    for _ in range(3):
        begun, former, target.gate = target.begun, target.gate, asyncio.Event()
        former.set()
        await target.hangs(begun)
        await _others_end(engine)


async def _after_quick_answers(engine: Engine, target: Target) -> None:
    """It answers quickly, so that many jobs are held ahead, and then hangs."""
    target.gate.set()
    target.stops_at = 4 * SLOTS
    await engine.pool.execute(INSERT, MANY)
    await eventually_async(lambda: target.waiting >= SLOTS // 2, 30, what="calls hang")


async def _while_they_are_blocked(engine: Engine, target: Target) -> None:
    """Other jobs are claimed at once, not only after blocked ones are released."""
    await _after_quick_answers(engine, target)
    await eventually_async(lambda: engine.worker.runner.blocked, what="some are blocked")


async def _until_it_has_slots_of_others(engine: Engine, target: Target) -> None:
    """Only for the mutant: in the product this condition never comes true."""
    await _after_quick_answers(engine, target)
    await eventually_async(lambda: target.most > SLOTS - SLOTS // 16, 30, what="the type has slots of others")
    target.gate.set()


How = Callable[[Engine, Target], Awaitable[None]]


async def _sound(_job: Job) -> None:
    return


async def check_other_types_run(url: str, how: How) -> None:
    """Other types run while every call of one type hangs; when it answers, none of its jobs has lost an attempt."""
    target = Target()
    kinds = {"target": policy("target"), "sound": policy("sound")}
    handlers, limits = {"target": target.__call__, "sound": _sound}, WorkerLimits(concurrency=SLOTS)
    async with running_engine(url, handlers, kinds=kinds, limits=limits) as engine:
        try:
            await how(engine, target)
            await _others_end(engine)
            assert target.most <= SLOTS - SLOTS // 16, BEYOND
        finally:
            target.gate.set()
        await eventually_async(lambda: engine.pool.fetchval(DONE, MANY), 120, what="all of them have run, once")


@pytest.mark.matrix
@pytest.mark.parametrize("how", [_from_the_start, _after_a_burst, _after_quick_answers])
async def test_other_types_run_beside_a_type_that_hangs(database_url: str, how: How) -> None:
    """A regression: claims that a sweep doubled, and jobs fetched ahead, took every slot for minutes."""
    await check_other_types_run(database_url, how)


async def test_the_suite_notices_a_type_that_may_start_in_every_slot(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that were fetched ahead while the type was quick fill the slots."""
    mutate(monkeypatch, Runner._free_slots, "self.slots_of(state) - state.running_in_queue", "self.slots")
    with pytest.raises(AssertionError, match=BEYOND):
        await check_other_types_run(database_url, _until_it_has_slots_of_others)


async def test_other_types_are_claimed_while_one_is_blocked(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocked job takes no slot, so it keeps none from other types; here it is never released."""
    monkeypatch.setattr("tickwright.capabilities.jobs.worker.runner.SLOT_WAIT_S", 3600.0)
    await check_other_types_run(database_url, _while_they_are_blocked)


def test_a_type_that_was_alone_starts_no_job_until_it_is_within_its_share() -> None:
    """It had all slots when a second type came: one of 32 is free, and it has 31 where its share is 30."""
    outcomes: Any = SimpleNamespace(places=PlaceQueues())
    runner = Runner(outcomes, DbClock(), slots=32, threads=4)
    runner.type_slots_max = 30
    entry = TypeState(TaskType("t", "python:t"), outcomes, is_async=True)
    entry.running = 31
    running: Any = dict.fromkeys(range(31))
    runner._running = running
    assert runner._free_slots(entry) == 0


def test_the_measured_rate_is_bounded_by_the_attempts_that_run() -> None:
    """192 attempts of a second each that end within a twentieth of a second are not 3,840 a second."""
    assert _rate_of(192, took_s=192.0) == pytest.approx(256)
    assert _rate_of(192, took_s=0.0) == pytest.approx(3840)


def _rate_of(count: int, *, took_s: float) -> float:
    ended = EndedAttempts()
    ended.count, ended.took_s = count, took_s
    rate = ended.take_rate(0.05, at_once=256)
    assert (ended.count, ended.took_s) == (0, 0.0)
    return rate


def test_a_claim_and_its_sweep_together_ask_for_no_more_than_one_claim() -> None:
    """Except for one row of each type, where there is only one."""
    sweep, claim = ClaimPlan(("a", "few", "b"), (128, 3, 1), 200).split({"a", "b"})
    assert sweep == ClaimPlan(("a", "b"), (32, 1), 50)
    assert claim == ClaimPlan(("a", "few", "b"), (96, 3, 1), 150)


@pytest.mark.parametrize(
    ("slots", "types", "most"),
    [(1, 2, 1), (3, 2, 3), (4, 2, 3), (8, 2, 7), (31, 2, 30), (32, 5, 30), (256, 2, 240), (256, 1, 256), (8, 0, 8)],
)
def test_a_type_leaves_a_few_slots_only_if_there_are_other_types(slots: int, types: int, most: int) -> None:
    """A worker with one type would have no use for the slots that are left."""
    assert type_slots_max(slots, types=types) == most
