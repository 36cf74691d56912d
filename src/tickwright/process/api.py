"""The API of one process, with a socket or without one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tickwright import __version__
from tickwright.api.app import create_app
from tickwright.api.context import ApiContext
from tickwright.api.probes import Readiness
from tickwright.plugin import Context, Settings
from tickwright.ports.caller import Role
from tickwright.process.installation import open_installation
from tickwright.process.plugins import PLUGINS


def api_context(
    settings: Settings,
    installation: Context,
    readiness: Callable[[], Awaitable[Readiness]],
    metrics: Callable[[], bytes],
) -> ApiContext:
    """Return what the API of this process answers from."""
    return ApiContext(
        plugins=PLUGINS,
        installation=installation,
        readiness=readiness,
        metrics=metrics,
        version=__version__,
        path_prefix=settings.path_prefix,
        payloads_from=Role[settings.payloads_from.upper()],
    )


@asynccontextmanager
async def local_api(settings: Settings) -> AsyncIterator[Any]:
    """Give the API's routes for use inside this process, where the caller is in the scope and no key is checked.

    Nothing that comes from a network can reach this application: it has no socket.
    """

    async def ready() -> Readiness:
        return Readiness(ready=True)

    async with open_installation(settings, declare=False) as installation:
        yield create_app(api_context(settings, installation.context, ready, lambda: b"")).framework
