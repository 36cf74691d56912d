"""What the producer does for batches: an execution ``NEW`` for each occurrence that is due, once.

It executes nothing. Rows are locked batch by batch, and the table allows one execution per batch and slot, so two
producers at once would do no harm. See :mod:`tickwright.engine.occurrences`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import structlog

from tickwright.capabilities.batches.definitions.schema import recurrence_of
from tickwright.capabilities.batches.executions.consumer import CHANNEL
from tickwright.domain.calendars.occurrences import Decision, Policies
from tickwright.domain.errors import Rejected
from tickwright.engine.occurrences import WRONG_LATER, Due
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "producer.sql")

_log = structlog.get_logger("tickwright.batches")


class BatchSource:
    """Batches as a :class:`~tickwright.engine.occurrences.OccurrenceSource`.

    Invariants:
        BPR-1: one execution per batch and slot, also beside other producers.
        BPR-2: a batch's next slot moves on in the transaction that decides about those before it.
    """

    name: ClassVar[str] = "batches"
    wakeup_channel: ClassVar[str] = CHANNEL

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    async def lock(self, connection: Connection, at_once: int) -> Sequence[Any]:
        """Lock and return due batches."""
        rows: Sequence[Any] = await connection.fetch(SQL["due_batches"], at_once)
        return rows

    async def due(self, connection: Connection, rows: Sequence[Any]) -> Sequence[Due]:
        """Return what is due; a batch whose calendar is invalid is due again later and delays no other batch."""
        found = await connection.fetch(SQL["open_batches"], [row["id"] for row in rows])
        opened = {row["batch_id"] for row in found}
        due, wrong = [], []
        for row in rows:
            try:
                due.append(_due(row, is_open=row["id"] in opened))
            except Rejected as error:
                _log.error("batches.calendar_invalid", batch=row["name"], code=error.code, reason=error.message)
                wrong.append(row)
        if wrong:
            later = [row["now"] + WRONG_LATER for row in wrong]
            await connection.execute(SQL["move_slots"], [row["id"] for row in wrong], later)
        return due

    async def write(self, connection: Connection, decisions: Mapping[Any, Decision]) -> Mapping[str, int]:
        """Write executions, skips and next slots."""
        replaced = [batch_id for batch_id, decision in decisions.items() if decision.is_replacing]
        if replaced:
            await connection.execute(SQL["end_open"], replaced)
        new = [(batch_id, slot_at) for batch_id, decision in decisions.items() for slot_at in decision.new]
        ids, slots = [batch_id for batch_id, _ in new], [slot_at for _, slot_at in new]
        made = await connection.fetch(SQL["put_executions"], ids, slots)
        skips = [(batch_id, *skip) for batch_id, decision in decisions.items() for skip in decision.skips]
        if skips:
            await connection.execute(SQL["put_skips"], *map(list, zip(*skips, strict=True)))
        next_slots = [decision.next_slot_at for decision in decisions.values()]
        await connection.execute(SQL["move_slots"], [*decisions], next_slots)
        return {"executions": len(made)}

    async def next_in_s(self, connection: Connection) -> float | None:
        """Return the seconds until a batch is due."""
        found: float | None = await connection.fetchval(SQL["next_slot_in"])
        return found


def _due(row: Any, *, is_open: bool) -> Due:
    policies = Policies(row["overlap"], row["misfire"], row["misfire_max"], row["misfire_grace"])
    return Due(row["id"], recurrence_of(row), row["next_slot_at"], row["now"], policies, is_open)
