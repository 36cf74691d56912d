"""State of a process for operators: metrics from every source, gauges of the database among them, and readiness."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import structlog

from tickwright.api.context import Readiness
from tickwright.engine.facts import Facts
from tickwright.engine.leases import leases_source
from tickwright.engine.session import WorkerSession
from tickwright.observe.isolation import Isolation
from tickwright.observe.metrics import Sample, Source
from tickwright.plugin import Context
from tickwright.plugin.overview import ANSWER_S, OverviewPart, OverviewParts
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session
from tickwright.process.health import DatabaseCheck, readiness
from tickwright.process.installation import metric_specs
from tickwright.process.supervisor import ServiceState, Supervisor
from tickwright.store.pool import UNAVAILABLE, DiskFull, Pool

if TYPE_CHECKING:
    from tickwright.observe.metrics_page import MetricsPage

REMEMBER_S = 2.0

_log = structlog.get_logger("tickwright.metrics")


class DatabaseReadings:
    """Gauges that need the database; call ``refresh`` before a page, then read them as a source."""

    def __init__(self, pool: Pool, parts: OverviewParts) -> None:
        self._pool, self._parts = pool, parts
        self._samples: dict[OverviewPart, list[Sample]] = {}
        self._isolation = Isolation("metrics.part_failed", UNAVAILABLE)
        self._fresh = False
        self._read_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    def __call__(self) -> Sequence[Sample]:
        """Return the last values."""
        full = Sample("tickwright_database_full", float(DiskFull.is_recent()))
        found = [sample for samples in self._samples.values() for sample in samples]
        return [*found, Sample("tickwright_readings_ok", float(self._fresh)), full]

    async def refresh(self) -> None:
        """Query the database, unless that is recent or in progress; returns within about a second."""
        if monotonic() - self._read_s < REMEMBER_S:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        done, _ = await asyncio.wait({self._reading}, timeout=ANSWER_S)  # a hanging connection must not block the page
        if not done:
            self._fresh = False

    async def _read(self) -> None:
        try:
            async with self._pool.acquire() as connection:
                for part in self._parts:
                    with self._isolation.part(part.name):
                        self._samples[part] = list(await part.gauges(connection))
            self._fresh, self._read_s = True, monotonic()
        except Exception as error:  # noqa: BLE001  nothing awaits this task
            self._fresh = False
            _log.warning("metrics.database_unavailable", error=repr(error))


def session_source(session: Session) -> Source:
    """Return a source for a worker session."""
    return lambda: [
        Sample("tickwright_session_token", session.token),
        Sample("tickwright_session_held", float(session.holds())),
    ]


def services_source(states: Callable[[], Sequence[ServiceState]]) -> Source:
    """Return a source for the supervisor's states of its services."""

    def read() -> Sequence[Sample]:
        samples = []
        for state in states():
            samples.append(Sample("tickwright_service_restarts_total", state.restarts, (state.name,)))
            if state.tick_age_s is not None:
                samples.append(Sample("tickwright_service_tick_age_seconds", state.tick_age_s, (state.name,)))
        return samples

    return read


COUNTERS_BYTES_MAX = 32_000


class Watch:
    """The supervisor's states, the metrics page and the readiness of one process.

    It is built before the supervisor, because supervised services serve these answers; ``follow`` connects them.
    """

    def __init__(self, context: Context, session: WorkerSession) -> None:
        self._supervisor: Supervisor | None = None
        counters = Facts("session.counter_failed", bytes_max=COUNTERS_BYTES_MAX)
        session.facts["counters"] = partial(counters.read, context.counters)
        self._readings = DatabaseReadings(context.pool, context.ports.get(OverviewParts))
        self._sources: list[Source] = [
            *context.sources,
            self._readings,
            session_source(session),
            services_source(self.states),
            leases_source(context.leased),
        ]
        self._specs = list(metric_specs())  # a part of a plugin that cannot be imported ends the start
        self.check = DatabaseCheck(context.pool)

    def follow(self, supervisor: Supervisor) -> None:
        """Take the states from ``supervisor``."""
        self._supervisor = supervisor

    def states(self) -> list[ServiceState]:
        """Return the state of every service."""
        return [] if self._supervisor is None else self._supervisor.states()

    @cached_property
    def page(self) -> "MetricsPage":
        """The metrics page; its library is loaded with the first scrape."""
        from tickwright.observe.metrics_page import MetricsPage, TickwrightCollector

        return MetricsPage(TickwrightCollector(self._sources, self._specs), self._readings.refresh)

    async def render(self) -> bytes:
        """Return the metrics page."""
        return await self.page.render()

    def render_now(self) -> bytes:
        """Return the page with the database's last readings."""
        return self.page.render_now()

    async def ready(self) -> Readiness:
        """Return the readiness of this process for the API's listener."""
        return readiness(self.states(), database=await self.check.answers(), needs_room=False)
