"""One process with its roles: built, run under the supervisor, stopped in two steps.

Every process carries a session, so that operators see it, and the loops that watch the others. What a
role adds is one line in ``_services``. Loops have a pool of their own: requests cannot keep a lease from
being renewed.
"""

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from tickwright import __version__
from tickwright.api.app import create_app
from tickwright.capabilities.jobs.claims_store import ClaimStore
from tickwright.capabilities.jobs.handlers import HandlerRegistry
from tickwright.capabilities.jobs.worker import JobWorker, WorkerLimits
from tickwright.domain.errors import Rejected
from tickwright.domain.leases import LeaseTerms
from tickwright.ports.broker import Broker
from tickwright.runtime import alerting, upkeep
from tickwright.runtime.health import HealthServer
from tickwright.runtime.leases import LeasedService, Leases
from tickwright.runtime.relay import OutboxRelay
from tickwright.runtime.session import WorkerSession
from tickwright.runtime.signals import stop_on_signals
from tickwright.runtime.supervisor import Supervised, Supervisor
from tickwright.store.pool import Pool, open_pool
from tickwright.wiring.api import api_context
from tickwright.wiring.brokers import build_brokers, close_brokers
from tickwright.wiring.database import Database
from tickwright.wiring.link import Link, close_pool, open_link
from tickwright.wiring.serving import ApiService, listen
from tickwright.wiring.settings import Settings
from tickwright.wiring.watching import Watch

ROLES = ("worker", "scheduler", "relay", "api")
LATER = ("poll-consumer", "fanout-consumer", "report-listener", "campaign-consumer")
LOOP_CONNECTIONS_MAX = 10


@dataclass(frozen=True, slots=True)
class Node:
    """A process that is built and not yet running.

    Attributes:
        supervisor: Runs ``services``.
        link: To the database.
        worker: Where the role is among the roles.
        api: The same.
        health: Serves the probes, at ``health_bind``.
    """

    supervisor: Supervisor
    link: Link
    session: WorkerSession
    worker: JobWorker | None
    api: ApiService | None
    health: HealthServer
    health_bind: str

    async def run(self, *, signals: bool = True) -> None:
        """Run until asked to stop: by a signal, by an operator's drain, or by ``supervisor.request``."""
        drained = asyncio.create_task(self._drain_when_asked())
        try:
            if not signals:
                await self.supervisor.run()
                return
            with stop_on_signals(self.supervisor.request):
                await self.supervisor.run()
        finally:
            drained.cancel()

    async def _drain_when_asked(self) -> None:
        await self.session.drain_requested.wait()
        self.supervisor.request()


def check_roles(roles: Sequence[str]) -> tuple[str, ...]:
    """Return ``roles`` without repetition.

    Raises:
        Rejected: ``unknown_role``. Permanent.
    """
    for role in roles:
        if role in LATER:
            raise Rejected("unknown_role", f"{role} comes with a later release; roles now: {', '.join(ROLES)}")
        if role not in ROLES:
            raise Rejected("unknown_role", f"there is no role {role!r}; roles: {', '.join(ROLES)}")
    return tuple(dict.fromkeys(roles))


@asynccontextmanager
async def open_node(
    settings: Settings,
    roles: Sequence[str],
    *,
    database: Database | None = None,
    handlers: HandlerRegistry | None = None,
    any_port: bool = False,
) -> AsyncIterator[Node]:
    """Build a process with ``roles``.

    Args:
        settings: Of this process.
        roles: Some of ``ROLES``.
        database: One that is open already; it stays open.
        handlers: What a worker runs.
        any_port: Take free ports where the wanted ones are in use.

    Raises:
        Rejected: ``unknown_role``, ``address_unusable``, or the TOML file is wrong. Permanent.
        Unavailable: The database does not answer, or a port is in use. Retry.
    """
    wanted = check_roles(roles)
    handlers = handlers or HandlerRegistry()
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(open_link(settings, handlers, database=database))
        pool = await open_pool(link.database.url, max_size=LOOP_CONNECTIONS_MAX, pooled=link.database.pooled)
        stack.push_async_callback(close_pool, pool)
        brokers = build_brokers(settings, pool)
        stack.push_async_callback(close_brokers, brokers)
        yield _build(settings, wanted, link, pool, brokers, handlers=handlers, any_port=any_port)


async def run_node(
    settings: Settings,
    roles: Sequence[str],
    *,
    database: Database | None = None,
    handlers: HandlerRegistry | None = None,
    signals: bool = False,
) -> None:
    """Run ``roles`` until cancelled, or with ``signals`` until the first of them; what runs is let finish."""
    async with open_node(settings, roles, database=database, handlers=handlers) as node:
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
    handlers: HandlerRegistry,
    any_port: bool,
) -> Node:
    terms = LeaseTerms(settings.lease, settings.lease / 8)
    name = f"{platform.node() or 'host'}:{os.getpid()}"
    direct = link.database.direct_url if settings.notifications else None
    session = WorkerSession(pool, name=name, roles=roles, version=__version__, terms=terms)
    leases = Leases(pool, owner=name, terms=terms)
    worker = relay = api = None
    if "worker" in roles:
        limits = WorkerLimits(settings.concurrency, settings.threads)
        worker = JobWorker(pool, session, handlers, brokers, direct_url=direct, limits=limits)
    else:  # whoever finds a worker lost gives its jobs back, whatever its own role is
        session.on_reclaim(ClaimStore(pool).give_back)
    if "relay" in roles:
        relay = OutboxRelay(leases, brokers, direct_url=direct, terms=terms)
    leased = [alerting.Alerting(leases), *([upkeep.Upkeep(leases)] if "scheduler" in roles else [])]
    watch = Watch(pool, session, worker)
    watch.add(relay, leased)
    if "api" in roles:
        app = create_app(api_context(link, watch.ready, watch.now))
        api = ApiService(app, listen(settings.api_bind, or_any=any_port))
    at = _health_bind(settings, any_port=any_port)
    health = HealthServer(at, states=watch.states, database=watch.check.answers, metrics=watch.page.render)
    services = [Supervised(one) for one in (session, worker, relay, api, health) if one is not None]
    services[-1:-1] = [Supervised(one, _tick_within_s(one)) for one in leased]
    supervisor = Supervisor(services, quiesce_within=max(settings.drain, timedelta(milliseconds=1)))
    watch.follow(supervisor)
    return Node(supervisor, link, session, worker, api, health, at)


def _tick_within_s(service: LeasedService) -> float:
    """A leased loop comes round at least three times in the length of its lease."""
    terms = upkeep.TERMS if isinstance(service, upkeep.Upkeep) else alerting.TERMS
    return terms.ttl.total_seconds()


def _health_bind(settings: Settings, *, any_port: bool) -> str:
    probe = listen(settings.metrics_bind, or_any=any_port)
    with probe:
        host, port = probe.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
