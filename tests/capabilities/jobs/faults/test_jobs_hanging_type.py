"""A type whose jobs hang leaves slots to the others, however its jobs came there."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kit.engine import Engine, policy, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import ClaimPlan, Job, TaskType, type_slots_max
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
    """What the jobs of one type call: it answers, or hangs.

    Attributes:
        gate: A call returns when that of its beginning is set.
        stops_at: It ceases to answer once the worker holds so many of its jobs.
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
        """Wait until half of the slots are taken by calls behind the first ``begun``."""
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


async def _behind_a_burst(engine: Engine, target: Target) -> None:
    """Its calls end together, as behind a timeout, and the next ones hang again."""
    await _from_the_start(engine, target)
    for _ in range(3):
        begun, former, target.gate = target.begun, target.gate, asyncio.Event()
        former.set()
        await target.hangs(begun)
        await _others_end(engine)


async def _of_a_sudden(engine: Engine, target: Target) -> None:
    """It has answered quickly, so that many are held ahead, and stops."""
    target.gate.set()
    target.stops_at = 4 * SLOTS
    await engine.pool.execute(INSERT, MANY)
    await eventually_async(lambda: target.waiting >= SLOTS // 2, 30, what="calls hang")


async def _while_they_are_blocked(engine: Engine, target: Target) -> None:
    """Others are claimed at once, not only when what is blocked was released."""
    await _of_a_sudden(engine, target)
    await eventually_async(lambda: engine.worker.runner.blocked, what="some are blocked")


async def _until_they_have_more(engine: Engine, target: Target) -> None:
    """For the mutant alone: what is sound waits for that in vain."""
    await _of_a_sudden(engine, target)
    await eventually_async(lambda: target.most > SLOTS - SLOTS // 16, 30, what="they have slots of others")
    target.gate.set()


How = Callable[[Engine, Target], Awaitable[None]]


async def _sound(_job: Job) -> None:
    return


async def check_others_run(url: str, how: How) -> None:
    """Others run while every call of the type hangs; when it answers again, none of its jobs has lost an attempt."""
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
@pytest.mark.parametrize("how", [_from_the_start, _behind_a_burst, _of_a_sudden])
async def test_others_run_beside_a_type_that_hangs(database_url: str, how: How) -> None:
    """They waited for minutes: claims that a sweep doubled and jobs that were fetched ahead had every slot."""
    await check_others_run(database_url, how)


async def test_the_mutant_whose_type_may_start_in_every_slot_is_caught(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was fetched ahead while it was quick fills them."""
    mutate(monkeypatch, Runner._places, "self.type_slots_max - state.running", "self.slots")
    with pytest.raises(AssertionError, match=BEYOND):
        await check_others_run(database_url, _until_they_have_more)


async def test_others_are_claimed_while_a_type_is_blocked(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is blocked takes no slot, so it keeps none from the others; here it is never released."""
    monkeypatch.setattr("tickwright.capabilities.jobs.worker.runner.SLOT_WAIT_S", 3600.0)
    await check_others_run(database_url, _while_they_are_blocked)


def test_a_type_that_was_alone_starts_no_more_until_it_has_its_part() -> None:
    """It had all slots when another type came: one of 32 is free, and it has 31 of its 30."""
    nothing: Any = None
    runner = Runner(nothing, DbClock(), slots=32, threads=4)
    runner.type_slots_max = 30
    entry = TypeState(TaskType("t", "python:t"), nothing, is_async=True)
    entry.running = 31
    running: Any = dict.fromkeys(range(31))
    runner._running = running
    assert runner._places(entry) == 0


def test_no_more_end_in_a_while_than_run_in_it() -> None:
    """192 attempts of a second each that end in one twentieth of a second are no 3,840 a second."""
    assert _rate_of(192, took_s=192.0) == pytest.approx(256)
    assert _rate_of(192, took_s=0.0) == pytest.approx(3840)


def _rate_of(count: int, *, took_s: float) -> float:
    ended = EndedAttempts()
    ended.count, ended.took_s = count, took_s
    rate = ended.take_rate(0.05, at_once=256)
    assert (ended.count, ended.took_s) == (0, 0.0)
    return rate


def test_a_claim_and_the_sweep_beside_it_ask_for_no_more_than_one_claim() -> None:
    """But for one row of each type, where there is only one."""
    sweep, claim = ClaimPlan(("a", "few", "b"), (128, 3, 1), 200).split({"a", "b"})
    assert sweep == ClaimPlan(("a", "b"), (32, 1), 50)
    assert claim == ClaimPlan(("a", "few", "b"), (96, 3, 1), 150)


@pytest.mark.parametrize(
    ("slots", "types", "most"),
    [(1, 2, 1), (3, 2, 3), (4, 2, 3), (8, 2, 7), (31, 2, 30), (32, 5, 30), (256, 2, 240), (256, 1, 256), (8, 0, 8)],
)
def test_one_type_has_all_slots_but_a_few_where_there_are_others(slots: int, types: int, most: int) -> None:
    """A worker with one type has no use for a slot that this type may not have."""
    assert type_slots_max(slots, types=types) == most
