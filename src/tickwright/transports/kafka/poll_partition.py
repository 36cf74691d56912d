"""A partition that this consumer reads: its progress, its bundles of polls, its counts, and parking.

Offsets in the group decide where the next reader starts. Epochs decide whose results count. The table ``poll_reads`` is
a copy for operators, up to two seconds old.
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from tickwright.observe.metrics import Sample
from tickwright.ports.polls import PollRecord
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load
from tickwright.transports.kafka.poll_reader import HELD_MAX, Assignment, ReaderCounts

# Progress and bundles are pure: no I/O, no clock, no threads.
#
# The offset to commit is that of the first unfinished record. Later records can be delivered again; the ledger
# recognizes them. Offsets go back when the topic is recreated or truncated (an unclean election, a restored broker).
# The records that follow are processed like any others, so each record has a number of its own.

BUNDLE_MAX = 1000

BundleKey = tuple[int, datetime, str]


class Progress:
    """The progress of a partition. Keeps open records only: one poll can wait while millions of later ones finish."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()  # offset by number, both ascending
        self._next: int | None = None
        self._numbers = itertools.count()

    @property
    def position(self) -> int | None:
        """Offset at which the next reader must start; ``None`` before the first record."""
        return next(iter(self._open.values())) if self._open else self._next

    @property
    def open(self) -> int:
        """Number of unfinished records."""
        return len(self._open)

    @property
    def span(self) -> int:
        """Number of offsets from ``position`` to the last record, which the next reader reads again."""
        return 0 if self._next is None or self.position is None else self._next - self.position

    def read(self, offset: int) -> int:
        """Add a record that was read; return its number.

        When the offset goes back, the position of open records becomes the lower offset. Their offsets belong to the
        former log, and committing those would skip records of the new log.
        """
        if self._next is not None and offset < self._next:
            self._open = OrderedDict((number, min(first, offset)) for number, first in self._open.items())
        self._next = offset + 1
        number = next(self._numbers)
        self._open[number] = offset
        return number

    def finish(self, numbers: Iterable[int]) -> None:
        """Mark records as finished."""
        for number in numbers:
            self._open.pop(number, None)


@dataclass(slots=True, eq=False)
class Bundle:
    """Polls of one partition, slot, second and partner that are processed together; becomes one ``PollGroup``.

    Attributes:
        since_s: When its first poll was read (monotonic).
        numbers: Of its records in :class:`Progress`.
    """

    bundles: "Bundles"
    key: BundleKey
    since_s: float
    polls: list[PollRecord] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def columns(self, accounts: Mapping[str, int]) -> tuple[list[int], list[int], list[str]]:
        """Return tracker ids, account numbers and external ids."""
        numbers = [accounts.get(poll.account_id, 0) for poll in self.polls]
        return [poll.tracker_id for poll in self.polls], numbers, [poll.external_id for poll in self.polls]


class Bundles:
    """The waiting bundles of one partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._growing: dict[BundleKey, Bundle] = {}

    def put(self, number: int, poll: PollRecord, now_s: float) -> Bundle | None:
        """Add a poll; return its bundle if the bundle is new."""
        key = poll.slot_id or 0, poll.due_at, poll.partner
        bundle, new = self._growing.get(key), None
        if bundle is None or len(bundle.polls) >= BUNDLE_MAX:
            bundle = new = self._growing[key] = Bundle(self, key, now_s)
        bundle.polls.append(poll)
        bundle.numbers.append(number)
        return new

    def close(self, bundle: Bundle) -> None:
        """Close a bundle that is taken, so that no poll is added to it."""
        if self._growing.get(bundle.key) is bundle:
            del self._growing[bundle.key]


class Waiting:
    """Waiting bundles by partner, earliest due first."""

    def __init__(self) -> None:
        self._lines: dict[int, list[tuple[float, int, Bundle]]] = {}
        self._order = itertools.count()

    def __iter__(self) -> Iterator[tuple[int, Bundle]]:
        return ((partner_no, entry[2]) for partner_no, line in self._lines.items() for entry in line)

    def put(self, partner_no: int, bundle: Bundle) -> None:
        """Add a bundle."""
        entry = bundle.key[1].timestamp(), next(self._order), bundle
        heapq.heappush(self._lines.setdefault(partner_no, []), entry)

    def take(self, partner_no: int, most: int, *, among: Container[Bundles]) -> list[Bundle]:
        """Take the earliest due bundles of a partner in the given partitions; the others stay."""
        line, picked, not_yet = self._lines.get(partner_no, []), list[Bundle](), list[tuple[float, int, Bundle]]()
        while line and len(picked) < most:
            entry = heapq.heappop(line)
            if entry[2].bundles in among:
                entry[2].bundles.close(entry[2])
                picked.append(entry[2])
            else:
                not_yet.append(entry)
        for entry in not_yet:
            heapq.heappush(line, entry)
        return picked

    def remove(self, unwanted: Callable[[Bundle], bool]) -> None:
        """Drop bundles."""
        for partner_no, line in self._lines.items():
            if any(unwanted(entry[2]) for entry in line):
                self._lines[partner_no] = [entry for entry in line if not unwanted(entry[2])]
                heapq.heapify(self._lines[partner_no])


REPORT_TIMEOUT_S = 2.0

_SQL = load("tickwright.transports.kafka", "polls.sql")
_log = structlog.get_logger("tickwright.polls")


@dataclass(slots=True, eq=False)
class HeldPartition:
    """An assignment as the event loop uses it.

    Attributes:
        epoch: Of the partition's row while this process owns it; ``None`` otherwise.
        retry_at_s: Earliest instant of a take-over (monotonic): the group may be about to revoke the partition.
    """

    assignment: Assignment
    bundles: Bundles
    progress: Progress = field(default_factory=Progress)
    epoch: int | None = None
    retry_at_s: float = 0.0

    def note(self) -> None:
        """Pass the safe offset to the reader thread."""
        self.assignment.safe, self.assignment.span = self.progress.position, self.progress.span

    @property
    def waiting(self) -> int:
        """Number of records that wait here."""
        return self.assignment.read - self.assignment.over

    def take_out(self, bundle: Bundle) -> None:
        """Count the polls of a bundle that was taken out."""
        self.assignment.over += len(bundle.polls)

    def put_back(self, bundle: Bundle) -> None:
        """Count the polls of a bundle that waits again."""
        self.assignment.over -= len(bundle.polls)

    def finish(self, bundle: Bundle) -> None:
        """Mark a bundle that was taken out as finished."""
        self.progress.finish(bundle.numbers)
        self.note()

    @property
    def position(self) -> int | None:
        """Offset of the first poll without an effect; ``None`` until the group's offset is known."""
        return self.assignment.begin if self.progress.position is None else self.progress.position


@dataclass(slots=True)
class SourceCounts:
    """Counts of a poll source on Kafka.

    Attributes:
        reader: Counts of its threads.
        unknown: Skipped records of unknown partners.
        over: Polls dropped because their next one was due.
        parked: Polls moved into PostgreSQL's queue, because their partner had no room.
    """

    reader: ReaderCounts = field(default_factory=ReaderCounts)
    unknown: int = 0
    over: int = 0
    parked: int = 0


def samples_of(counts: SourceCounts, partitions: int) -> list[Sample]:
    """Return the counts as metrics."""
    return [
        Sample("tickwright_poll_records_total", counts.reader.records),
        Sample("tickwright_poll_records_over_total", counts.over),
        Sample("tickwright_poll_records_parked_total", counts.parked),
        Sample("tickwright_poll_records_skipped_total", counts.reader.unreadable, ("unreadable",)),
        Sample("tickwright_poll_records_skipped_total", counts.unknown, ("unknown_partner",)),
        Sample("tickwright_poll_partitions_held", partitions),
        Sample("tickwright_poll_rebalances_total", counts.reader.rebalances),
    ]


async def write_reads(pool: Pool, topic: str, partitions: Iterable[HeldPartition]) -> None:
    """Write the progress of the partitions that this process owns, for operators. Errors are only logged."""
    rows = [
        (one.assignment.partition, one.epoch, one.position, max(one.position, one.assignment.read_to))
        for one in partitions
        if one.epoch is not None and one.position is not None
    ]
    if not rows:
        return
    try:
        async with asyncio.timeout(REPORT_TIMEOUT_S):
            await pool.execute(_SQL["write_reads"], topic, *map(list, zip(*rows, strict=True)))
    except UNAVAILABLE as error:
        _log.warning("polls.position_not_written", error=repr(error))


# Parking: a partition is read in order, and only as much of it as fits into memory. Without parking, the polls of a
# courier that fails for hours, or that this process does not serve, would fill that memory and block all others. So
# when a partition is half full, bundles that have waited for a minute move into the queue inside PostgreSQL, under the
# partition's fence. Consumers also take from that queue, and the relay drops superseded polls from it. After a crash
# between parking and the commit of the offset, the same polls are read again; the ledger lets each take effect once.

PARK_FROM = HELD_MAX // 2
PARK_AFTER_S = 60.0
PARK_PILES_MAX = 1000


def bundles_to_park(
    partition: HeldPartition, waiting: Waiting, room: Mapping[int, int], now_s: float
) -> list[tuple[int, Bundle]]:
    """Return the bundles to park once a partition is half full: a minute old, and of partners without room."""
    if partition.epoch is None or partition.waiting < PARK_FROM:
        return []
    stuck = [
        (partner_no, bundle)
        for partner_no, bundle in waiting
        if bundle.bundles is partition.bundles and not room.get(partner_no) and now_s - bundle.since_s >= PARK_AFTER_S
    ]
    return sorted(stuck, key=lambda entry: entry[1].key[1])[:PARK_PILES_MAX]


async def park(
    pool: Pool, topic: str, partition: HeldPartition, bundles: Sequence[tuple[int, Bundle]], accounts: Mapping[str, int]
) -> bool:
    """Move bundles into the queue; false if this process no longer owns the partition's row."""
    async with pool.acquire() as connection, connection.transaction():
        if not await connection.fetch(_SQL["hold"], topic, [partition.assignment.partition], [partition.epoch]):
            return False
        await connection.executemany(
            _SQL["park"], [_row(partner_no, bundle, accounts) for partner_no, bundle in bundles]
        )
    return True


def _row(partner_no: int, bundle: Bundle, accounts: Mapping[str, int]) -> tuple[Any, ...]:
    slot_id, due_at, _ = bundle.key
    return due_at, slot_id, partner_no, *bundle.columns(accounts)
