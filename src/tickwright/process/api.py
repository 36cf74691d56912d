"""The API of one process, with or without a socket."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tickwright import __version__
from tickwright.api.app import create_app
from tickwright.api.context import ApiContext, Readiness
from tickwright.plugin import Context, Settings
from tickwright.ports.caller import Role
from tickwright.process.installation import open_installation
from tickwright.process.plugins import PLUGINS


def api_context(
    settings: Settings,
    plugin_context: Context,
    readiness: Callable[[], Awaitable[Readiness]],
    metrics: Callable[[], bytes],
) -> ApiContext:
    """Return the context of this process's API."""
    return ApiContext(
        plugins=PLUGINS,
        plugin_context=plugin_context,
        readiness=readiness,
        metrics=metrics,
        version=__version__,
        path_prefix=settings.path_prefix,
        payloads_from=Role[settings.payloads_from.upper()],
    )


@asynccontextmanager
async def local_api(settings: Settings) -> AsyncIterator[Any]:
    """Yield the API's routes for use in this process; the scope contains the caller, and no key is checked.

    The application has no socket, so no network reaches it.
    """

    async def ready() -> Readiness:
        return Readiness(ready=True)

    async with open_installation(settings, declare=False) as installation:
        yield create_app(api_context(settings, installation.context, ready, lambda: b"")).framework
