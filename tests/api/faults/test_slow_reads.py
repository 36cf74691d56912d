"""Reads have a bound: whatever the database does, a GET is answered soon, and no statement runs on for it."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from kit.api import RunningApi, running_api
from kit.processes import stopped
from kit.waiting import eventually_async
from tickwright.api.context import ApiLimits
from tickwright.store.bounds import LEAST_S, TookTooLong, within
from tickwright.store.pool import RELEASE_BOUNDED_S, open_pool

READ_S = 0.1
SOON_S = READ_S + 2 * LEAST_S + RELEASE_BOUNDED_S + 4  # for a busy machine, too; without bounds it takes a minute
LIMITS = ApiLimits(read_timeout=timedelta(seconds=READ_S), key_age_max=timedelta(minutes=5))
STREAMS = {"/v1/stream", "/v1/jobs/{job_id}/events"}
NO_DATABASE = {
    "/v1/session", "/v1/openapi.json", "/v1/overview", "/v1/dead-letters/reports", "/healthz", "/readyz", "/metrics"
}  # fmt: skip
"""Answered from the memory of the process, or by RabbitMQ."""
LOCK = """
DO $$ DECLARE t text; BEGIN
  FOR t IN SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = 'tickwright' AND c.relkind IN ('r', 'p') LOOP
    EXECUTE 'LOCK TABLE ' || t || ' IN ACCESS EXCLUSIVE MODE';
  END LOOP;
END $$
"""
WORKING = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """An API whose reads have a tenth of a second; a key is cached for as long as a test lasts."""
    async with running_api(database_url, limits=LIMITS) as running:
        yield running


def filled(path: str) -> str:
    """Return a path with a value for every parameter, and the required query."""
    return re.sub(r"\{[a-z_]+\}", "5", path)


@pytest.mark.storm
async def test_every_read_ends_in_time_while_nothing_can_be_read(api: RunningApi, other: asyncpg.Connection) -> None:
    """A transaction locks every table: each GET route answers ``query_too_slow`` and leaves no statement."""
    paths = (await api.stranger.get("/v1/openapi.json")).json["paths"]
    reads = sorted(path for path, item in paths.items() if "get" in item and path not in STREAMS)
    assert (await api.admin.get("/v1/session")).status == 200
    locking = other.transaction()
    await locking.start()
    await other.execute(LOCK)
    now, bounded = asyncio.get_running_loop().time, 0
    for path in reads:
        began_s = now()
        answer = await api.admin.get(filled(path))
        assert now() - began_s < SOON_S, path
        if path in NO_DATABASE or answer.status == 422:
            continue
        assert answer.says(503, "query_too_slow").headers["retry-after"] == "1", path
        bounded += 1
    assert bounded >= 35

    async def quiet() -> bool:
        return bool(await other.fetchval(WORKING) == 0)

    await eventually_async(quiet)
    await locking.rollback()
    assert (await api.admin.get("/v1/jobs")).status == 200


async def test_a_change_is_not_bounded_by_the_time_of_reads(api: RunningApi, other: asyncpg.Connection) -> None:
    """A change waits for a lock as before: it is not cut off."""
    locking = other.transaction()
    await locking.start()
    await other.execute("LOCK TABLE tickwright.task_types IN ACCESS EXCLUSIVE MODE")
    changing = asyncio.create_task(api.admin.post("/v1/task-types/noop/pause"))
    done, _ = await asyncio.wait({changing}, timeout=READ_S * 5)
    assert not done
    await locking.rollback()
    assert (await changing).status == 200


async def a_process_of(pool: asyncpg.Pool) -> int:
    """Return the server process of a connection of the pool."""
    return int(await pool.fetchval("SELECT pg_backend_pid()"))


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/1"])
async def test_a_stopped_server_process_delays_no_request(database_url: str, path: str) -> None:
    """It receives no cancel: the answer comes all the same, the connection is dropped, and the next one is new."""
    async with running_api(database_url, limits=LIMITS) as api:
        assert (await api.admin.get("/v1/session")).status == 200
        with stopped(await a_process_of(api.pool)):
            now = asyncio.get_running_loop().time
            began_s = now()
            (await api.admin.get(path)).says(503, "query_too_slow")
            assert now() - began_s < SOON_S
            assert (await api.admin.get("/v1/jobs")).status == 200


async def test_an_unresponsive_connection_is_dropped(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a bound, as in loops: its release does not wait for the server's answer."""
    monkeypatch.setattr("tickwright.store.pool.RELEASE_S", READ_S)
    pool = await open_pool(database_url, max_size=1)
    with stopped(await a_process_of(pool)):
        async with asyncio.timeout(SOON_S):
            with pytest.raises(TimeoutError):
                await pool.fetchval("SELECT 1", timeout=READ_S)
            assert await pool.fetchval("SELECT 1") == 1
    await pool.close()


@pytest.mark.parametrize(("method", "path", "done"), [("GET", "/v1/jobs", 200), ("POST", "/v1/jobs", 201)])
async def test_the_lookup_of_a_key_is_bounded(
    database_url: str, monkeypatch: pytest.MonkeyPatch, method: str, path: str, done: int
) -> None:
    """A client whose key is unknown gets the answer that the database is unavailable."""
    monkeypatch.setattr("tickwright.api.auth.LOOKUP_S", READ_S)
    body = {"task_type": "noop"} if method == "POST" else None
    async with running_api(database_url) as api:
        with stopped(await a_process_of(api.pool)):
            (await api.admin.send(method, path, body)).says(503, "database_unavailable")
            assert (await api.admin.send(method, path, body)).status == done


async def test_the_statements_of_one_request_share_its_time(database_url: str) -> None:
    """Two that are short enough alone exceed it together; afterwards the connection can be used again."""
    pool = await open_pool(database_url, max_size=1)
    try:
        with pytest.raises(TookTooLong):
            await _sleeps(pool, 0.9, 0.3, 0.3, 0.3, 0.3)
        assert await pool.fetchval("SELECT 1") == 1
        await _sleeps(pool, 5.0, 0.1, 0.1)
        with pytest.raises(TimeoutError), within(5.0):
            await pool.fetchval("SELECT pg_sleep(1)", timeout=0.01)  # the caller's own bound, with its own error
    finally:
        await pool.close()


async def _sleeps(pool: Any, seconds: float, *sleeps_s: float) -> None:
    with within(seconds):
        async with pool.acquire() as connection, connection.transaction():
            for sleep_s in sleeps_s:
                await connection.execute("SELECT pg_sleep($1)", sleep_s)


async def test_a_task_that_outlives_its_request_is_not_bounded_by_it(database_url: str) -> None:
    """A task that a read has started, such as one for several requests, has its own time."""
    pool = await open_pool(database_url, max_size=2)
    try:
        with within(0.01):
            left_behind = asyncio.create_task(_later(pool))
        assert await left_behind == 1
    finally:
        await pool.close()


async def _later(pool: Any) -> int:
    await pool.execute("SELECT pg_sleep(0.5)")
    return int(await pool.fetchval("SELECT 1"))


async def test_the_wait_for_a_connection_counts_toward_the_bound(database_url: str) -> None:
    """A read that finds no free connection gets its error in time."""
    pool = await open_pool(database_url, max_size=1)
    try:
        async with pool.acquire():
            with pytest.raises(TimeoutError), within(0.01):
                await pool.fetchval("SELECT 1")
        assert await pool.fetchval("SELECT 1") == 1
    finally:
        await pool.close()
