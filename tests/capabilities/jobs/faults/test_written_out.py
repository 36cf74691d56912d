"""Rows that are small as stored and large as text block no process and fill no memory."""

import asyncio
from collections import Counter
from datetime import timedelta

import asyncpg
import pytest
from structlog.testing import capture_logs

from kit.engine import connect, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Job
from tickwright.capabilities.jobs.worker import claimer
from tickwright.capabilities.jobs.worker.claimer import Claimer
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.store.pool import open_pool

MIB = 1024 * 1024
MESSAGE = "INSERT INTO tickwright.outbox (destination, payload, headers) VALUES ('pg:t', {payload}, {headers})"
JOB = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) VALUES (now(), 'work', {})"
LARGE = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) "
    "SELECT now(), 'work', to_jsonb(repeat('a', 1000000)) FROM generate_series(1, $1)"
)
SAVED = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "VALUES (7, 'w', '{}', '0', now() + interval '1 h')"
)
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
BOMBS = {
    "one": "'[1e131071]'",
    "fraction": "'[1e-16000]'",
    "many": "to_jsonb(array_fill(1e308, ARRAY[9000]))",
    "a gigabyte": "to_jsonb(array_fill(1e131071, ARRAY[9000]))",
    "escapes": r"to_jsonb(repeat(E'\x01', 500000))",
}
GOOD = {
    "numbers": "to_jsonb(array_fill(1e308, ARRAY[100]))",
    "finest": "'[5e-324, 1.7976931348623157e308, -1e308]'",
    "one number": "'1e308'",
    "empty": "'{}'",
    "a text": "to_jsonb(repeat('\"', 900000))",
    "a copy": "(SELECT kept FROM copied)",
    "a small copy": "(SELECT small FROM copied)",
}
# compressed as stored, and inserted in that form
COPIED = "CREATE TABLE copied AS SELECT to_jsonb(repeat('a', 900000)) AS kept, to_jsonb(repeat('a', 90000)) AS small"


@pytest.mark.matrix
@pytest.mark.parametrize("bomb", BOMBS)
async def test_json_that_is_much_longer_as_text_is_refused_at_the_insert(database_url: str, bomb: str) -> None:
    """For a payload and for headers: a constraint is named, and no row is written."""
    connection = await connect(database_url)
    headers = f"jsonb_build_object('a', {BOMBS[bomb]}::jsonb)"
    for sql, name in (
        (JOB.format(BOMBS[bomb]), "scheduled_tasks_payload"),
        (MESSAGE.format(payload=BOMBS[bomb], headers="'{}'"), "outbox_payload"),
        (MESSAGE.format(payload="'{}'", headers=headers), "outbox_headers"),
    ):
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await connection.execute(sql)
        assert refused.value.constraint_name == name
        assert "at most" in (refused.value.hint or "")
    assert await connection.fetchval(LIVE) + await connection.fetchval("SELECT count(*) FROM tickwright.outbox") == 0
    await connection.close()


@pytest.mark.parametrize("value", GOOD)
async def test_ordinary_json_is_inserted_and_within_its_estimated_length(database_url: str, value: str) -> None:
    """The length that claims assume for its text is never too low."""
    connection = await connect(database_url)
    await connection.execute(COPIED)
    await connection.execute(JOB.format(GOOD[value]))
    await connection.execute(MESSAGE.format(payload=GOOD[value], headers="'{}'"))
    for table in ("scheduled_tasks", "outbox"):
        sql = f"SELECT octet_length(payload::text), tickwright.written_bytes(payload) FROM tickwright.{table}"
        written, assumed = await connection.fetchrow(sql)
        assert written <= assumed
    await connection.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("traceparent", "repeat('a', 200000000)"), ("request_digest", "repeat('a', 100000000)::bytea")],
)
async def test_texts_beside_a_payload_are_bounded(database_url: str, column: str, value: str) -> None:
    """They are read with every claim, or compared with every key."""
    connection = await connect(database_url)
    sql = f"INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, {column}) VALUES (now(), 'work', {value})"
    with pytest.raises(asyncpg.CheckViolationError, match="at most"):
        await connection.execute(sql)
    await connection.close()


async def test_headers_of_a_message_are_bounded(database_url: str) -> None:
    """They are read with every claim of the relay."""
    connection = await connect(database_url)
    headers = "jsonb_build_object('a', repeat('a', 300000))"
    with pytest.raises(asyncpg.CheckViolationError, match="headers: at most"):
        await connection.execute(MESSAGE.format(payload="'{}'", headers=headers))
    await connection.close()


async def test_a_claim_is_bounded_in_bytes_and_says_that_there_are_more(database_url: str) -> None:
    """Rows count with their greatest possible length; the rest is left to the next claim."""
    pool = await open_pool(database_url, max_size=2)
    await pool.execute(SAVED)
    await pool.execute(LARGE, 100)
    request = ClaimRequest(7, ClaimPlan(("work",), (200,), 200), [ClaimRange("work", 0)], timedelta(milliseconds=200))
    first, second = await ClaimStore(pool).claim(request), await ClaimStore(pool).claim(request)
    await pool.close()
    assert [(len(claimed.rows), claimed.was_cut) for claimed in (first, second)] == [(64, True), (36, False)]


@pytest.mark.storm
async def test_a_row_of_an_earlier_release_that_is_too_long_ends_no_worker(database_url: str) -> None:
    """Its claim fails, and is tried again until the row is gone; then the others run."""
    ran = asyncio.Event()

    async def work(_: Job) -> None:
        ran.set()

    other = await connect(database_url)
    await other.execute("ALTER TABLE tickwright.scheduled_tasks DISABLE TRIGGER scheduled_tasks_new")
    with capture_logs() as logs:
        async with running_engine(database_url, {"work": work}):
            await other.execute(JOB.format(BOMBS["a gigabyte"]))
            await eventually_async(lambda: [one["event"] for one in logs].count("jobs.claim_failed") > 1, 60)
            await other.execute("DELETE FROM tickwright.scheduled_tasks")
            await other.execute(JOB.format("'{}'"))
            await asyncio.wait_for(ran.wait(), 60)
    await other.close()


async def check_a_worker_holds_so_many_bytes(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty large jobs and slots for all: one type holds three quarters of eight MiB, and another one still runs."""
    monkeypatch.setattr(claimer, "HELD_BYTES_MAX", 8 * MIB)
    go_on, runs = asyncio.Event(), Counter[int]()
    others = asyncio.Event()

    async def work(job: Job) -> None:
        runs[job.id] += 1
        await go_on.wait()

    async def other_work(_: Job) -> None:
        others.set()

    other = await connect(database_url)
    async with running_engine(database_url, {"work": work, "other": other_work}) as engine:
        await other.execute(LARGE, 30)
        await eventually_async(lambda: runs.total() >= 7, 30, what="the bound of held jobs is reached")
        ticks: set[float | None] = set()

        def has_claimed() -> bool:
            ticks.add(engine.worker.claimer.ticked_s)
            return len(ticks) > 20

        await eventually_async(has_claimed, 60, what="claims of the other type have taken all")
        held = len(engine.worker.runner.held())
        assert held <= 7, "too much is held"
        await other.execute(LARGE.replace("'work'", "'other'"), 1)
        await asyncio.wait_for(others.wait(), 60)
        go_on.set()
        await eventually_async(lambda: engine.pool.fetchval(f"SELECT ({LIVE}) = 0"), 30, what="all are done")
    await other.close()
    assert (len(runs), runs.total()) == (30, 30)


async def test_a_worker_bounds_the_bytes_it_holds_and_shares_them_among_types(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of slots its memory is bounded, and no type takes all of it."""
    await check_a_worker_holds_so_many_bytes(database_url, monkeypatch)


async def test_the_suite_notices_a_worker_without_a_bound_in_bytes(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the guard: only slots are counted."""
    mutate(monkeypatch, Claimer._byte_room, "allot(left, held[name], all_free=left)", "LONG_BYTES")
    with pytest.raises(AssertionError, match="too much is held"):
        await check_a_worker_holds_so_many_bytes(database_url, monkeypatch)
