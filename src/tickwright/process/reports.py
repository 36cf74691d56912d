"""Reports in one process: where parts and files are kept, who brings them, and who puts them together."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tickwright.capabilities.reports.handlers import ListenerRegistry
from tickwright.capabilities.reports.merge.process_pool import MergeProcesses
from tickwright.capabilities.reports.merge.sandbox import MergeBounds, threads_for
from tickwright.capabilities.reports.merge.supervisor import ReportSupervisor, StepResources
from tickwright.capabilities.reports.metrics import source_of
from tickwright.capabilities.reports.parts.listeners import CallQueue, ReportCalls, ReportListener
from tickwright.capabilities.reports.parts.run import Bringers
from tickwright.capabilities.reports.parts.storage import PartPlaces
from tickwright.capabilities.reports.parts.store import PartsStore
from tickwright.capabilities.reports.requests.messages import Routes
from tickwright.capabilities.reports.requests.store import RecordsStore
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup import WakeupListener
from tickwright.observe.metrics import Source
from tickwright.ports.objects import ObjectStore
from tickwright.ports.service import Service
from tickwright.process.objects import open_objects
from tickwright.process.settings import Settings
from tickwright.process.work_folder import open_work_folder
from tickwright.sources.named import Sources
from tickwright.store.pool import Pool

if TYPE_CHECKING:
    from tickwright.transports.redis import RedisLink

CHANNEL = "tickwright_reports"
CALLS_AT_ONCE = 20


def routes(settings: Settings) -> Routes:
    """Return where stages are announced: RabbitMQ's exchanges, or nowhere but in the table."""
    if settings.amqp_url is None:
        return Routes()
    from tickwright.transports.rabbitmq import ReportExchanges

    names = ReportExchanges(settings.amqp_prefix)
    return Routes(f"amqp:{names.broadcast}/", names.exchange)


@dataclass(frozen=True, slots=True)
class Reports:
    """What reports need in one process.

    Attributes:
        folder: Where it spools rows and merges.
    """

    settings: Settings
    pool: Pool
    records: RecordsStore
    parts: PartsStore
    places: PartPlaces
    objects: ObjectStore
    folder: Path

    def listener(
        self, session: WorkerSession, functions: ListenerRegistry, sources: Sources, direct_url: str | None
    ) -> tuple[list[Service], list[Source]]:
        """Return the services of a process that brings parts and takes steps, in the order of their start."""
        wakeups = WakeupListener("report-hearing", direct_url, CHANNEL)
        bringers = Bringers(functions, sources)
        at_once = self.settings.report_concurrency
        listener = ReportListener(
            self.parts, self.places, session, wakeups, bringers, folder=self.folder, at_once=at_once
        )
        memory_bytes = self.settings.report_memory_mb * 1024 * 1024
        bounds = MergeBounds(memory_bytes, threads_for(memory_bytes))
        merges = MergeProcesses(at_once=self.settings.report_merges, spare=1)  # the place that supervisors have more
        resources = StepResources(self.records, self.places, self.objects, self.folder, merges, bounds)
        supervisor = ReportSupervisor(resources, session, wakeups, at_once=self.settings.report_merges)
        session.facts["serves"] = bringers.names()
        session.facts["report_calls_stuck"] = lambda: listener.stuck
        services: list[Service] = [wakeups, merges, listener, supervisor]
        if self.settings.amqp_url is not None:
            services.append(self._calls(self.settings.amqp_url.get_secret_value(), listener, bringers))
        return services, [source_of(listener, supervisor)]

    def _calls(self, url: str, listener: ReportListener, bringers: Bringers) -> ReportCalls:
        from tickwright.transports.rabbitmq import RabbitTaskQueue, ReportExchanges, ReportNames, prepare

        prefix = self.settings.amqp_prefix

        def open_queue(name: str) -> CallQueue:
            return RabbitTaskQueue(url, ReportNames(prefix, name), slots=CALLS_AT_ONCE)

        async def declare(names: Sequence[str]) -> None:
            await prepare(url, ReportExchanges(prefix), *(ReportNames(prefix, name) for name in names))

        return ReportCalls(self.pool, listener, bringers, open_queue=open_queue, declare=declare)


@asynccontextmanager
async def open_reports(settings: Settings, pool: Pool, redis: "RedisLink | None") -> AsyncIterator[Reports]:
    """Open what reports need; folders that dead processes left are removed.

    Raises:
        Rejected: ``invalid_object_store``, ``object_store_refused``. Permanent.
        Unavailable: ``object_store_unavailable``, ``no_space``. Retry.
    """
    async with AsyncExitStack() as stack:
        objects = await stack.enter_async_context(open_objects(settings))
        folder = await stack.enter_async_context(open_work_folder(settings))
        parts = PartsStore(pool)
        shared = None
        if redis is not None:
            from tickwright.transports.redis import RedisParts

            shared = RedisParts(redis, settings.report_prefix)
        places = PartPlaces(parts, shared, objects)
        yield Reports(settings, pool, RecordsStore(pool, routes(settings)), parts, places, objects, folder)
