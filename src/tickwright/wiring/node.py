"""One process with its roles: built, run under the supervisor, stopped in two steps."""

from collections.abc import Sequence

from tickwright.capabilities.jobs.handlers import HandlerRegistry
from tickwright.wiring.database import Database
from tickwright.wiring.settings import Settings


async def run_node(
    settings: Settings,
    roles: Sequence[str],
    *,
    database: Database | None = None,
    handlers: HandlerRegistry | None = None,
) -> None:
    """Run ``roles`` until cancelled or stopped by a signal."""
    raise NotImplementedError
