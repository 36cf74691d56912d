"""Polls from Kafka: read under the group's assignment, fenced by a row of PostgreSQL, committed after their effect.

::

    group ──assigns──▶ reader (thread) ──records──▶ bundles ──take──▶ polls ──finished──▶ offset ──▶ group
                                       row of the partition: epoch + 1 ▲        ▲ hold: the epoch is ours

The group decides which process *reads* a partition, and can report it late. The row decides whose results *count*. A
process takes over the row of an assigned partition before it hands out polls. The take-over waits for an effect that is
being written, and voids all later effects of the former reader. An offset only decides where to start: the ledger
detects polls that are delivered again.
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from tickwright.engine.service import LoopService
from tickwright.observe.metrics import Sample
from tickwright.ports.ids import monotonic
from tickwright.ports.polls import PollGroup, PollRecord
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection, Pool
from tickwright.store.queries import load
from tickwright.transports.kafka.config import KafkaConfig
from tickwright.transports.kafka.poll_reader import HELD_MAX, SESSION_MS, Assignment, PollReader, ReaderCounts, ReadPoll

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

    @property
    def waiting(self) -> int:
        """Number of records that wait here."""
        return self.assignment.read - self.assignment.passed_on

    def finish(self, numbers: Iterable[int] = ()) -> None:
        """Mark records that were taken out as finished, and pass the safe offset to the reader thread."""
        self.progress.finish(numbers)
        self.assignment.safe, self.assignment.span = self.progress.position, self.progress.span

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
        superseded: Polls dropped because their next one was due.
        parked: Polls moved into PostgreSQL's queue, because their partner had no room.
    """

    reader: ReaderCounts = field(default_factory=ReaderCounts)
    unknown: int = 0
    superseded: int = 0
    parked: int = 0


def samples_of(counts: SourceCounts, partitions: int) -> list[Sample]:
    """Return the counts as metrics."""
    return [
        Sample("tickwright_poll_records_total", counts.reader.records),
        Sample("tickwright_poll_records_over_total", counts.superseded),
        Sample("tickwright_poll_records_parked_total", counts.parked),
        Sample("tickwright_poll_records_skipped_total", counts.reader.unreadable, ("unreadable",)),
        Sample("tickwright_poll_records_skipped_total", counts.unknown, ("unknown_partner",)),
        Sample("tickwright_poll_partitions_held", partitions),
        Sample("tickwright_poll_rebalances_total", counts.reader.rebalances),
    ]


# Parking: a partition is read in order, and only as much of it as fits into memory. Without parking, the polls of a
# courier that fails for hours, or that this process does not serve, would fill that memory and block all others. So
# when a partition is half full, bundles that have waited for a minute move into the queue inside PostgreSQL, under the
# partition's fence. Consumers also take from that queue, and the relay drops superseded polls from it. After a crash
# between parking and the commit of the offset, the same polls are read again; the ledger lets each take effect once.

PARK_FROM = HELD_MAX // 2
PARK_AFTER_S = 60.0
PARK_BUNDLES_MAX = 1000


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
    return sorted(stuck, key=lambda entry: entry[1].key[1])[:PARK_BUNDLES_MAX]


CHECK_EVERY_S = 0.5
RETRY_EVERY_S = 5.0
ACCOUNTS_MAX = 100_000
SORT_MAX = 2000
SWEEP_EVERY_S = 2.0
REPORT_EVERY_S = 2.0

Read = tuple[int, PollRecord | None]

_SQL = load("tickwright.transports.kafka", "polls.sql")
_log = structlog.get_logger("tickwright.polls")


class KafkaPollSource(LoopService):
    """Implements :class:`tickwright.ports.polls.PollSource` on the polls' topic. It is a service itself.

    Args:
        settings: Where Kafka is; the group is ``<prefix>.poll-consumer``.
        topic: Full name.
        read: Decodes a record; raises ``ValueError`` for one to skip.
        session_ms: Without a heartbeat for this long, the group reassigns our partitions. At least 6,000.

    Invariants:
        KFK-5: no offset is committed beyond a poll whose effect is not committed.
        KFK-6: polls of a partition that was reassigned have no effect from here.
    """

    name = "poll-source"

    def __init__(
        self,
        pool: Pool,
        session: Session,
        settings: KafkaConfig,
        topic: str,
        read: ReadPoll,
        *,
        session_ms: int = SESSION_MS,
    ) -> None:
        super().__init__()
        self._pool, self._session, self._topic = pool, session, topic
        self.counts = SourceCounts()
        self._open_reader = partial(PollReader, settings, topic, read, self.counts.reader, session_ms=session_ms)
        self._reader: PollReader | None = None
        self._partitions: dict[int, HeldPartition] = {}
        self._waiting = Waiting()
        self._taken: dict[int, tuple[HeldPartition, Bundle]] = {}
        self._numbers = itertools.count(1)
        self._partners: dict[str, int] = {}
        self._accounts: dict[str, int] = {}
        self._sweep_again_s = self._report_again_s = 0.0
        session.on_lost(self._session_lost)

    async def _work(self) -> None:
        """Keep a reader running until stopped; replace a reader that has ended."""
        while not self.stopping.is_set():
            if self._reader is None or not self._reader.alive:
                self._reader = self._open_reader()
            self.tick()
            if monotonic() >= self._report_again_s:
                await self._report()
            await self.rest(CHECK_EVERY_S)

    async def quiesce(self) -> None:
        """Do nothing: the consumer finishes the polls that it took."""

    async def stop(self) -> None:
        """Commit finished offsets and leave the group, so that other processes continue at once."""
        self.request_stop()
        reader, self._reader = self._reader, None
        if reader is not None:
            await asyncio.to_thread(reader.close)
            await self._report()

    async def _report(self) -> None:
        """Write the progress of the partitions that this process owns, for operators. Errors are only logged."""
        self._report_again_s = monotonic() + REPORT_EVERY_S
        rows = [
            (held.assignment.partition, held.epoch, held.position, max(held.position, held.assignment.read_to))
            for held in self._partitions.values()
            if held.epoch is not None and held.position is not None
        ]
        if not rows:
            return
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                await self._pool.execute(_SQL["write_reads"], self._topic, *map(list, zip(*rows, strict=True)))
        except UNAVAILABLE as error:
            _log.warning("polls.position_not_written", error=repr(error))

    def samples(self) -> Sequence[Sample]:
        """Return the counts as metrics."""
        return samples_of(self.counts, sum(held.epoch is not None for held in self._partitions.values()))

    async def take(self, room: Mapping[int, int]) -> Sequence[PollGroup]:
        """Take polls of the partitions whose rows this process owns."""
        if self._reader is None or not self._session.holds():
            return []
        self._follow(self._reader.assignments)
        await self._take_over()
        for partition in self._partitions.values():
            await self._sort(partition)
        if monotonic() >= self._sweep_again_s:
            self._sweep_again_s = monotonic() + SWEEP_EVERY_S
            await self._finish_superseded()
            await self._park(room)
        return await self._take_bundles(room)

    async def _take_bundles(self, room: Mapping[int, int]) -> list[PollGroup]:
        ours = self._ours()
        picked = [bundle for no, most in room.items() for bundle in self._waiting.take(no, most, among=ours)]
        try:
            await self._load_accounts(picked)
        except BaseException:
            for bundle in picked:
                self._enqueue(bundle)
            raise
        return [group for group in map(self._hand_out, picked) if group is not None]

    def _ours(self) -> set[Bundles]:
        """Return the bundles of the partitions whose rows this process owns."""
        return {held.bundles for held in self._partitions.values() if held.epoch is not None}

    def _follow(self, assignments: Mapping[int, Assignment]) -> None:
        """Drop revoked partitions, and add assigned ones."""
        gone = {held for number, held in self._partitions.items() if assignments.get(number) is not held.assignment}
        if gone:
            bundles = {held.bundles for held in gone}
            self._partitions = {number: held for number, held in self._partitions.items() if held not in gone}
            self._taken = {key: found for key, found in self._taken.items() if found[0] not in gone}
            self._waiting.remove(lambda bundle: bundle.bundles in bundles)
        for number, assignment in assignments.items():
            if number not in self._partitions:
                self._partitions[number] = HeldPartition(assignment, Bundles(number))

    async def _take_over(self) -> None:
        """Take over the rows of assigned partitions. No poll of a partition is handed out before."""
        now_s, token = monotonic(), self._session.token
        wanted = {n: held for n, held in self._partitions.items() if held.epoch is None and now_s >= held.retry_at_s}
        if not wanted:
            return
        rows = await self._pool.fetch(_SQL["take_over"], self._topic, token, sorted(wanted))
        for row in rows:
            if self._session.token == token:
                wanted[row["partition"]].epoch = row["epoch"]
        _log.info("polls.partitions_taken", partitions=[row["partition"] for row in rows])

    async def _sort(self, partition: HeldPartition) -> None:
        """Sort read records into bundles."""
        records = partition.assignment.records
        read = [records[n] for n in range(min(len(records), SORT_MAX))]  # the thread continues to add
        if any(poll is not None and poll.partner not in self._partners for _, poll in read):
            self._partners.update(await self._pool.fetch(_SQL["partners"]))  # newer than any of these records
        read = await self._add_slots(read)
        now_s = monotonic()
        for offset, poll in read:
            records.popleft()
            number = partition.progress.read(offset)
            if poll is None or poll.slot_id is None or poll.partner not in self._partners:
                partition.progress.finish([number])
                partition.assignment.passed_on += 1
                self.counts.unknown += poll is not None
            elif (bundle := partition.bundles.put(number, poll, now_s)) is not None:
                self._enqueue(bundle)
        partition.finish()

    async def _add_slots(self, read: list[Read]) -> list[Read]:
        """Add missing slots to polls. A tracker that is no longer polled has none."""
        lacking = [poll for _, poll in read if poll is not None and poll.slot_id is None]
        if not lacking:
            return read
        slots = dict(await self._pool.fetch(_SQL["slots"], sorted({poll.tracker_id for poll in lacking})))
        return [
            (offset, poll if poll is None else poll._replace(slot_id=slots.get(poll.tracker_id, poll.slot_id)))
            for offset, poll in read
        ]

    def _enqueue(self, bundle: Bundle) -> None:
        self._waiting.put(self._partners[bundle.key[2]], bundle)

    async def _finish_superseded(self) -> None:
        """Finish polls whose tracker is due again: they are superseded."""
        ours = self._ours()
        bundles = [(partner_no, bundle) for partner_no, bundle in self._waiting if bundle.bundles in ours]
        slots, dues = [bundle.key[0] for _, bundle in bundles], [bundle.key[1] for _, bundle in bundles]
        sizes = [len(bundle.polls) for _, bundle in bundles]
        rows = await self._pool.fetch(_SQL["count_superseded"], slots, dues, [no for no, _ in bundles], sizes)
        self.counts.superseded += self._take_out([bundles[row["n"] - 1][1] for row in rows])

    async def _park(self, room: Mapping[int, int]) -> None:
        """Move bundles of partners without room into the queue, so that they block no others."""
        for partition in list(self._partitions.values()):
            stuck = bundles_to_park(partition, self._waiting, room, monotonic())
            if not stuck:
                continue
            await self._load_accounts([bundle for _, bundle in stuck])
            if await self._write_parked(partition, stuck):
                self.counts.parked += self._take_out([bundle for _, bundle in stuck])
            else:
                self._give_up(partition)

    async def _write_parked(self, partition: HeldPartition, bundles: Sequence[tuple[int, Bundle]]) -> bool:
        """Move bundles into the queue; false if this process no longer owns the partition's row."""
        rows = [(b.key[1], b.key[0], partner_no, *b.columns(self._accounts)) for partner_no, b in bundles]
        async with self._pool.acquire() as connection, connection.transaction():
            row = [partition.assignment.partition], [partition.epoch]
            if not await connection.fetch(_SQL["hold"], self._topic, *row):
                return False
            await connection.executemany(_SQL["park"], rows)
        return True

    def _take_out(self, bundles: Sequence[Bundle]) -> int:
        """Finish waiting bundles; return their number of polls."""
        gone = set(bundles)
        self._waiting.remove(lambda bundle: bundle in gone)
        for bundle in bundles:
            bundle.bundles.close(bundle)
            partition = self._partitions[bundle.bundles.partition]
            partition.assignment.passed_on += len(bundle.polls)
            partition.finish(bundle.numbers)
        return sum(len(bundle.polls) for bundle in bundles)

    def _hand_out(self, bundle: Bundle) -> PollGroup | None:
        partition = self._partitions[bundle.bundles.partition]
        if partition.epoch is None:
            self._enqueue(bundle)
            return None
        key = next(self._numbers)
        self._taken[key] = (partition, bundle)
        partition.assignment.passed_on += len(bundle.polls)
        slot_id, due_at, partner = bundle.key
        return PollGroup(
            key, partition.epoch, slot_id, due_at, self._partners[partner], *bundle.columns(self._accounts)
        )

    async def _load_accounts(self, bundles: Sequence[Bundle]) -> None:
        if len(self._accounts) > ACCOUNTS_MAX:
            self._accounts.clear()
        unknown = {poll.account_id for bundle in bundles for poll in bundle.polls} - self._accounts.keys()
        if unknown:
            self._accounts.update(await self._pool.fetch(_SQL["accounts"], sorted(unknown)))

    async def hold(self, connection: Connection, groups: Sequence[PollGroup]) -> Sequence[PollGroup]:
        """Lock the rows of their partitions that still have our epoch, and return the groups that are still ours."""
        taken = {group: self._taken[group.key][0] for group in groups if group.key in self._taken}
        epochs = sorted({(partition.assignment.partition, group.owner) for group, partition in taken.items()})
        rows = await connection.fetch(_SQL["hold"], self._topic, [p for p, _ in epochs], [e for _, e in epochs])
        held = {(row["partition"], row["epoch"]) for row in rows}
        for group, partition in taken.items():
            if (partition.assignment.partition, group.owner) not in held:
                self._give_up(partition)
        return [group for group, partition in taken.items() if (partition.assignment.partition, group.owner) in held]

    async def finish(self, connection: Any, groups: Sequence[PollGroup]) -> None:
        """Do nothing: the ledger records finished polls."""

    async def after_commit(self, groups: Sequence[PollGroup]) -> None:
        """Advance the offsets after the effects are committed."""
        for group in groups:
            found = self._taken.pop(group.key, None)
            if found is not None:
                found[0].finish(found[1].numbers)

    def has_lost(self, group: PollGroup) -> bool:
        """Whether its partition was lost after it was handed out."""
        return group.key not in self._taken

    async def release(self, groups: Sequence[PollGroup]) -> None:
        """Let them wait again. After this consumer leaves the group, others start at the first unfinished poll."""
        for group in groups:
            if (found := self._taken.pop(group.key, None)) is not None:
                self._put_back(*found)

    def _give_up(self, partition: HeldPartition) -> None:
        """Hand out unfinished bundles again under a new epoch, unless the group revokes the partition."""
        if partition.epoch is not None:
            _log.warning("polls.partition_lost", partition=partition.assignment.partition)
        partition.epoch, partition.retry_at_s = None, monotonic() + RETRY_EVERY_S
        for key in [key for key, found in self._taken.items() if found[0] is partition]:
            self._put_back(*self._taken.pop(key))

    def _put_back(self, partition: HeldPartition, bundle: Bundle) -> None:
        partition.assignment.passed_on -= len(bundle.polls)
        self._enqueue(bundle)

    def _session_lost(self) -> None:
        for partition in self._partitions.values():
            self._give_up(partition)
