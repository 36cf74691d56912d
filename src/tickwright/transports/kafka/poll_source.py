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
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from tickwright.observe.metrics import Sample
from tickwright.ports.ids import monotonic
from tickwright.ports.polls import PollGroup, PollRecord
from tickwright.ports.session import Session
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load
from tickwright.transports.kafka.config import KafkaConfig
from tickwright.transports.kafka.poll_partition import (
    Bundle,
    Bundles,
    HeldPartition,
    SourceCounts,
    Waiting,
    bundles_to_park,
    park,
    samples_of,
    write_reads,
)
from tickwright.transports.kafka.poll_reader import SESSION_MS, Assignment, PollReader, ReadPoll

CHECK_EVERY_S = 0.5
RETRY_EVERY_S = 5.0
ACCOUNTS_MAX = 100_000
SORT_MAX = 2000
SWEEP_EVERY_S = 2.0
REPORT_EVERY_S = 2.0

Read = tuple[int, PollRecord | None]

_SQL = load("tickwright.transports.kafka", "polls.sql")
_log = structlog.get_logger("tickwright.polls")


class KafkaPollSource:
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
        self._stopping = asyncio.Event()
        self._ticked_s: float | None = None
        self._sweep_again_s = self._report_again_s = 0.0
        session.on_lost(self._session_lost)

    async def run(self) -> None:
        """Keep a reader running until stopped; replace a reader that has ended."""
        while not self._stopping.is_set():
            if self._reader is None or not self._reader.alive:
                self._reader = self._open_reader()
            self._ticked_s = monotonic()
            if self._ticked_s >= self._report_again_s:
                await self._report()
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._stopping.wait()

    async def quiesce(self) -> None:
        """Do nothing: the consumer finishes the polls that it took."""

    async def stop(self) -> None:
        """Commit finished offsets and leave the group, so that other processes continue at once."""
        self._stopping.set()
        reader, self._reader = self._reader, None
        if reader is not None:
            await asyncio.to_thread(reader.close)
            await self._report()

    async def _report(self) -> None:
        self._report_again_s = monotonic() + REPORT_EVERY_S
        await write_reads(self._pool, self._topic, self._partitions.values())

    def samples(self) -> Sequence[Sample]:
        """Return the counts as metrics."""
        return samples_of(self.counts, sum(one.epoch is not None for one in self._partitions.values()))

    def last_tick_age_s(self) -> float | None:
        """Seconds since the reader was last checked."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

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
        return [turn for turn in map(self._hand_out, picked) if turn is not None]

    def _ours(self) -> set[Bundles]:
        """Return the bundles of the partitions whose rows this process owns."""
        return {one.bundles for one in self._partitions.values() if one.epoch is not None}

    def _follow(self, assignments: Mapping[int, Assignment]) -> None:
        """Drop revoked partitions, and add assigned ones."""
        gone = {one for number, one in self._partitions.items() if assignments.get(number) is not one.assignment}
        if gone:
            bundles = {one.bundles for one in gone}
            self._partitions = {number: one for number, one in self._partitions.items() if one not in gone}
            self._taken = {key: found for key, found in self._taken.items() if found[0] not in gone}
            self._waiting.remove(lambda bundle: bundle.bundles in bundles)
        for number, assignment in assignments.items():
            if number not in self._partitions:
                self._partitions[number] = HeldPartition(assignment, Bundles(number))

    async def _take_over(self) -> None:
        """Take over the rows of assigned partitions. No poll of a partition is handed out before."""
        now_s, token = monotonic(), self._session.token
        wanted = {n: one for n, one in self._partitions.items() if one.epoch is None and now_s >= one.retry_at_s}
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
        read = [records[place] for place in range(min(len(records), SORT_MAX))]  # the thread continues to add
        if any(poll is not None and poll.partner not in self._partners for _, poll in read):
            self._partners.update(await self._pool.fetch(_SQL["partners"]))  # newer than any of these records
        read = await self._add_slots(read)
        now_s = monotonic()
        for offset, poll in read:
            records.popleft()
            number = partition.progress.read(offset)
            if poll is None or poll.slot_id is None or poll.partner not in self._partners:
                self._skip(partition, number, unknown=poll is not None)
            elif (bundle := partition.bundles.put(number, poll, now_s)) is not None:
                self._enqueue(bundle)
        partition.note()

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

    def _skip(self, partition: HeldPartition, number: int, *, unknown: bool) -> None:
        partition.progress.finish([number])
        partition.assignment.over += 1
        self.counts.unknown += unknown

    def _enqueue(self, bundle: Bundle) -> None:
        self._waiting.put(self._partners[bundle.key[2]], bundle)

    async def _finish_superseded(self) -> None:
        """Finish polls whose tracker is due again: they are superseded."""
        ours = self._ours()
        bundles = [(partner_no, bundle) for partner_no, bundle in self._waiting if bundle.bundles in ours]
        slots, dues = [bundle.key[0] for _, bundle in bundles], [bundle.key[1] for _, bundle in bundles]
        sizes = [len(bundle.polls) for _, bundle in bundles]
        rows = await self._pool.fetch(_SQL["count_over"], slots, dues, [no for no, _ in bundles], sizes)
        self.counts.over += self._take_out([bundles[row["n"] - 1][1] for row in rows])

    async def _park(self, room: Mapping[int, int]) -> None:
        """Move bundles of partners without room into the queue, so that they block no others."""
        for partition in list(self._partitions.values()):
            stuck = bundles_to_park(partition, self._waiting, room, monotonic())
            if not stuck:
                continue
            await self._load_accounts([bundle for _, bundle in stuck])
            if await park(self._pool, self._topic, partition, stuck, self._accounts):
                self.counts.parked += self._take_out([bundle for _, bundle in stuck])
            else:
                self._give_up(partition)

    def _take_out(self, bundles: Sequence[Bundle]) -> int:
        """Finish waiting bundles; return their number of polls."""
        gone = set(bundles)
        self._waiting.remove(lambda bundle: bundle in gone)
        for bundle in bundles:
            bundle.bundles.close(bundle)
            partition = self._partitions[bundle.bundles.partition]
            partition.take_out(bundle)
            partition.finish(bundle)
        return sum(len(bundle.polls) for bundle in bundles)

    def _hand_out(self, bundle: Bundle) -> PollGroup | None:
        partition = self._partitions[bundle.bundles.partition]
        if partition.epoch is None:
            self._enqueue(bundle)
            return None
        key = next(self._numbers)
        self._taken[key] = (partition, bundle)
        partition.take_out(bundle)
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

    async def hold(self, connection: Connection, turns: Sequence[PollGroup]) -> Sequence[PollGroup]:
        """Lock the rows of their partitions that still have our epoch, and return the groups that are still ours."""
        known = {turn: self._taken[turn.key][0] for turn in turns if turn.key in self._taken}
        places = sorted({(partition.assignment.partition, turn.owner) for turn, partition in known.items()})
        rows = await connection.fetch(_SQL["hold"], self._topic, [p for p, _ in places], [e for _, e in places])
        held = {(row["partition"], row["epoch"]) for row in rows}
        for turn, partition in known.items():
            if (partition.assignment.partition, turn.owner) not in held:
                self._give_up(partition)
        return [turn for turn, one in known.items() if (one.assignment.partition, turn.owner) in held]

    async def finish(self, connection: Any, turns: Sequence[PollGroup]) -> None:
        """Do nothing: the ledger records finished polls."""

    async def finished(self, turns: Sequence[PollGroup]) -> None:
        """Advance the offsets after the effects are committed."""
        for turn in turns:
            found = self._taken.pop(turn.key, None)
            if found is not None:
                found[0].finish(found[1])

    def has_lost(self, turn: PollGroup) -> bool:
        """Whether its partition was lost after it was handed out."""
        return turn.key not in self._taken

    async def release(self, turns: Sequence[PollGroup]) -> None:
        """Let them wait again. After this consumer leaves the group, others start at the first unfinished poll."""
        for turn in turns:
            if (found := self._taken.pop(turn.key, None)) is not None:
                found[0].put_back(found[1])
                self._enqueue(found[1])

    def _give_up(self, partition: HeldPartition) -> None:
        """Hand out unfinished bundles again under a new epoch, unless the group revokes the partition."""
        if partition.epoch is not None:
            _log.warning("polls.partition_lost", partition=partition.assignment.partition)
        partition.epoch, partition.retry_at_s = None, monotonic() + RETRY_EVERY_S
        for key in [key for key, found in self._taken.items() if found[0] is partition]:
            _, bundle = self._taken.pop(key)
            partition.put_back(bundle)
            self._enqueue(bundle)

    def _session_lost(self) -> None:
        for partition in self._partitions.values():
            self._give_up(partition)
