"""What a scheduler keeps in memory: per module the entities that are polled for it, ready to be put into messages.

Read whole, every few minutes and when a row changes, by pages, so that however many rows there are everything else in
the process has its turn. Between two readings nothing asks the database but for parties that are too large to keep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from tickwright.capabilities.fanout.message_keys import NO_KEYS, MessageKeys, read_keys
from tickwright.domain.errors import Unavailable
from tickwright.domain.modules import parse_modules
from tickwright.ports.ids import monotonic
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load

PAGE = 5_000
PARTY_KEPT_BYTES = 2_000
"""Of a party that is kept in memory: as much as an ordinary one has. Larger ones may be packed on disk."""
UNKNOWN_MAX = 100

_SQL = load("tickwright.capabilities.fanout.sql", "lists.sql")


class Listed(NamedTuple):
    """One entity as a message needs it; ``party`` is JSON text, empty where it is too large to be kept."""

    party: bytes
    partner: str | None
    config_version: int


@dataclass(frozen=True, slots=True)
class ModuleList:
    """One module and whom it is polled for."""

    name: str
    length_s: int
    timeout_ms: int
    is_gated: bool
    is_paused: bool
    entities: Mapping[str, Listed]
    last_success_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Lists:
    """All modules by name, as of one snapshot.

    Attributes:
        unknown: Modules that entities name and that are not set up, with how many entities; a hundred at most.
        now_s: The database's clock when they were read, and ``received_s`` the monotonic one when they were here.
        keys: That messages are signed with.
    """

    modules: Mapping[str, ModuleList]
    unknown: Mapping[str, int]
    now_s: float
    received_s: float
    keys: MessageKeys = NO_KEYS


EMPTY = Lists(MappingProxyType({}), MappingProxyType({}), 0.0, 0.0)


async def read_lists(pool: Pool) -> Lists:
    """Return the lists as they are now, all from one snapshot. Raises what a lost database raises; retry."""
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        now_s = await connection.fetchval(_SQL["now"])
        received_s = monotonic()
        modules = await connection.fetch(_SQL["list_modules"])
        listed: dict[str, dict[str, Listed]] = {row["name"]: {} for row in modules}
        unknown: dict[str, int] = {}
        async for code, party, names, partner, version in connection.cursor(
            _SQL["list_enabled"], PARTY_KEPT_BYTES, prefetch=PAGE
        ):
            entry = Listed(party.encode(), partner, version)
            for name in parse_modules(names):
                if name in listed:
                    listed[name][code] = entry
                elif name in unknown or len(unknown) < UNKNOWN_MAX:
                    unknown[name] = unknown.get(name, 0) + 1
        successes: dict[str, dict[str, float]] = {}
        async for code, task_type, at_s in connection.cursor(_SQL["list_successes"], prefetch=PAGE):
            successes.setdefault(task_type, {})[code] = at_s
        keys = await read_keys(connection)
    made = {
        row["name"]: ModuleList(
            row["name"],
            row["interval_seconds"],
            row["timeout_ms"],
            row["is_gated"],
            row["is_paused"],
            listed[row["name"]],
            successes.get(row["name"], {}),
        )
        for row in modules
    }
    return Lists(made, unknown, now_s, received_s, keys)


async def read_parties(pool: Pool, codes: Sequence[str]) -> Mapping[str, Listed]:
    """Return those of ``codes`` that are there, with their parties.

    Raises:
        Unavailable: The database is away. Retry.
    """
    try:
        rows = await pool.fetch(_SQL["parties"], codes)
    except UNAVAILABLE as error:
        raise Unavailable("database_unavailable", f"parties of entities were not read: {error!r}") from error
    return {code: Listed(party.encode(), partner, version) for code, party, partner, version in rows}
