"""The consumer pool: takes polls from their source, asks the partners, writes what they say.

::

    source ──take──▶ desk ──permit──▶ courier ──answer──▶ effector ──transaction──▶ ledger, tracker, outbox

Trusts the source for who owns a turn and the ledger for what is done; everything else may be repeated. A poll is done
when its effect is committed: until then whoever owns the turn makes it again, and then its ledger row keeps it from
being done twice. See README.md for what happens when it crashes where.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import structlog

from tickwright.capabilities.polling.consumer import result_writer as consumer_store
from tickwright.capabilities.polling.consumer.courier import Courier
from tickwright.capabilities.polling.consumer.dispatcher import PartnerDispatcher, QueuedPoll
from tickwright.capabilities.polling.consumer.result_writer import GroupWork, PreparedGroup, ResultWriter
from tickwright.capabilities.polling.trackers.events import TERMINAL_DEFAULT
from tickwright.engine.tasks import TaskGroup
from tickwright.observe.metrics import Sample, Source
from tickwright.partners import PartnerContract, PartnerSettings
from tickwright.partners.contract import settings_of
from tickwright.partners.store import PartnerRow, list_partners
from tickwright.ports.ids import monotonic
from tickwright.ports.polls import PollGroup, PollSource
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Pool

TAKE_S = 0.25
GAP_S = 0.02
DRAIN_S = 5.0
PARTNERS_S = 2.0
OVER_S = 5.0
AWAY_S = 0.5
RELEASE_TRIES = 3
ACCOUNTS_MAX = 100_000
CALLS_MAX = 256
AHEAD_MAX_S = 60.0
"""A poll is sent at its second, never before: one that is due later than this is a stranger's."""

CourierOf = Callable[[str, PartnerSettings], Courier | None]

_log = structlog.get_logger("tickwright.polls")


class PollConsumer:
    """One process's consumer; a :class:`tickwright.ports.service.Service`.

    Args:
        source: Of polls, under ``session``.
        contract: Of this process; it runs before this service and longer.
        courier_of: Says who asks a partner, ``None`` for nobody here: then its polls are left to others.
        destination: Where news go, ``kafka:…`` or ``pg:…``.
        calls_max: Calls at once per partner in this process.

    Invariants:
        POL-1: the effect of (tracker, due second) is committed once, however often it is delivered or tried.
        POL-2: a turn that was lost has no effect from here any more.
        POL-3: a failed call changes nothing of its tracker.
    """

    name = "poll-consumer"

    def __init__(
        self,
        pool: Pool,
        session: Session,
        source: PollSource,
        contract: PartnerContract,
        courier_of: CourierOf,
        *,
        destination: str,
        calls_max: int = CALLS_MAX,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._pool, self._source, self._contract, self._courier_of = pool, source, contract, courier_of
        self._calls_max = calls_max
        self.writer = ResultWriter(pool, source, destination=destination, over=self._over, probe=probe)
        self._dispatchers: dict[int, PartnerDispatcher] = {}
        self._works: set[GroupWork] = set()
        self._unstarted: list[PollGroup] = []
        self._accounts: dict[int, str] = {}
        self._partners_at_s = self._swept_s = self._over_at_s = -math.inf
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._taking_over = asyncio.Event()
        self._taking_over.set()
        self._group: TaskGroup | None = None
        self._ticked_s: float | None = None
        session.on_lost(self._session_lost)

    # ------------------------------------------------------------------ service

    async def run(self) -> None:
        """Work until stopped; behind a crash of this loop, what it held is released first, and taken again."""
        if self._group is not None:
            await self._begin_again()
        self._taking_over.clear()
        async with TaskGroup() as group:
            self._group = group
            for dispatcher in self._dispatchers.values():
                group.create_task(dispatcher.run())
            group.create_task(self.writer.run())
            group.create_task(self._take_until_stopped())

    async def _begin_again(self) -> None:
        for work in self._works:
            self.writer.lose(work)
        self._unstarted += [work.group for work in self._works]
        await self._release()

    async def _take_until_stopped(self) -> None:
        try:
            while not self._stopping.is_set():
                self._woken.clear()
                try:
                    more = await self._round()
                except UNAVAILABLE as error:
                    _log.warning("polls.take_failed", error=repr(error))
                    more = await self._rest(AWAY_S)
                self._ticked_s = monotonic()
                if not more:
                    await self._rest(TAKE_S)
        finally:
            self._taking_over.set()

    async def _rest(self, seconds: float) -> bool:
        """Wait until there is room, or for some time; never less than ``GAP_S``, since room comes with every poll."""
        begun_s = monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        if not self._stopping.is_set():
            await asyncio.sleep(max(0.0, GAP_S - (monotonic() - begun_s)))
        return True

    async def quiesce(self) -> None:
        """Take nothing more; let calls end and their effects be written; give back what was not begun."""
        self._stopping.set()
        self._woken.set()
        for dispatcher in self._dispatchers.values():
            dispatcher.halt()
        await self._taking_over.wait()
        for dispatcher in self._dispatchers.values():
            await dispatcher.quiet()
        await self.writer.drained()
        await self._release()

    async def stop(self) -> None:
        """Cut the calls that run, write what has ended, give back the rest."""
        self._stopping.set()
        self._woken.set()
        await self._taking_over.wait()
        for dispatcher in self._dispatchers.values():
            await dispatcher.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self.writer.drained()
        self.writer.stop()
        await self._release()

    async def _release(self) -> None:
        self._unstarted += [work.group for work in self._works if not work.abandoned]
        for dispatcher in self._dispatchers.values():
            dispatcher.abandon()
        for work in self._works:
            work.abandoned = True
        self._works.clear()
        for _ in range(RELEASE_TRIES):
            try:
                await self._release_unstarted()
            except UNAVAILABLE as error:
                _log.warning("polls.not_given_back", groups=len(self._unstarted), error=repr(error))
                await asyncio.sleep(AWAY_S)
            else:
                return

    async def _release_unstarted(self) -> None:
        """Give back what is ours and nobody carries out; what fails is tried again before anything else is taken."""
        if self._unstarted:
            await self._source.release(self._unstarted)
            self._unstarted = []

    def last_tick_age_s(self) -> float | None:
        """Seconds since the loop looked for turns."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    def _session_lost(self) -> None:
        """What we hold is somebody else's now, or will be."""
        for work in self._works:
            work.abandoned = True
        self._works.clear()
        self._unstarted = []
        for dispatcher in self._dispatchers.values():
            dispatcher.abandon()

    def _over(self, work: GroupWork) -> None:
        self._works.discard(work)
        self._woken.set()

    @property
    def dispatchers(self) -> Sequence[PartnerDispatcher]:
        """The partners that are served here."""
        return list(self._dispatchers.values())

    # ------------------------------------------------------------------ taking

    async def _round(self) -> bool:
        """Take what there is room for; true when it is worth while to look again at once."""
        if monotonic() - self._partners_at_s >= PARTNERS_S:
            self._adopt(await list_partners(self._pool))
            self._partners_at_s = monotonic()
        self._drop_superseded()
        await self._drop_over()
        await self._release_unstarted()
        room = {number: dispatcher.room() for number, dispatcher in self._dispatchers.items()}
        groups = await self._source.take({number: most for number, most in room.items() if most})
        self._leave_lost()
        if not groups:
            return False
        self._unstarted = list(groups)  # until they are begun: what fails here would be ours, and nobody's, for ever
        prepared = await consumer_store.prepare(self._pool, groups)
        await self._know_accounts(groups)
        for group, known in zip(groups, prepared, strict=True):
            self._begin(group, known)
        self._unstarted = []
        return True

    def _leave_lost(self) -> None:
        """Begin no more of turns that were taken away: whoever has them now asks for the same."""
        for work in [one for one in self._works if self._source.has_lost(one.group)]:
            work.abandoned = True
            self._works.discard(work)
            self._dispatchers[work.group.partner_no].forget_abandoned()

    def _adopt(self, partners: Sequence[PartnerRow]) -> None:
        for number in self._dispatchers.keys() - {partner.partner_no for partner in partners}:
            self._dispatchers[number].courier = None  # nobody knows it any more; what waits is superseded in time
        for partner in partners:
            settings = settings_of(partner.settings)
            courier = None if settings is None else self._courier_of(partner.name, settings)
            dispatcher = self._dispatchers.get(partner.partner_no)
            if dispatcher is None:
                if courier is None:
                    continue
                dispatcher = self._dispatchers[partner.partner_no] = self._open_dispatcher(partner)
            dispatcher.courier = courier
            if settings is not None:
                dispatcher.timeout = settings.timeout
                terminal = settings.terminal_statuses
                dispatcher.terminal = frozenset(TERMINAL_DEFAULT if terminal is None else terminal)

    def _open_dispatcher(self, partner: PartnerRow) -> PartnerDispatcher:
        dispatcher = PartnerDispatcher(
            partner.partner_no,
            partner.name,
            self._contract,
            self.writer,
            calls_max=self._calls_max,
            low=self._woken.set,
        )
        if self._group is not None:
            self._group.create_task(dispatcher.run())
        return dispatcher

    def _drop_superseded(self) -> None:
        """Drop what waits and whose next turn is due; looked for a few times a second, since it walks what waits."""
        if monotonic() - self._swept_s < TAKE_S or not self._contract.clock.known:
            return
        self._swept_s = monotonic()
        now_s = self._contract.clock.now(self._swept_s)
        if any(now_s >= work.superseded_at_s for work in self._works):
            for dispatcher in self._dispatchers.values():
                dispatcher.drop_superseded(now_s)

    async def _drop_over(self) -> None:
        """Drop what waits and whose tracker has ended since its turn was taken; what is tried again may wait long."""
        if monotonic() - self._over_at_s < OVER_S:
            return
        self._over_at_s = monotonic()
        waiting = {tracker_id for dispatcher in self._dispatchers.values() for tracker_id in dispatcher.waiting()}
        over = await consumer_store.over(self._pool, waiting) if waiting else frozenset()
        if over:
            for dispatcher in self._dispatchers.values():
                dispatcher.drop_over(over)

    async def _know_accounts(self, groups: Sequence[PollGroup]) -> None:
        if len(self._accounts) > ACCOUNTS_MAX:
            self._accounts.clear()
        unknown = {number for group in groups for number in group.account_nos} - self._accounts.keys()
        if unknown:
            self._accounts.update(await consumer_store.account_names(self._pool, sorted(unknown)))

    def _begin(self, group: PollGroup, known: PreparedGroup) -> None:
        """Leave out what is done or stands there again, drop what is superseded or over, and queue the rest.

        A turn without a slot has no end, and one that is due ahead is of no relay: nobody is asked for them.
        """
        interval = known.interval_minutes or 0
        superseded_at_s = (group.due_at + timedelta(minutes=interval)).timestamp() if interval else -math.inf
        ids = [] if group.due_at.timestamp() > known.now_s + AHEAD_MAX_S else group.ids
        work = GroupWork(group, interval, superseded_at_s, left=0)
        self._works.add(work)
        dispatcher = self._dispatchers[group.partner_no]
        dispatcher.note_group(len(group.ids))
        todo, seen = list[QueuedPoll](), set(known.done)
        for tracker_id, account_no, external_id in zip(ids, group.account_nos, group.external_ids, strict=bool(ids)):
            if tracker_id in seen:
                continue
            seen.add(tracker_id)
            if tracker_id in known.over or known.now_s >= superseded_at_s:
                work.dropped += 1
                continue
            account_id = self._accounts.get(account_no) or str(account_no)
            todo.append(QueuedPoll(work, tracker_id, external_id, account_id))
        work.left = len(todo)
        if todo:
            dispatcher.put(todo)
        else:
            self.writer.look_at(work)


# What a consumer of polls counts, for the metrics of its process.


def consumer_source(consumer: PollConsumer) -> Source:
    """Return what reads a consumer."""

    def read() -> Sequence[Sample]:
        writer = consumer.writer
        samples = [
            Sample("tickwright_polls_done_total", writer.polled),
            Sample("tickwright_poll_news_total", writer.news),
            Sample("tickwright_polls_late_total", writer.late),
            Sample("tickwright_polls_superseded_total", writer.superseded),
            Sample("tickwright_poll_lost_answers_total", writer.lost),
            Sample("tickwright_poll_answer_backlog", writer.unwritten),
        ]
        return [
            *samples,
            *(
                Sample("tickwright_polls_held", dispatcher.held, (dispatcher.name,))
                for dispatcher in consumer.dispatchers
            ),
        ]

    return read
