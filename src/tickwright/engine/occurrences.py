"""One producer for all that occurs by a schedule: it decides about due slots, and each source writes what that means.

::

    source.lock ──rows──▶ source.due ──▶ decide (pure) ──▶ source.write: work, skips, next slots   (one transaction)
         ▲                                                  │
         └────── source.next_in_s: when to come again ◀─────┘

The loop holds one lease in the installation. The lease only saves work: a source locks the rows about which it decides,
moves their next slots in the transaction that writes the work, and has a unique key per schedule and slot. So two
producers at once, or an old process beside a new one, make nothing twice.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple, Protocol

from tickwright.domain.calendars.occurrences import Decision, Policies, decide
from tickwright.domain.calendars.recurrence import Recurrence
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import HeldLease
from tickwright.store.pool import Connection

AT_ONCE = 200
"""Schedules in one transaction of a source."""
IDLE_S = 60.0
REST_MIN_S = 0.1
"""The shortest rest where nothing is due: schedules with due instants close together share a round."""
WRONG_LATER = timedelta(minutes=5)
"""When a schedule with an invalid calendar is read again: a zone may be back in the machine's table."""


class Due(NamedTuple):
    """One schedule with an undecided slot; ``ahead`` is how far beyond ``now`` its slots are decided."""

    key: Hashable
    recurrence: Recurrence
    first: datetime
    now: datetime
    policies: Policies
    is_open: bool
    ahead: timedelta = timedelta()


class OccurrenceSource(Protocol):
    """Schedules of one kind; all methods are called in one transaction of the lease.

    Attributes:
        name: Of the kind, such as ``batches``: the beginning of its probes.
        wakeup_channel: A notification there starts a round.
        counts: Its own counters of what was committed.
    """

    name: ClassVar[str]
    wakeup_channel: ClassVar[str]
    counts: Counter[str]

    async def lock(self, connection: Connection, at_once: int) -> Sequence[Any]:
        """Lock and return the rows of schedules that are due, passing over locked ones."""

    async def due(self, connection: Connection, rows: Sequence[Any]) -> Sequence[Due]:
        """Return what is known of locked rows, open work included; postpone those with invalid calendars."""

    async def write(self, connection: Connection, decisions: Mapping[Hashable, Decision]) -> Mapping[str, int]:
        """Write work, skips and next slots, in a constant number of statements; return what ``counts`` gains."""

    async def next_in_s(self, connection: Connection) -> float | None:
        """Return the seconds until a schedule is due, zero or less where one is; ``None`` if none ever is."""


class OccurrenceProducer:
    """The round of the producer's loop, over all sources of the process.

    Invariants:
        OPR-1: one piece of work per schedule and slot, also beside other producers.
        OPR-2: a schedule's next slot moves on in the transaction that decides about those before it.
        OPR-3: a source that fails delays no other one.
    """

    def __init__(self, sources: Sequence[OccurrenceSource], *, at_once: int = AT_ONCE, probe: Probe = NO_PROBE) -> None:
        self._sources, self._at_once, self._probe = sources, at_once, probe

    @property
    def counts(self) -> Counter[str]:
        """The counters of all sources."""
        return sum((source.counts for source in self._sources), Counter())

    async def round(self, lease: HeldLease) -> float:
        """Decide about what is due; return the seconds until something is due, 0 where more is due.

        The error of a source is raised when all others have had their turn.
        """
        rest_s, failed = IDLE_S, None
        for source in self._sources:
            try:
                rest_s = min(rest_s, await self._round_of(source, lease))
            except Exception as error:  # noqa: BLE001  raised below
                failed = failed or error
        if failed is not None:
            raise failed
        return rest_s

    async def _round_of(self, source: OccurrenceSource, lease: HeldLease) -> float:
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            rows = await source.lock(connection, self._at_once)
            gained: Mapping[str, int] = {}
            if rows:
                await self._probe.reached(f"{source.name}.producing", rows=len(rows))
                decisions = {one.key: _decided(one) for one in await source.due(connection, rows)}
                await self._probe.reached(f"{source.name}.decided", keys=[*decisions])
                gained = await source.write(connection, decisions)
                await self._probe.reached(f"{source.name}.written", **gained)
            next_s = await source.next_in_s(connection)
        if rows:
            source.counts.update(gained)
            await self._probe.reached(f"{source.name}.produced", keys=[*decisions])
        if next_s is None:
            return IDLE_S
        return 0.0 if rows and next_s <= 0 else max(next_s, REST_MIN_S)  # what is due and not found is locked


def _decided(due: Due) -> Decision:
    return decide(due.recurrence, due.first, due.now, due.policies, is_open=due.is_open, ahead=due.ahead)
