"""Endpoints of alert receivers: URL and secrets as they are when a message is sent."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.operations.sql", "alert_receivers.sql")
SCHEME = "alert"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint of one receiver; ``secrets`` sign, newest first, and are never shown."""

    url: str
    secrets: tuple[str, ...] = field(repr=False)


async def read_endpoints(pool: Pool, names: Collection[str]) -> Mapping[str, Endpoint]:
    """Return the existing receivers among ``names``."""
    rows = await pool.fetch(_SQL["endpoints"], list(names))
    return {row["name"]: Endpoint(row["url"], tuple(row["secrets"])) for row in rows}
