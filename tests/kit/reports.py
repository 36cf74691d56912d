"""Reports for tests: a database, a Redis or none, files in a folder, and the role's services in this process."""

import asyncio
import csv
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from kit.claims import open_owners
from kit.nodes import RoleProcess
from kit.postgres import as_reader
from kit.waiting import eventually_async
from tickwright.capabilities.reports.handlers import DeclaredListener, Function, ListenerRegistry
from tickwright.capabilities.reports.merge.merge import MergeBounds
from tickwright.capabilities.reports.merge.process_pool import MergeProcesses
from tickwright.capabilities.reports.merge.supervisor import ReportSupervisor, StepResources
from tickwright.capabilities.reports.parts.listeners import PartFetcher, PartWorker
from tickwright.capabilities.reports.parts.store import PartRows, PartStorage
from tickwright.capabilities.reports.plan import Listener, Plan
from tickwright.capabilities.reports.plugin import CHANNEL
from tickwright.capabilities.reports.requests.conditions import query_key
from tickwright.capabilities.reports.requests.store import Created, NewReport, RecordsStore, Routes
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import LedWakeup
from tickwright.engine.wakeup.turns import group_of
from tickwright.ports.objects import ObjectStore
from tickwright.ports.reports import SharedParts
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.sources.named import Sources, SourceSettings
from tickwright.store.pool import Pool, open_pool
from tickwright.transports.objectstore.plugin import open_store
from tickwright.transports.redis.connection import RedisClient
from tickwright.transports.redis.stores import RedisParts

TERMS = LeaseTerms(timedelta(seconds=2), timedelta(seconds=0.3))
OVER = frozenset({"finished", "failed", "cancelled"})


def plan_of(*listeners: str | Listener, merge: str | None = None, **words: Any) -> Plan:
    """Return a definition with these listeners; names are functions, and one alone needs no merging SQL."""
    made = tuple(Listener(name=one, kind="function") if isinstance(one, str) else one for one in listeners)
    return Plan(listeners=made, merge=merge or f"SELECT * FROM {made[0].name}", **words)


def functions_of(functions: Mapping[str, Function]) -> ListenerRegistry:
    """Return a registry with these functions."""
    registry = ListenerRegistry()
    for name, function in functions.items():
        registry.add(DeclaredListener(name, None, None, None, None, function))
    return registry


@dataclass(kw_only=True)
class Process(RoleProcess):
    """The role's services of one process."""

    session: WorkerSession
    listener: PartWorker
    supervisor: ReportSupervisor
    merges: MergeProcesses


class ReportWorld:
    """One test's reports.

    Attributes:
        shared: The hash in Redis; ``None`` with PostgreSQL alone.
    """

    def __init__(  # noqa: PLR0917  a world is made in one place
        self, pool: Pool, url: str, folder: Path, objects: ObjectStore, shared: SharedParts | None, routes: Routes
    ) -> None:
        self.pool, self.url, self.folder, self.objects, self.shared = pool, url, folder, objects, shared
        self.records = RecordsStore(pool, routes)
        self.parts = PartRows(pool)

    # ------------------------------------------------------------------ requests

    async def request(
        self, plan: Plan, conditions: Mapping[str, Any] | None = None, *, requester: str = "me", kind: str = "test"
    ) -> int:
        """Request a report, as the service does."""
        return (await self.ask(plan, conditions, requester=requester, kind=kind)).id

    async def ask(
        self, plan: Plan, conditions: Mapping[str, Any] | None = None, *, requester: str = "me", kind: str = "test"
    ) -> Created:
        """Do the same and return whether it is a new one."""
        given = dict(conditions or {})
        key = query_key(kind, plan.format, given)
        new = NewReport(type=kind, query_key=key, conditions=given, requester=requester, plan=plan)
        async with self.pool.acquire() as connection, connection.transaction():
            return await self.records.create(connection, new)

    async def cancel(self, report_id: int) -> bool:
        """Cancel it, as the service does."""
        async with self.pool.acquire() as connection, connection.transaction():
            return await self.records.cancel(connection, report_id)

    async def record(self, report_id: int) -> Any:
        """Return the row."""
        return await self.pool.fetchrow("SELECT * FROM tickwright.reports WHERE id = $1", report_id)

    async def part(self, report_id: int, listener: str) -> Any:
        """Return a part's row."""
        return await self.pool.fetchrow(
            "SELECT * FROM tickwright.report_parts WHERE report_id = $1 AND listener = $2", report_id, listener
        )

    async def over(self, report_id: int, within_s: float = 30) -> Any:
        """Wait until it has ended, and return the row."""

        async def ended() -> Any:
            row = await self.record(report_id)
            return row if row["status"] in OVER else None

        return await eventually_async(ended, within_s, what=f"report {report_id} is over")

    async def finished(self, report_id: int, within_s: float = 30) -> Any:
        """Wait until it has a file, and return the row."""
        row = await self.over(report_id, within_s)
        assert row["status"] == "finished", (row["status"], row["error_code"], row["error"])
        return row

    async def file(self, row: Any) -> bytes:
        """Return the bytes of a finished record's file."""
        return b"".join([piece async for piece in self.objects.read(row["file_key"])])

    async def table(self, row: Any) -> list[list[str]]:
        """Return the rows of a finished record's CSV, without its header, in order of their text."""
        text = (await self.file(row)).decode()
        return sorted(list(csv.reader(text.splitlines(keepends=True)))[1:])

    async def hash(self, report_id: int) -> dict[str, Any]:
        """Return the hash in Redis."""
        assert isinstance(self.shared, RedisParts)
        found = await self.shared._redis._client.hgetall(self.shared.key(report_id))
        return {str(name): value for name, value in found.items()}

    # ------------------------------------------------------------------ work

    @asynccontextmanager
    async def process(
        self,
        functions: Mapping[str, Function],
        *,
        sources: Mapping[str, str] | None = None,
        connections: int = 5,
        secrets: Mapping[str, str] | None = None,
        at_once: int = 4,
        probe: Probe = NO_PROBE,
        hears: bool = True,
        objects: ObjectStore | None = None,
        database_url: str | None = None,
    ) -> AsyncIterator[Process]:
        """Run the role here, without RabbitMQ's messages; stopped at the end unless that was done already."""
        pool = await open_pool(database_url or self.url, max_size=10)
        session = WorkerSession(pool, name="reports", roles=["report-listener"], version="test", terms=TERMS)
        parts, records = PartRows(pool), RecordsStore(pool, self.records.routes)
        session.on_reclaim(parts.reclaim)
        kept = objects or self.objects
        places = PartStorage(parts, self.shared, kept, probe=probe)
        direct = DirectConnection(self.url if hears else None)
        terms = {
            name: SourceSettings(url=as_reader(url), connections_max=connections)
            for name, url in (sources or {}).items()
        }
        opened = Sources(terms, (secrets or {}).get)
        fetcher = PartFetcher(functions_of(functions), opened)
        folder = self.folder / "work"
        folder.mkdir(exist_ok=True)
        wakeups = LedWakeup(direct, CHANNEL, session, group_of("report-parts", sorted(fetcher.names())))
        listener = PartWorker(parts, places, session, wakeups, fetcher, folder=folder, at_once=at_once, probe=probe)
        merges = MergeProcesses(at_once=1, spare=1)
        resources = StepResources(records, places, kept, folder, merges, MergeBounds(), probe)
        wakeups = LedWakeup(direct, CHANNEL, session, group_of("report-steps"))
        supervisor = ReportSupervisor(resources, session, wakeups, at_once=1)
        services = (session, direct, merges, listener, supervisor)
        process = Process(session=session, listener=listener, supervisor=supervisor, merges=merges, services=services)
        await session.open()
        process.begin()
        try:
            yield process
        finally:
            if not all(task.done() for task in process.tasks):
                await process.stop()
            await opened.aclose()
            await pool.close()


@asynccontextmanager
async def report_world(
    url: str, folder: Path, redis_url: str | None = None, *, routes: Routes | None = None, redis_prefix: str = ""
) -> AsyncIterator[ReportWorld]:
    """Open a world, with files in its own folder."""
    async with AsyncExitStack() as stack:
        pool = await open_pool(url, max_size=5)
        stack.push_async_callback(pool.close)
        await open_owners(pool)
        shared = None
        if redis_url is not None:
            link = RedisClient(redis_url)
            stack.push_async_callback(link.aclose)
            shared = RedisParts(link, redis_prefix)
        store = await asyncio.to_thread(open_store, (folder / "objects").as_uri(), {})
        stack.callback(store.close)
        yield ReportWorld(pool, url, folder, store, shared, routes or Routes())


def rows_of(text: str | bytes) -> list[dict[str, Any]]:
    """Return NDJSON as rows."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]
