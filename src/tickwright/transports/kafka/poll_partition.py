"""A partition that a consumer holds, and what it says of it: to whom it hands out, to metrics, to those who look on.

What is said here decides nothing. Offsets in the group say where others begin and epochs whose answers count; the table
``poll_reads`` is a copy for people, two seconds old, and kept when nobody reads any more.
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
from tickwright.transports.kafka.poll_reader import HELD_MAX, Assignment, FeedCounts

# What was read: polls in piles, how far a partition is done, and who waits. Pure: no I/O, no clock, no threads.
#
# Offsets are committed from here, so the rule is here: the offset to go on from is that of the first record which is
# not finished. Whatever lies behind it may be delivered again, and the ledger then knows it.
#
# Offsets go back under a reader where the topic is deleted and made again, or loses its end (an unclean election, a
# broker that is restored). What comes then is carried out like any other record, so a record has a number of its own.

PILE_MAX = 1000

PileKey = tuple[int, datetime, str]


class Progress:
    """How far a partition is done. It remembers what is open alone: one poll may wait while millions pass it."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()  # offsets by number, neither of them ever descending
        self._next: int | None = None
        self._numbers = itertools.count()

    @property
    def position(self) -> int | None:
        """Where whoever comes next has to begin; ``None`` before the first record."""
        return next(iter(self._open.values())) if self._open else self._next

    @property
    def open(self) -> int:
        """Records that are not finished."""
        return len(self._open)

    @property
    def span(self) -> int:
        """Offsets from ``position`` to the last record: what whoever comes next would read again."""
        return 0 if self._next is None or self.position is None else self._next - self.position

    def read(self, offset: int) -> int:
        """Note a record; return its number.

        Where the offset goes back, open records of higher offsets hold the position at it: theirs are of a log that
        is gone, and committed they would pass records of the new one.
        """
        if self._next is not None and offset < self._next:
            self._open = OrderedDict((number, min(first, offset)) for number, first in self._open.items())
        self._next = offset + 1
        number = next(self._numbers)
        self._open[number] = offset
        return number

    def finish(self, numbers: Iterable[int]) -> None:
        """Note that nothing is left to do for these."""
        for number in numbers:
            self._open.pop(number, None)


@dataclass(slots=True, eq=False)
class Pile:
    """Polls that are carried out together: of one partition, slot, second and partner.

    Attributes:
        since_s: When its first poll was read (monotonic).
        numbers: Of its records, as :class:`Progress` counts them.
    """

    piles: "Piles"
    key: PileKey
    since_s: float
    polls: list[PollRecord] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def columns(self, accounts: Mapping[str, int]) -> tuple[list[int], list[int], list[str]]:
        """Return tracker ids, numbers of accounts and external ids, as a turn has them."""
        numbers = [accounts.get(poll.account_id, 0) for poll in self.polls]
        return [poll.tracker_id for poll in self.polls], numbers, [poll.external_id for poll in self.polls]


class Piles:
    """The piles of one partition that nobody has taken."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._growing: dict[PileKey, Pile] = {}

    def put(self, number: int, poll: PollRecord, now_s: float) -> Pile | None:
        """Add a poll; return its pile when that is a new one."""
        key = poll.slot_id or 0, poll.due_at, poll.partner
        pile, new = self._growing.get(key), None
        if pile is None or len(pile.polls) >= PILE_MAX:
            pile = new = self._growing[key] = Pile(self, key, now_s)
        pile.polls.append(poll)
        pile.numbers.append(number)
        return new

    def close(self, pile: Pile) -> None:
        """Let nothing more be added to a pile: it is taken."""
        if self._growing.get(pile.key) is pile:
            del self._growing[pile.key]


class Waiting:
    """Piles that nobody has taken, by partner, the longest due first."""

    def __init__(self) -> None:
        self._lines: dict[int, list[tuple[float, int, Pile]]] = {}
        self._order = itertools.count()

    def __iter__(self) -> Iterator[tuple[int, Pile]]:
        return ((partner_no, entry[2]) for partner_no, line in self._lines.items() for entry in line)

    def put(self, partner_no: int, pile: Pile) -> None:
        """Let a pile wait."""
        entry = pile.key[1].timestamp(), next(self._order), pile
        heapq.heappush(self._lines.setdefault(partner_no, []), entry)

    def take(self, partner_no: int, most: int, *, among: Container[Piles]) -> list[Pile]:
        """Take a partner's piles that are due longest, of those partitions; the others wait on."""
        line, picked, not_yet = self._lines.get(partner_no, []), list[Pile](), list[tuple[float, int, Pile]]()
        while line and len(picked) < most:
            entry = heapq.heappop(line)
            if entry[2].piles in among:
                entry[2].piles.close(entry[2])
                picked.append(entry[2])
            else:
                not_yet.append(entry)
        for entry in not_yet:
            heapq.heappush(line, entry)
        return picked

    def remove(self, unwanted: Callable[[Pile], bool]) -> None:
        """Forget piles."""
        for partner_no, line in self._lines.items():
            if any(unwanted(entry[2]) for entry in line):
                self._lines[partner_no] = [entry for entry in line if not unwanted(entry[2])]
                heapq.heapify(self._lines[partner_no])


SAID_WITHIN_S = 2.0

_SQL = load("tickwright.transports.kafka", "polls.sql")
_log = structlog.get_logger("tickwright.polls")


@dataclass(slots=True, eq=False)
class Holding:
    """An assignment as the event loop sees it.

    Attributes:
        epoch: Under which the partition's row is ours; ``None`` when it is not, or not yet.
        again_at_s: Not taken over before: when the row is somebody else's, the group is about to say so.
    """

    assignment: Assignment
    piles: Piles
    progress: Progress = field(default_factory=Progress)
    epoch: int | None = None
    again_at_s: float = 0.0

    def note(self) -> None:
        """Tell the thread where whoever comes next may begin."""
        self.assignment.safe, self.assignment.span = self.progress.position, self.progress.span

    @property
    def waiting(self) -> int:
        """Records that nobody has taken."""
        return self.assignment.read - self.assignment.over

    def take_out(self, pile: Pile) -> None:
        """Note that a pile does not wait here any more."""
        self.assignment.over += len(pile.polls)

    def put_back(self, pile: Pile) -> None:
        """Note that it waits again."""
        self.assignment.over -= len(pile.polls)

    def be_done(self, pile: Pile) -> None:
        """Note that nothing is left to do for a pile that was taken out."""
        self.progress.finish(pile.numbers)
        self.note()

    @property
    def position(self) -> int | None:
        """The first poll without an effect; ``None`` until the group has said where we begin."""
        return self.assignment.begin if self.progress.position is None else self.progress.position


@dataclass(slots=True)
class SourceCounts:
    """What a source of polls in Kafka has done.

    Attributes:
        feed: What its threads have read.
        unknown: Records of partners that nobody knows, passed over.
        over: Polls dropped unasked, because their next turn was due.
        parked: Polls moved into the queue inside PostgreSQL, because their partner took none.
    """

    feed: FeedCounts = field(default_factory=FeedCounts)
    unknown: int = 0
    over: int = 0
    parked: int = 0


def samples_of(counts: SourceCounts, partitions: int) -> list[Sample]:
    """Return what a source counts, for the metrics of its process."""
    return [
        Sample("tickwright_poll_records_total", counts.feed.records),
        Sample("tickwright_poll_records_over_total", counts.over),
        Sample("tickwright_poll_records_parked_total", counts.parked),
        Sample("tickwright_poll_records_skipped_total", counts.feed.unreadable, ("unreadable",)),
        Sample("tickwright_poll_records_skipped_total", counts.unknown, ("unknown_partner",)),
        Sample("tickwright_poll_partitions_held", partitions),
        Sample("tickwright_poll_rebalances_total", counts.feed.rebalances),
    ]


async def write_reads(pool: Pool, topic: str, holdings: Iterable[Holding]) -> None:
    """Say how far we are with what is ours by the row; what was taken from us meanwhile is left out.

    For operators: where it fails nothing is lost but what they see.
    """
    said = [
        (one.assignment.partition, one.epoch, one.position, max(one.position, one.assignment.read_to))
        for one in holdings
        if one.epoch is not None and one.position is not None
    ]
    if not said:
        return
    try:
        async with asyncio.timeout(SAID_WITHIN_S):
            await pool.execute(_SQL["write_reads"], topic, *map(list, zip(*said, strict=True)))
    except UNAVAILABLE as error:
        _log.warning("polls.position_not_said", error=repr(error))


# Parking: a partition is read in order, and only as much of it as fits into memory. The polls of a courier that fails
# for hours, or that this process does not serve, would fill that memory and stop all others. So when a partition is
# half full, the piles that have waited for a minute move into the queue inside PostgreSQL, under the partition's
# fence. Consumers take from there, too, and the relay drops there what is superseded. After a crash between this and
# the commit of the offset, the same polls are read again: the ledger lets each have its effect once.

PARK_FROM = HELD_MAX // 2
PARK_AFTER_S = 60.0
PARK_PILES_MAX = 1000


def piles_to_park(holding: Holding, waiting: Waiting, room: Mapping[int, int], now_s: float) -> list[tuple[int, Pile]]:
    """Return the piles of a partition that is half full, whose partners have no room, and that have waited long."""
    if holding.epoch is None or holding.waiting < PARK_FROM:
        return []
    stuck = [
        (partner_no, pile)
        for partner_no, pile in waiting
        if pile.piles is holding.piles and not room.get(partner_no) and now_s - pile.since_s >= PARK_AFTER_S
    ]
    return sorted(stuck, key=lambda entry: entry[1].key[1])[:PARK_PILES_MAX]


async def park(
    pool: Pool, topic: str, holding: Holding, piles: Sequence[tuple[int, Pile]], accounts: Mapping[str, int]
) -> bool:
    """Move piles into the queue; false when the partition is somebody else's by its row."""
    async with pool.acquire() as connection, connection.transaction():
        if not await connection.fetch(_SQL["hold"], topic, [holding.assignment.partition], [holding.epoch]):
            return False
        await connection.executemany(_SQL["park"], [_turn(partner_no, pile, accounts) for partner_no, pile in piles])
    return True


def _turn(partner_no: int, pile: Pile, accounts: Mapping[str, int]) -> tuple[Any, ...]:
    slot_id, due_at, _ = pile.key
    return due_at, slot_id, partner_no, *pile.columns(accounts)
