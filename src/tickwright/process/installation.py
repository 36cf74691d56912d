"""A process's access to its database: the pool, and the services that plugins offer to callers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import asyncpg

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.targets import OUR_PREFIX, WebTarget, is_internal, parse_target
from tickwright.engine.leases import LeasePurposes
from tickwright.engine.wakeup.on_demand import DirectAccess
from tickwright.observe.alerts import AlertRules
from tickwright.observe.metrics import MetricSpec
from tickwright.plugin import Context, Registrations, Settings
from tickwright.plugin.overview import OverviewParts
from tickwright.ports.broker import Brokers, TargetCheck
from tickwright.ports.session import Holdings
from tickwright.process.configfile import load_config
from tickwright.process.database import Database, open_database, translated
from tickwright.process.plugins import PLUGINS
from tickwright.process.tracing import open_traces
from tickwright.store.pool import Pool, open_pool
from tickwright.store.queries import head_revision, load

_SQL = load("tickwright.process.sql", "installation.sql")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Installation:
    """What a program needs to schedule and manage work; services in ``context`` use ``pool``."""

    database: Database
    context: Context

    @property
    def pool(self) -> Pool:
        """Connections for callers."""
        return self.context.pool

    def of(self, kind: type[T]) -> T:
        """Return the service of this type, such as ``JobService``."""
        return self.context.ports.get(kind)


@asynccontextmanager
async def open_installation(
    settings: Settings,
    registrations: Registrations | None = None,
    *,
    database: Database | None = None,
    declare: bool = True,
) -> AsyncIterator[Installation]:
    """Open the database, and with ``declare`` write the declarations of the program and the TOML file.

    Rows that an operator has set up stay unchanged. The embedded database is migrated to this release's schema; its
    owner migrates any other one. A given ``database`` stays open.

    Raises:
        Rejected: The TOML file is wrong (``invalid_config``, ``config_unreadable``), or a declaration;
            ``tracing_not_installed``. Permanent.
        Unavailable: ``database_unavailable``, or ``schema_behind`` (run ``tickwright migrate``). Retry.
    """
    read_config = cache(partial(load_config, settings.config))
    if declare:
        read_config()
    if database is None:
        async with (
            open_database(settings) as opened,
            open_installation(settings, registrations, database=opened, declare=declare) as installation,
        ):
            yield installation
        return
    async with open_traces(settings):
        if database.embedded:
            await ensure_schema(database)
        pool = database.pool or await open_pool(
            database.url, max_size=settings.connections_max, behind_pooler=database.behind_pooler
        )
        context = Context(settings, pool, registrations or Registrations(), read_config)
        try:
            if not database.embedded:
                with translated():
                    check_revision(database, await _revision(pool))
            context.ports.put(DirectAccess, DirectAccess(database.direct_url if settings.notifications else None))
            provide(context)
            if declare:
                with translated():
                    for plugin in PLUGINS:
                        await plugin.declare(context)
            yield Installation(database, context)
        finally:
            await context.ports.aclose()
            if pool is not database.pool:
                await close_pool(pool)


def provide(context: Context) -> None:
    """Let every plugin offer its ports, and offer what is collected from all of them."""
    offer_joined(context)
    for plugin in PLUGINS:
        plugin.provide(context)


def offer_joined(context: Context) -> None:
    """Offer what is collected from all plugins."""
    context.ports.offer(AlertRules, alert_rules)
    context.ports.offer(OverviewParts, overview_parts)
    context.ports.offer(Holdings, lambda: Holdings(sql for plugin in PLUGINS for sql in plugin.holdings()))
    context.ports.offer(LeasePurposes, lease_purposes)
    context.ports.offer(Brokers, lambda: build_brokers(context))
    context.ports.offer(TargetCheck, lambda: target_check(context.settings))


def alert_rules() -> AlertRules:
    """Return the alert rules of every plugin."""
    return AlertRules(rule for plugin in PLUGINS for rule in plugin.alert_rules())


def overview_parts() -> OverviewParts:
    """Return a new overview, of the parts of every plugin."""
    return OverviewParts(part for plugin in PLUGINS if (part := plugin.overview()) is not None)


def metric_specs() -> Iterator[MetricSpec]:
    """Return the metrics of every plugin."""
    return (spec for plugin in PLUGINS for spec in plugin.metrics())


def lease_purposes() -> LeasePurposes:
    """Return what the holder of each lease does, by the names of leases."""
    return LeasePurposes({name: text for plugin in PLUGINS for name, text in plugin.lease_purposes.items()})


def build_brokers(context: Context) -> Brokers:
    """Return a broker per scheme. A scheme without a configured server has none, and its messages wait."""
    brokers = Brokers()
    for plugin in PLUGINS:
        for broker in plugin.brokers(context):
            context.ports.on_close(broker.aclose)
            brokers |= dict.fromkeys(broker.schemes, broker)
    return brokers


def target_check(settings: Settings) -> TargetCheck:
    """Return a check that refuses reserved targets and those that can never be delivered to. No I/O."""

    def check(target: str) -> None:
        parsed = parse_target(target)
        reserved = {OUR_PREFIX, *(prefix for plugin in PLUGINS for prefix in plugin.reserved_prefixes(settings))}
        if is_internal(parsed, reserved):
            text = f"only Tickwright itself sends to {target}; use an exchange, a queue or a topic without its prefix"
            raise Rejected("destination_reserved", text, field="target")
        if isinstance(parsed, WebTarget):
            from tickwright.outbound import check_address  # most commands need no HTTP client

            check_address(parsed, settings.targets)

    return check


async def close_pool(pool: Pool) -> None:
    """Close gracefully within five seconds, then at once."""
    try:
        async with asyncio.timeout(5):
            await pool.close()
    except TimeoutError:
        pool.terminate()


async def ensure_schema(database: Database) -> None:
    """Migrate the embedded database; refuse another one with an old schema.

    Raises:
        Unavailable: ``schema_behind``. Retry after ``tickwright migrate``.
    """
    if database.embedded:
        from tickwright.store.migrate import migrate

        await asyncio.to_thread(migrate, database.url)
        return
    check_revision(database, await revision(database))


def check_revision(database: Database, found: str | None) -> None:
    """Refuse a missing or old schema.

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
    pool = await open_pool(database.url, max_size=1, behind_pooler=database.behind_pooler)
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
