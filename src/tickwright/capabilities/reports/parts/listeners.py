"""The listeners of one process: they claim parts, and hold the claims. What fetches a part is in :mod:`.run`.

::

    due ──claim──▶ running ──fetched──▶ done ──the last one──▶ notify
                      │ failed: due again after 1, 5, 25 s …, or failed for good
                      └ cancelled, or its session lost: due again

A part is claimed when its announcement comes; without one, when it is due. While it runs, the ledger is written every
second how many rows it has, and says whether the claim is still held.

Announcements come over the fanout exchange, into one queue per listener of this process. An announcement names a
report; whether its part is still to be fetched, the ledger says. So it is acknowledged as soon as the ledger was asked,
and one that is lost, comes twice or late costs no more than a query. One that cannot be read is dead-lettered.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import structlog

from tickwright.capabilities.reports.parts.run import Bringers, HeldPart, PartRuns
from tickwright.capabilities.reports.parts.storage import PartPlaces
from tickwright.capabilities.reports.parts.store import SQL, PartsStore
from tickwright.capabilities.reports.requests.messages import FutureVersionError, read_call
from tickwright.domain.errors import Rejected, TickwrightError
from tickwright.engine.claimed_work import AWAY_S, LOOK_WITHOUT_NEWS_S, ClaimedWork
from tickwright.engine.service import LoopService
from tickwright.engine.wakeup import WakeupListener
from tickwright.ports.ids import monotonic
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.service import Service
from tickwright.ports.session import Session
from tickwright.ports.task_queue import Delivery, TaskQueue
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

RENEW_S = 60.0
OTHERS_LOOK_S = 1.0
"""How long after a search for last places that found none: it reads past all that waits of types with parts here."""

_log = structlog.get_logger("tickwright.reports")


class ReportListener(ClaimedWork[tuple[int, str], HeldPart]):
    """A :class:`tickwright.ports.service.Service`.

    Args:
        bringers: What this process can bring.
        folder: Where rows are spooled.
        at_once: Parts at a time of one function or one source in this process, 1 to 100. There is one more, for a type
            that has none; but a source has no more than it takes queries, and its last one is for such a type.

    Invariants:
        RPL-1: nothing is brought without a claim, and counts only under that claim.
        RPL-2: a part whose claim is lost is cancelled within two seconds of the loss being known.
        RPL-3: parts of one type, however long they take, keep no other type from their function or source, unless that
            takes one query at a time.
        RPL-4: no more parts of a source are claimed than it takes queries.
    """

    name = "report-listener"

    def __init__(
        self,
        parts: PartsStore,
        places: PartPlaces,
        session: Session,
        wakeups: WakeupListener,
        bringers: Bringers,
        *,
        folder: Path,
        at_once: int,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__(session, wakeups, parts.connect)
        self._parts, self._places = parts, places
        self._bringers, self._at_once, self._probe = bringers, at_once, probe
        self._runs = PartRuns(parts, places, session, bringers, folder, probe=probe)
        self._renewed_s: dict[tuple[int, int], float] = {}
        self._one_claims = asyncio.Lock()
        self._others_at_s = 0.0

    @property
    def stuck(self) -> int:
        """Parts whose calls do not come back."""
        return sum(held.is_stuck() for held in self._held.values())

    # ------------------------------------------------------------------ claiming

    async def _look(self) -> float:
        """Claim what is due; return after how many seconds to look again."""
        if not self._session.holds():
            return AWAY_S
        rooms = self._rooms()
        try:
            found = await self._claim() if rooms else 0
            next_s = await self._parts.next_in_s([*rooms]) if rooms else None
            look_s = await self._look_for_others()
        except UNAVAILABLE as error:
            _log.warning("reports.parts_not_claimed", error=repr(error))
            return AWAY_S
        if next_s is None or (found == 0 and next_s <= 0):  # due, and somebody else is about to take it
            return look_s if next_s is None else min(look_s, LOOK_WITHOUT_NEWS_S)
        return min(max(next_s, 0.0), look_s)

    async def _look_for_others(self) -> float:
        """Fill last places; return after how many seconds to look again."""
        if not self._last_places():
            return self._look_s
        wait_s = self._others_at_s - monotonic()
        if wait_s > 0:
            return min(wait_s, self._look_s)
        if await self._claim(last=True):
            return 0.0
        self._others_at_s = monotonic() + OTHERS_LOOK_S
        return min(OTHERS_LOOK_S, self._look_s)

    async def hear(self, report_id: int, listener: str) -> None:
        """Claim a part that was announced, if it is still to be claimed and there is room.

        Raises:
            One of ``UNAVAILABLE``: nothing is known; the message has to come again.
        """
        if self.stopping.is_set() or not self._session.holds():
            return  # due by itself soon
        await self._claim(last=True, announced=(report_id, listener))

    def _left(self) -> Iterator[tuple[str, int, bool]]:
        """Give each function and source, its places left for any type, and whether only the last one is left."""
        taken = Counter(held.claim.served_by for held in self._held.values())
        for name, limit in self._bringers.limits().items():
            most = self._at_once if limit is None else min(self._at_once, max(limit - 1, 1))
            yield name, most - taken[name], most == taken[name] and most != limit

    def _rooms(self) -> dict[str, int]:
        return {name: room for name, room, _ in self._left() if room > 0}

    def _last_places(self) -> dict[str, int]:
        return {name: 1 for name, _, is_last in self._left() if is_last}

    async def _claim(self, *, last: bool = False, announced: tuple[int, str] | None = None) -> int:
        """Claim what there is room for; the last places, too, for types that have none of the same."""
        async with self._one_claims, self._gate.claiming() as (owner, number):
            others = self._last_places() if last else {}
            have = [(held.claim.served_by, held.claim.type) for held in self._held.values()]
            but = {(name, kind) for name, kind in have if name in others}
            claims = await self._parts.claim(owner, self._rooms() | others, but=but, announced=announced, number=number)
            for claim in claims:
                self._begin((claim.key.report_id, claim.key.listener), HeldPart(claim, owner), self._bring)
        return len(claims)

    async def _strays(self, connection: Connection, owner: int) -> int:
        known = {key: held.claim.fence for key, held in self._held.items()}
        return await self._parts.give_back_strays(connection, owner, known)

    async def _bring(self, held: HeldPart) -> str:
        await self._probe.reached("reports.part_claimed", key=held.claim.key)
        return await self._runs.run(held)

    async def _release(self, held: HeldPart) -> None:
        await self._parts.release(held.claim, held.owner)

    # ------------------------------------------------------------------ keeping

    async def _ours(self, held: Mapping[tuple[int, str], HeldPart]) -> Collection[tuple[int, str]]:
        """Tell the ledger how far each is, and ask which are still ours."""
        told = {key: (one.claim.fence, one.rows) for key, one in held.items()}
        return await self._parts.keep(told, self._session.token)

    async def _looked(self, held: Sequence[HeldPart]) -> None:
        """Renew what Redis has of these reports, of each once a minute: it lives for ten at least."""
        now_s = monotonic()
        self._renewed_s = {known: at_s for known, at_s in self._renewed_s.items() if now_s - at_s < RENEW_S}
        plans = {(one.claim.key.report_id, one.claim.key.epoch): one.claim.plan for one in held}
        due = {known: plan for known, plan in plans.items() if known not in self._renewed_s}
        self._renewed_s.update(dict.fromkeys(due, now_s))
        await self._places.touch_all(due)


# ---------------------------------------------------------------------- announcements

QUEUES_EVERY_S = 10.0
LATER = timedelta(seconds=10)
DELAYS_MAX = 30


class CallQueue(TaskQueue, Service, Protocol):
    """The queue of one listener."""


class ReportCalls(LoopService):
    """A :class:`tickwright.ports.service.Service`.

    Args:
        open_queue: Makes the queue of a listener; it is run and stopped here.
        declare: Makes the exchanges, and the queues of these listeners, which somebody else reads.
    """

    name = "report-calls"

    def __init__(
        self,
        pool: Pool,
        listener: ReportListener,
        bringers: Bringers,
        *,
        open_queue: Callable[[str], CallQueue],
        declare: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._pool, self._listener, self._bringers = pool, listener, bringers
        self._open_queue, self._declare = open_queue, declare
        self._declared: set[str] | None = None
        self.counts: Counter[str] = Counter()
        self._queues: dict[str, CallQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        """Read the queues of listeners; a new listener has its queue read within ten seconds."""
        try:
            while not self.stopping.is_set():
                wait_s = await self._look()
                self.tick()
                await self.rest(wait_s)
        finally:
            await self._close()

    @property
    def heard(self) -> list[str]:
        """Whose calls are heard here."""
        return sorted(self._queues)

    async def _close(self) -> None:
        for queue in self._queues.values():
            await queue.quiesce()
        for queue in self._queues.values():
            await queue.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._queues.clear()

    # ------------------------------------------------------------------ queues

    async def _look(self) -> float:
        """Open the queues of listeners that are new; return after how many seconds to look again."""
        names = {name.partition(":")[2] for name in self._bringers.names() if name.startswith("function:")}
        sources = [name.partition(":")[2] for name in self._bringers.names() if name.startswith("source:")]
        try:
            if sources:
                names |= {row["listener"] for row in await self._pool.fetch(SQL["queries_on"], sources)}
            services = {row["listener"] for row in await self._pool.fetch(SQL["services"])}
        except UNAVAILABLE as error:
            _log.warning("reports.listeners_not_read", error=repr(error))
            return AWAY_S
        await self._declare_new(services)  # first: a call that finds the exchange finds their queues
        for name in sorted(names - self._queues.keys()):
            self._begin(name)
        return QUEUES_EVERY_S

    async def _declare_new(self, services: set[str]) -> None:
        """Make the queues of services that are new; a broker that does not answer now is asked again."""
        if self._declared is not None and services <= self._declared:
            return
        try:
            await self._declare(sorted(services))
        except TickwrightError as error:
            _log.warning("reports.queues_not_declared", code=error.code, reason=error.message)
        else:
            self._declared = services

    def _begin(self, name: str) -> None:
        queue = self._queues[name] = self._open_queue(name)
        for work in (self._serve(name, queue), self._take(name, queue)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, name: str, queue: CallQueue) -> None:
        """Keep a queue's connection; one that cannot be as it should costs only the messages of its listener."""
        while not self.stopping.is_set():
            try:
                await queue.run()
            except TickwrightError as error:
                _log.error("reports.queue_unusable", listener=name, code=error.code, reason=error.message)
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUEUES_EVERY_S):
                        await self.stopping.wait()

    # ------------------------------------------------------------------ calls

    async def _take(self, name: str, queue: CallQueue) -> None:
        while True:
            delivery = await queue.take()
            try:
                self.counts[await self._answer(name, queue, delivery)] += 1
            except Exception as error:  # noqa: BLE001  one message must not end the others
                _log.exception("reports.call_unexpected", listener=name, error=repr(error))
                await queue.delay(delivery, LATER)

    async def _answer(self, name: str, queue: CallQueue, delivery: Delivery) -> str:
        try:
            call = read_call(delivery.body)
        except FutureVersionError as error:
            if delivery.delays < DELAYS_MAX:
                await queue.delay(delivery, LATER)
                return "delayed"
            await queue.dead_letter(delivery, "unknown_version", str(error))
            return "buried"
        except Rejected as error:
            await queue.dead_letter(delivery, error.code, error.message)
            return "buried"
        try:
            await self._listener.hear(call.report_id, name)
        except UNAVAILABLE as error:
            _log.warning("reports.call_not_answered", report=call.report_id, error=repr(error))
            await queue.delay(delivery, LATER)
            return "delayed"
        await queue.ack(delivery)
        return "heard"
