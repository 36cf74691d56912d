"""One process with its roles: built, run under the supervisor, stopped in two steps.

Every process carries a session, so that operators see it, and the loops that watch the others. What a
role adds is one line in ``_services``. Loops have a pool of their own: requests cannot keep a lease from
being renewed.
"""

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog

from tickwright import __version__
from tickwright.api.app import create_app
from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
from tickwright.capabilities.fanout.consumer.runs_store import LedgerRunClaims
from tickwright.capabilities.jobs.worker.claims import ClaimStore
from tickwright.capabilities.jobs.worker.worker import JobWorker, WorkerLimits
from tickwright.capabilities.operations.alerts import alerting
from tickwright.capabilities.operations.overview.snapshot import Snapshots
from tickwright.capabilities.polling.consumer.queue import reclaim
from tickwright.capabilities.polling.trackers.store import set_events_destination
from tickwright.capabilities.reports.parts.store import PartsStore
from tickwright.capabilities.reports.types.report_types import ReportTypes
from tickwright.dashboard import Page
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import LeasedService, Leases
from tickwright.engine.outbox.relay import OutboxRelay
from tickwright.engine.outbox.table import reserve_prefixes
from tickwright.engine.session import WorkerSession
from tickwright.observe.logs import know_secret
from tickwright.observe.metrics import Source
from tickwright.partners import PartnerContract
from tickwright.partners.contract import contract_source
from tickwright.ports.broker import Broker
from tickwright.ports.service import Service
from tickwright.process.api import api_context
from tickwright.process.batches import Executing, batch_loops, open_executing, register_batches
from tickwright.process.brokers import build_brokers, close_brokers, poll_events
from tickwright.process.configfile import load_config
from tickwright.process.database import Database, translated
from tickwright.process.fanout import Fanout, open_fanout, prepare_queue
from tickwright.process.front import Front
from tickwright.process.health import HealthServer
from tickwright.process.leased_loops import poll_relays, scheduler_loops
from tickwright.process.modules import register_modules
from tickwright.process.ownership import Belonging
from tickwright.process.partners import Couriers, build_consumer, register_partners
from tickwright.process.registry import Brought
from tickwright.process.report_types import register_reports
from tickwright.process.reports import Reports, open_reports
from tickwright.process.roles import ROLES, check_roles
from tickwright.process.services import Link, close_pool, open_link
from tickwright.process.serving import ApiService, listen
from tickwright.process.settings import Settings, secret
from tickwright.process.signals import stop_on_signals
from tickwright.process.supervisor import Supervised, Supervisor
from tickwright.process.watching import Watch
from tickwright.process.work_folder import open_work_folder
from tickwright.sources.named import Sources, SourceTerms
from tickwright.store.paging import Cursors
from tickwright.store.pool import Exchanges, Pool, open_pool

LOOP_CONNECTIONS_MAX = 10
SOURCE_ROLES = frozenset({"report-listener", "campaign-consumer"})
_log = structlog.get_logger("tickwright.node")


@dataclass(frozen=True, slots=True)
class Program:
    """What the user's program brings to a process, and what its roles need beside it.

    Attributes:
        reports: Where the role that brings parts is among the roles.
        executing: Where the role that works on executions is.
        belonging: Whose the prefixes are outside PostgreSQL.
    """

    brought: Brought
    couriers: Couriers
    fanout: Fanout
    reports: Reports | None
    executing: Executing | None
    sources: Sources
    belonging: Belonging


@dataclass(frozen=True, slots=True)
class Node:
    """A process that is built and not yet running.

    Attributes:
        supervisor: Runs ``services``.
        link: To the database.
        worker: Where the role is among the roles.
        api: The same.
        overview: Beside the API.
        health: Serves the probes, at ``health_bind``.
    """

    supervisor: Supervisor
    link: Link
    session: WorkerSession
    worker: JobWorker | None
    api: ApiService | None
    overview: Snapshots | None
    health: HealthServer
    health_bind: str
    belonging: Belonging

    async def run(self, *, signals: bool = True) -> None:
        """Run until asked to stop: by a signal, by an operator's drain, or by ``supervisor.request``."""
        beside = [asyncio.create_task(work()) for work in (self._drain_when_asked, self._end_where_not_ours)]
        try:
            if not signals:
                await self.supervisor.run()
                return
            with stop_on_signals(self.supervisor.request):
                await self.supervisor.run()
        finally:
            for task in beside:
                task.cancel()

    async def _drain_when_asked(self) -> None:
        await self.session.drain_requested.wait()
        self.supervisor.request()

    async def _end_where_not_ours(self) -> None:
        try:
            await self.belonging.claim_in_the_end()
        except Rejected as error:
            _log.error("node.prefix_in_use", code=error.code, reason=error.message)
            self.supervisor.request()


def roles_of(brought: Brought) -> tuple[str, ...]:
    """Return every role that has something to do with this program."""
    return tuple(role for role in ROLES if role != "fanout-consumer" or brought.modules.all())


@asynccontextmanager
async def open_node(
    settings: Settings,
    roles: Sequence[str],
    *,
    database: Database | None = None,
    brought: Brought | None = None,
    any_port: bool = False,
) -> AsyncIterator[Node]:
    """Build a process with ``roles``.

    Args:
        settings: Of this process.
        roles: Some of ``ROLES``.
        database: One that is open already; it stays open.
        brought: What the user's program brings.
        any_port: Take free ports where the wanted ones are in use.

    Raises:
        Rejected: ``unknown_role``, ``address_unusable``, ``queue_differs``, ``queue_forbidden``, or the TOML file is
            wrong. Permanent.
        Unavailable: The database does not answer, or a port is in use. Retry.
    """
    wanted = check_roles(roles)
    brought = brought or Brought()
    for declared in settings.secrets.values():
        know_secret(declared)
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(open_link(settings, brought.handlers, database=database))
        asked = Couriers(settings, brought.couriers)
        stack.push_async_callback(asked.aclose)
        pool = await open_pool(link.database.url, max_size=LOOP_CONNECTIONS_MAX, pooled=link.database.pooled)
        stack.push_async_callback(close_pool, pool)
        config = load_config(settings.config)
        with translated():
            await register_partners(pool, brought.couriers, config.partners)
            await register_modules(pool, brought.modules, config.modules)
            types = ReportTypes(pool, Cursors(pool))
            await register_reports(types, brought.reports, brought.listeners, config.report_types)
            await register_batches(brought.batches, link.campaigns.programs)
            await set_events_destination(pool, poll_events(settings))
            await reserve_prefixes(pool, (settings.amqp_prefix, settings.kafka_prefix))
        brokers = build_brokers(settings, pool)
        stack.push_async_callback(close_brokers, brokers)
        fanout = await stack.enter_async_context(open_fanout(settings, pool))
        belonging = Belonging(settings, wanted, pool, fanout.redis)
        await belonging.claim()
        if "fanout-consumer" in wanted:
            with suppress(Unavailable):  # it is asked again while it is needed
                await prepare_queue(settings)
        sources = await stack.enter_async_context(_open_sources(settings, config.sources, wanted))
        reports = None
        if "report-listener" in wanted:
            reports = await stack.enter_async_context(open_reports(settings, pool, fanout.redis))
        executing = None
        if "campaign-consumer" in wanted:
            opened = open_executing(settings, pool, sources, brought.batches)
            executing = await stack.enter_async_context(opened)
        program = Program(brought, asked, fanout, reports, executing, sources, belonging)
        yield _build(settings, wanted, link, pool, brokers, program=program, any_port=any_port)


@asynccontextmanager
async def _open_sources(
    settings: Settings, terms: Mapping[str, SourceTerms], wanted: Sequence[str]
) -> AsyncIterator[Sources]:
    """Open the sources; where a role reads them, they have a folder of this process to spill into."""
    async with AsyncExitStack() as stack:
        folder = None
        if terms and not SOURCE_ROLES.isdisjoint(wanted):
            folder = partial(Path, await stack.enter_async_context(open_work_folder(settings)))
        sources = Sources(terms, secret, folder)
        stack.push_async_callback(sources.aclose)
        yield sources


async def run_node(
    settings: Settings,
    roles: Sequence[str],
    *,
    database: Database | None = None,
    brought: Brought | None = None,
    signals: bool = False,
) -> None:
    """Run ``roles`` until cancelled, or with ``signals`` until the first of them; what runs is let finish."""
    async with open_node(settings, roles, database=database, brought=brought) as node:
        running = asyncio.ensure_future(node.run(signals=signals))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            node.supervisor.request()
            await asyncio.wait([running])
            raise


def _build(
    settings: Settings,
    roles: tuple[str, ...],
    link: Link,
    pool: Pool,
    brokers: dict[str, Broker],
    *,
    program: Program,
    any_port: bool,
) -> Node:
    terms = LeaseTerms(settings.lease, settings.lease / 8)
    name = f"{platform.node() or 'host'}:{os.getpid()}"
    direct = link.database.direct_url if settings.notifications else None
    session = WorkerSession(pool, name=name, roles=roles, version=__version__, terms=terms)
    leases = Leases(pool, owner=name, terms=terms)
    worker = relay = api = overview = None
    if "worker" in roles:
        limits = WorkerLimits(settings.concurrency, settings.threads)
        handlers = program.brought.handlers
        worker = JobWorker(pool, session, handlers, brokers, direct_url=direct, limits=limits)
        runner = worker.runner
        session.facts["handlers"] = handlers.told
        session.facts["brokers"] = sorted(brokers)
        session.facts["threads_stuck"] = lambda: runner.threads_stuck
    else:  # whoever finds a worker lost gives its jobs back, whatever its own role is
        session.on_reclaim(ClaimStore(pool).give_back)
    session.on_reclaim(reclaim)
    session.on_reclaim(LedgerRunClaims(pool).reclaim)
    session.on_reclaim(PartsStore(pool).reclaim)
    session.on_reclaim(ChunksStore(pool).reclaim)
    asking, asked = _consumers(settings, roles, pool, session, program)
    bringing, brought = _reports(program, session, direct)
    executing, executed = ([], []) if program.executing is None else program.executing.consumer(session, direct)
    if "relay" in roles:
        relay = OutboxRelay(leases, brokers, direct_url=direct, terms=terms)
    polls = poll_relays(settings, leases) if "relay" in roles else []
    scheduling = scheduler_loops(settings, leases) if "scheduler" in roles else []
    fanning, fanned = program.fanout.scheduler(brokers, direct, session.facts) if "scheduler" in roles else ([], [])
    news, producing, produced = batch_loops(settings, leases, direct) if "scheduler" in roles else ([], [], [])
    leased: list[LeasedService] = [alerting.Alerting(leases), *scheduling, *producing, *polls]
    watch = Watch(pool, session, worker)
    watch.add(relay, leased)
    watch.add_poll_relays(polls)
    for source in (*asked, *fanned, *brought, *executed, *produced):
        watch.add_source(source)
    if "api" in roles:
        overview = Snapshots(pool, version=__version__, streams_per_key=settings.streams_per_key)
        context = api_context(settings, link, watch.ready, watch.now, overview)
        app = Front(create_app(context), Page(settings.path_prefix), settings.path_prefix)
        api = ApiService(app, listen(settings.api_bind, or_any=any_port), settings.api_listener)
    at = _health_bind(settings, any_port=any_port)
    health = HealthServer(
        at,
        states=watch.states,
        database=watch.check.answers,
        metrics=watch.page.render,
        limits=settings.probes_listener,
    )
    roles_own = (session, *asking, *fanning, *bringing, *executing, *news, worker, relay, overview, api, health)
    services = [Supervised(one) for one in roles_own if one is not None]
    services[-1:-1] = [Supervised(one, _tick_within_s(one)) for one in leased]
    supervisor = Supervisor(services, quiesce_within=max(settings.drain, timedelta(milliseconds=1)))
    watch.follow(supervisor)
    return Node(supervisor, link, session, worker, api, overview, health, at, program.belonging)


def _consumers(
    settings: Settings, roles: Sequence[str], pool: Pool, session: WorkerSession, program: Program
) -> tuple[list[Service], list[Source]]:
    """Return the consumers of this process in the order of their start; they call partners under one contract."""
    if not {"poll-consumer", "fanout-consumer"} & {*roles}:
        return [], []
    contract = PartnerContract(pool, session)
    session.facts["exchange_ms"] = Exchanges.usual_ms
    services: list[Service] = [contract]
    sources: list[Source] = [contract_source(contract)]
    if "poll-consumer" in roles:
        polling, counted = build_consumer(settings, pool, session, contract, program.couriers)
        services, sources = [*services, *polling], [*sources, *counted]
    if "fanout-consumer" in roles:
        tasks, counted = program.fanout.consumer(session, contract, program.brought.modules)
        services, sources = [*services, *tasks], [*sources, *counted]
    return services, sources


def _reports(program: Program, session: WorkerSession, direct_url: str | None) -> tuple[list[Service], list[Source]]:
    """Return what brings parts of reports and puts them together, where the role is among the roles."""
    if program.reports is None:
        return [], []
    return program.reports.listener(session, program.brought.listeners, program.sources, direct_url)


def _tick_within_s(service: LeasedService) -> float:
    """A leased loop comes round at least three times in the length of its lease."""
    return service.lease_terms.ttl.total_seconds()


def _health_bind(settings: Settings, *, any_port: bool) -> str:
    probe = listen(settings.metrics_bind, or_any=any_port)
    with probe:
        host, port = probe.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
