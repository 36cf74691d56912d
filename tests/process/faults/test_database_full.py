"""PostgreSQL with a full disk: what needs no room goes on, the rest reports why it cannot, and nothing is lost."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from kit.nodes import running, settings_of
from kit.postgres import PostgresServer
from kit.preloads import full_disk
from kit.servers import started
from kit.waiting import eventually_async
from tickwright import Job, Tickwright
from tickwright.app.declarations import Declarations
from tickwright.process.node import Node
from tickwright.rest.problems import translate
from tickwright.store.migrate import migrate


@pytest.fixture
def server() -> Iterator[tuple[PostgresServer, Path]]:
    """A server whose disk is full while the file exists."""
    made = PostgresServer()
    made.environment, mark = full_disk(made.folder)
    with started(made):
        yield made, mark


@pytest.fixture
async def app(server: tuple[PostgresServer, Path]) -> AsyncIterator[Tickwright]:
    """A program on it that only schedules."""
    url = server[0].create_database("shop")
    migrate(url)
    async with Tickwright(url) as app:
        yield app


async def test_a_full_disk_is_reported_and_loses_nothing_and_work_resumes_by_itself(
    server: tuple[PostgresServer, Path], app: Tickwright, tmp_path: Path
) -> None:
    """The API and readiness report ``disk_full`` with the remedy, and jobs that were accepted run afterwards."""
    ran: list[int] = []
    program = Declarations()

    @program.job("work")
    async def work(job: Job) -> None:
        ran.append(job.id)

    acknowledged: set[int] = set()

    async def fill() -> None:
        for _ in range(2_000):
            acknowledged.add((await app.schedule("work", {"filling": "x" * 20_000}, delay="1h")).id)

    settings = settings_of(str(app.database.url), tmp_path, "")
    async with running(settings, program, "worker", "scheduler", "relay") as node:
        await eventually_async(lambda: _is_listening(node), 30, what="the probes are served")
        at = f"http://127.0.0.1:{node.health.port}/readyz"
        await eventually_async(lambda: _is_ready(at), 30, what="the process is ready")
        server[1].touch()
        with pytest.raises(asyncpg.DiskFullError) as refused:
            await fill()
        said = translate(refused.value, of_a_change=True)
        assert said is not None
        assert (said.code, "free some" in said.message) == ("disk_full", True)
        body = await _readyz(at)
        assert (body["status"], "no room left" in body["database"]) == ("not_ready", True)
        assert await _metric(node, "tickwright_database_full") == 1
        server[1].unlink()
        await app.pool.execute("UPDATE tickwright.scheduled_tasks SET execute_at = now()")
        await eventually_async(lambda: _all(ran, acknowledged), 60, what="every job runs")
        await eventually_async(lambda: _is_ready(at), 30, what="the process is ready again")
    assert len(ran) == len(acknowledged)


async def _metric(node: Node, name: str) -> float:
    """Return the value that Prometheus would scrape."""
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{node.health.port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


async def _readyz(at: str) -> dict[str, str]:
    async with aiohttp.ClientSession() as client, client.get(at) as answer:
        body: dict[str, str] = json.loads(await answer.read())
        return body


async def _is_ready(at: str) -> bool:
    return (await _readyz(at))["status"] == "ready"


async def _is_listening(node: Node) -> bool:
    return node.health.port is not None


async def _all(ran: list[int], acknowledged: set[int]) -> bool:
    return acknowledged <= set(ran)
