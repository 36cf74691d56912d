"""Jobs with groups: limits, rates, turns and order for each group."""

import asyncio
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from kit.engine import connect, insert, policy, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import Fail, Job, Retry
from tickwright.capabilities.jobs.worker.worker import WorkerLimits

PARKED = "SELECT retry_at = 'infinity' AS parked, due_at, status FROM ONLY tickwright.scheduled_tasks WHERE id = $1"
MANY = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, group_key)
SELECT now(), 'mail', '{}', 'big' FROM generate_series(1, 1000)
"""
NUMBERED = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, group_key)
SELECT now(), 'mail', jsonb_build_object('n', n), 'g' FROM generate_series(1, $1::integer) AS n
"""
SEEN = "SELECT ready_at IS NULL AND NOT EXISTS (SELECT FROM tickwright.job_group_hints) FROM tickwright.job_groups"


class Watched:
    """A handler that notes how many jobs of each group run at once, and in which order they begin."""

    def __init__(self, work_s: float = 0.002) -> None:
        self.work_s = work_s
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: dict[str, list[int]] = defaultdict(list)
        self.done = 0

    async def __call__(self, job: Job) -> None:
        """Run one job."""
        group = job.group or ""
        self.running[group] += 1
        self.most[group] = max(self.most[group], self.running[group])
        self.begun[group].append(job.id)
        await asyncio.sleep(self.work_s)
        self.running[group] -= 1
        self.done += 1


def as_function(watched: Watched) -> Any:
    """Return the handler as an ``async def``."""

    async def run(job: Job) -> None:
        await watched(job)

    return run


async def test_no_more_jobs_of_a_group_run_at_once_than_its_limit(database_url: str) -> None:
    """Two workers, five groups: each group has at most two running, and all jobs run."""
    watched = Watched()
    kinds = {"mail": policy("mail", group_limit=2)}
    async with (
        running_engine(database_url, {"mail": as_function(watched)}, kinds=kinds) as engine,
        running_engine(database_url, {"mail": as_function(watched)}, kinds=kinds),
    ):
        for number in range(100):
            await engine.insert("mail", group_key=f"customer-{number % 5}")
        await eventually_async(lambda: watched.done == 100, 20, what="all have run")
    assert set(watched.most.values()) <= {1, 2}
    assert {len(ids) for ids in watched.begun.values()} == {20}


async def test_a_group_needs_no_settings_of_its_type(database_url: str) -> None:
    """Without any, groups take turns and nothing else."""
    watched = Watched()
    async with running_engine(database_url, {"mail": as_function(watched)}) as engine:
        await engine.insert("mail")
        for number in range(10):
            await engine.insert("mail", group_key=f"g{number % 2}")
        await eventually_async(lambda: watched.done == 11, what="all have run")


async def test_a_waiting_job_is_parked_whatever_wrote_it(database_url: str) -> None:
    """An insert, a new time and a release keep it out of the claims of jobs without groups."""
    connection = await connect(database_url)
    try:
        job_id = await insert(connection, "later", at="now() + interval '1 hour'", group_key="g")
        row = await connection.fetchrow(PARKED, job_id)
        assert row["parked"]
        assert row["due_at"] is not None
        await connection.execute(
            "UPDATE tickwright.scheduled_tasks SET execute_at = now() + interval '2 hours' WHERE id = $1", job_id
        )
        moved = await connection.fetchrow(PARKED, job_id)
        assert moved["parked"]
        assert moved["due_at"] > row["due_at"]
        await connection.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)
        ended = await connection.fetchrow("SELECT * FROM tickwright.scheduled_tasks WHERE id = $1", job_id)
        assert (ended["status"], ended["retry_at"], ended["due_at"], ended["group_key"]) == (
            "cancelled",
            None,
            None,
            "g",
        )
    finally:
        await connection.close()


@pytest.mark.parametrize("group", ["", "x" * 256, "x" * 10_000])
async def test_a_group_that_is_empty_or_too_long_is_refused(database_url: str, group: str) -> None:
    """Also by plain SQL, with a constraint that has a name."""
    connection = await connect(database_url)
    try:
        with pytest.raises(asyncpg.CheckViolationError, match="group_key: 1 to 255 bytes") as refused:
            await insert(connection, "later", group_key=group)
        assert refused.value.constraint_name == "scheduled_tasks_group"
    finally:
        await connection.close()


async def test_jobs_of_an_ordered_group_run_in_the_order_of_their_ids(database_url: str) -> None:
    """Whatever their due times are."""
    watched = Watched(0.0)
    async with running_engine(
        database_url, {"post": as_function(watched)}, kinds={"post": policy("post", group_order="stop")}
    ) as engine:
        async with engine.pool.acquire() as connection, connection.transaction():
            for number in range(60):
                await insert(connection, "post", at=f"now() - interval '{number} s'", group_key=f"g{number % 3}")
        await eventually_async(lambda: watched.done == 60, what="all have run")
    assert all(ids == sorted(ids) for ids in watched.begun.values())
    assert set(watched.most.values()) == {1}


@pytest.mark.parametrize(("order", "expected"), [("stop", [1, 1]), ("skip", [1, 1, 2, 3]), ("continue", [1, 2, 3, 1])])
async def test_a_failed_job_of_an_ordered_group_stops_it_or_not(
    database_url: str, order: str, expected: list[int]
) -> None:
    """``stop`` and ``skip`` wait for its retries, ``continue`` does not; behind a dead letter only ``stop`` stops."""
    begun: list[int] = []

    async def post(job: Job, n: int) -> None:
        begun.append(n)
        if n == 1:
            raise Retry("no", after=timedelta(seconds=1))

    kinds = {"post": policy("post", group_order=order, max_attempts=2)}
    async with running_engine(database_url, {"post": post}, kinds=kinds) as engine:
        async with engine.pool.acquire() as connection, connection.transaction():
            ids = [await insert(connection, "post", payload={"n": n}, max_attempts=2, group_key="g") for n in (1, 2, 3)]
        await engine.until(ids[0], "failed")
        if order == "stop":
            stopped = "SELECT stopped_by FROM tickwright.job_groups WHERE group_key = 'g'"
            await eventually_async(lambda: engine.pool.fetchval(stopped), what="the group is stopped")
        else:
            await engine.until(ids[2], "completed")
        assert begun == expected


async def test_starts_of_a_group_keep_its_rate(database_url: str) -> None:
    """At 20 per second, ten jobs of one group take at least 0.4 s; another group does not wait for them."""
    begun: dict[str, list[float]] = defaultdict(list)

    async def mail(job: Job) -> None:
        begun[job.group or ""].append(asyncio.get_running_loop().time())

    kinds = {"mail": policy("mail", group_rate_per_s=20.0)}
    async with running_engine(database_url, {"mail": mail}, kinds=kinds) as engine:
        async with engine.pool.acquire() as connection, connection.transaction():
            for number in range(20):
                await insert(connection, "mail", group_key=f"g{number % 2}")
        await eventually_async(lambda: sum(map(len, begun.values())) == 20, what="all have run")
    for starts in begun.values():
        assert starts[-1] - starts[0] > 0.4


async def test_a_retry_frees_the_place_of_its_group(database_url: str) -> None:
    """While a job waits for its retry, another one of its group runs."""
    begun: list[int] = []

    async def mail(job: Job, n: int) -> None:
        begun.append(n)
        if n == 1 and job.attempt == 1:
            raise RuntimeError("again")

    async with running_engine(database_url, {"mail": mail}, kinds={"mail": policy("mail", group_limit=1)}) as engine:
        async with engine.pool.acquire() as connection, connection.transaction():
            for n in (1, 2):
                await insert(connection, "mail", payload={"n": n}, group_key="g")
        await eventually_async(lambda: len(begun) == 3, what="all have run")
    assert begun == [1, 2, 1]


async def test_a_full_group_does_not_take_the_slots_of_others(database_url: str) -> None:
    """One group with a thousand slow jobs, and one job of another group."""
    release = asyncio.Event()
    others: list[int] = []

    async def mail(job: Job) -> None:
        if job.group == "big":
            await release.wait()
        else:
            others.append(job.id)

    async with running_engine(
        database_url, {"mail": mail}, kinds={"mail": policy("mail", group_limit=2)}, limits=WorkerLimits(concurrency=4)
    ) as engine:
        await engine.pool.execute(MANY)
        await engine.insert("mail", group_key="small")
        await eventually_async(lambda: len(others) == 1, what="the other group's job runs")
        release.set()


async def test_a_failing_handler_is_no_error_of_the_engine(database_url: str) -> None:
    """A final failure frees the place too."""
    begun: list[int] = []

    async def mail(job: Job) -> None:
        begun.append(job.id)
        raise Fail("no")

    async with running_engine(database_url, {"mail": mail}, kinds={"mail": policy("mail", group_limit=1)}) as engine:
        for _ in range(3):
            await engine.insert("mail", group_key="g")
        await eventually_async(lambda: len(begun) == 3, what="all have run")


async def test_a_lower_limit_holds_for_jobs_that_start_from_then_on(database_url: str) -> None:
    """Two jobs of a group run, and its limit becomes one: nothing starts until both have ended."""
    gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
    running, done = set[int](), set[int]()

    async def mail(job: Job) -> None:
        running.add(job.id)
        await gates[job.id].wait()
        running.discard(job.id)
        done.add(job.id)

    kinds = {"mail": policy("mail", group_limit=2)}
    async with running_engine(database_url, {"mail": mail}, kinds=kinds) as engine:
        for _ in range(4):
            await engine.insert("mail", group_key="g")
        await eventually_async(lambda: len(running) == 2, what="two run")
        first, second = running
        await engine.pool.execute("UPDATE tickwright.task_types SET group_limit = 1 WHERE name = 'mail'")
        await eventually_async(lambda: engine.worker.types()["mail"].task_type.group_limit == 1, what="it is read")
        gates[first].set()
        await engine.until(first, "completed")
        looked = "SELECT held = $1 FROM tickwright.job_groups WHERE group_key = 'g'"
        await eventually_async(lambda: engine.pool.fetchval(looked, [second]), what="a claim has looked at the group")
        assert running == {second}
        gates[second].set()
        await eventually_async(lambda: second in done and len(running) == 1, what="the next one runs")
        third = running.pop()
        gates[third].set()
        await eventually_async(lambda: third in done and len(running) == 1, what="the last one runs")
        gates[running.pop()].set()


async def test_a_job_that_hangs_holds_up_one_place_of_its_group(database_url: str) -> None:
    """Fast jobs wait behind each other in one worker; one that hangs leaves those behind it to the other place."""
    gate, done = asyncio.Event(), list[int]()

    async def mail(_job: Job, n: int) -> None:
        if n == 1500:
            await gate.wait()
        done.append(n)

    async with running_engine(database_url, {"mail": mail}, kinds={"mail": policy("mail", group_limit=2)}) as engine:
        await engine.pool.execute(NUMBERED, 3000)
        await eventually_async(lambda: len(done) == 2999, 30, what="all but one have run")
        gate.set()
        await eventually_async(lambda: len(done) == 3000, what="all have run")
    assert sorted(done) == [*range(1, 3001)]


@pytest.mark.parametrize("limit", [3, None])
async def test_a_higher_limit_holds_for_jobs_that_wait(database_url: str, limit: int | None) -> None:
    """No job of the group has to end or come."""
    running, gate = set[int](), asyncio.Event()

    async def mail(job: Job) -> None:
        running.add(job.id)
        await gate.wait()

    async with running_engine(database_url, {"mail": mail}, kinds={"mail": policy("mail", group_limit=1)}) as engine:
        await engine.pool.execute(NUMBERED, 3)
        await eventually_async(lambda: engine.pool.fetchval(SEEN), what="a claim has found the group full")
        await engine.pool.execute("UPDATE tickwright.task_types SET group_limit = $1 WHERE name = 'mail'", limit)
        await eventually_async(lambda: len(running) == 3, what="all run")
        gate.set()


@pytest.mark.parametrize("rate", [100.0, None])
async def test_a_higher_rate_holds_for_jobs_that_wait(database_url: str, rate: float | None) -> None:
    """The next start was an hour ahead."""
    begun: list[int] = []

    async def mail(job: Job) -> None:
        begun.append(job.id)

    kinds = {"mail": policy("mail", group_rate_per_s=1 / 3600)}
    async with running_engine(database_url, {"mail": mail}, kinds=kinds) as engine:
        await engine.pool.execute(NUMBERED, 3)
        await eventually_async(lambda: len(begun) == 1, what="one has run")
        await engine.pool.execute("UPDATE tickwright.task_types SET group_rate_per_s = $1 WHERE name = 'mail'", rate)
        await eventually_async(lambda: len(begun) == 3, what="all have run")


@pytest.mark.parametrize("order", ["skip", "continue", None])
async def test_a_group_that_has_stopped_goes_on_when_its_type_does_not_stop(
    database_url: str, order: str | None
) -> None:
    """Behind the failed job that is left."""
    begun: list[int] = []

    async def mail(_job: Job, n: int) -> None:
        begun.append(n)
        if n == 1:
            raise Fail("no")

    async with running_engine(
        database_url, {"mail": mail}, kinds={"mail": policy("mail", group_order="stop")}
    ) as engine:
        await engine.pool.execute(NUMBERED, 3)
        stopped = "SELECT stopped_by FROM tickwright.job_groups"
        await eventually_async(lambda: engine.pool.fetchval(stopped), what="the group is stopped")
        await engine.pool.execute("UPDATE tickwright.task_types SET group_order = $1 WHERE name = 'mail'", order)
        await eventually_async(lambda: len(begun) == 3, what="all have run")
        await eventually_async(lambda: engine.pool.fetchval(f"SELECT ({stopped}) IS NULL"), what="nothing is stopped")
