"""Claim, publish, seal: one chunk of a window is published once, however many schedulers try.

A claim lives for seconds. If a scheduler dies after it, another one claims the window soon; a scheduler that was
suspended publishes nothing when its claim may have expired. A message whose confirm was lost is sent again under the
same claim and the same id: consumers drop the second one.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import structlog

from tickwright.capabilities.fanout.messages import NO_KEYS, SIGNATURE, MessageKeys, read_keys, write_task
from tickwright.domain.errors import Unavailable
from tickwright.domain.modules import Window, parse_modules
from tickwright.ports.broker import Accepted, Broker, Message, Outcome, Refused
from tickwright.ports.fanout import EntityWindow, Mark, Marks
from tickwright.ports.ids import monotonic
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load

# The lists: per module the entities that are polled for it, ready for messages. They are read whole, every few minutes
# and when a row changes, in pages, so that the rest of the process keeps running. Between two readings only parties
# that are too large to keep are read.

PAGE = 5_000
PARTY_KEPT_BYTES = 2_000
"""Largest party that is kept in memory; ordinary ones are smaller. Larger ones may be compressed on disk."""
UNKNOWN_MAX = 100

_SQL = load("tickwright.capabilities.fanout.sql", "lists.sql")


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
        now_s = await connection.fetchval(_SQL["now"])
        received_s = monotonic()
        modules = await connection.fetch(_SQL["list_modules"])
        listed: dict[str, dict[str, ListedEntity]] = {row["name"]: {} for row in modules}
        unknown: dict[str, int] = {}
        async for code, party, names, partner, version in connection.cursor(
            _SQL["list_enabled"], PARTY_KEPT_BYTES, prefetch=PAGE
        ):
            entry = ListedEntity(party.encode(), partner, version)
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
    return EntityLists(made, unknown, now_s, received_s, keys)


async def read_parties(pool: Pool, codes: Sequence[str]) -> Mapping[str, ListedEntity]:
    """Return those of ``codes`` that exist, with their parties.

    Raises:
        Unavailable: ``database_unavailable``. Retry.
    """
    try:
        rows = await pool.fetch(_SQL["parties"], codes)
    except UNAVAILABLE as error:
        raise Unavailable("database_unavailable", f"parties of entities were not read: {error!r}") from error
    return {code: ListedEntity(party.encode(), partner, version) for code, party, partner, version in rows}


LEASE = timedelta(seconds=10)
LEASE_MIN = timedelta(seconds=2)
PUBLISH = timedelta(seconds=4)
CHUNKS_AT_ONCE = 3
"""Of all modules together: with more of them, messages wait too long at the broker, and are sent twice."""

SKEW = timedelta(minutes=1)
NO_QUEUE = frozenset({"unroutable", "exchange_missing"})

_log = structlog.get_logger("tickwright.fanout")


class EntityOutcome(Enum):
    """The result of one entity of a chunk."""

    PUBLISHED = "published"
    SEALED = "sealed"
    TAKEN = "taken"
    AGAIN = "again"


_FOUND = {Mark.MINE: EntityOutcome.AGAIN, Mark.TAKEN: EntityOutcome.TAKEN, Mark.SEALED: EntityOutcome.SEALED}


class Publisher:
    """Publishes for all modules of one scheduler.

    Args:
        marks: Decide which scheduler publishes which window.
        declare: Creates the queue if it is missing; raises ``Unavailable``.
        parties: Reads entities whose parties the lists do not keep; raises ``Unavailable``.
        token: Of this process; unique.

    Attributes:
        keys: Sign every message; set with each reading of the lists.
        room: For the chunks of all modules together; more of them would wait at the broker and be published late.

    Invariants:
        FAN-1: a window is sealed only after the broker's confirm.
        FAN-2: nothing is published when half of its claim's life, five seconds at most, is over.
    """

    def __init__(
        self,
        marks: Marks,
        broker: Broker,
        destination: str,
        *,
        declare: Callable[[], Awaitable[None]],
        parties: Callable[[Sequence[str]], Awaitable[Mapping[str, ListedEntity]]],
        token: str,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._marks, self._broker, self._destination = marks, broker, destination
        self._declare, self._parties, self._token, self._probe = declare, parties, token, probe
        self.keys: MessageKeys = NO_KEYS
        self.counts: Counter[str] = Counter()
        self.room = asyncio.Semaphore(CHUNKS_AT_ONCE)

    async def send(self, module: ModuleList, window: Window, codes: Sequence[str]) -> Mapping[str, EntityOutcome]:
        """Publish the free ones of ``codes``, at most a few hundred; the caller holds ``room``.

        Raises:
            Unavailable: No store of marks answers, or there is no key to sign with. Retry.
        """
        lease, asked_s = _lease(window), monotonic()
        windows = [EntityWindow(code, module.name, window.start_s) for code in codes]
        claims = await self._marks.claim(windows, self._token, lease)
        fates = {one.entity_code: _FOUND[claim.mark] for one, claim in zip(windows, claims, strict=True)}
        mine = [(one, claim.last_success_s) for one, claim in zip(windows, claims, strict=True) if _is_mine(claim)]
        listed = await self._with_parties(module, [one.entity_code for one, _ in mine])
        mine = [(one, last_s) for one, last_s in mine if one.entity_code in listed]
        await self._probe.reached("fanout.claimed", places=len(mine))
        if mine and monotonic() - asked_s < lease.total_seconds() / 2:
            timeout = min(PUBLISH, lease * 0.4)
            messages = [self._message(module, window, one.entity_code, listed, last_s, timeout) for one, last_s in mine]
            outcomes = await self._broker.publish_many(messages)
            await self._probe.reached("fanout.published_not_sealed", places=len(mine))
            await self._settle([one for one, _ in mine], outcomes, fates, keep=_keep(window))
        return fates

    async def _with_parties(self, module: ModuleList, codes: Sequence[str]) -> Mapping[str, ListedEntity]:
        """Return the entities with their parties, read if they are not kept; deleted entities are left out."""
        listed = {code: module.entities[code] for code in codes}
        large = [code for code, entry in listed.items() if not entry.party]
        if large:
            listed |= await self._parties(large)
        return {code: entry for code, entry in listed.items() if entry.party}

    def _message(  # noqa: PLR0917  what a message is made of
        self,
        module: ModuleList,
        window: Window,
        code: str,
        all_listed: Mapping[str, ListedEntity],
        last_success_s: float | None,
        timeout: timedelta,
    ) -> Message:
        listed = all_listed[code]
        successes = [at_s for at_s in (last_success_s, module.last_success_s.get(code)) if at_s is not None]
        last_s = max(successes, default=None)
        message_id, body = write_task(
            code, module.name, listed.party, window, last_s, module.timeout_ms, listed.partner, listed.config_version
        )
        signed = {SIGNATURE: self.keys.sign(body)}
        return Message(message_id, self._destination, body, headers=signed, timeout=timeout)

    async def _settle(
        self,
        windows: Sequence[EntityWindow],
        outcomes: Sequence[Outcome],
        fates: dict[str, EntityOutcome],
        *,
        keep: timedelta,
    ) -> None:
        done, refused, refusals = [], [], []
        for window, outcome in zip(windows, outcomes, strict=True):
            if isinstance(outcome, Accepted):
                done.append(window)
                fates[window.entity_code] = EntityOutcome.PUBLISHED
            elif isinstance(outcome, Refused):
                refused.append(window)
                refusals.append(outcome)
        self.counts["published"] += len(done)
        self.counts["refused"] += len(refused)
        self.counts["unknown"] += len(windows) - len(done) - len(refused)
        if done:
            try:
                self.counts["not_mine"] += await self._marks.seal(done, self._token, keep=keep)
            except Unavailable as error:  # at worst another scheduler publishes them again
                _log.warning("fanout.windows_not_sealed", windows=len(done), error=error.message)
        if refused:
            await self._release(refused, refusals)

    async def _release(self, windows: Sequence[EntityWindow], refusals: Sequence[Refused]) -> None:
        codes = Counter(one.code for one in refusals)
        _log.warning("fanout.messages_refused", refusals=dict(codes), reason=refusals[0].reason)
        with suppress(Unavailable):  # otherwise the claims expire
            await self._marks.release(windows, self._token)
        if NO_QUEUE & codes.keys():
            await self._declare()


def _is_mine(claim: tuple[Mark, float | None]) -> bool:
    return claim[0] is Mark.MINE


def _lease(window: Window) -> timedelta:
    """Return how long a claim lives: half of a short window, so that a killed scheduler's windows are not lost."""
    return min(LEASE, max(LEASE_MIN, timedelta(seconds=window.length_s / 2)))


def _keep(window: Window) -> timedelta:
    """Return how long it is not published again: the window, and the difference that two clocks may have."""
    return timedelta(seconds=window.length_s) + SKEW
