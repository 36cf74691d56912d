"""The producer: an execution ``NEW`` for each occurrence that is due, once. It never executes anything.

It works under a lease, in transactions of the lease; should two of them ever believe that they hold it, the rows are
locked batch by batch, and one execution per batch and slot is what the table allows.
"""

from collections import Counter
from datetime import timedelta
from typing import Any

import structlog

from tickwright.capabilities.batches.definitions.store import recurrence_of
from tickwright.capabilities.batches.executions.occurrences import Decision, Policies, decide
from tickwright.domain.errors import Rejected
from tickwright.ports.lease import HeldLease
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "producer.sql")
BATCHES_PER_ROUND = 200
IDLE_S = 60.0
WRONG_LATER = timedelta(minutes=5)

_log = structlog.get_logger("tickwright.batches")


class Producer:
    """The round of a loop under the lease ``campaign-producer``.

    Args:
        at_once: Batches in one round's transaction, above 0.

    Invariants:
        BPR-1: one execution per batch and slot, whoever else produces.
        BPR-2: a batch's next slot moves on in the transaction that deals with the ones before it.
    """

    def __init__(self, *, at_once: int = BATCHES_PER_ROUND, probe: Probe = NO_PROBE) -> None:
        self._at_once, self._probe = at_once, probe
        self.counts: Counter[str] = Counter()

    async def round(self, lease: HeldLease) -> float:
        """Deal with what is due; return in how many seconds the next batch is, 0 where more are due now."""
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            rows = await connection.fetch(SQL["due_batches"], self._at_once)
            if rows:
                await self._probe.reached("batches.producing", batches=[row["id"] for row in rows])
                found = await connection.fetch(SQL["open_batches"], [row["id"] for row in rows])
                opened = {row["batch_id"] for row in found}
                decisions = {row["id"]: _decision(row, is_open=row["id"] in opened) for row in rows}
                made = await _write(connection, decisions)
                await self._probe.reached("batches.written", executions=made)
            next_s = await connection.fetchval(SQL["next_slot_in"])
        if rows:
            self.counts["executions"] += made
            await self._probe.reached("batches.produced", batches=[row["id"] for row in rows])
        return IDLE_S if next_s is None else max(next_s, 0.0)


def _decision(row: Any, *, is_open: bool) -> Decision:
    """Decide about one batch; one whose calendar cannot be read comes again later and does not hold up the others."""
    try:
        recurrence = recurrence_of(row)
    except Rejected as error:
        _log.error("batches.calendar_unreadable", batch=row["name"], code=error.code, reason=error.message)
        return Decision((), (), is_replacing=False, next_slot_at=row["now"] + WRONG_LATER)
    policies = Policies(row["overlap"], row["misfire"], row["misfire_max"], row["misfire_grace"])
    return decide(recurrence, row["next_slot_at"], row["now"], policies, is_open=is_open)


async def _write(connection: Connection, decisions: dict[int, Decision]) -> int:
    """Write decisions by batch; return how many executions were made."""
    replaced = [batch_id for batch_id, decision in decisions.items() if decision.is_replacing]
    if replaced:
        await connection.execute(SQL["end_open"], replaced)
    new = [(batch_id, slot_at) for batch_id, decision in decisions.items() for slot_at in decision.new]
    made = await connection.fetch(SQL["put_executions"], [one for one, _ in new], [slot_at for _, slot_at in new])
    skips = [(batch_id, skip) for batch_id, decision in decisions.items() for skip in decision.skips]
    if skips:
        await connection.execute(
            SQL["put_skips"],
            [batch_id for batch_id, _ in skips],
            [skip.slot_at for _, skip in skips],
            [skip.until_at for _, skip in skips],
            [skip.slots for _, skip in skips],
            [skip.reason for _, skip in skips],
        )
    nexts = [decision.next_slot_at for decision in decisions.values()]
    await connection.execute(SQL["move_slots"], [*decisions], nexts)
    return len(made)
