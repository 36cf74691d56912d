"""The life cycle of every service: started, waited for, stopped in any order and any number of times."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from kit.alerts import RULES
from kit.leases import LONG
from kit.relays import RelayWorld, relay_world
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.handlers import HandlerRegistry
from tickwright.capabilities.jobs.worker.worker import JobWorker
from tickwright.capabilities.operations.alerts.alerting import Alerting
from tickwright.capabilities.operations.snapshots import Snapshots
from tickwright.engine.leases import Lease, LeasedRounds, LeasedService, Leases
from tickwright.engine.retention import engine_retention
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.ports.service import Service
from tickwright.process.health import HealthServer
from tickwright.process.installation import overview_parts
from tickwright.process.supervisor import Supervisor

ROUNDS = 3


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[RelayWorld]:
    """A database and a receiver."""
    async with relay_world(database_url) as world:
        yield world


def session(world: RelayWorld) -> WorkerSession:
    """A session of a worker."""
    return WorkerSession(world.pool, name="s", roles=["worker"], version="1")


def leased(world: RelayWorld) -> LeasedService:
    """A service that waits under a lease."""

    async def body(lease: Lease) -> None:
        while lease.holds() and not service.stopping.is_set():
            service.tick()
            await service.rest(0.01)

    service = LeasedService("leased", Leases(world.pool, owner="s"), "life", body, terms=LONG)
    return service


def health(world: RelayWorld) -> HealthServer:
    """A health server over nothing."""

    async def database() -> bool:
        return True

    async def metrics() -> bytes:
        return b""

    return HealthServer("127.0.0.1:0", states=list, database=database, metrics=metrics)


def jobs(world: RelayWorld) -> JobWorker:
    """A worker of one-shot jobs."""
    return JobWorker(world.pool, session(world), HandlerRegistry(), {}, direct=DirectConnection(world.url))


MAKERS: dict[str, Callable[[RelayWorld], Service]] = {
    "session": session,
    "leased": leased,
    "relay": lambda world: world.relay(),
    "alerting": lambda world: Alerting(Leases(world.pool, owner="s"), rules=RULES, every=timedelta(milliseconds=20)),
    "upkeep": lambda world: LeasedRounds("upkeep", Leases(world.pool, owner="s"), engine_retention().round),
    "health": health,
    "overview": lambda world: Snapshots(world.pool, overview_parts(), version="0"),
    "jobs": jobs,
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[RelayWorld], Service]:
    """Each kind of service, one after the other."""
    return MAKERS[request.param]


def ticked(service: Service) -> bool:
    """Whether its loop has completed a round."""
    return service.last_tick_age_s() is not None


async def test_a_service_starts_ticks_and_stops_repeatedly(
    world: RelayWorld, make: Callable[[RelayWorld], Service]
) -> None:
    """Several lives one after the other on one database: each begins at once, because the one before has ended."""
    for _ in range(ROUNDS):
        service = make(world)
        assert service.last_tick_age_s() is None
        task = asyncio.create_task(service.run())
        await eventually_async(lambda: ticked(service), 10, what=f"{service.name} ticks")  # noqa: B023
        for step in (service.quiesce, service.quiesce, service.stop, service.stop, service.quiesce):
            async with asyncio.timeout(30):
                await step()
        async with asyncio.timeout(30):
            await task


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "jobs"])  # the job worker waits for its claimer
async def test_a_stop_before_the_start_is_harmless(world: RelayWorld, name: str) -> None:
    """A service that was stopped before ``run`` returns from it at once."""
    service = MAKERS[name](world)
    async with asyncio.timeout(30):
        await service.quiesce()
        await service.stop()
        await service.run()


@pytest.mark.matrix
async def test_many_stops_at_once_while_it_starts_are_harmless(
    world: RelayWorld, make: Callable[[RelayWorld], Service]
) -> None:
    """Stops race with the start at every point that it can reach; ``run`` always ends."""
    for steps in range(12):
        service = make(world)
        task = asyncio.create_task(service.run())
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await asyncio.gather(service.stop(), service.quiesce(), service.stop())
            await task


async def test_a_cancelled_run_leaves_nothing_behind(world: RelayWorld, make: Callable[[RelayWorld], Service]) -> None:
    """As the supervisor does to a service that does not stop: afterwards another one can begin."""
    service = make(world)
    task = asyncio.create_task(service.run())
    await eventually_async(lambda: ticked(service), 10)
    task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.done()
    successor = make(world)
    task = asyncio.create_task(successor.run())
    await eventually_async(lambda: ticked(successor), 10)
    await successor.stop()
    await task


async def test_all_of_them_live_under_one_supervisor(world: RelayWorld) -> None:
    """All services become ready, and one request ends them all in time."""
    supervisor = Supervisor([make(world) for make in MAKERS.values()])
    task = asyncio.create_task(supervisor.run())
    async with asyncio.timeout(10):
        await supervisor.started()
    assert all(state.ready for state in supervisor.states())
    supervisor.request_stop()
    async with asyncio.timeout(10):
        await task
    assert not await world.pool.fetchval("SELECT count(*) FROM tickwright.job_config WHERE running")
