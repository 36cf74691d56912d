"""Where alerts go: the url and the secrets of a receiver, as they are when a message leaves."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.operations.sql", "alert_receivers.sql")
SCHEME = "alert"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One receiver's side.

    Attributes:
        url: Where it listens, ``https://…``.
        secrets: That sign, newest first; never shown.
    """

    url: str
    secrets: tuple[str, ...] = field(repr=False)


async def read_endpoints(pool: Pool, names: Collection[str]) -> Mapping[str, Endpoint]:
    """Return the receivers of these names that there are."""
    rows = await pool.fetch(_SQL["endpoints"], list(names))
    return {row["name"]: Endpoint(row["url"], tuple(row["secrets"])) for row in rows}
