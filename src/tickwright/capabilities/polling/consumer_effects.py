"""Writes what polls brought: many answers in one transaction, which counts only while their turns are ours.

The first answer after a quiet time is written at once; further ones gather for at most ``FLUSH_GAP_S``, so a crash
loses the record of at most that much: those polls are made again, by whoever takes the turn. While the database is
away answers wait; when a turn was lost meanwhile, its answers are dropped and counted.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import asyncpg
import structlog

from tickwright.capabilities.polling.consumer_store import Effects, Key, write_effects
from tickwright.capabilities.polling.courier import Answer
from tickwright.ports.polls import PollSource, Turn
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.store.pool import AWAY, Pool

FLUSH_GAP_S = 0.05
BATCH_MAX = 2000
BACKLOG_MAX = 10_000
RETRY_S = 0.2

UNWRITABLE = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
"""What would fail again: something in the batch cannot be kept."""

Answers = dict[int, tuple[Answer, bool]]

_log = structlog.get_logger("tickwright.polls")


@dataclass(slots=True, eq=False)
class Work:
    """A turn that this process carries out.

    Attributes:
        superseded_at_s: From then on its trackers' next turn is due, by the database's clock.
        left: Polls whose end is not written and that were not dropped.
        dropped: Polls that nobody will carry out; counted in the ledger with the turn's end.
        abandoned: It is somebody else's now.
    """

    turn: Turn
    interval_minutes: int
    superseded_at_s: float
    left: int
    dropped: int = 0
    abandoned: bool = False
    answers: Answers = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What the ledger knows it by; two deliveries of one turn have the same."""
        return self.turn.slot_id, self.turn.due_at, self.turn.partner_no


class Effector:
    """See the module's text.

    Attributes:
        polled: Polls whose effect this process wrote.
        news: Trackers with news among them.
        late: Polls among them that came after a tenth of their interval.
        lost: Answers that counted for nothing.
    """

    def __init__(
        self, pool: Pool, source: PollSource, *, destination: str, over: Callable[[Work], None], probe: Probe = NO_PROBE
    ) -> None:
        self._pool, self._source, self._destination = pool, source, destination
        self._over, self._probe = over, probe
        self._waiting: dict[Work, None] = {}
        self._backlog = 0
        self._alone = False
        self._woken = asyncio.Event()
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.polled = self.news = self.late = self.lost = self.superseded = 0

    @property
    def backlog(self) -> int:
        """Answers that are not written yet."""
        return self._backlog

    def add(self, work: Work, tracker_id: int, answer: Answer, *, terminal: bool) -> None:
        """Take an answer to be written."""
        if work.abandoned:
            self.lost += 1
            return
        work.answers[tracker_id] = (answer, terminal)
        self._backlog += 1
        self.look_at(work)

    def look_at(self, work: Work) -> None:
        """Write what there is of ``work``, also when that is only its end."""
        self._waiting[work] = None
        self._idle.clear()
        self._woken.set()

    async def run(self) -> None:
        """Write until stopped and nothing waits."""
        while not (self._stopping and not self._waiting):
            await self._woken.wait()
            self._woken.clear()
            if self._waiting:
                await self._flush_or_wait()
                await asyncio.sleep(FLUSH_GAP_S if not self._stopping else 0)
            if self._waiting:
                self._woken.set()
            else:
                self._idle.set()

    async def _flush_or_wait(self) -> None:
        batch = self._batch()
        answers = {work: dict(islice(work.answers.items(), 1 if self._alone else None)) for work in batch}
        try:
            ours = await self._write(batch, answers)
        except UNWRITABLE as error:
            self._part(batch, answers, error)
            return
        except AWAY as error:
            _log.warning("polls.effects_not_written", error=repr(error), answers=self._backlog)
            self._waiting.update(dict.fromkeys(batch))
            await asyncio.sleep(RETRY_S)
            return
        for work in batch:
            self._settle(work, answers[work], ours=work in ours)

    def _batch(self) -> list[Work]:
        batch, size = [], 0
        while self._waiting and size < (1 if self._alone else BATCH_MAX):
            work = next(iter(self._waiting))
            del self._waiting[work]
            batch.append(work)
            size += len(work.answers) + 1
        return batch

    def _part(self, batch: list[Work], answers: Mapping[Work, Answers], error: Exception) -> None:
        """Write each answer alone until the one is found that cannot be written; that one is dropped."""
        if not self._alone or not any(answers.values()):
            self._alone = any(answers.values())
            self._waiting.update(dict.fromkeys(batch))
            return
        self._alone = False
        [(work, [tracker_id])] = [(work, list(found)) for work, found in answers.items()]
        _log.error("polls.answer_unwritable", tracker_id=tracker_id, error=repr(error))
        del work.answers[tracker_id]
        self._backlog -= 1
        self.lost += 1
        work.left -= 1
        work.dropped += 1
        self.look_at(work)

    async def _write(self, batch: list[Work], answers: Mapping[Work, Answers]) -> set[Work]:
        await self._probe.reached("polls.before_effect", answers=sum(map(len, answers.values())))
        async with self._pool.acquire() as connection, connection.transaction():
            held = set(await self._source.hold(connection, [work.turn for work in batch]))
            ours = [work for work in batch if work.turn in held]
            finished = [work for work in ours if work.left == len(answers[work])]
            if ours:
                effects = _merge(ours, answers, finished)
                polled, news, late = await write_effects(connection, effects, self._destination)
                await self._source.finish(connection, [work.turn for work in finished])
                await self._probe.reached("polls.before_commit")
        await self._probe.reached("polls.effect_written")
        if ours:
            self.polled, self.news, self.late = self.polled + polled, self.news + news, self.late + late
            self.superseded += sum(work.dropped for work in finished)
            await self._source.finished([work.turn for work in finished])
        return set(ours)

    def _settle(self, work: Work, written: Answers, *, ours: bool) -> None:
        for tracker_id in written:
            del work.answers[tracker_id]
        self._backlog -= len(written)
        if not ours:
            self._backlog -= len(work.answers)
            self.lost += len(written) + len(work.answers)
            work.answers.clear()
            work.abandoned = True
            self._waiting.pop(work, None)
            _log.warning("polls.answers_not_ours", answers=len(written), due_at=str(work.turn.due_at))
            self._over(work)
            return
        work.left -= len(written)
        if work.answers:
            self.look_at(work)
        elif work.left == 0:
            self._over(work)

    async def drained(self) -> None:
        """Return when nothing waits to be written."""
        await self._idle.wait()

    def stop(self) -> None:
        """End when nothing waits any more."""
        self._stopping = True
        self._woken.set()


def _merge(works: list[Work], answers: Mapping[Work, Answers], finished: list[Work]) -> dict[Key, Effects]:
    """Join deliveries of one turn: of two answers for one poll the first counts."""
    merged: dict[Key, Effects] = {}
    ended = set(finished)
    for work in works:
        effects = merged.setdefault(work.key, Effects(work.interval_minutes))
        for tracker_id, answer in answers[work].items():
            effects.answers.setdefault(tracker_id, answer)
        if work in ended:
            effects.dropped += work.dropped
    return merged
