"""Single calls that go into the database together: what happens to one of them happens to no other."""

import asyncio
from collections import Counter

import asyncpg
import pytest

from kit.api import RunningApi, running_api
from kit.engine import running_engine
from kit.fix_app_roles import AppRole
from tickwright.capabilities.jobs import enqueue
from tickwright.capabilities.jobs.enqueue import Enqueuer, NewJob, Scheduled
from tickwright.capabilities.jobs.model import Job
from tickwright.domain.errors import TickwrightError

REFUSED = '{"n": 1e1000}'
"""Larger than what may be written out: the database refuses it, and only there."""


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
    assert rows == ids, "jobs that nobody was told of"
    assert ran == Counter(ids), "jobs ran twice"


async def test_a_refused_job_with_a_key_makes_no_other_job_twice(database_url: str) -> None:
    """They are apart: of what one statement writes all is there or nothing."""
    await check_each_job_is_there_once(database_url)


async def test_the_suite_notices_jobs_of_both_kinds_in_one_flush(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two statements without a transaction, and the first one is done again after the second one was refused."""
    made = Enqueuer.__init__

    def together(self: Enqueuer, pool: asyncpg.Pool) -> None:
        made(self, pool)
        self._plain = self._keyed

    monkeypatch.setattr(Enqueuer, "__init__", together)
    with pytest.raises(AssertionError, match="that nobody was told of"):
        await check_each_job_is_there_once(database_url)


async def _schedules(api: RunningApi, key: str | None, count: int) -> Counter[tuple[int, str | None]]:
    """Ask one after the other; return what was answered."""
    seen: Counter[tuple[int, str | None]] = Counter()
    for number in range(count):
        body = {"task_type": "noop", "idempotency_key": key and f"{key}-{number}", "payload": {"mark": key or "plain"}}
        answer = await api.operator.post("/v1/jobs", body)
        seen[answer.status, answer.json.get("code")] += 1
    return seen


async def test_a_key_that_a_transaction_holds_delays_no_other_job(
    database_url: str, app_role: AppRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those without a key and those with another one are scheduled meanwhile; ``busy`` means that nothing was done."""
    monkeypatch.setattr(enqueue, "HELD_FOR", "60s")  # nobody who waits for it is done before the others
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
    """Whoever hears it may send the same again, and there is one job of it."""
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
        assert not enqueuer._held_keys
        assert await engine.pool.fetchval("SELECT current_setting('lock_timeout')") == "5s", (
            "the bound stays with its job"
        )
    await holder.close()
    assert not isinstance(held, TickwrightError)
