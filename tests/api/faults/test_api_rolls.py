"""Two processes of the API while clients schedule: each is drained, replaced and paused, and no job is made twice."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import asyncpg
import pytest

from kit.api import ADMIN, allow_all
from kit.api_process import api_process
from kit.processes import stopped
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.capabilities.operations.keys import ApiKeys
from tickwright.ports.caller import Role
from tickwright.store.pool import Pool

CLIENTS = 4
ANSWER_S = 1.0
_WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'tickwright.scheduled_tasks'::regclass)"


@pytest.fixture
async def key(pool: Pool) -> str:
    """The key of an operator; the type of the jobs is registered."""
    service = JobService(pool, enqueuer=Enqueuer(pool), allow_target=allow_all)
    await service.types.put("later", TaskTypeRequest(target="python:later"), caller=ADMIN)
    return (await ApiKeys(pool).create("test", Role.OPERATOR, caller=ADMIN)).key


class Load:
    """Clients that schedule at several addresses: an unanswered request goes to the next one, with the same key."""

    def __init__(self, addresses: list[str], key: str) -> None:
        self.addresses, self._headers = addresses, {"Authorization": f"Bearer {key}"}
        self.acknowledged: dict[str, int] = {}
        self.statuses: set[int] = set()
        self.over = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Schedule for the length of the block; at its end every request that was begun is acknowledged."""
        tasks = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        try:
            yield
        finally:
            self.over.set()
            await asyncio.gather(*tasks)

    async def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        await eventually_async(lambda: len(self.acknowledged) >= wanted, 60, what="jobs are acknowledged")

    async def _client(self, client: int) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            attempt = client
            number = 0
            while not self.over.is_set():
                name = f"{client}-{number}"
                body = {"task_type": "later", "idempotency_key": name, "delay": "1h"}
                while name not in self.acknowledged:
                    attempt += 1
                    with suppress(aiohttp.ClientError, TimeoutError):
                        await self._post(session, self.addresses[attempt % len(self.addresses)], name, body)
                number += 1

    async def _post(self, session: aiohttp.ClientSession, address: str, name: str, body: dict[str, Any]) -> None:
        async with session.post(f"{address}/v1/jobs", json=body) as answer:
            self.statuses.add(answer.status)
            if answer.status in {200, 201}:
                self.acknowledged[name] = (await answer.json())["id"]


async def _check(pool: Pool, load: Load) -> None:
    rows = await pool.fetch("SELECT id, idempotency_key FROM tickwright.scheduled_tasks WHERE task_type = 'later'")
    assert {row["idempotency_key"]: row["id"] for row in rows} == load.acknowledged
    assert len(rows) == len(load.acknowledged)


async def test_replicas_are_drained_and_replaced_one_by_one_under_load(
    database_url: str, pool: Pool, key: str, tmp_path: Path
) -> None:
    """Each request is answered, none with an error, each job is there once; a drain ends by itself with exit code 0."""
    async with AsyncExitStack() as replicas:
        old = [await replicas.enter_async_context(api_process(database_url, tmp_path)) for _ in range(2)]
        load = Load([address for address, _ in old], key)
        async with load.running():
            for address, child in old:
                await load.more(50)
                child.send_signal(signal.SIGTERM)
                await load.more(50)
                assert await asyncio.to_thread(child.wait, 60) == 0
                port = urlsplit(address).port
                await replicas.enter_async_context(api_process(database_url, tmp_path, port))
            await load.more(50)
    assert load.statuses <= {200, 201}
    await _check(pool, load)


async def test_a_request_under_way_is_answered_by_a_replica_that_drains(
    database_url: str, pool: Pool, key: str, tmp_path: Path
) -> None:
    """It accepts no new connection, and the request that waits for the database gets its 201."""
    holder = await asyncpg.connect(database_url)
    async with api_process(database_url, tmp_path) as (address, child):
        load = Load([address], key)
        await holder.execute("BEGIN; LOCK TABLE tickwright.scheduled_tasks IN SHARE MODE")
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
            body = {"task_type": "later", "idempotency_key": "under way", "delay": "1h"}
            sending = asyncio.create_task(load._post(session, address, "under way", body))
            await eventually_async(lambda: holder.fetchval(_WAITS), 30, what="the request waits for the database")
            child.send_signal(signal.SIGTERM)
            await eventually_async(lambda: _refuses(address), 30, what="it takes no connection")
            holder.terminate()
            await sending
        assert await asyncio.to_thread(child.wait, 60) == 0
    assert load.statuses == {201}
    await _check(pool, load)


@pytest.mark.storm
async def test_a_paused_replica_makes_no_job_twice(database_url: str, pool: Pool, key: str, tmp_path: Path) -> None:
    """Once it runs again it finishes what it began; the other replica has answered the clients by then."""
    async with AsyncExitStack() as replicas:
        both = [await replicas.enter_async_context(api_process(database_url, tmp_path)) for _ in range(2)]
        load = Load([address for address, _ in both], key)
        async with load.running():
            for _, child in both:
                await load.more(20)
                with stopped(child.pid):
                    await load.more(20)
            await load.more(20)
        assert all(child.poll() is None for _, child in both)
    assert load.statuses <= {200, 201}
    await _check(pool, load)


async def _refuses(address: str) -> bool:
    parts = urlsplit(address)
    try:
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False
