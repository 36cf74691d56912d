"""Sources of a process's metrics for ``observe.metrics``, including readings of the database.

The readings are those of the parts of the overview, each with bounded counts. They run only for a scrape, at most once
every two seconds. If the database does not answer within a second, the page shows the last values and
``tickwright_readings_ok 0``. Where the code of one part fails, that part keeps its last values.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from tickwright.observe.isolation import Isolation
from tickwright.observe.metrics import Sample, Source
from tickwright.plugin.overview import ANSWER_S, OverviewPart, OverviewParts
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session
from tickwright.process.supervisor import ServiceState
from tickwright.store.pool import UNAVAILABLE, DiskFull, Pool

REMEMBER_S = 2.0

_log = structlog.get_logger("tickwright.metrics")


class DatabaseReadings:
    """Gauges that need the database; call ``refresh`` before a page, then read them as a source."""

    def __init__(self, pool: Pool, parts: OverviewParts) -> None:
        self._pool, self._parts = pool, parts
        self._samples: dict[OverviewPart, list[Sample]] = {}
        self._isolation = Isolation("metrics.part_failed", UNAVAILABLE)
        self._fresh = False
        self._asked_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def __call__(self) -> Sequence[Sample]:
        """Return the last values."""
        full = Sample("tickwright_database_full", float(DiskFull.is_recent()))
        found = [sample for samples in self._samples.values() for sample in samples]
        return [*found, Sample("tickwright_readings_ok", float(self._fresh)), full]

    async def refresh(self) -> None:
        """Query the database, unless that is recent or in progress; returns within about a second."""
        if monotonic() - self._asked_s < REMEMBER_S:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=ANSWER_S)  # a hanging connection must not block the page
        if not done:
            self._fresh = False

    async def _ask(self) -> None:
        try:
            async with self._pool.acquire() as connection:
                for part in self._parts:
                    with self._isolation.part(part.name):
                        self._samples[part] = list(await part.gauges(connection))
            self._fresh, self._asked_s = True, monotonic()
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
