"""The producer: an execution ``NEW`` for each occurrence that is due, once. It does not execute anything.

It works in transactions of its lease. Two producers at once would do no harm: rows are locked batch by batch, and the
table allows one execution per batch and slot. Which occurrences get an execution is a pure decision: ``misfire`` says
what becomes of slots that are older than the grace, ``overlap`` of slots that find an execution of their batch open.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import structlog

from tickwright.capabilities.batches.definitions.schema import recurrence_of
from tickwright.domain.errors import Rejected
from tickwright.domain.recurrence import Recurrence
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import HeldLease
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "producer.sql")
BATCHES_PER_ROUND = 200
ON_TIME_MAX = 1000
IDLE_S = 60.0
WRONG_LATER = timedelta(minutes=5)
_TICK = timedelta(microseconds=1)

_log = structlog.get_logger("tickwright.batches")


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a batch for slots that are late (older than ``grace``) or find an execution open."""

    overlap: Literal["skip", "queue", "replace"] = "skip"
    misfire: Literal["one", "all", "none"] = "one"
    misfire_max: int = 100
    grace: timedelta = timedelta(minutes=1)


class Skip(NamedTuple):
    """A range of ``slots`` occurrences without an execution, from the first to the last of them."""

    slot_at: datetime
    until_at: datetime
    slots: int
    reason: Literal["overlap", "misfire"]


class Decision(NamedTuple):
    """What the producer writes: slots that get an execution, ascending, and the next slot to decide about.

    Open executions end first where it ``is_replacing``.
    """

    new: tuple[datetime, ...]
    skips: tuple[Skip, ...]
    is_replacing: bool
    next_slot_at: datetime | None


def decide(recurrence: Recurrence, first: datetime, now: datetime, policies: Policies, *, is_open: bool) -> Decision:
    """Decide about the occurrences from ``first``, the oldest one that is not decided, up to ``now``.

    Invariants:
        OCC-1: every occurrence is in ``new`` or in a skip, once.
        OCC-2: deciding again with the same arguments gives the same.
    """
    before, edge = first - _TICK, now - policies.grace
    keep = {"all": policies.misfire_max, "one": 1, "none": 0}[policies.misfire]
    on_time = recurrence.between(max(before, edge - _TICK), now, ON_TIME_MAX)
    late = recurrence.between(before, edge - _TICK, keep + 1)
    if policies.misfire == "one" and on_time.count:
        keep = 0  # the one on time is the one that runs
    kept = late.slots[max(0, len(late.slots) - keep) :] if keep else ()
    skips: list[Skip] = []
    for found, taken in ((late, len(kept)), (on_time, len(on_time.slots))):
        if found.count > taken:
            last = found.slots[-1 - taken] if len(found.slots) > taken else found.slots[0]
            skips.append(Skip(found.oldest or first, last, found.count - taken, "misfire"))
    wanted = [*kept, *on_time.slots]
    new = _without_overlap(wanted, policies, skips, is_open=is_open)
    is_replacing = policies.overlap == "replace" and bool(new)
    return Decision(tuple(new), tuple(skips), is_replacing, recurrence.next_after(now))


def _without_overlap(wanted: list[datetime], policies: Policies, skips: list[Skip], *, is_open: bool) -> list[datetime]:
    """Return what may run; the rest becomes a skip."""
    if policies.overlap == "queue" or not wanted:
        return wanted
    if policies.overlap == "replace":
        new, left = wanted[-1:], wanted[:-1]
    else:
        new, left = ([], wanted) if is_open else (wanted[:1], wanted[1:])
    if left:
        skips.append(Skip(left[0], left[-1], len(left), "overlap"))
    return new


class Producer:
    """The round of a loop under the lease ``campaign-producer``; ``at_once`` batches are in one transaction.

    Invariants:
        BPR-1: one execution per batch and slot, also beside other producers.
        BPR-2: a batch's next slot moves on in the transaction that decides about those before it.
    """

    def __init__(self, *, at_once: int = BATCHES_PER_ROUND, probe: Probe = NO_PROBE) -> None:
        self._at_once, self._probe = at_once, probe
        self.counts: Counter[str] = Counter()

    async def round(self, lease: HeldLease) -> float:
        """Decide about the slots that are due; return the seconds until the next batch is due, 0 where more are due."""
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
    """Decide about one batch; one whose calendar is invalid is due again later and delays no other batch."""
    try:
        recurrence = recurrence_of(row)
    except Rejected as error:
        _log.error("batches.calendar_invalid", batch=row["name"], code=error.code, reason=error.message)
        return Decision((), (), is_replacing=False, next_slot_at=row["now"] + WRONG_LATER)
    policies = Policies(row["overlap"], row["misfire"], row["misfire_max"], row["misfire_grace"])
    return decide(recurrence, row["next_slot_at"], row["now"], policies, is_open=is_open)


async def _write(connection: Connection, decisions: dict[int, Decision]) -> int:
    """Write decisions by batch; return the number of new executions."""
    replaced = [batch_id for batch_id, decision in decisions.items() if decision.is_replacing]
    if replaced:
        await connection.execute(SQL["end_open"], replaced)
    new = [(batch_id, slot_at) for batch_id, decision in decisions.items() for slot_at in decision.new]
    ids, slots = [batch_id for batch_id, _ in new], [slot_at for _, slot_at in new]
    made = await connection.fetch(SQL["put_executions"], ids, slots)
    skips = [(batch_id, *skip) for batch_id, decision in decisions.items() for skip in decision.skips]
    if skips:
        await connection.execute(SQL["put_skips"], *map(list, zip(*skips, strict=True)))
    await connection.execute(
        SQL["move_slots"], [*decisions], [decision.next_slot_at for decision in decisions.values()]
    )
    return len(made)
