"""The API as a process's own: what it answers from, with a socket or without one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tickwright import __version__
from tickwright.api.app import create_app
from tickwright.api.context import ApiContext, Readiness
from tickwright.capabilities.operations.overview.snapshot import Snapshots
from tickwright.ports.caller import Role
from tickwright.process.services import Link, open_link
from tickwright.process.settings import Settings

Ask = Callable[[], Awaitable[Readiness]]


def api_context(
    settings: Settings, link: Link, readiness: Ask, metrics: Callable[[], bytes], overview: Snapshots
) -> ApiContext:
    """Return what the API of this process answers from; ``overview`` is run by the caller."""
    return ApiContext(
        pool=link.pool,
        jobs=link.service,
        operations=link.operations,
        polling=link.polling,
        fanout=link.fanout,
        reports=link.reports,
        campaigns=link.campaigns,
        polls=link.polls,
        receivers=link.receivers,
        enqueuer=link.enqueuer,
        readiness=readiness,
        metrics=metrics,
        overview=overview,
        version=__version__,
        path_prefix=settings.path_prefix,
        payloads_from=Role[settings.payloads_from.upper()],
    )


@asynccontextmanager
async def local_api(settings: Settings) -> AsyncIterator[Any]:
    """Give the API's routes for use inside this process, where the caller is in the scope and no key is asked for.

    Nothing that comes from a network can reach this application: it has no socket.
    """

    async def ready() -> Readiness:
        return Readiness(ready=True)

    async with open_link(settings, declare=False) as link:
        overview = Snapshots(link.pool, version=__version__)
        try:
            yield create_app(api_context(settings, link, ready, lambda: b"", overview)).framework
        finally:
            await overview.stop()
