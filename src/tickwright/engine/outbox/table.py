"""The outbox table for the relay. Writes need a transaction that has locked the relay's lease."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.engine.sql", "outbox.sql")
LANE_MIN = -(2**63)
LANES_WALKED = 1000
"""Destinations that ``lane_heads`` finds by hash; see its query."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One waiting message.

    Attributes:
        lane: Hash of its destination.
        payload: JSON text, as PostgreSQL writes it; equal on every attempt.
        headers: JSON text of an object.
        attempts: Attempts so far.
    """

    lane: int
    id: int
    destination: str
    key: str | None
    payload: str
    headers: str
    attempts: int


NEWEST_ROWS = 20
SEARCHED_ROWS_MAX = 5000


@dataclass(frozen=True, slots=True)
class ClaimBounds:
    """Limits of one claim.

    Attributes:
        rows_per_lane: Rows per destination.
        lanes: Destinations that one claim examines.
        payload_bytes: Total with headers, by the longest possible texts; one row more at most.
    """

    rows_per_lane: int = 200
    lanes: int = 200
    payload_bytes: int = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """Rows of a claim, in no order; ``next_lane`` is where to continue, ``LANE_MIN`` after the last lane."""

    rows: list[OutboxRow]
    next_lane: int


@dataclass(slots=True)
class Verdicts:
    """Results of a batch: ids and, column by column, their values."""

    sent: list[int] = field(default_factory=list)
    retried: list[int] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    retry_errors: list[str] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    dead_errors: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sent) + len(self.retried) + len(self.dead)


async def claim_rows(
    connection: Connection, *, after_lane: int, without: Collection[int], careful: Collection[int], bounds: ClaimBounds
) -> ClaimedRows:
    """Read what may be sent now, in a transaction that has locked the relay's lease.

    ``after_lane`` is the ``next_lane`` of the previous claim, or ``LANE_MIN``; lanes in ``without`` are busy or wait,
    those in ``careful`` get one row.
    """
    found = await connection.fetch(
        SQL["claim_rows"],
        after_lane,
        list(without),
        bounds.rows_per_lane,
        bounds.lanes,
        bounds.payload_bytes,
        list(careful),
        0 if after_lane == LANE_MIN else NEWEST_ROWS,  # one claim covers few lanes, so none waits for a later claim
        SEARCHED_ROWS_MAX,
    )
    tail = found.pop()
    return ClaimedRows([OutboxRow(*row) for row in found], tail[0] if tail[6] >= bounds.lanes else LANE_MIN)


async def write_verdicts(connection: Connection, fence: int, verdicts: Verdicts) -> None:
    """Write the results of a batch, in a transaction that has locked the relay's lease under ``fence``."""
    if verdicts.sent:
        await connection.execute(SQL["delete_sent"], verdicts.sent)
    if verdicts.retried:
        columns = verdicts.retried, verdicts.tries, verdicts.waits_s, verdicts.retry_errors
        await connection.execute(SQL["retry_later"], fence, *columns)
    if verdicts.dead:
        await connection.execute(SQL["dead_letter"], verdicts.dead, verdicts.dead_errors)


async def note_waiting(connection: Connection, fence: int, row_id: int, reason: str) -> None:
    """Write at a row what it waits for; this is no attempt."""
    await connection.execute(SQL["note_waiting"], row_id, reason, fence)


async def put_message(
    connection: Connection, destination: str, payload: str, *, key: str | None = None, headers: str = "{}"
) -> int:
    """Store one message (JSON texts) in the caller's transaction; its message id will be ``out_<id>``."""
    stored: int = await connection.fetchval(SQL["put_message"], destination, key, payload, headers)
    return stored


async def lane_heads(connection: Connection) -> Sequence[Any]:
    """Return the longest-waiting row of each destination: ``destination age_s error_message cut``, oldest first."""
    heads: Sequence[Any] = await connection.fetch(SQL["lane_heads"])
    return heads


async def reserve_prefixes(connection: Connection | Pool, prefixes: Collection[str]) -> None:
    """Keep roles that use plain SQL from sending to our own exchanges, queues and topics."""
    await connection.execute(SQL["reserve_prefixes"], sorted(set(prefixes)))
