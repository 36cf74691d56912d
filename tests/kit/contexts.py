"""A process as its plugins see it, with what they add for some roles; nothing of it runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Leases
from tickwright.engine.session import WorkerSession
from tickwright.plugin import Context, Registrations, Settings
from tickwright.ports.broker import Brokers
from tickwright.process.installation import build_brokers, close_brokers, provide
from tickwright.process.plugins import PLUGINS
from tickwright.store.pool import Pool


@asynccontextmanager
async def started(pool: Pool, settings: Settings, *roles: str) -> AsyncIterator[Context]:
    """Give the context of a process with ``roles``, in which every plugin has added what it has."""
    context = Context(settings, pool, None, Registrations(), dict, roles=frozenset(roles))
    terms = LeaseTerms(settings.lease, settings.lease / 8)
    session = WorkerSession(pool, name="test", roles=roles, version="0.0.0", terms=terms)
    context.facts = session.facts
    context.ports.put(WorkerSession, session)
    context.ports.put(Leases, Leases(pool, owner="test", terms=terms))
    provide(context)
    brokers = context.ports.put(Brokers, build_brokers(context))
    try:
        for plugin in PLUGINS:
            await plugin.start(context)
        yield context
    finally:
        await close_brokers(brokers)
        await context.ports.aclose()
