"""The report operations of API and programs in one object, one per process and pool."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tickwright.capabilities.reports.dead_letters import DEAD_CALLS
from tickwright.capabilities.reports.files import Files
from tickwright.capabilities.reports.parts.deliveries import BODY_BYTES_MAX, Deliveries
from tickwright.capabilities.reports.parts.storage import PartStorage
from tickwright.capabilities.reports.parts.store import PartsStore
from tickwright.capabilities.reports.requests.messages import Routes
from tickwright.capabilities.reports.requests.records import Records, RecordsList
from tickwright.capabilities.reports.requests.store import RecordsStore
from tickwright.capabilities.reports.types.report_types import ReportTypes
from tickwright.engine.outbox.broker_dead_letters import BrokerDeadLetters
from tickwright.ports.objects import ObjectStore
from tickwright.ports.reports import SharedParts
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.task_queue import DeadMessages
from tickwright.store.paging import Cursors
from tickwright.store.pool import Pool


@dataclass(frozen=True, slots=True)
class ReportResources:
    """The stores and routes that reports use in this process.

    Attributes:
        shared: The Redis hash; ``None`` without Redis.
        folder: Makes and returns the folder for spooled deliveries.
        part_bytes_max: Of one delivery.
        dead_calls: The dead letters of calls; ``None`` without RabbitMQ.
    """

    routes: Routes
    shared: SharedParts | None
    objects: ObjectStore
    folder: Callable[[], Path]
    part_bytes_max: int = BODY_BYTES_MAX
    dead_calls: DeadMessages | None = None
    probe: Probe = NO_PROBE


class ReportsService:
    """All report operations of the API and the command line, by subject."""

    def __init__(self, pool: Pool, keeping: ReportResources) -> None:
        cursors, parts = Cursors(pool), PartsStore(pool)
        places = PartStorage(parts, keeping.shared, keeping.objects, probe=keeping.probe)
        store = RecordsStore(pool, keeping.routes)
        self.types = ReportTypes(pool, cursors)
        self.records = Records(pool, store, self.types, places, keeping.objects)
        self.listing = RecordsList(pool, cursors)
        self.files = Files(pool, keeping.objects)
        self.dead_calls = BrokerDeadLetters(pool, keeping.dead_calls, DEAD_CALLS)
        self.deliveries = Deliveries(
            pool, parts, places, keeping.folder, bytes_max=keeping.part_bytes_max, probe=keeping.probe
        )
