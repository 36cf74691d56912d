"""What is known of a batch or an execution when somebody asks why: read in one snapshot, told in :mod:`.explain`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tickwright.capabilities.batches.definitions import store as batches_store
from tickwright.capabilities.batches.executions import store as executions_store
from tickwright.capabilities.batches.executions.completion import is_full
from tickwright.store.pool import Connection

PRODUCER_ROLE, CONSUMER_ROLE = "scheduler", "campaign-consumer"
Row = Mapping[str, Any]


class Lives(NamedTuple):
    """How many processes live that produce occurrences, that execute, and that execute what is asked about."""

    producers: int
    consumers: int
    able: int


class BatchFacts(NamedTuple):
    """About one batch.

    Attributes:
        row: Of ``get_batch``; its ``now`` is the database's clock.
        slot_at: The occurrence that is asked about, and ``slot`` what became of it.
    """

    row: Row
    open: Sequence[Row]
    last: Row | None
    skips: Sequence[Row]
    lives: Lives
    slot_at: datetime | None
    slot: Row | None


class ExecutionFacts(NamedTuple):
    """About one execution.

    Attributes:
        row: Of ``get_execution``.
        waiting: The first chunk that waits.
        working: Who works on how many chunks.
        before: The execution of the same batch that has to end first.
        is_full: So many messages to its destination wait that no actions are added to them.
    """

    row: Row
    waiting: Row | None
    working: Sequence[Row]
    before: Row | None
    lives: Lives
    is_full: bool


async def batch_facts(connection: Connection, row: Any, slot_at: datetime | None) -> BatchFacts:
    """Return what is known of the batch of ``row``."""
    sql, batch_id = batches_store.SQL, row["id"]
    slot = None if slot_at is None else await connection.fetchrow(sql["explain_slot"], batch_id, slot_at)
    return BatchFacts(
        row,
        await connection.fetch(sql["explain_open"], batch_id),
        await connection.fetchrow(sql["explain_last"], batch_id),
        await connection.fetch(sql["explain_skips"], batch_id),
        await _lives(connection, row["served_by"]),
        slot_at,
        slot,
    )


async def execution_facts(connection: Connection, row: Any) -> ExecutionFacts:
    """Return what is known of the execution of ``row``."""
    sql, execution_id = executions_store.SQL, row["id"]
    return ExecutionFacts(
        row,
        await connection.fetchrow(sql["explain_waiting"], execution_id),
        await connection.fetch(sql["explain_working"], execution_id),
        await connection.fetchrow(sql["explain_before"], execution_id),
        await _lives(connection, row["served_by"]),
        row["is_releasing"] and await is_full(connection, row["target"]),
    )


async def _lives(connection: Connection, served_by: str) -> Lives:
    sql = batches_store.SQL["explain_lives"]
    return Lives(*await connection.fetchrow(sql, PRODUCER_ROLE, CONSUMER_ROLE, served_by))
