"""One process with its roles: built, run under the supervisor, stopped in two steps.

Every process has a session, so that operators see it. Plugins add what each role does. Loops have a separate pool, so
requests cannot delay the renewal of a lease.
"""

import asyncio
import errno
import os
import platform
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import structlog

from tickwright import __version__
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import LeasedService, Leases
from tickwright.engine.outbox.table import reserve_prefixes
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.on_demand import DirectAccess
from tickwright.observe.logs import know_secret
from tickwright.plugin import Context, Registrations, Settings
from tickwright.plugin.settings import Bind
from tickwright.ports.broker import Brokers
from tickwright.process.database import Database, translated
from tickwright.process.health import HealthServer
from tickwright.process.installation import (
    Installation,
    close_pool,
    open_installation,
    provide,
)
from tickwright.process.ownership import OwnershipCheck
from tickwright.process.plugins import API_ROLE, PLUGINS, ROLES, check_roles
from tickwright.process.signals import stop_on_signals
from tickwright.process.supervisor import Supervised, Supervisor
from tickwright.process.watching import Watch
from tickwright.rest.listener import bind
from tickwright.store.pool import FAR_CONNECT_TIMEOUT_S, Pool, open_pool

if TYPE_CHECKING:  # only a process with the role api needs the framework
    from tickwright.process.serving import ApiService

LOOP_CONNECTIONS_MAX = 10
T = TypeVar("T")
_log = structlog.get_logger("tickwright.node")


@dataclass(frozen=True, slots=True)
class Node:
    """A process that is built and does not run yet; callers use ``installation``, roles use ``context``."""

    supervisor: Supervisor
    installation: Installation
    context: Context
    session: WorkerSession
    api: "ApiService | None"
    health: HealthServer
    health_bind: str
    ownership: OwnershipCheck

    def get(self, kind: type[T]) -> T:
        """Return a service of its roles by type, such as ``JobWorker``."""
        return self.context.ports.get(kind)

    async def run(self, *, signals: bool = True) -> None:
        """Run until a signal, an operator's drain or ``supervisor.request_stop`` stops the process."""
        beside = [asyncio.create_task(work()) for work in (self._stop_when_drained, self._stop_where_not_owner)]
        try:
            if not signals:
                await self.supervisor.run()
                return
            with stop_on_signals(self.supervisor.request_stop):
                await self.supervisor.run()
        finally:
            for task in beside:
                task.cancel()

    async def _stop_when_drained(self) -> None:
        await self.session.drain_requested.wait()
        self.supervisor.request_stop()

    async def _stop_where_not_owner(self) -> None:
        try:
            await self.ownership.claim_all()
        except Rejected as error:
            _log.error("node.prefix_in_use", code=error.code, reason=error.message)
            self.supervisor.request_stop()


def roles_of(registrations: Registrations) -> tuple[str, ...]:
    """Return every role with work for this program."""
    return tuple(role for role in ROLES if not any(plugin.is_idle(role, registrations) for plugin in PLUGINS))


@asynccontextmanager
async def open_node(
    settings: Settings,
    roles: Sequence[str],
    *,
    database: Database | None = None,
    registrations: Registrations | None = None,
    any_port: bool = False,
) -> AsyncIterator[Node]:
    """Build a process with some of ``ROLES``; a given ``database`` stays open.

    ``any_port`` uses free ports if the wanted ones are taken.

    Raises:
        Rejected: ``unknown_role``, ``address_unusable``, ``queue_differs``, ``queue_forbidden``, the TOML file is
            wrong, or a function lacks a resource (``resource_missing``). Permanent.
        Unavailable: The database does not answer, or a port is in use. Retry.
        Exception: What a lifespan of the program raises.
    """
    wanted = check_roles(roles)
    for declared in settings.secrets.values():
        know_secret(declared)
    async with AsyncExitStack() as stack:
        opened = open_installation(settings, registrations, database=database)
        installation = await stack.enter_async_context(opened)
        database = installation.database
        pool = await open_pool(database.url, max_size=LOOP_CONNECTIONS_MAX, behind_pooler=database.behind_pooler)
        stack.push_async_callback(close_pool, pool)
        context = _context(settings, wanted, installation, pool)
        stack.push_async_callback(context.ports.aclose)
        with translated():
            prefixes = [prefix for plugin in PLUGINS for prefix in plugin.reserved_prefixes(settings)]
            await reserve_prefixes(pool, prefixes)
            places = [place for plugin in PLUGINS for place in plugin.ownerships(context)]
        ownership = OwnershipCheck(pool, [place for place in places if place.roles & context.roles])
        await ownership.claim()
        with translated():
            for plugin in PLUGINS:
                await plugin.start(context)
        if any(context.roles.intersection(plugin.function_roles) for plugin in PLUGINS):
            await stack.enter_async_context(context.registrations.lifespan.opened(installation))
        yield _build(settings, installation, context, ownership, any_port=any_port)


async def run_node(
    settings: Settings,
    roles: Sequence[str],
    *,
    database: Database | None = None,
    registrations: Registrations | None = None,
    signals: bool = False,
) -> None:
    """Run ``roles`` until cancelled, or with ``signals`` until the first signal; running work may finish."""
    async with open_node(settings, roles, database=database, registrations=registrations) as node:
        running = asyncio.ensure_future(node.run(signals=signals))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            node.supervisor.request_stop()
            await asyncio.wait([running])
            raise


def _context(settings: Settings, roles: tuple[str, ...], installation: Installation, pool: Pool) -> Context:
    """Return the context of the roles, with the session, leases and brokers of this process."""
    terms = LeaseTerms(settings.lease, settings.lease / 8)
    name = f"{platform.node() or 'host'}:{os.getpid()}"
    direct_url = installation.database.direct_url if settings.notifications else None
    direct = DirectConnection(direct_url)
    session = WorkerSession(pool, name=name, roles=roles, version=__version__, terms=terms, direct=direct)
    own = installation.context
    context = Context(settings, pool, own.registrations, own.read_config, roles=frozenset(roles), callers=own)
    context.ports.put(DirectConnection, direct)
    for one in (own, context):
        one.ports.put(DirectAccess, DirectAccess(direct_url, direct))
    context.facts = session.facts
    context.ports.put(WorkerSession, session)
    leases = context.ports.put(Leases, Leases(pool, owner=name, terms=terms))
    session.on_beat(leases.read_free)
    provide(context)
    context.ports.get(Brokers)  # a mistake in their settings ends the start
    for plugin in PLUGINS:
        for reclaim in plugin.reclaim(context):
            session.on_reclaim(reclaim)
    return context


def _build(
    settings: Settings, installation: Installation, context: Context, ownership: OwnershipCheck, *, any_port: bool
) -> Node:
    session = context.ports.get(WorkerSession)
    watch = Watch(context, session)
    api = _api(settings, installation, watch, any_port=any_port) if API_ROLE in context.roles else None
    at = _health_bind(settings, any_port=any_port)
    health = HealthServer(
        at,
        states=watch.states,
        database=watch.check.answers,
        metrics=watch.render,
        limits=settings.probes_listener,
    )
    direct = Supervised(context.ports.get(DirectConnection), 2 * FAR_CONNECT_TIMEOUT_S)  # it ticks between tries
    services = [direct, *(Supervised(one) for one in (session, *context.services))]
    services += [Supervised(api)] if api is not None else []
    services += [Supervised(one, _tick_within_s(one)) for one in context.leased]
    supervisor = Supervisor(
        [*services, Supervised(health)], quiesce_within=max(settings.drain, timedelta(milliseconds=1))
    )
    watch.follow(supervisor)
    return Node(supervisor, installation, context, session, api, health, at, ownership)


def _api(settings: Settings, installation: Installation, watch: Watch, *, any_port: bool) -> "ApiService":
    from tickwright.api.app import create_app
    from tickwright.dashboard import Page
    from tickwright.process.api import api_context
    from tickwright.process.serving import ApiAndDashboard, ApiService

    served = create_app(api_context(settings, installation.context, watch.ready, watch.render_now))
    app = ApiAndDashboard(served, Page(settings.path_prefix), settings.path_prefix)
    return ApiService(app, listen(settings.api_bind, "TICKWRIGHT_API_BIND", or_any=any_port), settings.api_listener)


def _tick_within_s(service: LeasedService) -> float:
    """Return the length of the lease, in which a leased loop ticks at least three times."""
    return service.lease_terms.ttl.total_seconds()


def _health_bind(settings: Settings, *, any_port: bool) -> str:
    probe = listen(settings.metrics_bind, "TICKWRIGHT_METRICS_BIND", or_any=any_port)
    with probe:
        host, port = probe.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(at: Bind, setting: str, *, or_any: bool = False) -> socket.socket:
    """Return a listening socket; with ``or_any`` at a free port if the wanted one is taken.

    ``setting`` is the name of the setting that ``at`` comes from, for the error.

    Raises:
        Unavailable: ``address_in_use``. Retry, or choose another port.
        Rejected: ``address_unusable``: no such host here, or no right to the port. Permanent.
    """
    try:
        return _bind(at, setting)
    except Unavailable:
        if not or_any:
            raise
    return _bind(Bind(at.host, 0), setting)


def _bind(at: Bind, setting: str) -> socket.socket:
    try:
        return bind(at.host, at.port)
    except (OSError, UnicodeError) as error:  # the latter for an invalid host name
        reason = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            free = Bind(at.host, 0)
            text = f"cannot listen at {at}: {reason}; set {setting} to another port, or to {free} for any free one"
            raise Unavailable("address_in_use", text) from error
        raise Rejected("address_unusable", f"cannot listen at {at}: {reason}") from error
