"""One process's link to its database: pool, enqueuer and job service, with the program's task types registered."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import asyncpg
import structlog

from tickwright.capabilities.batches.service import CampaignsService
from tickwright.capabilities.fanout.service import FanoutService
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.handlers import HandlerRegistry
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.capabilities.jobs.task_types import load_types, register_handler
from tickwright.capabilities.operations.alerts.receivers import AlertReceivers
from tickwright.capabilities.operations.listings import Operations
from tickwright.capabilities.polling.relay.admin import PollRelayAdmin
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.reports.service import ReportsService
from tickwright.domain.errors import Unavailable
from tickwright.domain.time_texts import format_duration
from tickwright.engine.leases import Leases
from tickwright.ports.caller import Caller, Role
from tickwright.process.brokers import dead_tasks, poll_events, poll_log, target_check
from tickwright.process.campaign_resources import CampaignDesk
from tickwright.process.configfile import load_config
from tickwright.process.database import Database, open_database, translated
from tickwright.process.report_resources import ReportDesk
from tickwright.process.settings import Settings
from tickwright.process.tracing import open_traces
from tickwright.store.pool import Pool, open_pool
from tickwright.store.queries import load
from tickwright.store.revisions import head_revision

_SQL = load("tickwright.process.sql", "wiring.sql")
_log = structlog.get_logger("tickwright.process")


@dataclass(frozen=True, slots=True)
class Link:
    """What a program needs to schedule jobs and to look after them."""

    database: Database
    pool: Pool
    enqueuer: Enqueuer
    service: JobService
    operations: Operations
    polling: PollingService
    fanout: FanoutService
    reports: ReportsService
    campaigns: CampaignsService
    polls: PollRelayAdmin
    receivers: AlertReceivers


@asynccontextmanager
async def open_link(
    settings: Settings,
    handlers: HandlerRegistry | None = None,
    *,
    database: Database | None = None,
    declare: bool = True,
) -> AsyncIterator[Link]:
    """Open the database and register task types.

    The embedded database is brought to this release's schema; another one belongs to somebody, who migrates it.

    Args:
        settings: Of this process.
        handlers: What the program brings; its task types are registered where nobody has set them up.
        database: One that is open already; it stays open.
        declare: Whether to register ``handlers`` and the TOML file's task types.

    Raises:
        Rejected: The TOML file is wrong (``invalid_config``, ``config_unreadable``); ``tracing_not_installed``.
            Permanent.
        Unavailable: ``database_unavailable``, or ``schema_behind`` (run ``tickwright migrate``). Retry.
    """
    types = load_config(settings.config).task_types if declare else ()
    if database is None:
        async with (
            open_database(settings) as opened,
            open_link(settings, handlers, database=opened, declare=declare) as link,
        ):
            yield link
        return
    async with open_traces(settings), _linked(settings, handlers, database, types, declare=declare) as link:
        yield link


@asynccontextmanager
async def _linked(
    settings: Settings,
    handlers: HandlerRegistry | None,
    database: Database,
    types: Sequence[TaskType],
    *,
    declare: bool,
) -> AsyncIterator[Link]:
    if database.embedded:
        await ensure_schema(database)
    pool = await open_pool(database.url, max_size=settings.connections_max, pooled=database.pooled)
    reports_at = ReportDesk(settings)
    campaigns_at = CampaignDesk(settings, reports_at.keeping.objects, reports_at.keeping.folder)
    try:
        if not database.embedded:
            with translated():
                check_revision(database, await _revision(pool))
        enqueuer = Enqueuer(pool)
        allow_target = target_check(settings)
        service = JobService(pool, enqueuer=enqueuer, allow_target=allow_target)
        if declare:
            with translated():
                await register_types(pool, service, handlers, types, settings.config)
        desk = PollRelayAdmin(pool, Leases(pool, owner="desk"), partial(poll_log, settings))
        polling = PollingService(pool, events_to=poll_events(settings), shards=settings.relay_shards)
        receivers = AlertReceivers(pool, allow_target)
        fanout, reports = FanoutService(pool, dead_tasks(settings, pool)), ReportsService(pool, reports_at.keeping)
        campaigns = CampaignsService(pool, campaigns_at.audiences, allow_target)
        yield Link(
            database, pool, enqueuer, service, Operations(pool), polling, fanout, reports, campaigns, desk, receivers
        )
    finally:
        await campaigns_at.aclose()
        await reports_at.aclose()
        await close_pool(pool)


async def close_pool(pool: Pool) -> None:
    """Close politely within five seconds, then at once."""
    try:
        async with asyncio.timeout(5):
            await pool.close()
    except TimeoutError:
        pool.terminate()


async def ensure_schema(database: Database) -> None:
    """Bring the embedded database's schema forward; refuse another one that is not migrated.

    Raises:
        Unavailable: ``schema_behind``. Retry after ``tickwright migrate``.
    """
    if database.embedded:
        from tickwright.store.migrate import migrate

        await asyncio.to_thread(migrate, database.url)
        return
    check_revision(database, await revision(database))


def check_revision(database: Database, found: str | None) -> None:
    """Refuse a schema that is not there or behind.

    Raises:
        Unavailable: ``schema_behind``. Retry after ``tickwright migrate``.
    """
    if found is None:
        raise Unavailable(
            "schema_behind", f"{database.shown} has no Tickwright schema; run: tickwright migrate", found=None
        )
    if found < head_revision():
        raise Unavailable(
            "schema_behind",
            f"{database.shown} has schema {found}, this release needs {head_revision()}; run: tickwright migrate",
            found=found,
        )


async def revision(database: Database) -> str | None:
    """Return the schema's revision, ``None`` without a schema.

    Raises:
        Unavailable: The database does not answer. Retry.
    """
    pool = await open_pool(database.url, max_size=1, pooled=database.pooled)
    try:
        with translated():
            return await _revision(pool)
    finally:
        await close_pool(pool)


async def _revision(pool: Pool) -> str | None:
    try:
        return str(await pool.fetchval(_SQL["revision"]))
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None


async def register_types(
    pool: Pool, service: JobService, handlers: HandlerRegistry | None, types: Sequence[TaskType], file: Path | None
) -> None:
    """Register what the program brings where nobody has set it up, and set what the TOML file says."""
    async with pool.acquire() as connection:
        for handler in handlers.all() if handlers is not None else ():
            await register_handler(connection, handler.defaults)
        present = {kind.name: kind for kind in await load_types(connection)}
    for kind in types:
        if _as_declared(present.get(kind.name)) != _as_declared(kind):
            stored = await service.types.put(kind.name, request_of(kind), caller=Caller(f"config:{file}", Role.ADMIN))
            _log.info("task_type.set", name=kind.name, file=str(file), created=stored.created)


def _as_declared(kind: TaskType | None) -> TaskType | None:
    """Return ``kind`` without what a file cannot say, so that an unchanged file changes nothing."""
    if kind is None:
        return None
    factor = round(kind.retry.factor, 4)  # the table keeps a float of four bytes
    return replace(kind, retry=replace(kind.retry, factor=factor), paused=False, gone=False, secrets=(), version=1)


def request_of(kind: TaskType) -> TaskTypeRequest:
    """Return ``kind`` as the request that sets it."""
    return TaskTypeRequest(
        target=kind.target,
        timeout=format_duration(kind.timeout),
        max_attempts=kind.max_attempts,
        retry_base=format_duration(kind.retry.base),
        retry_factor=kind.retry.factor,
        retry_cap=format_duration(kind.retry.cap),
        final_statuses=sorted(kind.final_statuses),
        concurrency=kind.concurrency,
        rate_per_s=kind.rate_per_s,
        keep_history=kind.keep_history,
    )
