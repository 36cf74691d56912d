"""The task types that a process knows: read beside the calls that use them."""

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from tickwright.capabilities.jobs import enqueue, type_catalog
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.requests import NewJob
from tickwright.capabilities.jobs.type_catalog import TypeCatalog
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Pool

DUE = datetime(2031, 5, 1, 9, tzinfo=UTC)


async def test_a_lost_database_while_types_are_read_costs_no_traceback(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read beside a call has no caller to raise to: its error is one line, and the earlier types stay in use."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    monkeypatch.setattr(type_catalog, "TYPES_FRESH_S", -1.0)
    await pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('mail', 'python:mail')")
    catalog = TypeCatalog(pool)
    known = await catalog.get("mail")
    pool.terminate()
    assert await catalog.get("mail") is known
    assert catalog._reading is not None
    await asyncio.wait({catalog._reading})
    assert await catalog.get("mail") is known
    await asyncio.wait({catalog._reading})
    del catalog
    gc.collect()
    assert unheard == []


class _Counted:
    """A connection that counts its statements."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append({"copy_records_to_table": "COPY", "fetchval": "now"}[name])
        return getattr(self._connection, name)


@pytest_asyncio.fixture
async def enqueuer(pool: Pool) -> Enqueuer:
    """An enqueuer that knows no type yet, of a database that has three."""
    await pool.execute(
        "INSERT INTO tickwright.task_types (name, target, max_attempts) SELECT n, 'x', 7 FROM unnest("
        "ARRAY['a', 'b', 'c']) AS n"
    )
    return Enqueuer(pool)


async def test_a_batch_of_jobs_is_one_copy(pool: Pool, enqueuer: Enqueuer) -> None:
    """Of any types; the database's clock is read only for jobs that are due now."""
    at_times = [NewJob(name, execute_at=DUE) for name in "abcab"]
    at_once = [NewJob(name) for name in "abcab"]
    expected: list[tuple[list[NewJob], list[str]]] = [
        (at_times, ["COPY"]),
        (at_once, ["now", "COPY"]),
        (at_times + at_once, ["COPY", "now", "COPY"]),
        ([], []),
    ]
    async with pool.acquire() as connection, connection.transaction():
        for jobs, statements in expected:
            counted = _Counted(connection)
            assert await enqueuer.copy(jobs, connection=counted) == len(jobs)
            assert counted.asked == statements
    rows = await pool.fetch("SELECT execute_at = $1 AS later, max_attempts FROM tickwright.scheduled_tasks", DUE)
    assert [(row["later"], row["max_attempts"]) for row in rows] == [(x, 7) for x in [True] * 5 + [False] * 5] * 2


async def test_a_full_copy_is_followed_by_no_empty_one(
    pool: Pool, enqueuer: Enqueuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one starts only if there is a job for it, and no job falls between the two."""
    monkeypatch.setattr(enqueue, "COPY_ROWS", 3)
    async with pool.acquire() as connection, connection.transaction():
        counted = _Counted(connection)
        assert await enqueuer.copy((NewJob("a", execute_at=DUE) for _ in range(6)), connection=counted) == 6
    assert counted.asked == ["COPY"] * 2
    assert await pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 6


async def test_a_type_that_is_registered_later_ends_one_copy(pool: Pool, enqueuer: Enqueuer) -> None:
    """The type is read, and the next COPY continues with its job; an unknown type cancels all jobs of the call."""
    await enqueuer.types.get("a")
    await pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('late', 'x')")
    jobs = [NewJob(name, execute_at=DUE) for name in ("a", "late", "b", "late")]
    async with pool.acquire() as connection, connection.transaction():
        counted = _Counted(connection)
        assert await enqueuer.copy(jobs, connection=counted) == 4
    assert counted.asked == ["COPY"] * 2
    with pytest.raises(Rejected) as refused:
        await enqueuer.copy([*jobs, NewJob("unknown.type", execute_at=DUE)])
    assert refused.value.code == "unknown_task_type"
    assert await pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 4


async def test_a_copy_checks_its_jobs(pool: Pool, enqueuer: Enqueuer) -> None:
    """Also those of a caller that did not check them; then none is inserted."""
    for code, wrong in (
        ("invalid_timeout", NewJob("a", execute_at=DUE, timeout=timedelta(days=2))),
        ("naive_datetime", NewJob("a", execute_at=DUE.replace(tzinfo=None))),
        ("key_in_bulk", NewJob("a", execute_at=DUE, key="k")),
    ):
        with pytest.raises(Rejected) as refused:
            await enqueuer.copy([NewJob("a", execute_at=DUE), wrong])
        assert refused.value.code == code
    assert await pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 0
