"""The plugin of reports: parts of many sources, merged into one file."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from tickwright.plugin import Context, Plugin, Registrations, SettingsPart
from tickwright.plugin.contract import CONFIG_FILE, PROGRAM, ReadTable
from tickwright.ports.objects import LazyObjectStore, WorkFolder
from tickwright.ports.reports import SharedParts
from tickwright.ports.transports import ReportTransport

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tickwright.capabilities.reports.merge.supervisor import ReportSupervisor
    from tickwright.capabilities.reports.parts.listeners import PartWorker
    from tickwright.capabilities.reports.report_types import ReportTypes
    from tickwright.capabilities.reports.requests.store import Routes
    from tickwright.capabilities.reports.service import ReportsService
    from tickwright.observe.metrics import Sample, Source
    from tickwright.rest.gate import Gate

LISTENER = "report-listener"
CHANNEL = "tickwright_reports"


class ReportSettings(SettingsPart):
    """Settings of listeners.

    Attributes:
        report_concurrency: Parts at a time of one function or source in this process, 1 to 100.
        report_merges: Merges at a time in this process, 1 to 16; plus one, for a type that has none under way.
        report_memory_mb: Of one merge before it spills to disk, 128 to 65,536.
    """

    report_concurrency: Annotated[int, Field(ge=1, le=100)] = 4
    report_merges: Annotated[int, Field(ge=1, le=16)] = 2
    report_memory_mb: Annotated[int, Field(ge=128, le=65_536)] = 256


class ReportsPlugin(Plugin):
    """Reports that are gathered from listeners and merged into one file."""

    name = "reports"
    roles = function_roles = (LISTENER,)
    settings = ReportSettings
    commands: ClassVar = {
        "report-types": "tickwright.cli.commands.report_types",
        "reports": "tickwright.cli.commands.reports",
    }
    long_routes = ("/v1/reports/{report_id}/parts/{listener}",)
    broker_dead_letters: ClassVar = {"reports": ("listener", "report_id")}
    lease_purposes: ClassVar = {"report-upkeep": "deletes old files and records of reports"}
    parts: ClassVar = {
        "metrics": "tickwright.capabilities.reports.metrics:METRICS",
        "overview": "tickwright.capabilities.reports.overview:ReportsPart",
        "alert_rules": "tickwright.capabilities.reports.alerts:RULES",
        "holdings": "tickwright.capabilities.reports.parts.store:HOLDINGS",
        "reclaim": "tickwright.capabilities.reports.parts.store:PartRows.reclaim",
        "examine": "tickwright.capabilities.reports.overview:examine",
    }

    def config_tables(self) -> Mapping[str, ReadTable]:
        """Return the check of a report type."""
        from tickwright.capabilities.reports.merge.sandbox import sql_checks
        from tickwright.capabilities.reports.schema import read_definition

        return {"report_types": partial(read_definition, checks=sql_checks())}

    def provide(self, context: Context) -> None:
        """Offer the service; its stores are opened at their first use, because most callers need no file."""
        ports = context.ports

        def make() -> "ReportsService":
            from tickwright.capabilities.reports.service import ReportResources, ReportsService

            exchange = ports.find(ReportTransport)
            resources = ReportResources(
                routes_of(exchange),
                ports.find(SharedParts),
                ports.get(LazyObjectStore),
                ports.get(WorkFolder).path,
                dead_calls=None if exchange is None else exchange.dead_letters(),
            )
            return ReportsService(context.pool, resources)

        ports.offer("tickwright.capabilities.reports.service:ReportsService", make)

    async def declare(self, context: Context) -> None:
        """Register the program's report types that no operator has set, and set those of the TOML file."""
        if not (context.registrations.have("ReportRegistry") or context.tables("report_types")):
            return
        from tickwright.capabilities.reports.service import ReportsService

        types = context.ports.get(ReportsService).types
        await declare_reports(types, context.registrations, context.tables("report_types"))

    async def start(self, context: Context) -> None:
        """Start retention in the scheduler role, and the listener in its role."""
        if "scheduler" in context.roles:
            from tickwright.capabilities.reports.retention import ReportRetention
            from tickwright.engine.leases import LeasedRounds, Leases
            from tickwright.engine.retention import EVERY_S, TERMS

            work, leases = ReportRetention(context.ports.get(LazyObjectStore)).round, context.ports.get(Leases)
            context.run_leased(LeasedRounds("report-upkeep", leases, work, terms=TERMS, rest_max_s=EVERY_S))
        if LISTENER in context.roles:
            await self._add_listener(context)

    async def _add_listener(self, context: Context) -> None:
        """Start the services that fetch parts and merge them.

        Raises:
            Rejected: ``invalid_object_store``, ``object_store_refused``. Permanent.
            Unavailable: ``object_store_unavailable``, ``no_space``. Retry.
        """
        from tickwright.capabilities.reports.handlers import ListenerRegistry
        from tickwright.capabilities.reports.merge.process_pool import MergeProcesses
        from tickwright.capabilities.reports.merge.sandbox import MergeBounds, threads_for
        from tickwright.capabilities.reports.merge.supervisor import ReportSupervisor, StepResources
        from tickwright.capabilities.reports.parts.listeners import AnnouncementReader, PartFetcher, PartWorker
        from tickwright.capabilities.reports.parts.store import PartRows, PartStorage
        from tickwright.capabilities.reports.requests.store import RecordsStore
        from tickwright.engine.session import WorkerSession
        from tickwright.engine.wakeup.connection import DirectConnection
        from tickwright.engine.wakeup.listener import LedWakeup
        from tickwright.engine.wakeup.turns import group_of
        from tickwright.sources.named import Sources

        pool, ports, mine = context.pool, context.ports, context.settings.part(ReportSettings)
        objects, folder = await ports.get(LazyObjectStore).opened(), await ports.get(WorkFolder).opened()
        session, exchange, parts = ports.get(WorkerSession), ports.find(ReportTransport), PartRows(pool)
        storage = PartStorage(parts, ports.find(SharedParts), objects)
        fetcher = PartFetcher(context.registrations.of(ListenerRegistry), ports.get(Sources))
        at_once, memory_bytes = mine.report_concurrency, mine.report_memory_mb * 1024 * 1024
        direct = ports.get(DirectConnection)
        wakeups = LedWakeup(direct, CHANNEL, session, group_of("report-parts", sorted(fetcher.names())))
        worker = PartWorker(parts, storage, session, wakeups, fetcher, folder=folder, at_once=at_once)
        bounds = MergeBounds(memory_bytes, threads_for(memory_bytes))
        merges = MergeProcesses(at_once=mine.report_merges, spare=1)  # supervisors have one more slot
        resources = StepResources(RecordsStore(pool, routes_of(exchange)), storage, objects, folder, merges, bounds)
        wakeups = LedWakeup(direct, CHANNEL, session, group_of("report-steps"))
        supervisor = ReportSupervisor(resources, session, wakeups, at_once=mine.report_merges)
        context.facts["serves"] = fetcher.names()
        context.facts["report_calls_stuck"] = lambda: worker.stuck
        context.run(merges, worker, supervisor)
        if exchange is not None:
            context.run(AnnouncementReader(pool, worker, fetcher, open_queue=exchange.queue, declare=exchange.prepare))
        context.count(source_of(worker, supervisor))

    def routes(self, context: Context, gate: "Gate") -> Sequence["APIRouter"]:
        """Return the routes of reports, report types and files."""
        from tickwright.capabilities.reports.rest import report_routes
        from tickwright.capabilities.reports.service import ReportsService

        return (report_routes(context.ports.get(ReportsService), gate),)


async def declare_reports(types: "ReportTypes", registrations: Registrations, tables: Mapping[str, Any]) -> None:
    """Register report types that no operator has set, and set those of ``tables``.

    A program's report takes the options that the program declares for its listeners. A file's report does not, because
    processes without that program read the same file. An equal declaration writes nothing, not even an audit row.

    Raises:
        Rejected: ``invalid_report_type``. Permanent.
    """
    from tickwright.capabilities.reports.handlers import ListenerRegistry, ReportRegistry, with_declared

    for declared in registrations.of(ReportRegistry).all():
        table = with_declared(declared.table, registrations.of(ListenerRegistry))
        await types.declare(declared.name, table, caller=PROGRAM)
    for name, table in tables.items():
        await types.put(name, table, caller=CONFIG_FILE)


def routes_of(exchange: ReportTransport | None) -> "Routes":
    """Return the announcement routes: exchanges, or the table alone without RabbitMQ."""
    from tickwright.capabilities.reports.requests.store import Routes

    return Routes() if exchange is None else Routes(exchange.everyone, exchange.exchange)


def source_of(worker: "PartWorker", supervisor: "ReportSupervisor") -> "Source":
    """Return the source of both services' metrics."""
    from tickwright.observe.metrics import Sample

    def read() -> "Sequence[Sample]":
        return [
            Sample("tickwright_report_running_parts", worker.running),
            Sample("tickwright_report_stuck_calls", worker.stuck),
            Sample("tickwright_report_running_steps", supervisor.running),
            *(Sample("tickwright_report_parts_total", n, (name,)) for name, n in sorted(worker.counts.items())),
            *(Sample("tickwright_report_steps_total", n, (name,)) for name, n in sorted(supervisor.counts.items())),
        ]

    return read


PLUGIN = ReportsPlugin()
