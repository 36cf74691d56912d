"""State of a process for operators: metrics from every source, and readiness."""

from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest

from tickwright.api.context import Readiness
from tickwright.engine.facts import Facts
from tickwright.engine.leases import leases_source
from tickwright.engine.session import WorkerSession
from tickwright.engine.table_locks import TableLocks
from tickwright.observe.metrics import MetricsPage, TickwrightCollector
from tickwright.plugin import Context
from tickwright.plugin.overview import OverviewParts
from tickwright.process.health import DatabaseCheck, HealthServer
from tickwright.process.installation import metric_specs
from tickwright.process.readings import (
    DatabaseReadings,
    services_source,
    session_source,
)
from tickwright.process.supervisor import ServiceState, Supervisor
from tickwright.store.pool import slowness

COUNTERS_BYTES_MAX = 32_000


class Watch:
    """The supervisor's states, the metrics page and the readiness of one process.

    It is built before the supervisor, because supervised services serve these answers; ``follow`` connects them.
    """

    def __init__(self, context: Context, session: WorkerSession) -> None:
        self._supervisor: Supervisor | None = None
        counters = Facts("session.counter_failed", bytes_max=COUNTERS_BYTES_MAX)
        session.facts["counters"] = partial(counters.read, context.counters)
        readings = DatabaseReadings(context.pool, context.ports.get(OverviewParts))
        self._collector = TickwrightCollector(
            [
                *context.sources,
                readings,
                session_source(session),
                services_source(self.states),
                leases_source(context.leased),
            ],
            specs=metric_specs(),
        )
        self.check = DatabaseCheck(context.pool)
        self.page = MetricsPage(self._collector, readings.refresh)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)

    def follow(self, supervisor: Supervisor) -> None:
        """Take the states from ``supervisor``."""
        self._supervisor = supervisor

    def states(self) -> list[ServiceState]:
        """Return the state of every service."""
        return [] if self._supervisor is None else self._supervisor.states()

    @property
    def now(self) -> Callable[[], bytes]:
        """Render the page at once, with the database's last readings."""
        return lambda: generate_latest(self._registry)

    async def ready(self) -> Readiness:
        """Return whether the database answers and every loop has ticked."""
        return readiness(self.states(), database=await self.check.answers())


def readiness(states: Sequence[ServiceState], *, database: bool) -> Readiness:
    """Return the readiness. Without the database no service can work, except the health server."""
    waits = "waits for the database"
    checks = {
        state.name: "not ready" if not state.ready else "ok" if database or state.name == HealthServer.name else waits
        for state in states
    }
    checks["database"] = TableLocks.operator_message() or slowness() or ("ok" if database else "no answer")
    return Readiness(database and all(state.ready for state in states), checks)
