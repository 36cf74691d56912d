"""The lists: per module the entities that are polled for it, ready for messages.

They are read whole, every few minutes and when a row changes, in pages, so that the rest of the process keeps running.
Between two readings only parties that are too large to keep are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from tickwright.capabilities.fanout.messages import NO_KEYS, MessageKeys, read_keys
from tickwright.capabilities.fanout.windows import parse_modules
from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import monotonic
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load

PAGE = 5_000
PARTY_KEPT_BYTES = 2_000
"""Largest party that is kept in memory; ordinary ones are smaller. Larger ones may be compressed on disk."""
UNKNOWN_MAX = 100

_LISTS_SQL = load("tickwright.capabilities.fanout.sql", "lists.sql")


class ListedEntity(NamedTuple):
    """One entity as a message needs it; ``party`` is JSON text, empty if it is too large to be kept."""

    party: bytes
    partner: str | None
    config_version: int


@dataclass(frozen=True, slots=True)
class ModuleList:
    """One module and the entities that are polled for it."""

    name: str
    length_s: int
    timeout_ms: int
    is_gated: bool
    is_paused: bool
    entities: Mapping[str, ListedEntity]
    last_success_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EntityLists:
    """All modules by name, as of one snapshot.

    Attributes:
        unknown: Modules that entities list and that do not exist, with how many entities; a hundred at most.
        now_s: The database's clock at the reading; ``received_s`` is the monotonic clock when it arrived.
        keys: They sign the messages.
    """

    modules: Mapping[str, ModuleList]
    unknown: Mapping[str, int]
    now_s: float
    received_s: float
    keys: MessageKeys = NO_KEYS


EMPTY = EntityLists(MappingProxyType({}), MappingProxyType({}), 0.0, 0.0)


async def read_lists(pool: Pool) -> EntityLists:
    """Return the present lists, all from one snapshot. Raises ``UNAVAILABLE``; retry."""
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        now_s = await connection.fetchval(_LISTS_SQL["now"])
        received_s = monotonic()
        modules = await connection.fetch(_LISTS_SQL["list_modules"])
        listed: dict[str, dict[str, ListedEntity]] = {row["name"]: {} for row in modules}
        unknown: dict[str, int] = {}
        async for code, party, names, partner, version in connection.cursor(
            _LISTS_SQL["list_enabled"], PARTY_KEPT_BYTES, prefetch=PAGE
        ):
            entry = ListedEntity(party.encode(), partner, version)
            for name in parse_modules(names):
                if name in listed:
                    listed[name][code] = entry
                elif name in unknown or len(unknown) < UNKNOWN_MAX:
                    unknown[name] = unknown.get(name, 0) + 1
        successes: dict[str, dict[str, float]] = {}
        async for code, task_type, at_s in connection.cursor(_LISTS_SQL["list_successes"], prefetch=PAGE):
            successes.setdefault(task_type, {})[code] = at_s
        keys = await read_keys(connection)
    found = {
        name: ModuleList(**dict(row), entities=entities, last_success_s=successes.get(name, {}))
        for row, (name, entities) in zip(modules, listed.items(), strict=True)
    }
    return EntityLists(found, unknown, now_s, received_s, keys)


async def read_parties(pool: Pool, codes: Sequence[str]) -> Mapping[str, ListedEntity]:
    """Return those of ``codes`` that exist, with their parties.

    Raises:
        Unavailable: ``database_unavailable``. Retry.
    """
    try:
        rows = await pool.fetch(_LISTS_SQL["parties"], codes)
    except UNAVAILABLE as error:
        raise Unavailable("database_unavailable", f"parties of entities were not read: {error!r}") from error
    return {code: ListedEntity(party.encode(), partner, version) for code, party, partner, version in rows}
