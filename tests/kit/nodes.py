"""Roles of a real process within the test's process, from a TOML file as a user writes it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from tickwright.app.declarations import Declarations
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Leases
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.plugin import Context, Registrations
from tickwright.plugin.settings import Bind, Settings
from tickwright.ports.service import Service
from tickwright.process.installation import provide
from tickwright.process.node import Node, open_node
from tickwright.process.plugins import PLUGINS
from tickwright.store.pool import Pool


def settings_of(url: str, folder: Path, config: str, **more: Any) -> Settings:
    """Return settings of a process with this TOML file, free ports, and files in a folder."""
    path = folder / "tickwright.toml"
    path.write_text(config)
    anywhere = Bind("127.0.0.1", 0)
    return Settings(
        database_url=SecretStr(url), home=folder, config=path, metrics_bind=anywhere, api_bind=anywhere, **more
    )


@asynccontextmanager
async def running(settings: Settings, program: Declarations, *roles: str) -> AsyncIterator[Node]:
    """Run a process's roles for the length of the block."""
    async with open_node(settings, roles, registrations=program.registrations, any_port=True) as node:
        work = asyncio.create_task(node.run(signals=False))
        try:
            yield node
        finally:
            node.supervisor.request_stop()
            await work


# The services of one role in the test's own process, in the order of their start.


@dataclass(kw_only=True)
class RoleProcess:
    """The services of one role."""

    services: Sequence[Service]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def begin(self) -> None:
        """Run each of them."""
        self.tasks = [asyncio.create_task(service.run()) for service in self.services]

    async def stop(self) -> None:
        """Stop all in order, as a deploy does."""
        for service in reversed(self.services):
            await service.quiesce()
        for service in reversed(self.services):
            await service.stop()
        await asyncio.wait(self.tasks)
        for task in self.tasks:
            task.result()


# A process as its plugins see it, with their additions for some roles; none of its services runs.


@asynccontextmanager
async def started(pool: Pool, settings: Settings, *roles: str) -> AsyncIterator[Context]:
    """Yield the context of a process with ``roles``, with the additions of every plugin."""
    context = Context(settings, pool, Registrations(), dict, roles=frozenset(roles))
    terms = LeaseTerms(settings.lease, settings.lease / 8)
    session = WorkerSession(pool, name="test", roles=roles, version="0.0.0", terms=terms)
    context.facts = session.facts
    context.ports.put(WorkerSession, session)
    context.ports.put(DirectConnection, DirectConnection(None))
    context.ports.put(Leases, Leases(pool, owner="test", terms=terms))
    provide(context)
    try:
        for plugin in PLUGINS:
            await plugin.start(context)
        yield context
    finally:
        await context.ports.aclose()
