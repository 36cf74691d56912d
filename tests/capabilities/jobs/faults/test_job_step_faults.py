"""Steps of a handler under faults: not repeated after a kill, and nothing of a lost attempt is kept.

STEP-1: a function whose result is kept is not called again for its job. STEP-2: an attempt that does not hold its job
keeps no result.
"""

import asyncio
import json
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from kit.engine import (
    SHORT,
    WorkerProcess,
    connect,
    insert,
    job_row,
    policy,
    read_events,
    running_engine,
)
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs import retention
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Job
from tickwright.capabilities.jobs.task_types import register_handler
from tickwright.capabilities.jobs.worker import steps as steps_module
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.steps import Steps, WorkerSteps
from tickwright.domain.errors import Contended, Rejected
from tickwright.store.borrowed import borrow
from tickwright.store.pool import Pool

CHARGES = "CREATE TABLE public.charges (id bigint)"
CHARGE = "INSERT INTO public.charges VALUES (1)"
COUNT = "SELECT count(*) FROM public.charges"
SESSION = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "VALUES (7, 'w', '{worker}', '0', now() + interval '1 hour')"
)
CLAIM = ClaimRequest(7, ClaimPlan(("t",), (10,), 10), [ClaimRange("t", 0)], timedelta(seconds=1))


async def ended(connection: asyncpg.Connection, job_id: int) -> Any:
    """Return a job's row once it is completed."""
    row = await job_row(connection, job_id)
    return row if row["status"] == "completed" else None


async def has_types(connection: asyncpg.Connection) -> bool:
    """Whether a worker has registered the type of the jobs with steps."""
    return bool(await connection.fetchval("SELECT count(*) FROM tickwright.task_types WHERE name = 'steps'"))


# ---------------------------------------------------------------------- processes


async def test_a_kill_between_two_steps_repeats_neither(database_url: str, tmp_path: Path) -> None:
    """STEP-1: the first is kept when its call returns, so kill -9 right after it costs nothing."""
    connection = await connect(database_url)
    first = WorkerProcess(database_url, tmp_path / "1.log", lease_s=1.5, work_s=600)
    await eventually_async(lambda: has_types(connection), 20)
    job_id = await insert(connection, "steps")
    await eventually_async(lambda: any(event.tag == "B" for event in read_events(tmp_path / "1.log")), 20)
    first.kill9()
    second = WorkerProcess(database_url, tmp_path / "2.log", lease_s=1.5, work_s=0)
    row = await eventually_async(lambda: ended(connection, job_id), 30)
    second.stop()
    await connection.close()
    tags = Counter(event.tag for event in read_events(tmp_path / "1.log", tmp_path / "2.log"))
    assert tags == {"A": 1, "B": 2, "C": 1}
    assert (row["result"], row["attempts"]) == ("1", 2)


async def test_a_stopped_worker_that_comes_back_keeps_no_step(database_url: str, tmp_path: Path) -> None:
    """STEP-2: SIGSTOP in a step past the lease, then SIGCONT: what another worker has kept stays."""
    connection = await connect(database_url)
    slow = {"ENGINE_STEP_S": "1"}
    zombie = WorkerProcess(database_url, tmp_path / "1.log", lease_s=1.5, work_s=600, environment=slow)
    await eventually_async(lambda: has_types(connection), 20)
    job_id = await insert(connection, "steps")
    await eventually_async(lambda: any(event.tag == "A" for event in read_events(tmp_path / "1.log")), 20)
    zombie.pause()
    second = WorkerProcess(database_url, tmp_path / "2.log", lease_s=1.5, work_s=600)
    await eventually_async(lambda: any(event.tag == "B" for event in read_events(tmp_path / "2.log")), 30)
    kept = (await job_row(connection, job_id))["steps"]
    zombie.resume()
    await eventually_async(
        lambda: connection.fetchval("SELECT count(*) = 2 FROM tickwright.workers WHERE lost_at IS NULL"), 20
    )  # it works again under a new token
    zombie.stop()
    assert (await job_row(connection, job_id))["steps"] == kept
    assert json.loads(kept)["first"]["result"] == 2
    second.kill9()
    await connection.close()


# ---------------------------------------------------------------------- STEP-1


async def check_no_repetition(url: str) -> None:
    """An attempt that fails after a step: the next one does not call it."""
    calls: Counter[str] = Counter()

    async def note(name: str) -> None:
        calls[name] += 1

    async def handler(job: Job) -> None:
        await job.step("first", note, "first")
        if job.attempt == 1:
            raise ValueError("again")
        await job.step("second", note, "second")

    async with running_engine(url, {"h": handler}, kinds={"h": policy("h")}) as engine:
        row = await engine.until(await engine.insert("h"), "completed", "failed")
    assert row["status"] == "completed"
    assert calls == {"first": 1, "second": 1}, "STEP-1 broken: a step was repeated"


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("function", "guard", "instead"),
    [
        (Steps.run, "if kept is None:", "if True:"),
        (Steps._keep, "await self._store.keep(self._job, name, written.decode())", "pass"),
    ],
)
async def test_the_suite_notices_steps_that_are_repeated(
    database_url: str, monkeypatch: pytest.MonkeyPatch, function: Any, guard: str, instead: str
) -> None:
    """Mutants: what is kept is not used, or is not stored."""
    mutate(monkeypatch, function, guard, instead)
    with pytest.raises(AssertionError, match="STEP-1 broken"):
        await check_no_repetition(database_url)


async def test_a_step_is_not_repeated_by_a_later_attempt(database_url: str) -> None:
    """STEP-1."""
    await check_no_repetition(database_url)


async def test_a_step_is_kept_through_an_outage_of_the_database(database_url: str) -> None:
    """The function has run; its result is written once the database answers."""
    async with running_engine(database_url, {"h": lambda job: None}) as engine:
        steps = engine.worker._steps
        calls = 0
        fetch = engine.pool.fetch

        async def failing(sql: str, *values: Any, **more: Any) -> Any:
            nonlocal calls
            if sql == steps_module._SQL["keep"] and (calls := calls + 1) == 1:
                raise ConnectionResetError
            return await fetch(sql, *values, **more)

        steps._pool = type("Pool", (), {"fetch": staticmethod(failing)})()
        codes = []

        async def number() -> int:
            return 1

        async def handler(job: Job) -> int:
            codes.append(await job.step("first", number))
            return codes[0]

        state = engine.worker.types()["h"]
        state.call, state.is_async, state.is_plain = handler, True, True
        row = await engine.until(await engine.insert("h"), "completed")
    assert (row["result"], calls, codes) == ("1", 2, [1])


# ---------------------------------------------------------------------- STEP-2


class _Session:
    token = 7


async def claim(pool: Pool) -> Job:
    """Return an attempt of the session 7."""
    [row] = (await ClaimStore(pool).claim(CLAIM)).rows
    return Job(row, None, None, 0.0, 0.0)  # type: ignore[arg-type]


async def refused(work: Any, why: str) -> None:
    """Check that an attempt that does not hold its job is refused."""
    try:
        await work
    except Contended as error:
        assert error.code == "attempt_ended"  # noqa: PT017
    else:
        raise AssertionError(f"STEP-2 broken: {why}")


async def check_fences(pool: Pool, url: str) -> None:
    """An attempt that was released, and one that the same session has claimed again, keep and read nothing."""
    async with pool.acquire() as own:
        await register_handler(own, policy("t"))
    await pool.execute(SESSION)
    job_id = await insert(pool, "t")
    session: Any = _Session()
    store: Any = WorkerSteps(pool, session, asyncio.get_running_loop)
    first = await claim(pool)
    await ClaimStore(pool).write("release", 7, [first.id], [first.fence])
    other = await connect(url)
    for state in ("released", "claimed again"):
        async with other.transaction():
            to = borrow(other)
            await refused(store.keep_in(to, first, "first", "1"), f"{state}: kept in a transaction")
            await refused(store.find_in(to, first, "first"), f"{state}: read in a transaction")
        await refused(store.keep(first, "first", "1"), f"{state}: kept")
        await refused(store.load(first), f"{state}: read")
        assert (await job_row(pool, job_id))["steps"] is None, f"STEP-2 broken: {state}: kept"
        if state == "released":
            second = await claim(pool)
    await store.keep(second, "first", "2")
    await other.close()
    assert json.loads((await job_row(pool, job_id))["steps"])["first"]["result"] == 2


async def test_an_attempt_that_does_not_hold_its_job_keeps_nothing(pool: Pool, database_url: str) -> None:
    """STEP-2."""
    await check_fences(pool, database_url)


FENCES = [
    (query, guard)
    for query, guards in {
        "load": ("t.owner = $1", "t.fence = u.fence"),
        "keep": ("t.owner = $1", "t.fence = u.fence"),
        "find_in": ("t.owner = $1::bigint", "t.fence = $3::bigint"),
        "keep_in": ("t.owner = $1::bigint", "t.fence = $3::bigint"),
    }.items()
    for guard in guards
]


@pytest.mark.mutant
@pytest.mark.parametrize(("query", "guard"), FENCES)
async def test_the_suite_notices_steps_without_a_fence(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch, query: str, guard: str
) -> None:
    """Mutants: a statement without the owner, or without the job's fence."""
    statement = steps_module._SQL[query]
    assert guard in statement
    weak = statement.replace(guard, f"({guard} OR true)")
    monkeypatch.setattr(steps_module, "_SQL", {**steps_module._SQL, query: weak})
    with pytest.raises(AssertionError, match="STEP-2 broken"):
        await check_fences(pool, database_url)


# ---------------------------------------------------------------------- in a transaction


async def check_once_in_a_transaction(url: str) -> None:
    """Attempts that fail in the transaction, before its commit and after it: the write takes effect once."""
    setup = await connect(url)
    await setup.execute(CHARGES)
    calls: list[int] = []

    async def charge(connection: Any, attempt: int) -> int:
        calls.append(attempt)
        await connection.execute(CHARGE)
        return attempt

    async def handler(job: Job) -> int:
        own = await connect(url)
        try:
            async with own.transaction():
                found = await job.step_in(own, "charge", charge, own, job.attempt)
                if job.attempt == 1:
                    raise ValueError("before the commit")
            if job.attempt == 2:
                raise ValueError("after the commit")
            return found
        finally:
            await own.close()

    async with running_engine(url, {"h": handler}, kinds={"h": policy("h")}) as engine:
        row = await engine.until(await engine.insert("h"), "completed", "failed")
    charges = await setup.fetchval(COUNT)
    await setup.close()
    assert row["status"] == "completed", row["error_message"]
    assert (charges, calls, row["result"]) == (1, [1, 2], "2"), "STEP-1 broken: it took effect twice, or not at all"


async def test_a_step_in_a_transaction_takes_effect_once(database_url: str) -> None:
    """STEP-1: its result and its writes are committed together, or not at all."""
    await check_once_in_a_transaction(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_a_result_that_is_kept_elsewhere(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: the result is kept on another connection, before the commit of the writes."""

    async def keep_in(self: WorkerSteps, _connection: Any, job: Job, name: str, result: str) -> None:
        await self.keep(job, name, result)

    monkeypatch.setattr(WorkerSteps, "keep_in", keep_in)
    with pytest.raises(AssertionError, match="STEP-1 broken"):
        await check_once_in_a_transaction(database_url)


async def ignoring_cancels(event: asyncio.Event) -> None:
    """Wait for an event like a handler that cannot be stopped."""
    while not event.is_set():
        with suppress(asyncio.CancelledError):
            await event.wait()


async def test_no_other_attempt_begins_before_the_commit(database_url: str) -> None:
    """A worker is declared lost between the step and its commit: the row is locked, and the next attempt finds it."""
    kept, may_commit, may_end, calls = asyncio.Event(), asyncio.Event(), asyncio.Event(), []
    setup = await connect(database_url)
    await setup.execute(CHARGES)

    async def charge(connection: Any, attempt: int) -> int:
        calls.append(attempt)
        await connection.execute(CHARGE)
        return attempt

    async def handler(job: Job) -> int:
        own = await connect(database_url)
        async with own.transaction():
            found = await job.step_in(own, "charge", charge, own, job.attempt)
            kept.set()
            await ignoring_cancels(may_commit)
        await own.close()
        if job.attempt == 1:
            await ignoring_cancels(may_end)
        return found

    kinds = {"h": policy("h")}
    async with running_engine(database_url, {"h": handler}, kinds=kinds, terms=SHORT) as zombie:
        job_id = await zombie.insert("h")
        await kept.wait()
        zombie.tasks.pop(0).cancel()  # its heart
        async with running_engine(database_url, {"h": handler}, kinds=kinds, terms=SHORT) as taker:
            lost = "SELECT lost_at IS NOT NULL FROM tickwright.workers WHERE id = $1"
            token = (await job_row(setup, job_id))["owner"]
            await eventually_async(lambda: setup.fetchval(lost, token), 20)
            stuck = retention.SQL["return_stuck"]
            assert await setup.fetch(stuck, timedelta(0), 100) == []
            assert calls == [1]
            may_commit.set()
            await eventually_async(lambda: setup.fetch(stuck, timedelta(0), 100), 20)
            row = await taker.until(job_id, "completed", within_s=20)
        may_end.set()
    assert (row["result"], row["attempts"], calls, await setup.fetchval(COUNT)) == ("1", 2, [1], 1)
    await setup.close()


async def test_a_repeated_name_in_a_transaction_is_refused_once_it_is_committed(database_url: str) -> None:
    """After a rollback it may be used again; after a commit a step of either kind is refused."""

    async def handler(job: Job) -> list[Any]:
        async def number() -> int:
            return 1

        own = await connect(database_url)
        found: list[Any] = []
        with suppress(ValueError):
            async with own.transaction():
                await job.step_in(own, "n", number)
                raise ValueError("rolled back")
        async with own.transaction():
            found.append(await job.step_in(own, "n", number))
        for _ in range(2):
            try:
                async with own.transaction():
                    await job.step_in(own, "n", number)
            except Rejected as error:
                found.append(error.code)
        try:
            await job.step("n", number)
        except Rejected as error:
            found.append(error.code)
        try:
            await job.step_in(own, "m", number)
        except Rejected as error:
            found.append(error.code)
        await own.close()
        return found

    async with running_engine(database_url, {"h": handler}) as engine:
        row = await engine.until(await engine.insert("h"), "completed", "failed")
    assert row["result"] is not None, row["error_message"]
    assert json.loads(row["result"]) == [1, *["step_repeated"] * 3, "no_transaction"]


async def test_a_synchronous_handler_keeps_a_step_in_its_transaction(database_url: str) -> None:
    """With psycopg, without an event loop."""
    setup = await connect(database_url)
    await setup.execute(CHARGES)

    def charge(connection: Any) -> str:
        connection.execute(CHARGE)
        return "done"

    def handler(job: Job) -> str:
        with psycopg.connect(database_url) as own:
            found = job.step_in_sync(own, "charge", charge, own)
        if job.attempt == 1:
            raise ValueError("after the commit")
        return found

    async with running_engine(database_url, {"h": handler}, kinds={"h": policy("h")}) as engine:
        row = await engine.until(await engine.insert("h"), "completed", "failed")
    assert (row["result"], row["attempts"], await setup.fetchval(COUNT)) == ('"done"', 2, 1)
    await setup.close()
