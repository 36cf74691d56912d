"""Runs the services of a process: starts them, restarts crashed ones, stops them in two steps.

::

    running ──quiesce──▶ quiescing ──all idle, or the deadline, or a second request──▶ stopping ──▶ stopped

A service that raises is restarted after an exponential wait. Each crash is logged once, and shown in ``/readyz`` and
the metrics. Services start in the given order and stop in reverse, so the session starts before the services that use
it and stops after them.

Except for the boundary of an attempt, no other code catches every exception: a loop must not end silently because of
an unexpected error.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import structlog

from tickwright.domain.retries import RetryPolicy
from tickwright.engine.tasks import is_set_within, take_cancels_back
from tickwright.ports.ids import monotonic, random_unit
from tickwright.ports.service import Service
from tickwright.store.pool import RoundTrips

RESTART = RetryPolicy(base=timedelta(seconds=0.5), cap=timedelta(seconds=30))
HEALTHY_AFTER_S = 60.0
TICK_WITHIN_S = 15.0
STOP_ROUND_TRIPS = 20
"""Round trips to a far database that each service gets in addition to the time to stop."""

Phase = Literal["running", "quiescing", "stopping", "stopped"]

_log = structlog.get_logger("tickwright.supervisor")


@dataclass(frozen=True, slots=True)
class Supervised:
    """A service; ``/readyz`` fails when its loop has not ticked for ``tick_within_s``."""

    service: Service
    tick_within_s: float = TICK_WITHIN_S


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of a service at one moment.

    ``tick_age_s`` is the time since the last tick (``None`` before the first), ``tick_within_s`` its limit.
    ``restarts`` and ``last_error`` are those of crashes.
    """

    name: str
    running: bool
    tick_age_s: float | None
    tick_within_s: float
    restarts: int
    last_error: str

    @property
    def ready(self) -> bool:
        """Whether it runs and its loop has ticked in time."""
        return self.running and self.tick_age_s is not None and self.tick_age_s <= self.tick_within_s


class _Runner:
    """One supervised service and its task."""

    def __init__(self, supervised: Supervised, restart: RetryPolicy) -> None:
        self.service = supervised.service
        self._bound_s = supervised.tick_within_s
        self._restart = restart
        self.running = False
        self.restarts = 0
        self.last_error = ""
        self.stopping = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def state(self) -> ServiceState:
        """Return the current state."""
        age_s = self.service.last_tick_age_s()
        return ServiceState(self.service.name, self.running, age_s, self._bound_s, self.restarts, self.last_error)

    async def run(self) -> None:
        """Run the service until stopped; restart it after a crash."""
        failures = 0
        while not self.stopping.is_set():
            started = monotonic()
            if await self._run_once():
                return
            failures = 1 if monotonic() - started > HEALTHY_AFTER_S else failures + 1
            wait = self._restart.delay(failures, random_unit())
            if not await is_set_within(self.stopping, wait.total_seconds()):
                self.restarts += 1

    async def _run_once(self) -> bool:
        """Return whether the service returned by itself, which it does only after a stop."""
        self.running = True
        try:
            await self.service.run()
        except BaseException as error:  # a loop must not end by an unexpected error
            if isinstance(error, (SystemExit, KeyboardInterrupt)) or _is_exit(error):
                raise
            self.last_error = repr(error)[:500]
            _log.exception("service.crashed", service=self.service.name)
            await take_cancels_back()  # a remaining cancellation would end the wait for the restart
            return False
        finally:
            self.running = False
        return True

    async def quiesce(self) -> None:
        """Let it finish running work."""
        self.stopping.set()
        try:
            await self.service.quiesce()
        except Exception:  # noqa: BLE001  the others must be able to finish
            _log.exception("service.quiesce_failed", service=self.service.name)

    async def stop(self, within_s: float) -> None:
        """Stop it; cancel it if it does not end within ``within_s``."""
        self.stopping.set()
        try:
            async with asyncio.timeout(within_s):
                await self.service.stop()
                if self.task is not None:
                    await asyncio.wait([self.task])
        except Exception:  # noqa: BLE001  TimeoutError among them; the others must be able to stop
            _log.exception("service.stop_failed", service=self.service.name)
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task], timeout=within_s)


class Supervisor:
    """Runs services; see the module.

    Args:
        services: In the order of their start.
        quiesce_within: Time for running work to finish after the first request to stop.
        stop_within: Time for each service to stop after that.
        restart: Waits between a crash and the restart.
    """

    def __init__(
        self,
        services: Sequence[Supervised | Service],
        *,
        quiesce_within: timedelta = timedelta(seconds=25),
        stop_within: timedelta = timedelta(seconds=5),
        restart: RetryPolicy = RESTART,
    ) -> None:
        wrapped = [one if isinstance(one, Supervised) else Supervised(one) for one in services]
        self._runners = [_Runner(one, restart) for one in wrapped]
        self._quiesce_within_s = quiesce_within.total_seconds()
        self._stop_within_s = stop_within.total_seconds()
        self._quiesce_asked = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self.phase: Phase = "stopped"

    def states(self) -> list[ServiceState]:
        """Return the state of every service."""
        return [runner.state() for runner in self._runners]

    def request_stop(self) -> None:
        """Ask to stop: the first time gracefully, the second time at once. Safe from a signal handler."""
        if self._quiesce_asked.is_set():
            self._stop_asked.set()
        self._quiesce_asked.set()

    async def started(self) -> None:
        """Return when every service has ticked once."""
        while not all(state.tick_age_s is not None for state in self.states()):  # noqa: ASYNC110  ticks have no event
            await asyncio.sleep(0.01)

    async def run(self) -> None:
        """Run everything until a request to stop, or until every service has ended; then stop everything."""
        self.phase = "running"
        for runner in self._runners:
            runner.task = asyncio.create_task(runner.run(), name=f"service:{runner.service.name}")
        try:
            await self._until_quiesce()
            await self._quiesce()
        finally:
            await self._stop()

    async def _until_quiesce(self) -> None:
        tasks = {runner.task for runner in self._runners if runner.task is not None}
        asked = asyncio.create_task(self._quiesce_asked.wait())
        ended = asyncio.create_task(asyncio.wait(tasks)) if tasks else asked
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            ended.cancel()

    async def _quiesce(self) -> None:
        self.phase = "quiescing"
        _log.info("supervisor.quiescing", within_s=self._quiesce_within_s)
        gently = asyncio.create_task(self._quiesce_all())
        at_once = asyncio.create_task(self._stop_asked.wait())
        await asyncio.wait({gently, at_once}, timeout=self._quiesce_within_s, return_when=asyncio.FIRST_COMPLETED)
        if not gently.done():
            _log.warning("supervisor.not_quiet_in_time", asked_twice=self._stop_asked.is_set())
        for task in (gently, at_once):
            task.cancel()
        await asyncio.wait({gently, at_once}, timeout=1)

    async def _quiesce_all(self) -> None:
        await asyncio.gather(*(runner.quiesce() for runner in self._runners))

    async def _stop(self) -> None:
        self.phase = "stopping"
        for runner in reversed(self._runners):
            far_s = STOP_ROUND_TRIPS * RoundTrips.shortest_ms() / 1000
            await runner.stop(self._stop_within_s + far_s)
        self.phase = "stopped"
        _log.info("supervisor.stopped")


def _is_exit(error: BaseException) -> bool:
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
