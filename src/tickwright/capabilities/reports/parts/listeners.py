"""The listeners of one process: they claim parts and hold the claims. :mod:`.run` fetches a part.

::

    due ──claim──▶ running ──fetched──▶ done ──the last one──▶ notify
                      │ failed: due again after 1, 5, 25 s …, or failed for good
                      └ cancelled, or its session lost: due again

A part is claimed when its announcement arrives, or when it is due. Every second, the listener writes the row counts of
running parts to the ledger, which also shows whether the claims are still held.

Announcements arrive over the broadcast exchange, in one queue per listener of this process. The ledger decides whether
a part is still to be fetched, so an announcement is acknowledged as soon as the ledger is read, and a lost, repeated or
late one costs no more than a query. An unreadable one is dead-lettered.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import structlog

from tickwright.capabilities.reports.parts.run import PartFetcher, PartRuns, RunningPart
from tickwright.capabilities.reports.parts.storage import PartStorage
from tickwright.capabilities.reports.parts.store import SQL, PartsStore
from tickwright.capabilities.reports.requests.messages import FutureVersionError, read_announcement
from tickwright.domain.errors import Rejected, TickwrightError
from tickwright.engine.claimed_work import AWAY_S, LOOK_WITHOUT_NEWS_S, ClaimedWork
from tickwright.engine.service import LoopService
from tickwright.engine.wakeup import WakeupListener
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe, Service
from tickwright.ports.session import Session
from tickwright.ports.task_queue import Delivery, TaskQueue
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

RENEW_S = 60.0
OTHERS_LOOK_S = 1.0
"""Between two searches for last slots that find none: each reads past all waiting parts of types with parts here."""

_log = structlog.get_logger("tickwright.reports")


class ReportListener(ClaimedWork[tuple[int, str], RunningPart]):
    """A :class:`tickwright.ports.service.Service`; rows are spooled in ``folder``.

    Args:
        at_once: Parts at a time of one function or source in this process, 1 to 100. There is one more slot, for a type
            that has none. But a source has no more slots than it takes queries, and its last one is for such a type.

    Invariants:
        RPL-1: nothing is fetched without a claim, and a part counts only under its claim.
        RPL-2: a part whose claim is lost is cancelled within two seconds after the loss is detected.
        RPL-3: parts of one type, however long they take, block no other type from their function or source, unless that
            takes one query at a time.
        RPL-4: no more parts of a source are claimed than it takes queries.
    """

    name = "report-listener"

    def __init__(
        self,
        parts: PartsStore,
        storage: PartStorage,
        session: Session,
        wakeups: WakeupListener,
        fetcher: PartFetcher,
        *,
        folder: Path,
        at_once: int,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__(session, wakeups, parts.connect)
        self._parts, self._storage = parts, storage
        self._fetcher, self._at_once, self._probe = fetcher, at_once, probe
        self._runs = PartRuns(parts, storage, session, fetcher, folder, probe=probe)
        self._renewed_s: dict[tuple[int, int], float] = {}
        self._one_claims = asyncio.Lock()
        self._others_at_s = 0.0

    @property
    def stuck(self) -> int:
        """Parts whose listeners do not return."""
        return sum(part.is_stuck() for part in self._held.values())

    # ------------------------------------------------------------------ claiming

    async def _look(self) -> float:
        """Claim due parts; return the seconds until the next search."""
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
        if next_s is None or (found == 0 and next_s <= 0):  # due, and another process is about to claim it
            return look_s if next_s is None else min(look_s, LOOK_WITHOUT_NEWS_S)
        return min(max(next_s, 0.0), look_s)

    async def _look_for_others(self) -> float:
        """Fill last slots; return the seconds until the next search."""
        if not self._last_slots():
            return self._look_s
        wait_s = self._others_at_s - monotonic()
        if wait_s > 0:
            return min(wait_s, self._look_s)
        if await self._claim(last=True):
            return 0.0
        self._others_at_s = monotonic() + OTHERS_LOOK_S
        return min(OTHERS_LOOK_S, self._look_s)

    async def claim_announced(self, report_id: int, listener: str) -> None:
        """Claim an announced part if it is still open and there is room.

        Raises:
            One of ``UNAVAILABLE``: The ledger was not read. Retry the message.
        """
        if self.stopping.is_set() or not self._session.holds():
            return  # it is due soon without an announcement
        await self._claim(last=True, announced=(report_id, listener))

    def _left(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each function and source, its free slots for any type, and whether only the last slot is free."""
        taken = Counter(part.claim.served_by for part in self._held.values())
        for name, limit in self._fetcher.limits().items():
            most = self._at_once if limit is None else min(self._at_once, max(limit - 1, 1))
            yield name, most - taken[name], most == taken[name] and most != limit

    def _rooms(self) -> dict[str, int]:
        return {name: room for name, room, _ in self._left() if room > 0}

    def _last_slots(self) -> dict[str, int]:
        return {name: 1 for name, _, is_last in self._left() if is_last}

    async def _claim(self, *, last: bool = False, announced: tuple[int, str] | None = None) -> int:
        """Claim as many parts as there is room for; with ``last``, also fill last slots, for types that have none."""
        async with self._one_claims, self._gate.claiming() as (owner, number):
            others = self._last_slots() if last else {}
            running = [(part.claim.served_by, part.claim.type) for part in self._held.values()]
            but = {(name, kind) for name, kind in running if name in others}
            claims = await self._parts.claim(owner, self._rooms() | others, but=but, announced=announced, number=number)
            for claim in claims:
                self._begin((claim.key.report_id, claim.key.listener), RunningPart(claim, owner), self._run_part)
        return len(claims)

    async def _strays(self, connection: Connection, owner: int) -> int:
        known = {key: part.claim.fence for key, part in self._held.items()}
        return await self._parts.release_unknown(connection, owner, known)

    async def _run_part(self, part: RunningPart) -> str:
        await self._probe.reached("reports.part_claimed", key=part.claim.key)
        return await self._runs.run(part)

    async def _release(self, part: RunningPart) -> None:
        await self._parts.release(part.claim, part.owner)

    # ------------------------------------------------------------------ keeping

    async def _ours(self, held: Mapping[tuple[int, str], RunningPart]) -> Collection[tuple[int, str]]:
        """Write the number of rows of each part; return the parts that are still claimed here."""
        rows = {key: (part.claim.fence, part.rows) for key, part in held.items()}
        return await self._parts.keep(rows, self._session.token)

    async def _looked(self, held: Sequence[RunningPart]) -> None:
        """Renew the lives of these reports in Redis, each once a minute; a life is ten minutes at least."""
        now_s = monotonic()
        self._renewed_s = {known: at_s for known, at_s in self._renewed_s.items() if now_s - at_s < RENEW_S}
        plans = {(part.claim.key.report_id, part.claim.key.epoch): part.claim.plan for part in held}
        due = {known: plan for known, plan in plans.items() if known not in self._renewed_s}
        self._renewed_s.update(dict.fromkeys(due, now_s))
        await self._storage.touch_all(due)


# ---------------------------------------------------------------------- announcements

QUEUES_EVERY_S = 10.0
LATER = timedelta(seconds=10)
DELAYS_MAX = 30


class AnnouncementQueue(TaskQueue, Service, Protocol):
    """The queue of one listener."""


class AnnouncementReader(LoopService):
    """A :class:`tickwright.ports.service.Service` that reads announcements.

    Args:
        open_queue: Makes the queue of a listener; the reader runs and stops it.
        declare: Makes the exchanges, and the queues that services read, by listener.
    """

    name = "report-calls"

    def __init__(
        self,
        pool: Pool,
        listener: ReportListener,
        fetcher: PartFetcher,
        *,
        open_queue: Callable[[str], AnnouncementQueue],
        declare: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._pool, self._listener, self._fetcher = pool, listener, fetcher
        self._open_queue, self._declare = open_queue, declare
        self._declared: set[str] | None = None
        self.counts: Counter[str] = Counter()
        self._queues: dict[str, AnnouncementQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        """Read the queues of listeners; a new listener's queue is read within ten seconds."""
        try:
            while not self.stopping.is_set():
                wait_s = await self._look()
                self.tick()
                await self.rest(wait_s)
        finally:
            await self._close()

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
        """Open the queues of new listeners; return the seconds until the next search."""
        names = {name.partition(":")[2] for name in self._fetcher.names() if name.startswith("function:")}
        sources = [name.partition(":")[2] for name in self._fetcher.names() if name.startswith("source:")]
        try:
            if sources:
                names |= {row["listener"] for row in await self._pool.fetch(SQL["queries_on"], sources)}
            services = {row["listener"] for row in await self._pool.fetch(SQL["services"])}
        except UNAVAILABLE as error:
            _log.warning("reports.listeners_unavailable", error=repr(error))
            return AWAY_S
        await self._declare_new(services)  # first: an announcement that finds the exchange must find their queues
        for name in sorted(names - self._queues.keys()):
            self._begin(name)
        return QUEUES_EVERY_S

    async def _declare_new(self, services: set[str]) -> None:
        """Make the queues of new services; if the broker does not answer, a later round tries again."""
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
        for work in (self._connect(name, queue), self._read_all(name, queue)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, name: str, queue: AnnouncementQueue) -> None:
        """Keep a queue connected; an unusable queue affects only its listener's messages."""
        while not self.stopping.is_set():
            try:
                await queue.run()
            except TickwrightError as error:
                _log.error("reports.queue_unusable", listener=name, code=error.code, reason=error.message)
                await self.rest(QUEUES_EVERY_S)

    # ------------------------------------------------------------------ messages

    async def _read_all(self, name: str, queue: AnnouncementQueue) -> None:
        while True:
            delivery = await queue.take()
            try:
                self.counts[await self._read(name, queue, delivery)] += 1
            except Exception as error:  # noqa: BLE001  one message must not end the others
                _log.exception("reports.announcement_failed", listener=name, error=repr(error))
                await queue.delay(delivery, LATER)

    async def _read(self, name: str, queue: AnnouncementQueue, delivery: Delivery) -> str:
        try:
            announcement = read_announcement(delivery.body)
        except FutureVersionError as error:
            if delivery.delays < DELAYS_MAX:
                await queue.delay(delivery, LATER)
                return "delayed"
            await queue.dead_letter(delivery, "unknown_version", str(error))
            return "dead_lettered"
        except Rejected as error:
            await queue.dead_letter(delivery, error.code, error.message)
            return "dead_lettered"
        try:
            await self._listener.claim_announced(announcement.report_id, name)
        except UNAVAILABLE as error:
            _log.warning("reports.announcement_delayed", report=announcement.report_id, error=repr(error))
            await queue.delay(delivery, LATER)
            return "delayed"
        await queue.ack(delivery)
        return "read"
