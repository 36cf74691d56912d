"""Publish marks in Redis, and in PostgreSQL while Redis does not answer.

A change between the two may publish a window twice; consumers drop the second message. So nothing here waits for
agreement: what was published while Redis was unavailable is sealed there as soon as it answers.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from tickwright.capabilities.fanout.store_access import StoreAvailability, short_connection
from tickwright.domain.errors import Unavailable
from tickwright.ports.fanout import EntityWindow, Mark, MarkClaim, Marks
from tickwright.store.pool import Pool
from tickwright.store.queries import load

# PostgreSQL: the three states are rows of ``fanout_claims``. Unlike Redis it also knows what consumers did: a window
# that has run, or runs now, counts as published.

PLACES_MAX = 500
ANSWER_S = 5.0
_SQL = load("tickwright.capabilities.fanout.sql", "marks.sql")


class LedgerMarks:
    """See :class:`tickwright.ports.fanout.Marks`; a mark that is sealed stays so until upkeep forgets it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def claim(self, places: Sequence[EntityWindow], token: str, lease: timedelta) -> list[MarkClaim]:
        """Claim what is free, 500 places with one statement."""
        claimed: list[MarkClaim] = []
        for chunk in _chunks(places):
            rows = await self._ask("claim", *_columns(chunk), token, lease)
            claimed += [MarkClaim(_mark(row), row["last_success_s"]) for row in rows]
        return claimed

    async def seal(self, places: Sequence[EntityWindow], token: str, *, keep: timedelta) -> int:
        """Say that these are published, for longer than ``keep``: until upkeep forgets the row."""
        del keep
        others = 0
        for chunk in _chunks(list(dict.fromkeys(places))):
            [[ours]] = await self._ask("seal", *_columns(chunk), token)
            others += len(chunk) - ours
        return others

    async def release(self, places: Sequence[EntityWindow], token: str) -> None:
        """Let others claim what is still claimed under ``token``."""
        for chunk in _chunks(places):
            await self._ask("release", *_columns(chunk), token)

    async def _ask(self, name: str, *arguments: Any) -> Sequence[Any]:
        async with short_connection(self._pool, ANSWER_S, "who publishes") as connection:
            rows: Sequence[Any] = await connection.fetch(_SQL[name], *arguments)
            return rows


def _mark(row: Any) -> Mark:
    if row["mine"]:
        return Mark.MINE
    return Mark.SEALED if row["sealed"] else Mark.TAKEN


def _columns(places: Sequence[EntityWindow]) -> list[list[Any]]:
    codes = [place.entity_code for place in places]
    return [codes, [place.task_type for place in places], [place.window_s for place in places]]


def _chunks(places: Sequence[EntityWindow]) -> Iterator[Sequence[EntityWindow]]:
    return (places[first : first + PLACES_MAX] for first in range(0, len(places), PLACES_MAX))


REMEMBERED_MAX = 200_000


class FallbackMarks:
    """See :class:`tickwright.ports.fanout.Marks`.

    Args:
        first: Decides while it answers; ``None`` where there is no Redis.
        ledger: Decides otherwise.
    """

    def __init__(self, first: Marks | None, ledger: Marks) -> None:
        self._first, self._ledger = first, ledger
        self._standing = StoreAvailability("fanout.marks_redis")
        self._by_ledger: dict[tuple[str, EntityWindow], None] = {}
        self._owed: dict[tuple[str, EntityWindow], timedelta] = {}

    async def claim(self, places: Sequence[EntityWindow], token: str, lease: timedelta) -> list[MarkClaim]:
        """Claim in Redis, or in the ledger while it is away; never in both."""
        if self._first is not None and self._standing.worth_a_try():
            try:
                return await self._standing.ask(self._claim_first(self._first, places, token, lease))
            except Unavailable:
                pass
        claimed = await self._ledger.claim(places, token, lease)
        if self._first is not None:
            mine = [place for place, claim in zip(places, claimed, strict=True) if claim.mark is Mark.MINE]
            self._by_ledger.update(((token, place), None) for place in mine)
            _shrink(self._by_ledger)
        return claimed

    async def seal(self, places: Sequence[EntityWindow], token: str, *, keep: timedelta) -> int:
        """Seal where it was claimed; what Redis cannot be told goes to the ledger, and to Redis when it is back."""
        of_ledger, of_first = self._sort(places, token)
        others = 0
        if of_first and self._first is not None:
            try:
                others += await self._standing.ask(self._first.seal(of_first, token, keep=keep))
            except Unavailable:
                of_ledger += of_first
        if of_ledger:
            self._owe(of_ledger, token, keep)
            others += await self._ledger.seal(of_ledger, token, keep=keep)
            self._forget(of_ledger, token)
        return others

    async def release(self, places: Sequence[EntityWindow], token: str) -> None:
        """Release where it was claimed; a claim that Redis cannot be told of ends by itself."""
        of_ledger, of_first = self._sort(places, token)
        if of_first and self._first is not None:
            with suppress(Unavailable):
                await self._standing.ask(self._first.release(of_first, token))
        if of_ledger:
            await self._ledger.release(of_ledger, token)
            self._forget(of_ledger, token)

    async def _claim_first(
        self, first: Marks, places: Sequence[EntityWindow], token: str, lease: timedelta
    ) -> list[MarkClaim]:
        await self._pay(first)
        claimed = await first.claim(places, token, lease)
        self._forget(places, token)
        return claimed

    async def _pay(self, first: Marks) -> None:
        """Seal in Redis what was published while it was away: nobody has to publish it again."""
        while self._owed:
            token, keep = next((token, keep) for (token, _), keep in self._owed.items())
            owed = [key for key, kept in self._owed.items() if key[0] == token and kept == keep]
            await first.seal([place for _, place in owed], token, keep=keep)
            for key in owed:
                self._owed.pop(key, None)

    def _sort(self, places: Sequence[EntityWindow], token: str) -> tuple[list[EntityWindow], list[EntityWindow]]:
        """Return what the ledger gave, and what Redis gave."""
        if self._first is None:
            return list(places), []
        given = [place for place in places if (token, place) in self._by_ledger]
        return given, [place for place in places if (token, place) not in self._by_ledger]

    def _owe(self, places: Sequence[EntityWindow], token: str, keep: timedelta) -> None:
        if self._first is not None:
            self._owed.update(((token, place), keep) for place in places)
            _shrink(self._owed)

    def _forget(self, places: Sequence[EntityWindow], token: str) -> None:
        for place in places:
            self._by_ledger.pop((token, place), None)


def _shrink(remembered: "dict[tuple[str, EntityWindow], None] | dict[tuple[str, EntityWindow], timedelta]") -> None:
    """Forget the oldest: at worst such a window is published twice."""
    for key in list(remembered)[: max(0, len(remembered) - REMEMBERED_MAX)]:
        del remembered[key]
