"""J1, J2 and J7 at full size: an API that is killed, workers with wrong clocks, cancels that race claims."""

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kit.api import ADMIN, allow_all
from kit.api_process import api_process
from kit.engine import WorkerProcess, read_events, running_engine
from kit.preloads import WorkerClock
from kit.processes import kill_group
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.capabilities.operations.keys import ApiKeys
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Role
from tickwright.store.pool import Pool, connect

PAIRS, ROUND = 10_000, 200
CLIENTS = 8


# ---------------------------------------------------------------------- J7: cancel against claim


async def test_ten_thousand_cancels_that_race_a_claim_keep_their_promise(database_url: str) -> None:
    """J7: after the answer ``cancelled`` no start follows, and none came before; the other jobs ran or were stopped."""
    started: set[int] = set()

    async def handler(job: Job) -> None:
        started.add(job.id)

    cancelled: set[int] = set()
    async with running_engine(database_url, {"race": handler}) as engine:
        service = JobService(engine.pool, enqueuer=Enqueuer(engine.pool), allow_target=allow_all)

        async def cancel(job_ids: list[int]) -> None:
            for job_id in job_ids:
                if await _cancels(service, job_id):
                    cancelled.add(job_id)

        for _ in range(PAIRS // ROUND):
            ids = await _insert_round(engine.pool)
            random.shuffle(ids)
            await asyncio.gather(*(cancel(ids[n::CLIENTS]) for n in range(CLIENTS)))
        await eventually_async(lambda: _nothing_live(engine.pool), 60)
        over = await engine.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks")
    assert over == PAIRS
    assert min(len(cancelled), len(started)) > PAIRS // 100, "cancels and claims did not meet"
    assert cancelled & started == set()


async def _insert_round(pool: Pool) -> list[int]:
    """Insert jobs that come due one after the other while they are cancelled."""
    rows = await pool.fetch(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
        "SELECT clock_timestamp() + n * interval '1.5 milliseconds', 'race' FROM generate_series(1, $1) n RETURNING id",
        ROUND,
    )
    return [row["id"] for row in rows]


async def _cancels(service: JobService, job_id: int) -> bool:
    try:
        return (await service.cancel(job_id, caller=ADMIN)).outcome == "cancelled"
    except Rejected as error:
        if error.code != "job_finished":
            raise
        return False


async def _nothing_live(pool: Any) -> bool:
    return not await pool.fetchval("SELECT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks)")


# ---------------------------------------------------------------------- J2: a worker's clock


@pytest.mark.matrix
@pytest.mark.parametrize("hours", [2.0, -2.0])
async def test_a_workers_wrong_clock_starts_no_job_early_and_none_late(
    database_url: str, tmp_path: Path, hours: float
) -> None:
    """J2: two hours ahead it starts no job before its instant by the database's clock; two hours behind none waits."""
    clock, log = WorkerClock(tmp_path), tmp_path / "worker.log"
    clock.jump(hours)
    connection = await connect(database_url)
    worker = WorkerProcess(database_url, log, environment=clock.environment)
    try:
        await eventually_async(lambda: connection.fetchval("SELECT count(*) FROM tickwright.task_types"), 20)
        await connection.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT clock_timestamp() + interval '1 second' + n * interval '20 milliseconds', 'work' "
            "FROM generate_series(1, 200) n"
        )

        async def all_started() -> bool:
            starts = [event for event in read_events(log) if event.tag == "S"]
            now_s = await connection.fetchval("SELECT date_part('epoch', clock_timestamp())")
            assert [event for event in starts if event.due_s > now_s] == [], "started early"
            return len(starts) == 200

        await eventually_async(all_started, 60, what="every job starts")
        await eventually_async(lambda: _nothing_live(connection), 20)
    finally:
        worker.stop()
        await connection.close()


# ---------------------------------------------------------------------- J1: what the API acknowledged


async def _post(at: str, key: str, count: int, acknowledged: dict[str, int], posted: set[str]) -> None:
    """Post jobs until the API stops; record which were requested, and which were acknowledged."""
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(at, headers=headers) as client:
        for number in range(count):
            name = f"{id(client)}-{number}"
            posted.add(name)
            body = {"task_type": "later", "idempotency_key": name, "delay": "1h"}
            try:
                async with client.post("/v1/jobs", json=body) as answer:
                    if answer.status == 201:
                        acknowledged[name] = (await answer.json())["id"]
            except (aiohttp.ClientError, TimeoutError):
                return


async def _check_acknowledged(pool: Pool, acknowledged: dict[str, int], posted: set[str]) -> None:
    """Every acknowledged job is there under its id; a request without an answer made one job or none."""
    rows = await pool.fetch("SELECT id, idempotency_key FROM tickwright.scheduled_tasks WHERE task_type = 'later'")
    there = {row["idempotency_key"]: row["id"] for row in rows}
    assert len(there) == len(rows)
    assert acknowledged.items() <= there.items()
    assert there.keys() <= posted


async def _prepare(pool: Pool) -> str:
    service = JobService(pool, enqueuer=Enqueuer(pool), allow_target=allow_all)
    await service.types.put("later", TaskTypeRequest(target="python:later"), caller=ADMIN)
    return (await ApiKeys(pool).create("test", Role.OPERATOR, caller=ADMIN)).key


async def test_an_api_killed_under_load_keeps_every_job_that_it_acknowledged(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    """J1: kill -9 while eight clients schedule; a 201 is a row, and a request without an answer is at most one."""
    acknowledged: dict[str, int] = {}
    posted: set[str] = set()
    key = await _prepare(pool)
    async with api_process(database_url, tmp_path) as (at, child):
        clients = [asyncio.create_task(_post(at, key, 1_000_000, acknowledged, posted)) for _ in range(CLIENTS)]
        await eventually_async(lambda: len(acknowledged) > 500, 40)
        kill_group(child)
        await asyncio.gather(*clients)
    await _check_acknowledged(pool, acknowledged, posted)


async def test_an_api_cut_off_at_commit_keeps_every_job_that_it_acknowledged(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    """J1: twenty times answers of the database are lost and all connections reset, while clients schedule."""
    acknowledged: dict[str, int] = {}
    posted: set[str] = set()
    key = await _prepare(pool)
    server = await pool.fetchrow("SELECT inet_server_addr() AS host, inet_server_port() AS port")
    async with (
        TcpProxy("127.0.0.1", server["port"]) as proxy,
        api_process(proxy.rewrite(database_url), tmp_path) as (at, _),
    ):
        clients = [asyncio.create_task(_post(at, key, 400, acknowledged, posted)) for _ in range(CLIENTS)]
        for cut in range(20):
            await eventually_async(partial(_have_posted, posted, 40 * (cut + 1), clients), 60)
            proxy.drop_replies()
            await eventually_async(
                lambda: _has_unanswered_row(pool, acknowledged, clients), 20, what="a commit without its answer"
            )
            proxy.reset()
            proxy.heal()
        await asyncio.gather(*clients)
    assert len(acknowledged) > 100
    await _check_acknowledged(pool, acknowledged, posted)


async def _has_unanswered_row(pool: Pool, acknowledged: dict[str, int], clients: list["asyncio.Task[None]"]) -> bool:
    """Whether the database has a job whose answer no client has received."""
    rows: int = await pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks WHERE task_type = 'later'")
    return rows > len(acknowledged) or _are_done(clients)


async def _have_posted(posted: set[str], count: int, clients: list["asyncio.Task[None]"]) -> bool:
    return len(posted) >= count or _are_done(clients)


def _are_done(tasks: list["asyncio.Task[None]"]) -> bool:
    return all(task.done() for task in tasks)
