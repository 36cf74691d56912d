"""The result writer: writes many answers in one transaction, which counts only while this process owns their groups.

The first answer after a pause is written at once; further ones collect for at most ``FLUSH_GAP_S``. A crash loses at
most those: the next owner of the group makes these polls again. While the database is unavailable answers wait; the
answers of a group that is lost meanwhile are dropped and counted.

Another program may lock rows of trackers for as long as it likes. An answer that changes such a tracker is skipped, its
group does not end before it is written, and it is tried again once a second, in transactions without other answers.
Further answers for the tracker wait after it, so that they are written in order.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import structlog

from tickwright.capabilities.polling.consumer.courier import Answer
from tickwright.engine.tasks import is_set_within
from tickwright.ports.ids import monotonic
from tickwright.ports.polls import PollGroup, PollSource
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import REFUSED, UNAVAILABLE, Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.polling.sql", "consumer.sql")
EVENTS_KEPT = 10
"""Scan events that a tracker keeps; the query ``write_results`` has the same number."""


@dataclass(slots=True)
class GroupAnswers:
    """Answers of one second, slot and partner: by tracker, with whether the answer ends it."""

    interval_minutes: int
    answers: dict[int, tuple[Answer, bool]] = field(default_factory=dict)


Key = tuple[int, datetime, int]


@dataclass(slots=True)
class WrittenResults:
    """What was written.

    Attributes:
        polled: Polls that are done now.
        events: Trackers among them with an event.
        late: Polls that were made after a tenth of their interval.
        locked: Trackers whose rows other transactions lock: none of their answers is written.
    """

    polled: int = 0
    events: int = 0
    late: int = 0
    locked: set[int] = field(default_factory=set)


class UnwritableError(Exception):
    """An answer cannot be converted to a row: a value does not have its declared type."""


async def write_results(
    connection: Connection, results: Mapping[Key, GroupAnswers], destination: str
) -> WrittenResults:
    """Write answers in a transaction that holds their groups.

    Two answers for one tracker are written one after the other, so that the second is compared with what the first
    wrote; when the tracker is locked, neither is written.

    Raises:
        UnwritableError: One of the answers cannot be written. Permanent: do not retry it.
    """
    await connection.execute(SQL["lock_slices"], *_columns(sorted(results)))
    written = WrittenResults()
    for step in _steps(results):
        await _write(connection, results, step, destination, written)
    return written


def _steps(results: Mapping[Key, GroupAnswers]) -> list[list[Key]]:
    """Return what is written together: each tracker once in a step, its answers in order."""
    steps: dict[int, list[Key]] = defaultdict(list)
    next_step: dict[int, int] = {}
    for key in sorted(results, key=lambda key: key[1]):
        trackers = results[key].answers
        step = max((next_step.get(tracker_id, 0) for tracker_id in trackers), default=0)
        steps[step].append(key)
        next_step.update(dict.fromkeys(trackers, step + 1))
    return [steps[step] for step in sorted(steps)]


def _columns(keys: Sequence[Key]) -> list[list[Any]]:
    return [list(column) for column in zip(*keys, strict=True)]


async def _write(
    connection: Connection,
    results: Mapping[Key, GroupAnswers],
    keys: Sequence[Key],
    destination: str,
    written: WrittenResults,
) -> None:
    answers: dict[str, list[Any]] = defaultdict(list)
    for n, key in enumerate(keys):
        for tracker_id, (answer, terminal) in results[key].answers.items():
            if tracker_id in written.locked:
                continue
            try:
                _add(answers, n, tracker_id, answer, terminal=terminal)
            except Exception as error:
                raise UnwritableError(type(error).__name__) from error
    row = await connection.fetchrow(
        SQL["write_results"],
        list(range(len(keys))),
        *_columns(keys),
        [results[key].interval_minutes for key in keys],
        *(
            answers[name]
            for name in ("n", "id", "status", "at", "newest_at", "first_events", "last_events", "mark", "terminal")
        ),
        destination,
    )
    written.polled += row["polled"]
    written.events += row["events"]
    written.late += row["late"]
    written.locked.update(row["locked"])


def _add(columns: dict[str, list[Any]], n: int, tracker_id: int, answer: Answer, *, terminal: bool) -> None:
    events = sorted({(event.at, event.text) for event in answer.events})
    texts = [f'{{"at":"{at.astimezone(UTC).isoformat()}","text":{json.dumps(text)}}}' for at, text in events]
    columns["n"].append(n)
    columns["id"].append(tracker_id)
    columns["status"].append(answer.status)
    columns["at"].append(None if answer.at is None else answer.at.astimezone(UTC))
    columns["newest_at"].append(events[-1][0] if events else None)
    last = f"[{','.join(texts[-EVENTS_KEPT:])}]"
    columns["first_events"].append(f"[{','.join(texts[:-EVENTS_KEPT])}]")
    columns["last_events"].append(last)
    digest = blake2b(last.encode(), digest_size=8).digest() if texts else None
    columns["mark"].append(None if digest is None else int.from_bytes(digest, signed=True))
    columns["terminal"].append(terminal)


FLUSH_GAP_S = 0.05
BATCH_MAX = 2000
BACKLOG_MAX = 10_000
RETRY_S = 0.2
LOCKED_AGAIN_S = 1.0
LOCKED_MAX = 10_000

Answers = dict[int, tuple[Answer, bool]]

_log = structlog.get_logger("tickwright.polls")


@dataclass(slots=True, eq=False)
class GroupWork:
    """A poll group that this process works on.

    Attributes:
        superseded_at_s: From then on its trackers' next poll is due, by the database's clock.
        left: Polls whose result is not written and that were not dropped.
        dropped: Polls that will not be made; the ledger counts them when the group ends.
        abandoned: This process does not own it any more.
    """

    group: PollGroup
    interval_minutes: int
    superseded_at_s: float
    left: int
    dropped: int = 0
    abandoned: bool = False
    answers: Answers = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Its key in the ledger; two deliveries of one group have the same."""
        return self.group.slot_id, self.group.due_at, self.group.partner_no


class _Outcome(NamedTuple):
    """What a transaction did: groups that were still owned, groups that it finished, trackers that it skipped."""

    ours: set[GroupWork]
    finished: set[GroupWork]
    locked: set[int]


class ResultWriter:
    """Collects answers and writes them; see the module's docstring for the rules.

    Attributes:
        polled: Polls whose result this process wrote.
        events: Trackers among them with an event.
        late: Polls among them that were made after a tenth of their interval.
        lost: Answers that were not written.
    """

    def __init__(
        self,
        pool: Pool,
        source: PollSource,
        *,
        destination: str,
        on_end: Callable[[GroupWork], None],
        probe: Probe = NO_PROBE,
    ) -> None:
        self._pool, self._source, self._destination = pool, source, destination
        self._on_end, self._probe = on_end, probe
        self._waiting: dict[GroupWork, None] = {}
        self._unwritten = 0
        self._alone = False
        self._locked: dict[int, set[GroupWork]] = {}
        self._locked_answers = 0
        self._locked_again_s = 0.0
        self._woken = asyncio.Event()
        self._stopping = self._runs = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.polled = self.events = self.late = self.lost = self.superseded = 0

    @property
    def backlog(self) -> int:
        """Answers that are not written yet, without those of locked trackers."""
        return self._unwritten - self._locked_answers

    @property
    def unwritten(self) -> int:
        """Answers that are not written yet."""
        return self._unwritten

    def add(self, work: GroupWork, tracker_id: int, answer: Answer, *, terminal: bool) -> None:
        """Add an answer; of two for one poll the first counts."""
        if work.abandoned:
            self.lost += 1
            return
        if tracker_id not in work.answers:
            work.answers[tracker_id] = (answer, terminal)
            self._unwritten += 1
        self.write_soon(work)

    def write_soon(self, work: GroupWork) -> None:
        """Write the answers of ``work`` soon, or only its end when there are none."""
        self._waiting[work] = None
        self._idle.clear()
        self._woken.set()

    async def run(self) -> None:
        """Write until stopped and nothing waits; answers for trackers that are still locked are lost."""
        self._runs = True
        self._idle.clear()
        self._woken.set()  # after a crash no lost answer is left to wait for, and stop waits for this
        try:
            while not self._stopping or self._waiting:
                await self._wait()
                if self._waiting:
                    await self._flush_or_wait(self._batch())
                if self._locked and not self._alone and monotonic() >= self._locked_again_s:
                    await self._flush_or_wait(self._locked_batch())
                await asyncio.sleep(FLUSH_GAP_S if not self._stopping else 0)
                if self._waiting:
                    self._woken.set()
                    continue
                self._alone = False
                if not self._locked:
                    self._idle.set()
            self.lost += self._locked_answers
        finally:
            self._runs = False
            self._idle.set()  # this run writes nothing more

    async def _wait(self) -> None:
        """Return when an answer waits, or when locked trackers are to be tried again."""
        await is_set_within(self._woken, max(0.0, self._locked_again_s - monotonic()) if self._locked else None)
        self._woken.clear()

    async def _flush_or_wait(self, answers: Mapping[GroupWork, Answers]) -> None:
        if not answers:
            return
        try:
            outcome = await self._write(answers)
        except (UnwritableError, *REFUSED) as error:
            self._isolate(answers, error)
            return
        except UNAVAILABLE as error:
            _log.warning("polls.results_not_written", error=repr(error), answers=self._unwritten)
            self._waiting.update(dict.fromkeys(answers))
            await asyncio.sleep(RETRY_S)
            return
        for work, tried in answers.items():
            self._finish(work, tried, outcome)

    def _batch(self) -> dict[GroupWork, Answers]:
        batch: dict[GroupWork, Answers] = {}
        size = 0
        while self._waiting and size < (1 if self._alone else BATCH_MAX):
            work = next(iter(self._waiting))
            del self._waiting[work]
            for tracker_id in self._locked.keys() & work.answers.keys():
                self._defer(work, tracker_id)
            free = (item for item in work.answers.items() if item[0] not in self._locked)
            answers = dict(islice(free, 1 if self._alone else None))
            if answers or not work.left:
                batch[work] = answers
                size += len(answers) + 1
        return batch

    def _locked_batch(self) -> dict[GroupWork, Answers]:
        """Return answers for locked trackers, those tried longest ago first."""
        self._locked_again_s = monotonic() + LOCKED_AGAIN_S
        batch: dict[GroupWork, Answers] = defaultdict(dict)
        for tracker_id in list(islice(self._locked, BATCH_MAX)):
            works = self._locked[tracker_id] = self._locked.pop(tracker_id)
            for work in works:
                batch[work][tracker_id] = work.answers[tracker_id]
        return batch

    def _defer(self, work: GroupWork, tracker_id: int) -> None:
        """Let an answer wait for its locked tracker; drop it when too many wait, and leave it to the next poll."""
        works = self._locked.get(tracker_id, set())
        if work in works:
            return
        if self._locked_answers >= LOCKED_MAX:
            self._drop(work, tracker_id)
            return
        if not self._locked:
            _log.warning("polls.tracker_locked", tracker_id=tracker_id, due_at=str(work.group.due_at))
            self._locked_again_s = monotonic() + LOCKED_AGAIN_S
        works.add(work)
        self._locked[tracker_id] = works
        self._locked_answers += 1

    def _undefer(self, work: GroupWork, tracker_id: int) -> None:
        """Remove an answer from those that wait for a locked tracker."""
        works = self._locked.get(tracker_id, set())
        if work in works:
            works.remove(work)
            self._locked_answers -= 1
            if not works:
                del self._locked[tracker_id]

    def _isolate(self, answers: Mapping[GroupWork, Answers], error: Exception) -> None:
        """Write each answer alone until the one that cannot be written is found; drop that one."""
        for work, tried in answers.items():
            for tracker_id in tried:
                self._undefer(work, tracker_id)
        if not self._alone or not any(answers.values()):
            self._alone = any(answers.values())
            self._waiting.update(dict.fromkeys(answers))
            return
        self._alone = False
        [(work, [tracker_id])] = [(work, list(found)) for work, found in answers.items()]
        _log.error("polls.answer_unwritable", tracker_id=tracker_id, error=repr(error))
        self._drop(work, tracker_id)

    def _drop(self, work: GroupWork, tracker_id: int) -> None:
        del work.answers[tracker_id]
        self._unwritten -= 1
        self.lost += 1
        work.left -= 1
        work.dropped += 1
        self.write_soon(work)

    async def _write(self, answers: Mapping[GroupWork, Answers]) -> _Outcome:
        await self._probe.reached("polls.before_results", answers=sum(map(len, answers.values())))
        written, finished = WrittenResults(), list[GroupWork]()
        async with self._pool.acquire() as connection, connection.transaction():
            held = set(await self._source.hold(connection, [work.group for work in answers]))
            ours = [work for work in answers if work.group in held]
            if ours:
                written = await write_results(connection, _merge(ours, answers), self._destination)
                finished = [
                    work
                    for work in ours
                    if work.left == len(answers[work]) and written.locked.isdisjoint(answers[work])
                ]
                dropped = [work for work in finished if work.dropped]
                if dropped:  # after the answers, in their transaction
                    keys = _columns([work.key for work in dropped])
                    await connection.execute(SQL["count_dropped"], *keys, [work.dropped for work in dropped])
                await self._source.finish(connection, [work.group for work in finished])
                await self._probe.reached("polls.before_commit")
        await self._probe.reached("polls.results_written")
        if ours:
            self.polled += written.polled
            self.events += written.events
            self.late += written.late
            self.superseded += sum(work.dropped for work in finished)
            await self._source.after_commit([work.group for work in finished])
        return _Outcome(set(ours), set(finished), written.locked)

    def _finish(self, work: GroupWork, tried: Answers, outcome: _Outcome) -> None:
        if work not in outcome.ours:
            _log.warning("polls.group_lost", answers=len(work.answers), due_at=str(work.group.due_at))
            self.lose(work)
            self._on_end(work)
            return
        for tracker_id in tried:
            if tracker_id in outcome.locked:
                self._defer(work, tracker_id)
                continue
            self._undefer(work, tracker_id)
            del work.answers[tracker_id]
            self._unwritten -= 1
            work.left -= 1
        if work in outcome.finished:
            self._waiting.pop(work, None)
            self._on_end(work)
        elif work.answers.keys() - self._locked.keys():
            self.write_soon(work)

    def lose(self, work: GroupWork) -> None:
        """Drop the answers of a group that this process does not own any more."""
        for tracker_id in work.answers:
            self._undefer(work, tracker_id)
        self._unwritten -= len(work.answers)
        self.lost += len(work.answers)
        work.answers.clear()
        work.abandoned = True
        self._waiting.pop(work, None)

    async def drained(self) -> None:
        """Return when nothing waits, or ``run`` has crashed: then answers are lost, but their groups are not."""
        if self._runs:
            await self._idle.wait()

    def stop(self) -> None:
        """End ``run`` when nothing waits."""
        self._stopping = True
        self._woken.set()


def _merge(works: list[GroupWork], answers: Mapping[GroupWork, Answers]) -> dict[Key, GroupAnswers]:
    """Join deliveries of one group: of two answers for one poll the first counts."""
    merged: dict[Key, GroupAnswers] = {}
    for work in works:
        results = merged.setdefault(work.key, GroupAnswers(work.interval_minutes))
        for tracker_id, answer in answers[work].items():
            results.answers.setdefault(tracker_id, answer)
    return merged
