"""Changes have a bound: an answer comes soon and says if the outcome is unknown, and no change is half done."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from fastapi import APIRouter, Depends

from kit.api import ADMIN, Answer, RunningApi, allow_all, running_api
from kit.processes import stopped
from kit.waiting import eventually_async
from tickwright.api.context import ApiLimits
from tickwright.api.openapi import is_of_many
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.requests import NewJob, TaskTypeRequest
from tickwright.domain.errors import Unavailable
from tickwright.plugin import Context, Plugin
from tickwright.ports.caller import Role
from tickwright.process.plugins import PLUGINS
from tickwright.rest.gate import Gate
from tickwright.store.bounds import LEAST_S, within
from tickwright.store.pool import RELEASE_BOUNDED_S, open_pool

CHANGE_S = 0.5
SOON_S = CHANGE_S + 2 * LEAST_S + RELEASE_BOUNDED_S + 4  # for a busy machine, too; without bounds it takes a minute
LIMITS = ApiLimits(change_timeout=timedelta(seconds=CHANGE_S), key_age_max=timedelta(minutes=5))
JOB = {"task_type": "noop", "delay": "1d"}
WAITING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
API_PROCESSES = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tickwright'"
)
GONE = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ANY ($1::integer[])"


@pytest.fixture
async def api(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningApi]:
    """An API whose changes have half a second; it has looked its keys up already."""
    monkeypatch.setattr("tickwright.capabilities.jobs.enqueue.COLLECTED_S", CHANGE_S)
    monkeypatch.setattr("tickwright.capabilities.jobs.type_catalog.TYPES_FRESH_S", 600.0)
    async with running_api(database_url, limits=LIMITS) as running:
        assert (await running.admin.post("/v1/jobs", JOB, headers={"Idempotency-Key": "before"})).status == 201
        yield running


async def api_processes(other: asyncpg.Connection) -> list[int]:
    """Return the server processes of all connections of the API."""
    return [row["pid"] for row in await other.fetch(API_PROCESSES)]


async def unknown(sending: Any) -> Answer:
    """Check that the answer comes soon and says that the outcome is unknown."""
    now = asyncio.get_running_loop().time
    began_s = now()
    answer: Answer = await sending
    assert now() - began_s < SOON_S
    assert answer.says(504, "outcome_unknown").headers["retry-after"] == "1"
    return answer


async def test_a_job_with_an_unknown_outcome_is_made_once_by_repeated_requests(
    api: RunningApi, other: asyncpg.Connection
) -> None:
    """Server processes are stopped: 504 soon; the same key again makes the job, and late statements make no second."""
    pids, keyed = await api_processes(other), {"headers": {"Idempotency-Key": "mine"}}

    async def again() -> Any:
        answer = await api.admin.post("/v1/jobs", JOB, **keyed)
        return answer.json if answer.status == 201 else None

    with stopped(*pids):
        await unknown(api.admin.post("/v1/jobs", JOB, **keyed))
        made = await eventually_async(again, 30.0)
        assert made is not None

    async def gone() -> bool:
        return bool(await other.fetchval(GONE, pids))

    await eventually_async(gone)
    answer = (await api.admin.post("/v1/jobs", JOB, **keyed)).json
    assert (answer["id"], answer["created"], answer["outcome"]) == (made["id"], False, "existing")
    assert await other.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 2


async def test_a_change_of_several_statements_is_whole_or_not_at_all(
    api: RunningApi, other: asyncpg.Connection
) -> None:
    """The server process is stopped in a transaction: when it runs again, its client is gone and it rolls back."""
    locking = other.transaction()
    await locking.start()
    await other.execute("LOCK TABLE tickwright.audit IN ACCESS EXCLUSIVE MODE")
    pausing = asyncio.create_task(unknown(api.admin.post("/v1/task-types/noop/pause")))

    async def waiting() -> Any:
        return await other.fetchval(WAITING)

    pid = await eventually_async(waiting)
    with stopped(pid):
        await pausing
    await locking.rollback()

    async def gone() -> bool:
        return bool(await other.fetchval(GONE, [pid]))

    await eventually_async(gone)
    assert await other.fetchval("SELECT paused_at FROM tickwright.task_types WHERE name = 'noop'") is None
    assert not await other.fetchval("SELECT count(*) FROM tickwright.audit WHERE action LIKE '%pause%'")
    assert (await api.admin.post("/v1/task-types/noop/pause")).status == 200


async def test_a_change_that_waits_for_a_lock_ends_in_time(api: RunningApi, other: asyncpg.Connection) -> None:
    """The server receives the cancel: the connection can be used again, and no statement is left."""
    locking = other.transaction()
    await locking.start()
    await other.execute("LOCK TABLE tickwright.task_types IN ACCESS EXCLUSIVE MODE")
    await unknown(api.admin.post("/v1/task-types/noop/pause"))

    async def quiet() -> bool:
        return await other.fetchval(WAITING) is None

    await eventually_async(quiet)
    await locking.rollback()
    assert (await api.admin.post("/v1/task-types/noop/pause")).status == 200


async def test_requests_behind_a_write_that_hangs_are_served(api: RunningApi, other: asyncpg.Connection) -> None:
    """One write serves many callers: it has its own time, and later requests are served by the next connection."""

    async def job() -> str:
        answer = await api.admin.post("/v1/jobs", JOB)
        return "made" if answer.status == 201 else str(answer.json["code"])

    with stopped(await api.pool.fetchval("SELECT pg_backend_pid()")):
        async with asyncio.timeout(SOON_S):
            answers = await asyncio.gather(*(job() for _ in range(6)))
    assert set(answers) == {"outcome_unknown", "made"}


async def test_a_loop_for_many_callers_gives_each_call_the_whole_time(database_url: str) -> None:
    """Two statements that exceed the time together are two calls."""
    pool = await open_pool(database_url, max_size=1)
    try:
        with within(1.0) as bound:
            await pool.execute("SELECT pg_sleep(0.8)")
            bound.again()
            await pool.execute("SELECT pg_sleep(0.7)")
    finally:
        await pool.close()


async def test_a_bulk_action_has_its_own_bound(api: RunningApi, other: asyncpg.Connection) -> None:
    """It may wait for a lock longer than a single change."""
    locking = other.transaction()
    await locking.start()
    await other.execute("LOCK TABLE tickwright.audit IN ACCESS EXCLUSIVE MODE")
    cancelling = asyncio.create_task(api.admin.post("/v1/jobs:cancel", {"task_type": "noop"}))
    done, _ = await asyncio.wait({cancelling}, timeout=CHANGE_S * 5)
    assert not done
    await locking.rollback()
    assert (await cancelling).json["changed"] == 1


async def test_the_time_of_a_body_does_not_count_for_the_database(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body may take longer than a change: the time of the change begins with its first statement."""
    monkeypatch.setattr("tickwright.store.bounds.LEAST_S", 0.001)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"target": '
        await asyncio.sleep(CHANGE_S * 2)
        yield b'"python:slow"}'

    headers = {"Content-Type": "application/json"}
    assert (await api.admin.send("PUT", "/v1/task-types/slow", slowly(), headers=headers)).status == 201


async def test_a_program_gets_the_same_error_as_an_http_client(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that schedules in its own process gets this error, not the driver's."""
    pool = await open_pool(database_url, max_size=2)
    enqueuer = Enqueuer(pool)
    service = JobService(pool, enqueuer=enqueuer, allow_target=allow_all)
    await service.types.put("noop", TaskTypeRequest(target="python:noop"), caller=ADMIN)
    await enqueuer.schedule(NewJob("noop"))
    monkeypatch.setattr("tickwright.capabilities.jobs.enqueue.COLLECTED_S", CHANGE_S)
    with stopped(await pool.fetchval("SELECT pg_backend_pid()")), pytest.raises(Unavailable) as answers:
        await enqueuer.schedule(NewJob("noop"))
    assert answers.value.code == "outcome_unknown"
    await pool.close()


@pytest.mark.parametrize("path", ["/v1/task-types/a:b", "/v1/jobs/5/cancel", "/v1/keys", "/v1/accounts/dry-run/pause"])
def test_an_action_on_one_thing_is_no_bulk_action(path: str) -> None:
    """A colon in a name does not make it an action on a list."""
    assert not is_of_many(path)


async def test_every_action_on_a_list_is_a_bulk_action(api: RunningApi) -> None:
    """Every path of the document with a colon after a collection."""
    paths = (await api.stranger.get("/v1/openapi.json")).json["paths"]
    assert all(is_of_many(path) for path in paths if ":" in path)
    assert {route for plugin in PLUGINS for route in plugin.long_routes} <= paths.keys()


class Slow(Plugin):
    """A plugin with the same slow change at two routes, of which it names one as long."""

    name = "slow"
    long_routes = ("/v1/slow/{name}/work",)

    def routes(self, context: Context, gate: Gate) -> Sequence[APIRouter]:
        """Return both."""
        router = APIRouter(dependencies=[Depends(gate.allow(Role.ADMIN))])

        @router.post("/v1/slow/{name}/work")
        @router.post("/v1/slow/{name}/pause")
        async def slow(name: str) -> str:
            await context.pool.execute("SELECT pg_sleep($1)", SOON_S / 2)
            return name

        return (router,)


async def test_a_long_route_of_a_plugin_has_its_own_bound(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its change may take longer than a single change, which ends in time."""
    monkeypatch.setattr("kit.api.PLUGINS", (*PLUGINS, Slow()))
    async with running_api(database_url, limits=LIMITS) as api:
        await unknown(api.admin.post("/v1/slow/a/pause"))
        assert (await api.admin.post("/v1/slow/a/work")).status == 200
