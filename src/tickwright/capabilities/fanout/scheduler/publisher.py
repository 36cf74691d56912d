"""Claim, publish, seal: one chunk of a window is published once, however many schedulers try.

A claim expires after seconds. If a scheduler ends after its claim, another one claims the window soon; a scheduler
that was suspended publishes nothing when its claim may have expired. A message whose confirm was lost is sent again
under the same claim and the same id: consumers drop the second one.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from tickwright.capabilities.fanout.messages import NO_KEYS, SIGNATURE, MessageKeys, read_keys, write_task
from tickwright.capabilities.fanout.store_access import StoreAvailability, short_connection
from tickwright.capabilities.fanout.windows import Window, parse_modules
from tickwright.domain.errors import Unavailable
from tickwright.ports.broker import Accepted, Broker, Message, Outcome, Refused
from tickwright.ports.fanout import EntityWindow, Mark, MarkClaim, Marks
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load

# Publish marks in Redis, and in PostgreSQL while Redis does not answer.
#
# A change between the two stores may publish a window twice; consumers drop the second message. So the stores need not
# agree: windows that were published while Redis was unavailable are sealed there as soon as it answers.

WINDOWS_MAX = 500
ANSWER_S = 5.0
REMEMBERED_MAX = 200_000

_MARKS_SQL = load("tickwright.capabilities.fanout.sql", "marks.sql")
_Key = tuple[str, EntityWindow]


class LedgerMarks:
    """Implements :class:`tickwright.ports.fanout.Marks` with rows of ``fanout_claims``, which retention deletes.

    Unlike Redis it also has the consumers' results: a window that has run, or is running, counts as published.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def claim(self, windows: Sequence[EntityWindow], token: str, lease: timedelta) -> list[MarkClaim]:
        """Claim free windows, 500 with one statement."""
        claimed: list[MarkClaim] = []
        for chunk in _chunks(windows):
            rows = await self._fetch("claim", *_columns(chunk), token, lease)
            marks = [Mark.MINE if row["mine"] else Mark.SEALED if row["sealed"] else Mark.TAKEN for row in rows]
            claimed += [MarkClaim(mark, row["last_success_s"]) for mark, row in zip(marks, rows, strict=True)]
        return claimed

    async def seal(self, windows: Sequence[EntityWindow], token: str, *, keep: timedelta) -> int:
        """Mark windows as published, for longer than ``keep``: until retention deletes the row."""
        del keep
        others = 0
        for chunk in _chunks(list(dict.fromkeys(windows))):
            [[ours]] = await self._fetch("seal", *_columns(chunk), token)
            others += len(chunk) - ours
        return others

    async def release(self, windows: Sequence[EntityWindow], token: str) -> None:
        """Release windows that are still claimed under ``token``."""
        for chunk in _chunks(windows):
            await self._fetch("release", *_columns(chunk), token)

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        async with short_connection(self._pool, ANSWER_S, "publish marks") as connection:
            rows: Sequence[Any] = await connection.fetch(_MARKS_SQL[name], *arguments)
            return rows


def _columns(windows: Sequence[EntityWindow]) -> list[list[Any]]:
    return [list(column) for column in zip(*windows, strict=True)]


def _chunks(windows: Sequence[EntityWindow]) -> Iterator[Sequence[EntityWindow]]:
    return (windows[first : first + WINDOWS_MAX] for first in range(0, len(windows), WINDOWS_MAX))


class FallbackMarks:
    """Implements :class:`tickwright.ports.fanout.Marks` with Redis (``None`` without one), else with the ledger.

    The ledger is used while Redis does not answer.
    """

    def __init__(self, redis: Marks | None, ledger: Marks) -> None:
        self._redis, self._ledger = redis, ledger
        self._availability = StoreAvailability("fanout.marks_redis")
        self._in_ledger: dict[_Key, None] = {}
        self._unsealed: dict[_Key, timedelta] = {}

    async def claim(self, windows: Sequence[EntityWindow], token: str, lease: timedelta) -> list[MarkClaim]:
        """Claim in Redis, or in the ledger while Redis is unavailable; never in both."""
        if self._redis is not None and self._availability.should_try():
            try:
                return await self._availability.watch(self._claim_in_redis(self._redis, windows, token, lease))
            except Unavailable:
                pass
        claimed = await self._ledger.claim(windows, token, lease)
        if self._redis is not None:
            mine = [window for window, claim in zip(windows, claimed, strict=True) if claim.mark is Mark.MINE]
            self._in_ledger.update(((token, window), None) for window in mine)
            _shrink(self._in_ledger)
        return claimed

    async def seal(self, windows: Sequence[EntityWindow], token: str, *, keep: timedelta) -> int:
        """Seal in the store of the claim. While Redis does not answer, seal in the ledger, and in Redis later."""
        of_ledger, of_redis = self._by_store(windows, token)
        others = 0
        if of_redis and self._redis is not None:
            try:
                others += await self._availability.watch(self._redis.seal(of_redis, token, keep=keep))
            except Unavailable:
                of_ledger += of_redis
        if of_ledger:
            if self._redis is not None:
                self._unsealed.update(((token, window), keep) for window in of_ledger)
                _shrink(self._unsealed)
            others += await self._ledger.seal(of_ledger, token, keep=keep)
            self._forget(of_ledger, token)
        return others

    async def release(self, windows: Sequence[EntityWindow], token: str) -> None:
        """Release in the store of the claim; a claim in Redis that cannot be released expires."""
        of_ledger, of_redis = self._by_store(windows, token)
        if of_redis and self._redis is not None:
            with suppress(Unavailable):
                await self._availability.watch(self._redis.release(of_redis, token))
        if of_ledger:
            await self._ledger.release(of_ledger, token)
            self._forget(of_ledger, token)

    async def _claim_in_redis(
        self, redis: Marks, windows: Sequence[EntityWindow], token: str, lease: timedelta
    ) -> list[MarkClaim]:
        await self._seal_unsealed(redis)
        claimed = await redis.claim(windows, token, lease)
        self._forget(windows, token)
        return claimed

    async def _seal_unsealed(self, redis: Marks) -> None:
        """Seal in Redis what was published while it was unavailable, so that it is not published again."""
        while self._unsealed:
            token, keep = next((token, keep) for (token, _), keep in self._unsealed.items())
            keys = [key for key, kept in self._unsealed.items() if key[0] == token and kept == keep]
            await redis.seal([window for _, window in keys], token, keep=keep)
            for key in keys:
                self._unsealed.pop(key, None)

    def _by_store(self, windows: Sequence[EntityWindow], token: str) -> tuple[list[EntityWindow], list[EntityWindow]]:
        """Return the windows that were claimed in the ledger, and those that were claimed in Redis."""
        if self._redis is None:
            return list(windows), []
        of_ledger = [window for window in windows if (token, window) in self._in_ledger]
        return of_ledger, [window for window in windows if (token, window) not in self._in_ledger]

    def _forget(self, windows: Sequence[EntityWindow], token: str) -> None:
        for window in windows:
            self._in_ledger.pop((token, window), None)


def _shrink(remembered: dict[_Key, None] | dict[_Key, timedelta]) -> None:
    """Drop the oldest entries; at worst such a window is published twice."""
    for key in list(remembered)[: max(0, len(remembered) - REMEMBERED_MAX)]:
        del remembered[key]


# The lists: per module the entities that are polled for it, ready for messages. They are read whole, every few minutes
# and when a row changes, in pages, so that the rest of the process keeps running. Between two readings only parties
# that are too large to keep are read.

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


LEASE = timedelta(seconds=10)
LEASE_MIN = timedelta(seconds=2)
PUBLISH = timedelta(seconds=4)
CHUNKS_AT_ONCE = 3
"""Of all modules together: with more of them, messages wait too long at the broker, and are sent twice."""

SKEW = timedelta(minutes=1)
"""The difference that two clocks may have: a window is not published again for its length and this."""
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
        lease, begun_s = _lease(window), monotonic()
        windows = {code: EntityWindow(code, module.name, window.start_s) for code in codes}
        claims = dict(zip(windows, await self._marks.claim([*windows.values()], self._token, lease), strict=True))
        fates = {code: _FOUND[claim.mark] for code, claim in claims.items()}
        listed = await self._with_parties(module, [code for code, claim in claims.items() if claim.mark is Mark.MINE])
        await self._probe.reached("fanout.claimed", places=len(listed))
        if listed and monotonic() - begun_s < lease.total_seconds() / 2:
            timeout = min(PUBLISH, lease * 0.4)
            messages = [
                self._message(module, window, code, entity, claims[code].last_success_s, timeout)
                for code, entity in listed.items()
            ]
            outcomes = await self._broker.publish_many(messages)
            await self._probe.reached("fanout.published_not_sealed", places=len(listed))
            keep = timedelta(seconds=window.length_s) + SKEW
            await self._settle([windows[code] for code in listed], outcomes, fates, keep=keep)
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
        listed: ListedEntity,
        last_success_s: float | None,
        timeout: timedelta,
    ) -> Message:
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
        codes = Counter(refusal.code for refusal in refusals)
        _log.warning("fanout.messages_refused", refusals=dict(codes), reason=refusals[0].reason)
        with suppress(Unavailable):  # otherwise the claims expire
            await self._marks.release(windows, self._token)
        if NO_QUEUE & codes.keys():
            await self._declare()


def _lease(window: Window) -> timedelta:
    """Return how long a claim lives: half of a short window, so that a killed scheduler's windows are not lost."""
    return min(LEASE, max(LEASE_MIN, timedelta(seconds=window.length_s / 2)))
