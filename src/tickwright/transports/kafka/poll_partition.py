"""A partition that a consumer holds, and what it says of it: to whom it hands out, to metrics, to those who look on.

What is said here decides nothing. Offsets in the group say where others begin and epochs whose answers count; the table
``poll_reads`` is a copy for people, two seconds old, and kept when nobody reads any more.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from tickwright.observe.metrics import Sample
from tickwright.store.pool import AWAY, Pool
from tickwright.store.queries import load
from tickwright.transports.kafka.poll_buffer import Pile, Piles, Progress
from tickwright.transports.kafka.poll_reader import Assignment, FeedCounts

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
    except AWAY as error:
        _log.warning("polls.position_not_said", error=repr(error))
