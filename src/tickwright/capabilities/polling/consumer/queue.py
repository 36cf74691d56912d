"""The queue of polls inside PostgreSQL, alone without Kafka or beside a log: groups are claimed as jobs are.

A group belongs to this process while its row has the session's token and the instant of the take; a result is written
only under a lock on that row. The transaction that declares a session lost releases its groups. Rows under the token
that were not handed out here, or could not be released, are released by the claim gate.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import structlog

from tickwright.engine.claim_gate import ClaimGate
from tickwright.engine.wakeup.turns import Turns
from tickwright.ports.ids import monotonic
from tickwright.ports.polls import PollGroup, PollSource
from tickwright.ports.session import Session
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.polling.sql", "poll_queue.sql")
HOLDINGS = (_SQL["held"],)
_log = structlog.get_logger("tickwright.polls")

_Take: TypeAlias = tuple[int, int, datetime | None]
"""One take of one group: its key, the token, and when."""


@dataclass(frozen=True, slots=True, eq=False)
class QueuedGroup(PollGroup):
    """A group that came from the queue."""


class QueueSource:
    """Implements :class:`tickwright.ports.polls.PollSource` on ``tickwright.poll_queue``; one per session."""

    def __init__(self, pool: Pool, session: Session) -> None:
        self._pool, self._session = pool, session
        self._taken: set[_Take] = set()
        self._gate = ClaimGate(pool.acquire, session, "polls", self._release_unknown, owns_any_sql=_SQL["owned"])

    async def take(self, room: Mapping[int, int]) -> Sequence[PollGroup]:
        """Claim groups under the session's token."""
        if not self._session.holds() or not room:
            return []
        async with self._gate.claiming() as (token, number):
            rows = await self._pool.fetch(_SQL["take"], token, list(room), list(room.values()), number)
            self._taken.update((row["seq"], token, row["taken_at"]) for row in rows)
        rows = sorted(rows, key=lambda row: (row["due_at"], row["seq"]))
        return [QueuedGroup(row[0], token, *row[1:]) for row in rows]

    async def _release_unknown(self, connection: Connection, token: int) -> int:
        self._taken = {take for take in self._taken if take[1] == token}
        keys, instants = [take[0] for take in self._taken], [take[2] for take in self._taken]
        return int(await connection.fetchval(_SQL["release_unknown"], token, keys, instants))

    async def hold(self, connection: Connection, groups: Sequence[PollGroup]) -> Sequence[PollGroup]:
        """Lock the rows that are unchanged since the take."""
        held = {(row[0], row[1], row[2]) for row in await connection.fetch(_SQL["hold"], *_columns(groups))}
        self._taken -= _takes(groups) - held
        return [group for group in groups if _take(group) in held]

    async def finish(self, connection: Connection, groups: Sequence[PollGroup]) -> None:
        """Delete the rows, which ``hold`` has locked."""
        await connection.execute(_SQL["finish"], [group.key for group in groups])

    async def after_commit(self, groups: Sequence[PollGroup]) -> None:
        """Remove them from the groups that this process has; their rows were deleted in the transaction."""
        self._taken -= _takes(groups)

    def has_lost(self, group: PollGroup) -> bool:
        """Return whether it belongs to an earlier session."""
        return group.owner != self._session.token

    async def release(self, groups: Sequence[PollGroup]) -> None:
        """Release them; rows that cannot be released now are released by the gate."""
        try:
            await self._release_rows(groups)
        except BaseException:
            self._gate.unsure = True
            raise
        finally:
            self._taken -= _takes(groups)

    async def _release_rows(self, groups: Sequence[PollGroup]) -> None:
        await self._pool.execute(_SQL["release"], *_columns(groups))


def _take(group: PollGroup) -> _Take:
    return group.key, group.owner, group.taken_at


def _takes(groups: Sequence[PollGroup]) -> set[_Take]:
    return {_take(group) for group in groups}


def _columns(groups: Sequence[PollGroup]) -> tuple[list[int], list[int], list[datetime | None]]:
    return [group.key for group in groups], [group.owner for group in groups], [group.taken_at for group in groups]


async def reclaim(connection: Any, tokens: Sequence[int]) -> None:
    """Release the groups of lost and deleted sessions, in the transaction that declares them lost."""
    groups = await connection.fetchval(_SQL["reclaim"], list(tokens))
    groups += await connection.fetchval(_SQL["orphans"])
    if groups:
        _log.warning("polls.reclaimed", sessions=list(tokens), groups=groups)


EMPTY_WAIT_S = 1.0


class QueueBesideLog:
    """Implements :class:`tickwright.ports.polls.PollSource` over a log and the queue beside it.

    The log parks in the queue what its partner does not accept, so groups of the queue are older and go first. Every
    process locks rows of the queue before those of the log.

    Args:
        turns: Of the processes that read the queue.
    """

    def __init__(self, queue: PollSource, log: PollSource, turns: Turns) -> None:
        self._queue, self._log, self._turns = queue, log, turns
        self._again_s = -math.inf

    async def take(self, room: Mapping[int, int]) -> Sequence[PollGroup]:
        """Take parked groups, then those of the log; an empty queue is read again at this process's turn."""
        parked: Sequence[PollGroup] = ()
        if monotonic() >= self._again_s:
            parked = await self._queue.take(room)
            if not parked:
                self._again_s = monotonic() + (EMPTY_WAIT_S if self._turns.alone else self._turns.next_in_s())
        left = Counter(room)
        left.subtract(group.partner_no for group in parked)
        try:
            read = await self._log.take({partner_no: most for partner_no, most in left.items() if most > 0})
        except BaseException:
            with suppress(Exception):  # the queue finds and releases what cannot be released now
                await self._queue.release(parked)
            raise
        return [*parked, *read]

    async def hold(self, connection: Any, groups: Sequence[PollGroup]) -> Sequence[PollGroup]:
        """Hold the groups of each source."""
        parked, read = _split(groups)
        held = [*(await self._queue.hold(connection, parked))] if parked else []
        return [*held, *(await self._log.hold(connection, read))] if read else held

    async def finish(self, connection: Any, groups: Sequence[PollGroup]) -> None:
        """Finish the groups of each source."""
        parked, read = _split(groups)
        await self._queue.finish(connection, parked)
        await self._log.finish(connection, read)

    async def after_commit(self, groups: Sequence[PollGroup]) -> None:
        """Report the finished groups of each source."""
        parked, read = _split(groups)
        await self._queue.after_commit(parked)
        await self._log.after_commit(read)

    def has_lost(self, group: PollGroup) -> bool:
        """Return whether its source has lost it."""
        return (self._queue if isinstance(group, QueuedGroup) else self._log).has_lost(group)

    async def release(self, groups: Sequence[PollGroup]) -> None:
        """Release the groups of each source; those of the log first, which need no database."""
        parked, read = _split(groups)
        await self._log.release(read)
        if parked:
            await self._queue.release(parked)


def _split(groups: Sequence[PollGroup]) -> tuple[list[PollGroup], list[PollGroup]]:
    parked: list[PollGroup] = [group for group in groups if isinstance(group, QueuedGroup)]
    return parked, [group for group in groups if not isinstance(group, QueuedGroup)]
