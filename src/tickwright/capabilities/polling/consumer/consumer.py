"""The poll consumer: takes poll groups from their source, calls the partners, writes the results.

::

    source ──take──▶ dispatcher ──permit──▶ courier ──answer──▶ result writer ──transaction──▶ ledger, tracker, outbox

The source decides who owns a group, the ledger decides what is done; everything else may be repeated. A poll is done
when its result is committed. Until then the owner of its group makes it again; after that its ledger row keeps it from
being counted twice. README.md lists what a crash leaves at each step.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from tickwright.capabilities.polling.consumer.courier import Courier
from tickwright.capabilities.polling.consumer.dispatcher import PartnerDispatcher, QueuedPoll
from tickwright.capabilities.polling.consumer.remote_courier import RemoteCourier
from tickwright.capabilities.polling.consumer.result_writer import SQL, GroupWork, ResultWriter
from tickwright.capabilities.polling.polls import AccountNames
from tickwright.capabilities.polling.trackers.events import TERMINAL_DEFAULT
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import TaskGroup
from tickwright.engine.wakeup.turns import Turns
from tickwright.observe.metrics import Sample
from tickwright.partners.contract import PartnerContract, PartnerRow, list_partners, settings_of
from tickwright.partners.settings import PartnerSettings
from tickwright.ports.ids import monotonic
from tickwright.ports.polls import PollGroup, PollSource
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

TAKE_S = 0.25
GAP_S = 0.02
DRAIN_S = 5.0
ENDED_EVERY_S = 5.0
RETRY_S = 0.5
RELEASE_TRIES = 3
CALLS_MAX = 256
AHEAD_MAX_S = 60.0
"""A relay never sends a poll before its second: one that is due further ahead is not from a relay."""

CourierOf = Callable[[str, PartnerSettings], Courier | None]

_log = structlog.get_logger("tickwright.polls")


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """What is read about a group before its polls are made.

    Attributes:
        interval_minutes: ``None`` when its slot does not exist.
        now_s: The database's clock.
        not_polled: Trackers that are no longer polled, or that have another partner or external id than the poll.
        done: Trackers whose poll of this second is done.
    """

    interval_minutes: int | None
    now_s: float
    not_polled: frozenset[int]
    done: frozenset[int]


async def prepare(pool: Pool, groups: Sequence[PollGroup]) -> list[PreparedGroup]:
    """Read the facts about ``groups`` that their polls need; return them in the same order."""
    numbers = [n for n, group in enumerate(groups) for _ in group.ids]
    rows = await pool.fetch(
        SQL["prepare"],
        list(range(len(groups))),
        [group.slot_id for group in groups],
        [group.due_at for group in groups],
        [group.partner_no for group in groups],
        numbers,
        [tracker_id for group in groups for tracker_id in group.ids],
        [external_id for group in groups for external_id in group.external_ids],
    )
    return [
        PreparedGroup(row["interval_minutes"], row["now_s"], frozenset(row["not_polled"]), frozenset(row["done"]))
        for row in sorted(rows, key=lambda row: row["n"])
    ]


class PollConsumer(LoopService):
    """One process's consumer; a :class:`tickwright.ports.service.Service`.

    Args:
        contract: Of this process; it starts before this service and ends after it.
        courier_of: Returns the courier of a partner; ``None`` leaves its polls to other processes.
        destination: Of poll events, ``kafka:…`` or ``pg:…``.
        calls_max: Calls at once per partner in this process.
        group: Of the processes that take from the same source, which then take turns; ``None`` where a log divides
            the polls.

    Invariants:
        POL-1: the effect of (tracker, due second) is committed once, however often it is delivered or tried.
        POL-2: a group that this process lost has no effect from here.
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
        group: str | None = None,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__()
        self._pool, self._source, self._contract, self._courier_of = pool, source, contract, courier_of
        self._calls_max = calls_max
        self.writer = ResultWriter(pool, source, destination=destination, on_end=self._work_ended, probe=probe)
        self._dispatchers: dict[int, PartnerDispatcher] = {}
        self._works: set[GroupWork] = set()
        self._not_begun: list[PollGroup] = []
        self._names = AccountNames()
        self._partners: Sequence[PartnerRow] | None = None
        self._knows_partners = self._lacks_room = False
        self._turns = None if group is None else Turns(session.join(group, lambda: not self.stopping.is_set()), TAKE_S)
        self._swept_s = self._ended_at_s = -math.inf
        self._take_ended = asyncio.Event()
        self._take_ended.set()
        self._tasks: TaskGroup | None = None
        session.on_lost(self._session_lost)
        session.on_beat(self._read_partners)

    @property
    def dispatchers(self) -> Sequence[PartnerDispatcher]:
        """The partners that are served here."""
        return list(self._dispatchers.values())

    def remote_partners(self) -> list[str]:
        """Return partners that remote workers poll for this process."""
        return [each.name for each in self.dispatchers if isinstance(each.courier, RemoteCourier)]

    def samples(self) -> Sequence[Sample]:
        """Return the figures for the metrics of its process."""
        writer = self.writer
        return [
            Sample("tickwright_polls_done_total", writer.polled),
            Sample("tickwright_poll_news_total", writer.events),
            Sample("tickwright_polls_late_total", writer.late),
            Sample("tickwright_polls_superseded_total", writer.superseded),
            Sample("tickwright_poll_lost_answers_total", writer.lost),
            Sample("tickwright_poll_answer_backlog", writer.unwritten),
            *(Sample("tickwright_polls_held", each.held, (each.name,)) for each in self.dispatchers),
        ]

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        """Work until stopped; after a crash of this loop, first release what it held."""
        if self._tasks is not None:
            for work in self._works:
                self.writer.lose(work)
            self._not_begun += [work.group for work in self._works]
            await self._release()
            if self.stopping.is_set():  # a stop that came meanwhile has closed the dispatchers
                return
        self._take_ended.clear()
        async with TaskGroup() as group:
            self._tasks = group
            for dispatcher in self._dispatchers.values():
                group.create_task(dispatcher.run())
            group.create_task(self.writer.run())
            group.create_task(self._take_until_stopped())

    async def _take_until_stopped(self) -> None:
        try:
            while not self.stopping.is_set():
                self.wakeup.clear()
                try:
                    more = await self._round()
                except UNAVAILABLE as error:
                    _log.warning("polls.take_failed", error=repr(error))
                    await self._pause(RETRY_S)
                    more = True
                self.tick()
                if not more:
                    await self._wait_for_polls()
        finally:
            self._take_ended.set()

    async def _wait_for_polls(self) -> None:
        """Wait until this process takes again: where others take from the same source, at its own turn.

        While a partner has no room, more of its polls may wait: then each poll that ends counts.
        """
        if self._turns is None or self._turns.alone or self._lacks_room:
            await self._pause(TAKE_S)
        else:
            await self.rest(self._turns.next_in_s())

    async def _read_partners(self, connection: Connection) -> Callable[[], None]:
        """Read the partners with the heartbeat; the next round adopts them."""
        partners = await list_partners(connection)

        def adopt() -> None:
            self._partners = partners

        return adopt

    async def _pause(self, seconds: float) -> None:
        """Wait until there is room, or for some time; at least ``GAP_S``, since every poll that ends makes room."""
        begun_s = monotonic()
        await self.wait_for_work(seconds)
        if not self.stopping.is_set():
            await asyncio.sleep(max(0.0, GAP_S - (monotonic() - begun_s)))

    async def quiesce(self) -> None:
        """Take nothing more, finish running calls and write their results, release what was not started."""
        self.request_stop()
        for dispatcher in self._dispatchers.values():
            dispatcher.halt()
        await self._take_ended.wait()
        for dispatcher in self._dispatchers.values():
            await dispatcher.quiet()
        await self.writer.drained()
        await self._release()

    async def stop(self) -> None:
        """Cancel running calls, write the results that there are, release the rest."""
        self.request_stop()
        await self._take_ended.wait()
        for dispatcher in self._dispatchers.values():
            await dispatcher.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self.writer.drained()
        self.writer.stop()
        await self._release()

    async def _release(self) -> None:
        self._not_begun += [work.group for work in self._works if not work.abandoned]
        self._abandon_all()
        for _ in range(RELEASE_TRIES):
            try:
                await self._release_not_begun()
            except UNAVAILABLE as error:
                _log.warning("polls.not_released", groups=len(self._not_begun), error=repr(error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _release_not_begun(self) -> None:
        """Release groups that were taken and not started; what fails is tried again before more is taken."""
        if self._not_begun:
            await self._source.release(self._not_begun)
            self._not_begun = []

    def _session_lost(self) -> None:
        self._abandon_all()
        self._not_begun = []

    def _abandon_all(self) -> None:
        for work in self._works:
            work.abandoned = True
        self._works.clear()
        for dispatcher in self._dispatchers.values():
            dispatcher.abandon()

    def _work_ended(self, work: GroupWork) -> None:
        self._works.discard(work)
        self.wakeup.set()

    # ------------------------------------------------------------------ taking

    async def _round(self) -> bool:
        """Take what there is room for; return whether to take again at once."""
        if not self._knows_partners:
            self._partners = await list_partners(self._pool)
            self._knows_partners = True
        if self._partners is not None:
            self._adopt(self._partners)
            self._partners = None
        self._drop_superseded()
        await self._drop_ended()
        await self._release_not_begun()
        room = {number: dispatcher.room() for number, dispatcher in self._dispatchers.items()}
        self._lacks_room = not all(most for number, most in room.items() if self._dispatchers[number].courier)
        groups = await self._source.take({number: most for number, most in room.items() if most})
        self._abandon_lost()
        if not groups:
            return False
        self._not_begun = list(groups)  # so that a failure before they are started releases them
        prepared = await prepare(self._pool, groups)
        names = await self._names.read(self._pool, (number for group in groups for number in group.account_nos))
        for group, facts in zip(groups, prepared, strict=True):
            self._begin(group, facts, names)
        self._not_begun = []
        return True

    def _abandon_lost(self) -> None:
        """Start no more polls of groups that this process lost: their new owner makes them."""
        for work in [work for work in self._works if self._source.has_lost(work.group)]:
            work.abandoned = True
            self._works.discard(work)
            self._dispatchers[work.group.partner_no].forget_abandoned()

    def _adopt(self, partners: Sequence[PartnerRow]) -> None:
        for number in self._dispatchers.keys() - {partner.partner_no for partner in partners}:
            self._dispatchers[number].courier = None  # the partner was deleted; what waits is superseded in time
        for partner in partners:
            settings = settings_of(partner.settings)
            courier = None if settings is None else self._courier_of(partner.name, settings)
            dispatcher = self._dispatchers.get(partner.partner_no)
            if dispatcher is None:
                if courier is None:
                    continue
                dispatcher = self._dispatchers[partner.partner_no] = PartnerDispatcher(
                    partner.partner_no,
                    partner.name,
                    self._contract,
                    self.writer,
                    calls_max=self._calls_max,
                    on_room=self.wakeup.set,
                )
                if self._tasks is not None:
                    self._tasks.create_task(dispatcher.run())
            dispatcher.courier = courier
            if settings is not None:
                dispatcher.timeout = settings.timeout
                terminal = settings.terminal_statuses
                dispatcher.terminal = frozenset(TERMINAL_DEFAULT if terminal is None else terminal)

    def _drop_superseded(self) -> None:
        """Drop waiting polls whose tracker's next poll is due; every ``TAKE_S`` at most, since it walks them all."""
        if monotonic() - self._swept_s < TAKE_S or not self._contract.clock.known:
            return
        self._swept_s = monotonic()
        now_s = self._contract.clock.now(self._swept_s)
        if any(now_s >= work.superseded_at_s for work in self._works):
            for dispatcher in self._dispatchers.values():
                dispatcher.drop(lambda poll: now_s >= poll.work.superseded_at_s)

    async def _drop_ended(self) -> None:
        """Drop waiting polls whose tracker has ended since its group was taken; a retry may wait long."""
        if monotonic() - self._ended_at_s < ENDED_EVERY_S:
            return
        self._ended_at_s = monotonic()
        waiting = {tracker_id for dispatcher in self._dispatchers.values() for tracker_id in dispatcher.waiting()}
        ended = {row["id"] for row in await self._pool.fetch(SQL["not_polled"], sorted(waiting))} if waiting else set()
        if ended:
            for dispatcher in self._dispatchers.values():
                dispatcher.drop(lambda poll: poll.tracker_id in ended)

    def _begin(self, group: PollGroup, facts: PreparedGroup, names: Mapping[int, str]) -> None:
        """Skip polls that are done or listed twice, drop superseded ones and those of ended trackers, queue the rest.

        A group whose slot does not exist, or that is due too far ahead, is not from a relay: none of its polls is made.
        """
        interval = facts.interval_minutes or 0
        superseded_at_s = (group.due_at + timedelta(minutes=interval)).timestamp() if interval else -math.inf
        ids = [] if group.due_at.timestamp() > facts.now_s + AHEAD_MAX_S else group.ids
        work = GroupWork(group, interval, superseded_at_s, left=0)
        self._works.add(work)
        dispatcher = self._dispatchers[group.partner_no]
        dispatcher.note_group(len(group.ids))
        todo, seen = list[QueuedPoll](), set(facts.done)
        for tracker_id, account_no, external_id in zip(ids, group.account_nos, group.external_ids, strict=bool(ids)):
            if tracker_id in seen:
                continue
            seen.add(tracker_id)
            if tracker_id in facts.not_polled or facts.now_s >= superseded_at_s:
                work.dropped += 1
                continue
            account_id = names.get(account_no) or str(account_no)
            todo.append(QueuedPoll(work, tracker_id, external_id, account_id))
        work.left = len(todo)
        if todo:
            dispatcher.put(todo)
        else:
            self.writer.write_soon(work)
