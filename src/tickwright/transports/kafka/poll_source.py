"""Polls from Kafka: read under the group's assignment, fenced by a row of PostgreSQL, committed after their effect.

::

    group ──assigns──▶ feed (thread) ──records──▶ piles ──take──▶ turns ──finished──▶ offset ──▶ group
                                       row of the partition: epoch + 1 ▲        ▲ hold: the epoch is ours

The group decides who *reads* a partition, and may be late to tell; the row decides whose answers *count*. Whoever is
assigned a partition writes himself in before he hands out the first turn, which waits for an effect that is being
written and makes all later ones of the former reader void. An offset says only where to begin; what is delivered again
is found in the ledger.
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
    Holding,
    Pile,
    Piles,
    SourceCounts,
    Waiting,
    park,
    piles_to_park,
    samples_of,
    write_reads,
)
from tickwright.transports.kafka.poll_reader import SESSION_MS, Assignment, Feed, ReadPoll

LOOK_S = 0.5
AGAIN_S = 5.0
ACCOUNTS_MAX = 100_000
SORT_MAX = 2000
LOOK_OVER_EVERY_S = 2.0
SAY_EVERY_S = 2.0

Read = tuple[int, PollRecord | None]

_SQL = load("tickwright.transports.kafka", "polls.sql")
_log = structlog.get_logger("tickwright.polls")


class KafkaPollSource:
    """Implements :class:`tickwright.ports.polls.PollSource` on the polls' topic; a service itself.

    Args:
        settings: Where Kafka is; the group is ``<prefix>.poll-consumer``.
        topic: Full name.
        read: Says what a record means; ``ValueError`` for one that is skipped.
        session_ms: Without a sign for that long, the group gives our partitions to others. At least 6,000.

    Invariants:
        KFK-5: no offset is committed beyond a poll whose effect is not.
        KFK-6: a turn of a partition that somebody else was given has no effect from here.
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
        self._open_feed = partial(Feed, settings, topic, read, self.counts.feed, session_ms=session_ms)
        self._feed: Feed | None = None
        self._holdings: dict[int, Holding] = {}
        self._waiting = Waiting()
        self._taken: dict[int, tuple[Holding, Pile]] = {}
        self._numbers = itertools.count(1)
        self._partners: dict[str, int] = {}
        self._accounts: dict[str, int] = {}
        self._stopping = asyncio.Event()
        self._ticked_s: float | None = None
        self._look_over_again_s = self._say_again_s = 0.0
        session.on_lost(self._session_lost)

    # ------------------------------------------------------------------ service

    async def run(self) -> None:
        """Keep a feed until stopped: one that has ended is replaced."""
        while not self._stopping.is_set():
            if self._feed is None or not self._feed.alive:
                self._feed = self._open_feed()
            self._ticked_s = monotonic()
            if self._ticked_s >= self._say_again_s:
                await self._say()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()

    async def quiesce(self) -> None:
        """Nothing to finish: whoever took turns finishes them."""

    async def stop(self) -> None:
        """Commit what is done and leave the group, so that others read on at once."""
        self._stopping.set()
        feed, self._feed = self._feed, None
        if feed is not None:
            await asyncio.to_thread(feed.close)
            await self._say()

    async def _say(self) -> None:
        self._say_again_s = monotonic() + SAY_EVERY_S
        await write_reads(self._pool, self._topic, self._holdings.values())

    def samples(self) -> Sequence[Sample]:
        """Return what this source counts, for the metrics of its process."""
        return samples_of(self.counts, sum(one.epoch is not None for one in self._holdings.values()))

    def last_tick_age_s(self) -> float | None:
        """Seconds since the feed was looked after."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    # ------------------------------------------------------------------ turns out

    async def take(self, room: Mapping[int, int]) -> Sequence[PollGroup]:
        """Take turns of partitions that are ours by the row."""
        if self._feed is None or not self._session.holds():
            return []
        self._follow(self._feed.assignments)
        await self._take_over()
        for holding in self._holdings.values():
            await self._sort(holding)
        if monotonic() >= self._look_over_again_s:
            self._look_over_again_s = monotonic() + LOOK_OVER_EVERY_S
            await self._finish_over()
            await self._park(room)
        return await self._pick(room)

    async def _pick(self, room: Mapping[int, int]) -> list[PollGroup]:
        ours = self._ours()
        picked = [pile for no, most in room.items() for pile in self._waiting.take(no, most, among=ours)]
        try:
            await self._know_accounts(picked)
        except BaseException:
            for pile in picked:
                self._wait(pile)
            raise
        return [turn for turn in map(self._hand_out, picked) if turn is not None]

    def _ours(self) -> set[Piles]:
        """Return what of the partitions is ours by the row."""
        return {one.piles for one in self._holdings.values() if one.epoch is not None}

    def _follow(self, assignments: Mapping[int, Assignment]) -> None:
        """Forget what the group took away, and begin with what it gave."""
        gone = {one for number, one in self._holdings.items() if assignments.get(number) is not one.assignment}
        if gone:
            piles = {one.piles for one in gone}
            self._holdings = {number: one for number, one in self._holdings.items() if one not in gone}
            self._taken = {key: found for key, found in self._taken.items() if found[0] not in gone}
            self._waiting.remove(lambda pile: pile.piles in piles)
        for number, assignment in assignments.items():
            if number not in self._holdings:
                self._holdings[number] = Holding(assignment, Piles(number))

    async def _take_over(self) -> None:
        """Write us in as the reader of what we read; nothing of it is handed out before."""
        now_s, token = monotonic(), self._session.token
        wanted = {n: one for n, one in self._holdings.items() if one.epoch is None and now_s >= one.again_at_s}
        if not wanted:
            return
        rows = await self._pool.fetch(_SQL["take_over"], self._topic, token, sorted(wanted))
        for row in rows:
            if self._session.token == token:
                wanted[row["partition"]].epoch = row["epoch"]
        _log.info("polls.partitions_taken", partitions=[row["partition"] for row in rows])

    async def _sort(self, holding: Holding) -> None:
        """Put what was read into piles."""
        records = holding.assignment.records
        read = [records[place] for place in range(min(len(records), SORT_MAX))]  # the thread goes on adding
        if any(poll is not None and poll.partner not in self._partners for _, poll in read):
            self._partners.update(await self._pool.fetch(_SQL["partners"]))  # newer than any of these records
        read = await self._know_slots(read)
        now_s = monotonic()
        for offset, poll in read:
            records.popleft()
            number = holding.progress.read(offset)
            if poll is None or poll.slot_id is None or poll.partner not in self._partners:
                self._skip(holding, number, unknown=poll is not None)
            elif (pile := holding.piles.put(number, poll, now_s)) is not None:
                self._wait(pile)
        holding.note()

    async def _know_slots(self, read: list[Read]) -> list[Read]:
        """Look up the slots of polls whose relay did not say them; who is polled no more has none."""
        lacking = [poll for _, poll in read if poll is not None and poll.slot_id is None]
        if not lacking:
            return read
        slots = dict(await self._pool.fetch(_SQL["slots"], sorted({poll.tracker_id for poll in lacking})))
        return [
            (offset, poll if poll is None else poll._replace(slot_id=slots.get(poll.tracker_id, poll.slot_id)))
            for offset, poll in read
        ]

    def _skip(self, holding: Holding, number: int, *, unknown: bool) -> None:
        holding.progress.finish([number])
        holding.assignment.over += 1
        self.counts.unknown += unknown

    def _wait(self, pile: Pile) -> None:
        self._waiting.put(self._partners[pile.key[2]], pile)

    async def _finish_over(self) -> None:
        """Be done with polls whose next turn is due: nobody is to be asked for them any more."""
        ours = self._ours()
        piles = [(partner_no, pile) for partner_no, pile in self._waiting if pile.piles in ours]
        slots, dues = [pile.key[0] for _, pile in piles], [pile.key[1] for _, pile in piles]
        sizes = [len(pile.polls) for _, pile in piles]
        rows = await self._pool.fetch(_SQL["count_over"], slots, dues, [no for no, _ in piles], sizes)
        self.counts.over += self._take_out([piles[row["n"] - 1][1] for row in rows])

    async def _park(self, room: Mapping[int, int]) -> None:
        """Move what fills a partition while its partner takes nothing into the queue: it must hold up no other."""
        for holding in list(self._holdings.values()):
            stuck = piles_to_park(holding, self._waiting, room, monotonic())
            if not stuck:
                continue
            await self._know_accounts([pile for _, pile in stuck])
            if await park(self._pool, self._topic, holding, stuck, self._accounts):
                self.counts.parked += self._take_out([pile for _, pile in stuck])
            else:
                self._disown(holding)

    def _take_out(self, piles: Sequence[Pile]) -> int:
        """Be done with piles that wait; return how many polls they were."""
        gone = set(piles)
        self._waiting.remove(lambda pile: pile in gone)
        for pile in piles:
            pile.piles.close(pile)
            holding = self._holdings[pile.piles.partition]
            holding.take_out(pile)
            holding.be_done(pile)
        return sum(len(pile.polls) for pile in piles)

    def _hand_out(self, pile: Pile) -> PollGroup | None:
        holding = self._holdings[pile.piles.partition]
        if holding.epoch is None:
            self._wait(pile)
            return None
        key = next(self._numbers)
        self._taken[key] = (holding, pile)
        holding.take_out(pile)
        slot_id, due_at, partner = pile.key
        return PollGroup(key, holding.epoch, slot_id, due_at, self._partners[partner], *pile.columns(self._accounts))

    async def _know_accounts(self, piles: Sequence[Pile]) -> None:
        if len(self._accounts) > ACCOUNTS_MAX:
            self._accounts.clear()
        unknown = {poll.account_id for pile in piles for poll in pile.polls} - self._accounts.keys()
        if unknown:
            self._accounts.update(await self._pool.fetch(_SQL["accounts"], sorted(unknown)))

    # ------------------------------------------------------------------ and back

    async def hold(self, connection: Connection, turns: Sequence[PollGroup]) -> Sequence[PollGroup]:
        """Lock the rows of their partitions, as far as they carry our epoch still."""
        known = {turn: self._taken[turn.key][0] for turn in turns if turn.key in self._taken}
        places = sorted({(holding.assignment.partition, turn.owner) for turn, holding in known.items()})
        rows = await connection.fetch(_SQL["hold"], self._topic, [p for p, _ in places], [e for _, e in places])
        held = {(row["partition"], row["epoch"]) for row in rows}
        for turn, holding in known.items():
            if (holding.assignment.partition, turn.owner) not in held:
                self._disown(holding)
        return [turn for turn, one in known.items() if (one.assignment.partition, turn.owner) in held]

    async def finish(self, connection: Any, turns: Sequence[PollGroup]) -> None:
        """Nothing to write: the ledger says what is done."""

    async def finished(self, turns: Sequence[PollGroup]) -> None:
        """Move the offsets: the effects are committed."""
        for turn in turns:
            found = self._taken.pop(turn.key, None)
            if found is not None:
                found[0].be_done(found[1])

    def has_lost(self, turn: PollGroup) -> bool:
        """Whether its partition was taken away since it was handed out."""
        return turn.key not in self._taken

    async def release(self, turns: Sequence[PollGroup]) -> None:
        """Let them wait again; who stops leaves the group, and others begin at the first that is not finished."""
        for turn in turns:
            if (found := self._taken.pop(turn.key, None)) is not None:
                found[0].put_back(found[1])
                self._wait(found[1])

    def _disown(self, holding: Holding) -> None:
        """Hand out what is unfinished once more, under a new epoch, unless the group takes the partition away."""
        if holding.epoch is not None:
            _log.warning("polls.partition_not_ours", partition=holding.assignment.partition)
        holding.epoch, holding.again_at_s = None, monotonic() + AGAIN_S
        for key in [key for key, found in self._taken.items() if found[0] is holding]:
            _, pile = self._taken.pop(key)
            holding.put_back(pile)
            self._wait(pile)

    def _session_lost(self) -> None:
        for holding in self._holdings.values():
            self._disown(holding)
