"""Marks in Redis, and in PostgreSQL while Redis does not answer.

Whoever changes between the two may publish a window twice; consumers drop the second. So nothing here waits for an
agreement: what was published while Redis was away is sealed there as soon as it is back, and that is all.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from tickwright.capabilities.fanout.availability import Standing
from tickwright.domain.errors import Unavailable
from tickwright.ports.fanout import Claimed, Mark, Marks, Place

REMEMBERED_MAX = 200_000


class MarksInTurn:
    """See :class:`tickwright.ports.fanout.Marks`.

    Args:
        first: Decides while it answers; ``None`` where there is no Redis.
        ledger: Decides otherwise.
    """

    def __init__(self, first: Marks | None, ledger: Marks) -> None:
        self._first, self._ledger = first, ledger
        self._standing = Standing("fanout.marks_redis")
        self._by_ledger: dict[tuple[str, Place], None] = {}
        self._owed: dict[tuple[str, Place], timedelta] = {}

    async def claim(self, places: Sequence[Place], token: str, lease: timedelta) -> list[Claimed]:
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

    async def seal(self, places: Sequence[Place], token: str, *, keep: timedelta) -> int:
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

    async def release(self, places: Sequence[Place], token: str) -> None:
        """Release where it was claimed; a claim that Redis cannot be told of ends by itself."""
        of_ledger, of_first = self._sort(places, token)
        if of_first and self._first is not None:
            with suppress(Unavailable):
                await self._standing.ask(self._first.release(of_first, token))
        if of_ledger:
            await self._ledger.release(of_ledger, token)
            self._forget(of_ledger, token)

    async def _claim_first(self, first: Marks, places: Sequence[Place], token: str, lease: timedelta) -> list[Claimed]:
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

    def _sort(self, places: Sequence[Place], token: str) -> tuple[list[Place], list[Place]]:
        """Return what the ledger gave, and what Redis gave."""
        if self._first is None:
            return list(places), []
        given = [place for place in places if (token, place) in self._by_ledger]
        return given, [place for place in places if (token, place) not in self._by_ledger]

    def _owe(self, places: Sequence[Place], token: str, keep: timedelta) -> None:
        if self._first is not None:
            self._owed.update(((token, place), keep) for place in places)
            _shrink(self._owed)

    def _forget(self, places: Sequence[Place], token: str) -> None:
        for place in places:
            self._by_ledger.pop((token, place), None)


def _shrink(remembered: "dict[tuple[str, Place], None] | dict[tuple[str, Place], timedelta]") -> None:
    """Forget the oldest: at worst such a window is published twice."""
    for key in list(remembered)[: max(0, len(remembered) - REMEMBERED_MAX)]:
        del remembered[key]
