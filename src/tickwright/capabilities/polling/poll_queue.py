"""Polls that wait inside PostgreSQL, where there is no Kafka: claimed under the session's token, as jobs are.

Who declares a session lost gives its turns back in the same transaction. Trusts the token alone: a turn is ours
while its row says so, and a result is written only under a lock on that row. A claim whose answer was lost, or a
session that left without giving back, leaves turns that nobody works on: they are looked for every ``TIDY_S``.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import structlog

from tickwright.ports.ids import monotonic
from tickwright.ports.polls import Turn
from tickwright.ports.session import Session
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

TIDY_S = 10.0
STRAY_AGE_MIN = timedelta(seconds=30)

_SQL = load("tickwright.capabilities.polling.sql", "poll_queue.sql")
_log = structlog.get_logger("tickwright.polls")


class QueueSource:
    """Implements :class:`tickwright.ports.polls.PollSource` on ``tickwright.poll_queue``.

    One per session: what is under its token and was not handed out here is given back.
    """

    def __init__(self, pool: Pool, session: Session) -> None:
        self._pool, self._session = pool, session
        self._handed: set[tuple[int, int]] = set()
        self._tidied_s = -math.inf

    async def take(self, room: Mapping[int, int]) -> Sequence[Turn]:
        """Claim turns under the session's token."""
        token = self._session.token
        if not self._session.holds():
            return []
        await self._tidy(token)
        if not room:
            return []
        rows = await self._pool.fetch(_SQL["take"], token, list(room), list(room.values()))
        self._handed.update((row["seq"], token) for row in rows)
        return [Turn(row[0], token, *row[1:]) for row in sorted(rows, key=lambda row: (row["due_at"], row["seq"]))]

    async def _tidy(self, token: int) -> None:
        """Give back what nobody works on. Before a claim and never beside one, so that all that is ours is known."""
        if monotonic() - self._tidied_s < TIDY_S:
            return
        self._handed = {(key, owner) for key, owner in self._handed if owner == token}
        known = [key for key, _ in self._handed]
        turns = await self._pool.fetchval(_SQL["strays"], token, known, STRAY_AGE_MIN)
        turns += await self._pool.fetchval(_SQL["orphans"])
        if turns:
            _log.warning("polls.nobody_worked_on", turns=turns)
        self._tidied_s = monotonic()

    async def hold(self, connection: Connection, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Lock the rows that carry our token still."""
        ours = await connection.fetch(_SQL["hold"], [turn.key for turn in turns], [turn.owner for turn in turns])
        held = {(row[0], row[1]) for row in ours}
        self._handed -= {(turn.key, turn.owner) for turn in turns} - held
        return [turn for turn in turns if (turn.key, turn.owner) in held]

    async def finish(self, connection: Connection, turns: Sequence[Turn]) -> None:
        """Delete the rows, which ``hold`` has locked."""
        await connection.execute(_SQL["finish"], [turn.key for turn in turns])

    async def finished(self, turns: Sequence[Turn]) -> None:
        """Forget them: deleting was part of the transaction."""
        self._handed.difference_update((turn.key, turn.owner) for turn in turns)

    def has_lost(self, turn: Turn) -> bool:
        """Whether it is of a session that we have no more."""
        return turn.owner != self._session.token

    async def give_back(self, turns: Sequence[Turn]) -> None:
        """Let others take them."""
        await self._pool.execute(_SQL["give_back"], [turn.key for turn in turns], [turn.owner for turn in turns])
        self._handed.difference_update((turn.key, turn.owner) for turn in turns)


async def reclaim(connection: Any, tokens: Sequence[int]) -> None:
    """Give back the turns of lost sessions and of those that are gone.

    For every process that may declare one lost, whatever its role; in that transaction.
    """
    turns = await connection.fetchval(_SQL["reclaim"], list(tokens))
    turns += await connection.fetchval(_SQL["orphans"])
    if turns:
        _log.warning("polls.reclaimed", sessions=list(tokens), turns=turns)
