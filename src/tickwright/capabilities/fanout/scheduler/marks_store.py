"""Marks in PostgreSQL: the three states as rows of ``fanout_claims``, where Redis does not say who publishes.

Unlike Redis it also knows what consumers did: a window that has run, or runs now, counts as published.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from tickwright.capabilities.fanout.short_connection import brief
from tickwright.ports.fanout import Claimed, Mark, Place
from tickwright.store.pool import Pool
from tickwright.store.queries import load

PLACES_MAX = 500
ANSWER_S = 5.0
_SQL = load("tickwright.capabilities.fanout.sql", "marks.sql")


class LedgerMarks:
    """See :class:`tickwright.ports.fanout.Marks`; a mark that is sealed stays so until upkeep forgets it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def claim(self, places: Sequence[Place], token: str, lease: timedelta) -> list[Claimed]:
        """Claim what is free, 500 places with one statement."""
        claimed: list[Claimed] = []
        for chunk in _chunks(places):
            rows = await self._ask("claim", *_columns(chunk), token, lease)
            claimed += [Claimed(_mark(row), row["last_success_s"]) for row in rows]
        return claimed

    async def seal(self, places: Sequence[Place], token: str, *, keep: timedelta) -> int:
        """Say that these are published, for longer than ``keep``: until upkeep forgets the row."""
        del keep
        others = 0
        for chunk in _chunks(list(dict.fromkeys(places))):
            [[ours]] = await self._ask("seal", *_columns(chunk), token)
            others += len(chunk) - ours
        return others

    async def release(self, places: Sequence[Place], token: str) -> None:
        """Let others claim what is still claimed under ``token``."""
        for chunk in _chunks(places):
            await self._ask("release", *_columns(chunk), token)

    async def _ask(self, name: str, *arguments: Any) -> Sequence[Any]:
        async with brief(self._pool, ANSWER_S, "who publishes") as connection:
            rows: Sequence[Any] = await connection.fetch(_SQL[name], *arguments)
            return rows


def _mark(row: Any) -> Mark:
    if row["mine"]:
        return Mark.MINE
    return Mark.SEALED if row["sealed"] else Mark.TAKEN


def _columns(places: Sequence[Place]) -> list[list[Any]]:
    codes = [place.entity_code for place in places]
    return [codes, [place.task_type for place in places], [place.window_s for place in places]]


def _chunks(places: Sequence[Place]) -> Iterator[Sequence[Place]]:
    return (places[first : first + PLACES_MAX] for first in range(0, len(places), PLACES_MAX))
