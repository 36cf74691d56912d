"""Polls that wait inside PostgreSQL, where there is no Kafka: claimed under the session's token, as jobs are.

Who declares a session lost gives its turns back in the same transaction. Trusts the row alone: a turn is ours while
its row has our token and the instant of our take, and a result is written only under a lock on that row. What is
its own and was not handed out here, or could not be given back, is released as the claim gate says.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import structlog

from tickwright.engine.claim_gate import ClaimGate
from tickwright.ports.polls import Turn
from tickwright.ports.session import Session
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.polling.sql", "poll_queue.sql")
_log = structlog.get_logger("tickwright.polls")

_Take: TypeAlias = tuple[int, int, datetime | None]
"""One take of one turn: its key, the token, and when."""


class QueueSource:
    """Implements :class:`tickwright.ports.polls.PollSource` on ``tickwright.poll_queue``.

    One per session: what is under its token and was not handed out here is given back.
    """

    def __init__(self, pool: Pool, session: Session) -> None:
        self._pool, self._session = pool, session
        self._handed: set[_Take] = set()
        self._gate = ClaimGate(pool.acquire, session, "polls", self._strays)

    async def take(self, room: Mapping[int, int]) -> Sequence[Turn]:
        """Claim turns under the session's token."""
        if not self._session.holds() or not room:
            return []
        async with self._gate.claiming() as (token, number):
            rows = await self._pool.fetch(_SQL["take"], token, list(room), list(room.values()), number)
            self._handed.update((row["seq"], token, row["taken_at"]) for row in rows)
        return [Turn(row[0], token, *row[1:]) for row in sorted(rows, key=lambda row: (row["due_at"], row["seq"]))]

    async def _strays(self, connection: Connection, token: int) -> int:
        self._handed = {take for take in self._handed if take[1] == token}
        known = [take[0] for take in self._handed], [take[2] for take in self._handed]
        return int(await connection.fetchval(_SQL["strays"], token, *known))

    async def hold(self, connection: Connection, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Lock the rows that are as we took them still."""
        held = {(row[0], row[1], row[2]) for row in await connection.fetch(_SQL["hold"], *_columns(turns))}
        self._handed -= _takes(turns) - held
        return [turn for turn in turns if _take(turn) in held]

    async def finish(self, connection: Connection, turns: Sequence[Turn]) -> None:
        """Delete the rows, which ``hold`` has locked."""
        await connection.execute(_SQL["finish"], [turn.key for turn in turns])

    async def finished(self, turns: Sequence[Turn]) -> None:
        """Forget them: deleting was part of the transaction."""
        self._handed -= _takes(turns)

    def has_lost(self, turn: Turn) -> bool:
        """Whether it is of a session that we have no more."""
        return turn.owner != self._session.token

    async def give_back(self, turns: Sequence[Turn]) -> None:
        """Let others take them; where that fails they are strays, which the gate gives back."""
        try:
            await self._write_back(turns)
        except BaseException:
            self._gate.unsure = True
            raise
        finally:
            self._handed -= _takes(turns)

    async def _write_back(self, turns: Sequence[Turn]) -> None:
        await self._pool.execute(_SQL["give_back"], *_columns(turns))


def _take(turn: Turn) -> _Take:
    return turn.key, turn.owner, turn.taken_at


def _takes(turns: Sequence[Turn]) -> set[_Take]:
    return {_take(turn) for turn in turns}


def _columns(turns: Sequence[Turn]) -> tuple[list[int], list[int], list[datetime | None]]:
    return [turn.key for turn in turns], [turn.owner for turn in turns], [turn.taken_at for turn in turns]


async def reclaim(connection: Any, tokens: Sequence[int]) -> None:
    """Give back the turns of lost sessions and of those that are gone.

    For every process that may declare one lost, whatever its role; in that transaction.
    """
    turns = await connection.fetchval(_SQL["reclaim"], list(tokens))
    turns += await connection.fetchval(_SQL["orphans"])
    if turns:
        _log.warning("polls.reclaimed", sessions=list(tokens), turns=turns)
