"""The supervisor, health and signals: restarts, the two steps of a stop, and readiness."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from kit.waiting import eventually_async
from tickwright.domain.retries import RetryPolicy
from tickwright.engine.tasks import TaskGroup
from tickwright.process.health import HealthServer
from tickwright.process.signals import stop_on_signals
from tickwright.process.supervisor import Supervised, Supervisor

QUICK = RetryPolicy(base=timedelta(milliseconds=100), cap=timedelta(milliseconds=100))


class Loop:
    """A service that crashes so often, is slow to finish, and records its calls."""

    def __init__(
        self,
        name: str = "loop",
        *,
        crashes: int = 0,
        error: BaseException = ValueError("a bug"),  # noqa: B008  the same one is raised again
        finishes: bool = True,
        deaf: bool = False,
    ) -> None:
        self.name, self.error = name, error
        self.crashes, self.finishes, self.deaf = crashes, finishes, deaf
        self.age_s: float | None = None
        self.asked: list[str] = []
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Crash, or run until stopped."""
        if self.crashes:
            self.crashes -= 1
            raise self.error
        self.age_s = 0.0
        await self._stopping.wait()

    async def quiesce(self) -> None:
        """Finish, or never finish."""
        self.asked.append("quiesce")
        if not self.finishes:
            await asyncio.Event().wait()

    async def stop(self) -> None:
        """End, or ignore the request."""
        self.asked.append("stop")
        if self.deaf:
            await asyncio.Event().wait()
        self._stopping.set()

    def last_tick_age_s(self) -> float | None:
        """Return the age that the test sets."""
        return self.age_s


def supervise(*services: Loop, quiesce_s: float = 5, stop_s: float = 1) -> Supervisor:
    """Return a supervisor with short waits."""
    return Supervisor(
        [Supervised(service, tick_within_s=5) for service in services],
        quiesce_within=timedelta(seconds=quiesce_s),
        stop_within=timedelta(seconds=stop_s),
        restart=QUICK,
    )


class Panic(BaseException):
    """Not an ``Exception``, as a panic of native code."""


CRASHES = [ValueError("a bug"), asyncio.CancelledError("of a library's own"), Panic("in Rust")]


@pytest.mark.parametrize("error", CRASHES, ids=type)
async def test_a_crashed_service_is_restarted_and_the_crash_is_reported(error: BaseException) -> None:
    """A crash is counted, named and followed by a restart; the other services go on."""
    shaky, calm = Loop("shaky", crashes=2, error=error), Loop("calm")
    supervisor = supervise(calm, shaky)
    task = asyncio.create_task(supervisor.run())
    await supervisor.started()
    states = {state.name: state for state in supervisor.states()}
    assert (states["shaky"].restarts, states["shaky"].last_error) == (2, repr(error))
    assert states["shaky"].ready
    assert states["calm"].restarts == 0
    supervisor.request_stop()
    await asyncio.wait_for(task, 30)
    assert supervisor.phase == "stopped"


class Grouped(Loop):
    """A service whose tasks run in a group, one of which fails; it records how often its task counts as cancelled."""

    def __init__(self, group: Callable[[], Any], *, crashes: int, **more: Any) -> None:
        super().__init__("grouped", crashes=crashes, **more)
        self.group = group
        self.cancels: list[int] = []

    async def run(self) -> None:
        """Crash from within a group."""
        task = asyncio.current_task()
        assert task is not None
        self.cancels.append(task.cancelling())
        async with self.group() as group:
            group.create_task(asyncio.sleep(0 if self.crashes else 60))
            group.create_task(super().run())


@pytest.mark.parametrize("group", [TaskGroup, asyncio.TaskGroup])
async def test_a_service_whose_group_of_tasks_failed_is_started_again(
    group: Callable[[], Any],
) -> None:
    """A group that fails leaves its task cancelled, before Python 3.13; in 3.11.2 the next timeout ends such a task."""
    service = Grouped(group, crashes=2)
    supervisor = supervise(service)
    task = asyncio.create_task(supervisor.run())
    await eventually_async(lambda: len(service.cancels) == 3)
    assert service.cancels == [0, 0, 0]
    supervisor.request_stop()
    await asyncio.wait_for(task, 30)


@pytest.mark.parametrize("error", CRASHES, ids=type)
async def test_a_member_of_a_group_ends_its_service_however_it_crashes(error: BaseException) -> None:
    """Else the rest of the group would go on without it, and the service would seem to run."""
    service = Grouped(TaskGroup, crashes=2, error=error)
    supervisor = supervise(service)
    task = asyncio.create_task(supervisor.run())
    await supervisor.started()
    assert supervisor.states()[0].restarts == 2
    supervisor.request_stop()
    await asyncio.wait_for(task, 30)


async def test_a_supervisor_that_is_cancelled_twice_leaves_no_loop_that_cannot_be_ended() -> None:
    """The end of a program cancels the tasks that are left; that is no crash."""
    supervisor = supervise(Loop(deaf=True))
    task = asyncio.create_task(supervisor.run())
    await supervisor.started()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    loops = [one for one in asyncio.all_tasks() if one.get_name().startswith("service:")]
    for one in loops:
        one.cancel()
    assert loops
    await asyncio.wait_for(asyncio.wait(loops), 30)


async def test_stopping_has_two_steps_in_the_opposite_order() -> None:
    """All services finish first; then they stop in the reverse order of their start."""
    order: list[str] = []

    class Named(Loop):
        async def quiesce(self) -> None:
            order.append(f"quiesce {self.name}")

        async def stop(self) -> None:
            order.append(f"stop {self.name}")
            await super().stop()

    supervisor = supervise(Named("session"), Named("worker"))
    task = asyncio.create_task(supervisor.run())
    await supervisor.started()
    supervisor.request_stop()
    await asyncio.wait_for(task, 30)
    assert sorted(order[:2]) == ["quiesce session", "quiesce worker"]
    assert order[2:] == ["stop worker", "stop session"]


async def test_a_second_request_stops_at_once() -> None:
    """It does not wait for the work to finish."""
    slow = Loop(finishes=False)
    supervisor = supervise(slow, quiesce_s=600)
    task = asyncio.create_task(supervisor.run())
    await supervisor.started()
    supervisor.request_stop()
    await eventually_async(lambda: slow.asked == ["quiesce"])
    assert not task.done()
    supervisor.request_stop()
    await asyncio.wait_for(task, 30)
    assert slow.asked == ["quiesce", "stop"]


async def test_a_deadline_ends_the_waiting() -> None:
    """Work that does not finish is stopped when the time is over."""
    slow = Loop(finishes=False)
    supervisor = supervise(slow, quiesce_s=0.1)
    task = asyncio.create_task(supervisor.run())
    await supervisor.started()
    supervisor.request_stop()
    await asyncio.wait_for(task, 30)
    assert slow.asked == ["quiesce", "stop"]


async def test_a_service_that_does_not_stop_is_cancelled_and_the_others_stop_all_the_same() -> None:
    """One service that ignores its stop cannot keep the process alive."""
    deaf, calm = Loop("deaf", deaf=True), Loop("calm")
    supervisor = supervise(calm, deaf, stop_s=0.1)
    task = asyncio.create_task(supervisor.run())
    await supervisor.started()
    supervisor.request_stop()
    await asyncio.wait_for(task, 30)
    assert calm.asked[-1] == "stop"


async def test_a_stop_during_the_wait_after_a_crash_does_not_start_it_again() -> None:
    """A crash loop ends with the process."""
    broken = Loop(crashes=10_000)
    supervisor = supervise(broken)
    task = asyncio.create_task(supervisor.run())
    await eventually_async(lambda: supervisor.states()[0].last_error)
    supervisor.request_stop()
    await asyncio.wait_for(task, 30)
    assert supervisor.phase == "stopped"


async def test_each_signal_requests_a_stop() -> None:
    """SIGTERM makes the first request, SIGINT the second."""
    asked: list[int] = []
    with stop_on_signals(lambda: asked.append(1)):
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually_async(lambda: len(asked) == 1)
        os.kill(os.getpid(), signal.SIGINT)
        await eventually_async(lambda: len(asked) == 2)


@pytest.fixture
async def world() -> AsyncIterator[dict[str, Any]]:
    """A health server over one loop and a database that the test can make unavailable."""
    facts: dict[str, Any] = {"database": True, "loop": Loop()}
    supervisor = supervise(facts["loop"])

    async def database() -> bool:
        return bool(facts["database"])

    async def metrics() -> bytes:
        return b"tickwright_up 1\n"

    server = HealthServer("127.0.0.1:0", states=supervisor.states, database=database, metrics=metrics)
    tasks = [asyncio.create_task(supervisor.run()), asyncio.create_task(server.run())]
    await supervisor.started()
    await eventually_async(lambda: server.port)
    facts["url"] = f"http://127.0.0.1:{server.port}"
    yield facts
    supervisor.request_stop()
    await server.stop()
    await asyncio.gather(*tasks)


async def ask(world: dict[str, Any], path: str) -> tuple[int, str]:
    """Return status and body of a path."""
    async with aiohttp.ClientSession() as session, session.get(world["url"] + path) as response:
        return response.status, await response.text()


async def test_readiness_needs_the_database_and_every_loop(world: dict[str, Any]) -> None:
    """It lists each service with the age of its tick, and fails as soon as one of them is missing."""
    status, body = await ask(world, "/readyz")
    assert status == 200
    assert '"name": "loop"' in body
    assert '"tick_age_s": 0.0' in body
    world["database"] = False
    assert (await ask(world, "/readyz"))[0] == 503
    world["database"], world["loop"].age_s = True, 5.1
    assert (await ask(world, "/readyz"))[0] == 503
    world["loop"].age_s = None
    assert (await ask(world, "/readyz"))[0] == 503
    world["loop"].age_s = 0.2
    assert (await ask(world, "/readyz"))[0] == 200


async def test_health_reveals_nothing_and_metrics_are_served(world: dict[str, Any]) -> None:
    """``/healthz`` is one word, ``/metrics`` is text, and there is no other path."""
    assert await ask(world, "/healthz") == (200, '{"status": "ok"}')
    assert await ask(world, "/metrics") == (200, "tickwright_up 1\n")
    assert (await ask(world, "/anything"))[0] == 404
