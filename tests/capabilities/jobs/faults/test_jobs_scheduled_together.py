"""Single calls that are written together: what happens to one of them affects no other."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from kit.api import RunningApi, running_api
from kit.engine import running_engine
from kit.fix_app_roles import AppRole
from kit.waiting import eventually_async
from tickwright.capabilities.jobs import enqueue
from tickwright.capabilities.jobs.enqueue import Enqueuer, Scheduled
from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.jobs.requests import NewJob
from tickwright.domain.errors import TickwrightError
from tickwright.store import pool as pool_module
from tickwright.store.pool import open_pool

REFUSED = '{"n": 1e1000}'
"""A number too large for ``jsonb``: only the database refuses it."""


async def check_each_job_is_there_once(database_url: str) -> None:
    """Beside a job with a key that PostgreSQL refuses, each other one is one row and runs once."""
    ran: Counter[int] = Counter()

    async def work(job: Job) -> None:
        ran[job.id] += 1

    async with running_engine(database_url, {"work": work}) as engine:
        enqueuer = Enqueuer(engine.pool)
        await enqueuer.types.get("work")
        good = [NewJob("work", key=key) for key in (*[None] * 20, *(f"k{n}" for n in range(20)))]
        bad = NewJob("work", REFUSED, key="bad", digest=b"bad")
        answers = await asyncio.gather(*map(enqueuer.schedule, [*good, bad]), return_exceptions=True)
        assert isinstance(answers.pop(), Exception)
        ids = {answer.id for answer in answers if isinstance(answer, Scheduled)}
        assert len(ids) == len(good)
        for job_id in ids:
            await engine.until(job_id, "completed")
        rows = {row[0] for row in await engine.pool.fetch("SELECT id FROM tickwright.scheduled_tasks")}
    assert rows == ids, "jobs without an answer"
    assert ran == Counter(ids), "jobs ran twice"


async def test_a_refused_job_with_a_key_makes_no_other_job_twice(database_url: str) -> None:
    """They are written apart: one statement writes all its jobs or none."""
    await check_each_job_is_there_once(database_url)


async def test_the_suite_notices_a_flush_of_jobs_with_and_without_a_key(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: two statements without a transaction; the first is repeated after the second was refused."""
    made = Enqueuer.__init__

    def together(self: Enqueuer, pool: asyncpg.Pool) -> None:
        made(self, pool)
        self._plain = self._keyed._quick

    monkeypatch.setattr(Enqueuer, "__init__", together)
    with pytest.raises(AssertionError, match="jobs without an answer"):
        await check_each_job_is_there_once(database_url)


async def _schedules(api: RunningApi, key: str | None, count: int) -> Counter[tuple[int, str | None]]:
    """Post one job after the other; return the answers."""
    seen: Counter[tuple[int, str | None]] = Counter()
    for number in range(count):
        body = {"task_type": "noop", "idempotency_key": key and f"{key}-{number}", "payload": {"mark": key or "plain"}}
        answer = await api.operator.post("/v1/jobs", body)
        seen[answer.status, answer.json.get("code")] += 1
    return seen


async def test_a_key_that_a_transaction_holds_delays_no_other_job(
    database_url: str, app_role: AppRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs without a key or with another one are scheduled meanwhile; after ``busy`` nothing was done."""
    monkeypatch.setattr(enqueue, "HELD_FOR", "60s")  # no call that waits for the key ends before the others
    holder = await asyncpg.connect(app_role.url)
    async with running_api(database_url) as api:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) "
            "SELECT now() + interval '1 hour', 'noop', 'held-' || n FROM generate_series(0, 4) AS n"
        )
        held = [asyncio.create_task(_schedules(api, "held", 1)) for _ in range(3)]
        others = [
            _schedules(api, None, 10),
            _schedules(api, None, 10),
            _schedules(api, "a", 10),
            _schedules(api, "b", 10),
        ]
        assert await asyncio.gather(*others) == [Counter({(201, None): 10})] * 4
        assert not any(task.done() for task in held), "the key is still held"
        await transaction.rollback()
        answers = sum(await asyncio.gather(*held), Counter())
        assert answers == Counter({(201, None): 1, (200, None): 2})
        rows = await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks WHERE payload ? 'mark'")
    assert rows == 41
    await holder.close()


async def test_busy_means_that_nothing_was_done(
    database_url: str, app_role: AppRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may send the same again, and there is one job of it."""
    monkeypatch.setattr(enqueue, "HELD_FOR", "200ms")
    holder = await asyncpg.connect(app_role.url)
    async with running_engine(database_url, {}) as engine:
        await engine.pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('noop', 'python:noop')")
        enqueuer = Enqueuer(engine.pool)
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) "
            "VALUES (now(), 'noop', 'K')"
        )
        jobs = [NewJob("noop", key="K"), NewJob("noop", key="free"), NewJob("noop")]
        held, free, plain = await asyncio.gather(*map(enqueuer.schedule, jobs), return_exceptions=True)
        assert isinstance(held, asyncpg.LockNotAvailableError)
        assert isinstance(free, Scheduled)
        assert isinstance(plain, Scheduled)
        assert await engine.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 2
        await transaction.rollback()
        made = await enqueuer.schedule(NewJob("noop", key="K"))
        assert made.created
        assert not enqueuer._keyed._held
        assert await engine.pool.fetchval("SELECT current_setting('lock_timeout')") == "5s", (
            "the bound stays with its job"
        )
    await holder.close()
    assert not isinstance(held, TickwrightError)


async def _insert_counts(pool: asyncpg.Pool) -> tuple[int, int]:
    """Return the number of jobs and of the transactions that inserted them: each has its own ``now()``."""
    row = await pool.fetchrow("SELECT count(*), count(DISTINCT created_at) FROM ONLY tickwright.scheduled_tasks")
    assert row is not None
    return row[0], row[1]


@pytest.fixture
async def enqueuer(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Enqueuer]:
    """An enqueuer that knows the type ``noop``, on sessions that wait 300 ms for a lock."""
    monkeypatch.setitem(pool_module.SETTINGS, "lock_timeout", "300")
    pool = await open_pool(database_url)
    await pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('noop', 'python:noop')")
    enqueuer = Enqueuer(pool)
    await enqueuer.types.get("noop")
    yield enqueuer
    await pool.close()


@asynccontextmanager
async def _held(url: str, *keys: str) -> AsyncIterator[None]:
    """Hold keys in an open transaction."""
    holder = await asyncpg.connect(url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) "
        "SELECT now(), 'noop', key FROM unnest($1::text[]) AS key",
        keys,
    )
    try:
        yield
    finally:
        await transaction.rollback()
        await holder.close()


async def test_held_keys_cost_the_other_jobs_one_statement(app_role: AppRole, enqueuer: Enqueuer) -> None:
    """However many keys are held: a statement per job would be a round trip per job."""
    held = [f"held-{n}" for n in range(10)]
    keys = [*held[:5], *(f"free-{n}" for n in range(100)), *held[5:], "free-0"]
    async with _held(app_role.url, *held):
        calls = [asyncio.create_task(enqueuer.schedule(NewJob("noop", key=key))) for key in keys]
        made = await asyncio.gather(*(call for key, call in zip(keys, calls, strict=True) if key not in held))
        assert await _insert_counts(enqueuer._pool) == (100, 1)
        assert [answer.created for answer in made] == [True] * 100 + [False]
        assert made[0].id == made[-1].id
        assert not any(call.done() for key, call in zip(keys, calls, strict=True) if key in held)
    assert all(answer.created for answer in (await asyncio.gather(*calls))[:5])


@pytest.mark.parametrize("key", [None, "k"])
async def test_refused_jobs_cost_the_other_jobs_one_statement(enqueuer: Enqueuer, key: str | None) -> None:
    """With a key or without one; each refused job raises the error that it raises alone."""
    jobs = [NewJob("noop", REFUSED if n % 10 == 0 else "{}", key=key and f"{key}{n}") for n in range(100)]
    answers = await asyncio.gather(*map(enqueuer.schedule, jobs), return_exceptions=True)
    assert await _insert_counts(enqueuer._pool) == (90, 1)
    with pytest.raises(asyncpg.CheckViolationError) as alone:
        await enqueuer.schedule(jobs[0])
    for job, answer in zip(jobs, answers, strict=True):
        if job.payload == REFUSED:
            assert isinstance(answer, asyncpg.CheckViolationError)
            assert answer.args == alone.value.args
        else:
            assert isinstance(answer, Scheduled)
    ids = {answer.id for answer in answers if isinstance(answer, Scheduled)}
    assert ids == {row[0] for row in await enqueuer._pool.fetch("SELECT id FROM tickwright.scheduled_tasks")}


@pytest.mark.parametrize("statements", [1, 2])
async def test_busy_of_jobs_without_a_key_means_that_nothing_was_done(
    database_url: str, enqueuer: Enqueuer, monkeypatch: pytest.MonkeyPatch, statements: int
) -> None:
    """Also if the table is locked after the first statements of a flush: there is one job for each id, no more."""
    locker = await asyncpg.connect(database_url)
    seen = 0

    async def insert(self: Enqueuer, *args: Any, **more: Any) -> list[Any]:
        nonlocal seen
        seen += 1
        try:
            return await inserted(self, *args, **more)
        finally:
            if seen == statements:
                await locker.execute("BEGIN; LOCK TABLE tickwright.scheduled_tasks IN SHARE MODE")

    inserted = Enqueuer._insert
    monkeypatch.setattr(Enqueuer, "_insert", insert)
    jobs = [NewJob("noop", REFUSED if n == 5 else "{}") for n in range(10)]
    answers = await asyncio.gather(*map(enqueuer.schedule, jobs), return_exceptions=True)
    await locker.close()
    made = [answer for answer in answers if isinstance(answer, Scheduled)]
    assert (await _insert_counts(enqueuer._pool))[0] == len(made)
    errors = {type(answer) for answer in answers if isinstance(answer, Exception)}
    assert errors == ({asyncpg.LockNotAvailableError} if not made else {asyncpg.CheckViolationError})


async def test_a_key_that_stays_held_makes_no_other_held_one_busy(app_role: AppRole, enqueuer: Enqueuer) -> None:
    """They wait together; the one that becomes free meanwhile is scheduled."""
    async with _held(app_role.url, "a"):
        async with _held(app_role.url, "b"):
            calls = [asyncio.create_task(enqueuer.schedule(NewJob("noop", key=key))) for key in "ab"]
            await eventually_async(lambda: sorted(enqueuer._keyed._held) == ["a", "b"])
        a, b = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(a, asyncpg.LockNotAvailableError)
    assert isinstance(b, Scheduled)
