"""Publish marks in Redis, and in PostgreSQL while Redis does not answer.

A change between the two stores may publish a window twice; consumers drop the second message. So the stores need not
agree: windows that were published while Redis was unavailable are sealed there as soon as it answers.
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
