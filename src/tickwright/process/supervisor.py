"""Runs the services of a process: starts them, restarts what crashes, stops them in two steps.

::

    running ──quiesce──▶ quiescing ──all quiet, or the deadline, or a second request──▶ stopping ──▶ stopped

A service that raises is started again after an exponential wait; its failure is logged once per crash
and shows in ``/readyz`` and the metrics. Services start in the order given and stop in the opposite
one, so the session that the others work under comes first and leaves last.

This is, beside the boundary of an attempt, the only place that catches every exception: a loop must
not die silently because of an error that nobody thought of.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import structlog

from tickwright.domain.retries import RetryPolicy
from tickwright.engine.tasks import take_cancels_back
from tickwright.ports.ids import monotonic, random_unit
from tickwright.ports.service import Service
from tickwright.store.pool import RoundTrips

RESTART = RetryPolicy(base=timedelta(seconds=0.5), cap=timedelta(seconds=30))
HEALTHY_AFTER_S = 60.0
TICK_WITHIN_S = 15.0
STOP_ROUND_TRIPS = 20
"""So many to a far database each service has beside the time to stop."""

Phase = Literal["running", "quiescing", "stopping", "stopped"]

_log = structlog.get_logger("tickwright.supervisor")


@dataclass(frozen=True, slots=True)
class Supervised:
    """A service and what is expected of it.

    Attributes:
        service: What runs.
        tick_within_s: ``/readyz`` says no when its loop did not come round for longer.
    """

    service: Service
    tick_within_s: float = TICK_WITHIN_S


@dataclass(frozen=True, slots=True)
class ServiceState:
    """How a service is, at one moment.

    Attributes:
        running: Its ``run`` is under way.
        tick_age_s: Since its loop came round; ``None`` before the first time.
        tick_within_s: The bound of ``tick_age_s``.
        restarts: How often it was started again after a crash.
        last_error: Of the last crash; empty without one.
    """

    name: str
    running: bool
    tick_age_s: float | None
    tick_within_s: float
    restarts: int
    last_error: str

    @property
    def ready(self) -> bool:
        """Whether it runs and its loop came round in time."""
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
        """Return how it is now."""
        age_s = self.service.last_tick_age_s()
        return ServiceState(self.service.name, self.running, age_s, self._bound_s, self.restarts, self.last_error)

    async def run(self) -> None:
        """Run it until it is told to stop; start it again when it crashes."""
        failures = 0
        while not self.stopping.is_set():
            started = monotonic()
            if await self._run_once():
                return
            failures = 1 if monotonic() - started > HEALTHY_AFTER_S else failures + 1
            wait = self._restart.delay(failures, random_unit())
            try:
                async with asyncio.timeout(wait.total_seconds()):
                    await self.stopping.wait()
            except TimeoutError:
                self.restarts += 1

    async def _run_once(self) -> bool:
        """Return whether the service ended by itself, which it does only when it was stopped."""
        self.running = True
        try:
            await self.service.run()
        except BaseException as error:  # a loop must not die of an unforeseen error
            if isinstance(error, (SystemExit, KeyboardInterrupt)) or _is_asked_to_end(error):
                raise
            self.last_error = repr(error)[:500]
            _log.exception("service.crashed", service=self.service.name)
            await take_cancels_back()  # one that the crash left behind would end the wait for the next start
            return False
        finally:
            self.running = False
        return True

    async def quiesce(self) -> None:
        """Let it finish what runs."""
        self.stopping.set()
        try:
            await self.service.quiesce()
        except Exception:  # noqa: BLE001  the others must be able to finish
            _log.exception("service.quiesce_failed", service=self.service.name)

    async def stop(self, within_s: float) -> None:
        """Stop it; cancel it when it does not end within ``within_s``."""
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
    """Runs services; see the module's text.

    Args:
        services: In the order of their start.
        quiesce_within: How long running work may take to finish after the first request to stop.
        stop_within: How long each service may take to stop after that.
        restart: Waits between a crash and the next start.
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
        """Return how every service is."""
        return [runner.state() for runner in self._runners]

    def request(self) -> None:
        """Ask to stop: the first time gently, the second time at once. Safe from a signal handler."""
        if self._quiesce_asked.is_set():
            self._stop_asked.set()
        self._quiesce_asked.set()

    async def started(self) -> None:
        """Return when the loop of every service has come round once."""
        while not all(state.tick_age_s is not None for state in self.states()):  # noqa: ASYNC110  ticks have no event
            await asyncio.sleep(0.01)

    async def run(self) -> None:
        """Run everything until somebody asks to stop or every service has ended; then stop everything."""
        self.phase = "running"
        for runner in self._runners:
            runner.task = asyncio.create_task(runner.run(), name=f"service:{runner.service.name}")
        try:
            await self._until_asked()
            await self._quiesce()
        finally:
            await self._stop()

    async def _until_asked(self) -> None:
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


def _is_asked_to_end(error: BaseException) -> bool:
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
