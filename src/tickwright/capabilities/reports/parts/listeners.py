"""The parts of one process: its worker claims them, holds the claims, and fetches the rows.

::

    due ──claim──▶ running ──rows──▶ NDJSON file ──stored──▶ marked ──finish──▶ done ──the last one──▶ notify
                      │ failed, or too late: due again after 1, 5, 25 s …, or failed for good
                      └ cancelled, or its session lost: due again

A part is claimed when its announcement arrives, or when it is due. Every second, the listener writes the row counts of
running parts to the ledger, which also shows whether the claims are still held. While the database is unavailable, the
write of a result is repeated for as long as the claim lives.

A part is served by ``function:<name>``, a function of this process's program, or by ``source:<name>``, a query on one
of its sources. So a new report type needs nothing new in a process that has its source. An error of a listener fails
its part alone.

Announcements arrive over the broadcast exchange, in one queue per listener of this process. The ledger decides whether
a part is still to be fetched, so an announcement is acknowledged as soon as the ledger is read, and a lost, repeated or
late one costs no more than a query. An unreadable one is dead-lettered.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog

from tickwright.capabilities.reports.handlers import DeclaredListener, ListenerRegistry, ReportRequest
from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.capabilities.reports.parts.store import SQL, Claim, PartRows, PartStorage, StoredPart
from tickwright.capabilities.reports.requests.store import read_announcement
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable, failure_text
from tickwright.domain.message_versions import FutureVersionError
from tickwright.domain.retries import RetryPolicy
from tickwright.engine.claimed_work import POLL_WITHOUT_WAKEUPS_S, UNAVAILABLE_S, ClaimedWork, Held, write_end
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import is_final_cancel, take_cancels_back
from tickwright.engine.wakeup.listener import WakeupListener
from tickwright.observe import traces
from tickwright.observe.logs import redact_text
from tickwright.ports.ids import monotonic, random_token
from tickwright.ports.reports import PartFacts
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.ports.task_queue import Delivery
from tickwright.ports.transports import RunningQueue
from tickwright.sources.named import Sources
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

# ---------------------------------------------------------------------- one part

STUCK_AFTER_S = 2.0
_log = structlog.get_logger("tickwright.reports")


@dataclass(slots=True, eq=False)
class RunningPart(Held[Claim]):
    """One part under way.

    Attributes:
        rows: Fetched so far.
        ends_s: When its listener has to return, by the monotonic clock; ``None`` while none runs.
        is_logged: Whether the log names it as stuck.
    """

    rows: int = 0
    ends_s: float | None = None
    is_logged: bool = False

    def cancel(self) -> None:
        """Cancel its task now."""
        if self.ends_s is not None:
            self.ends_s = min(self.ends_s, monotonic())
        Held.cancel(self)  # super() does not work in a dataclass with slots

    @contextmanager
    def calling(self, allowed_s: float) -> Iterator[None]:
        """Mark the block as the call of its listener, which may take ``allowed_s``."""
        self.ends_s = monotonic() + allowed_s
        try:
            yield
        finally:
            self.ends_s = None

    def is_stuck(self) -> bool:
        """Whether its listener is still running two seconds after ``ends_s``; logged once.

        A function may ignore its cancellation. Then it keeps its slot until a restart.
        """
        if self.ends_s is None or monotonic() <= self.ends_s + STUCK_AFTER_S:
            return False
        if not self.is_logged:
            _log.warning("reports.part_stuck", key=self.claim.key, served_by=self.claim.served_by)
        self.is_logged = True
        return True

    def progress(self, rows: int) -> None:
        """Set the number of fetched rows."""
        self.rows = rows


class PartFetcher:
    """Fetches parts into files, by functions of the program or sources of the TOML file."""

    def __init__(self, functions: ListenerRegistry, sources: Sources) -> None:
        self._functions, self._sources = functions, sources

    def names(self) -> list[str]:
        """Return what this process serves, by the ledger's names."""
        return [*self.limits()]

    def limits(self) -> dict[str, int | None]:
        """Return the names, each with its maximum of parts at once, or ``None`` if unlimited."""
        functions: dict[str, int | None] = {f"function:{one.name}": None for one in self._functions.all()}
        return functions | {f"source:{name}": self._sources.connections_max(name) for name in self._sources.names()}

    def mask(self, text: str) -> str:
        """Return a listener's error text with passwords in addresses and secrets of sources masked."""
        return redact_text(self._sources.mask(text))

    async def fetch(self, claim: Claim, path: Path, progress: Callable[[int], None]) -> PartFacts:
        """Write the rows of a part into a new file.

        Raises:
            Rejected: The function, the query or its rows are invalid. Permanent.
            Unavailable: The source does not answer, or the disk is full. Retry.
            Exception: An error of a function. Retry.
        """
        listener = claim.listener
        if listener.kind == "sql":
            source = self._sources.get(listener.source or "")
            values = {**claim.conditions, **claim.feed}
            async with source.query(listener.sql or "", values, timeout=listener.timeout) as rows:
                return await write_part(rows, path, declared=listener.columns, progress=progress)
        function = self._functions.get(listener.name)
        if function is None:
            raise Unavailable("unknown_listener", f"no function for listener {listener.name!r} here")
        request = self._request(claim, function)
        rows_of_function, around = function.function(request), function.lifespan.around
        write = partial(write_part, rows_of_function, path, declared=listener.columns, progress=progress)
        facts: PartFacts = await (write() if around is None else around(request, write))
        return facts

    def _request(self, claim: Claim, function: DeclaredListener) -> ReportRequest:
        listener = claim.listener
        name = listener.source or function.source
        return ReportRequest(
            report_id=claim.key.report_id,
            epoch=claim.key.epoch,
            listener=listener.name,
            type=claim.type,
            stage=claim.stage,
            conditions=claim.conditions,
            feed=claim.feed,
            requester=claim.requester,
            attempt=claim.attempt,
            fence=claim.fence,
            deadline_at=claim.deadline_at,
            timeout=listener.timeout,
            source=None if name is None else self._sources.get(name),
        )


RETRY = RetryPolicy(factor=5.0, cap=timedelta(minutes=5))


class PartRuns:
    """Runs claimed parts, any number at a time; removes their files from ``folder``."""

    def __init__(
        self,
        parts: PartRows,
        storage: PartStorage,
        session: Session,
        fetcher: PartFetcher,
        folder: Path,
        *,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._parts, self._storage, self._session = parts, storage, session
        self._fetcher, self._folder, self._probe = fetcher, folder, probe

    async def run(self, part: RunningPart) -> str:
        """Fetch the part and write its result; return the outcome: ``done``, ``retried``, ``failed`` or ``late``.

        Raises:
            CancelledError: It was cancelled; nothing of it is written.
        """
        claim = part.claim
        if claim.attempt > claim.listener.attempts:
            return await self._fail(part, f"the process that ran it was lost {claim.attempt - 1} times", final=True)
        path = self._folder / f"{claim.key.report_id}-{claim.key.listener}-{random_token(8)}.ndjson"
        try:
            facts = await self._fetch(part, path)
            await self._probe.reached("reports.part_fetched", key=claim.key, facts=facts)
            stored = await self._storage.put(claim.key, path, facts, plan=claim.plan)
            return "late" if stored is None else await self._finish(part, stored)
        except BaseException as error:  # a function's error fails its part, not the others and not the process
            if is_final_cancel(error):
                raise
            await take_cancels_back()
            code, text = failure_text(error, self._fetcher.mask)
            if isinstance(error, TickwrightError):
                return await self._fail(part, f"{text} ({code})", final=isinstance(error, Rejected))
            _log.warning("reports.listener_failed", key=claim.key, error=text)
            return await self._fail(part, text)
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _fetch(self, part: RunningPart, path: Path) -> PartFacts:
        timeout_s = part.claim.listener.timeout.total_seconds()
        within = asyncio.timeout(timeout_s)
        key = part.claim.key
        facts: dict[str, str | int] = {
            "tickwright.report_id": key.report_id,
            "tickwright.listener": key.listener,
            "tickwright.attempt": part.claim.attempt,
        }
        with traces.attempting("report-parts", None, facts):
            try:
                async with within:
                    with part.calling(timeout_s):
                        return await self._fetcher.fetch(part.claim, path, part.progress)
            except TimeoutError:
                if within.expired():
                    raise Unavailable("listener_timeout", f"it took longer than {timeout_s:g} s") from None
                raise

    async def _finish(self, part: RunningPart, stored: StoredPart) -> str:
        """Write the result. If an answer was lost, the write may have succeeded, so nothing is removed."""
        writes = 0

        async def write() -> bool:
            nonlocal writes
            writes += 1
            return await self._parts.finish(part.claim, part.owner, stored)

        if await write_end(self._session, part, write):
            return "done"
        if writes == 1:
            await self._storage.forget(stored)
        return "late"

    async def _fail(self, part: RunningPart, error: str, *, final: bool = False) -> str:
        claim = part.claim
        final = final or claim.attempt >= claim.listener.attempts
        again = None if final else timedelta(seconds=RETRY.ceiling_s(claim.attempt))
        if not await write_end(self._session, part, lambda: self._parts.fail(claim, part.owner, error, again=again)):
            return "late"
        return "failed" if final else "retried"


RENEW_S = 60.0
OTHERS_POLL_S = 1.0
"""Between two searches for last slots that find none: each reads past all waiting parts of types with parts here."""


class PartWorker(ClaimedWork[tuple[int, str], RunningPart]):
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
    owns_any_sql = SQL["owned"]

    def __init__(
        self,
        parts: PartRows,
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

    @property
    def is_full(self) -> bool:
        """Whether a function or source has no slot for parts of any type."""
        return any(room <= 0 for _, room, _ in self._left())

    async def _claim_due(self) -> float:
        """Claim due parts; return the seconds until the next search."""
        if not self._session.holds():
            return UNAVAILABLE_S
        rooms = self._rooms()
        try:
            found = await self._claim() if rooms else 0
            next_s = await self._parts.next_in_s([*rooms]) if rooms else None
            poll_s = await self._fill_last_slots()
        except UNAVAILABLE as error:
            _log.warning("reports.parts_not_claimed", error=repr(error))
            return UNAVAILABLE_S
        if next_s is None or (found == 0 and next_s <= 0):  # due, and another process is about to claim it
            return poll_s if next_s is None else min(poll_s, POLL_WITHOUT_WAKEUPS_S)
        return min(max(next_s, 0.0), poll_s)

    async def _fill_last_slots(self) -> float:
        """Fill last slots; return the seconds until the next search."""
        if not self._last_slots():
            return self._poll_s
        wait_s = self._others_at_s - monotonic()
        if wait_s > 0:
            return min(wait_s, self._poll_s)
        if await self._claim(last=True):
            return 0.0
        self._others_at_s = monotonic() + OTHERS_POLL_S
        return min(OTHERS_POLL_S, self._poll_s)

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
            excluding = {(name, kind) for name, kind in running if name in others}
            claims = await self._parts.claim(
                owner, self._rooms() | others, excluding=excluding, announced=announced, number=number
            )
            for claim in claims:
                self._begin((claim.key.report_id, claim.key.listener), RunningPart(claim, owner), self._run_part)
        return len(claims)

    async def _release_unknown(self, connection: Connection, owner: int) -> int:
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
        return await self._parts.confirm(rows, self._session.token)

    async def _after_check(self, held: Sequence[RunningPart]) -> None:
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
        worker: PartWorker,
        fetcher: PartFetcher,
        *,
        open_queue: Callable[[str], RunningQueue],
        declare: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._pool, self._worker, self._fetcher = pool, worker, fetcher
        self._open_queue, self._declare = open_queue, declare
        self._declared: set[str] | None = None
        self._queues: dict[str, RunningQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        """Read the queues of listeners; a new listener's queue is read within ten seconds."""
        try:
            while not self.stopping.is_set():
                wait_s = await self._poll()
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

    async def _poll(self) -> float:
        """Open the queues of new listeners; return the seconds until the next search."""
        names = {name.partition(":")[2] for name in self._fetcher.names() if name.startswith("function:")}
        sources = [name.partition(":")[2] for name in self._fetcher.names() if name.startswith("source:")]
        try:
            if sources:
                names |= {row["listener"] for row in await self._pool.fetch(SQL["queries_on"], sources)}
            services = {row["listener"] for row in await self._pool.fetch(SQL["services"])}
        except UNAVAILABLE as error:
            _log.warning("reports.listeners_unavailable", error=repr(error))
            return UNAVAILABLE_S
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

    async def _connect(self, name: str, queue: RunningQueue) -> None:
        """Keep a queue connected; an unusable queue affects only its listener's messages."""
        while not self.stopping.is_set():
            try:
                await queue.run()
            except TickwrightError as error:
                _log.error("reports.queue_unusable", listener=name, code=error.code, reason=error.message)
                await self.rest(QUEUES_EVERY_S)

    # ------------------------------------------------------------------ messages

    async def _read_all(self, name: str, queue: RunningQueue) -> None:
        while True:
            delivery = await queue.take()
            try:
                await self._read(name, queue, delivery)
            except Exception as error:  # noqa: BLE001  one message must not end the others
                _log.exception("reports.announcement_failed", listener=name, error=repr(error))
                await queue.delay(delivery, LATER)

    async def _read(self, name: str, queue: RunningQueue, delivery: Delivery) -> None:
        try:
            announcement = read_announcement(delivery.body)
        except FutureVersionError as error:
            if delivery.delays < DELAYS_MAX:
                await queue.delay(delivery, LATER)
            else:
                await queue.dead_letter(delivery, "unknown_version", str(error))
            return
        except Rejected as error:
            await queue.dead_letter(delivery, error.code, error.message)
            return
        try:
            await self._worker.claim_announced(announcement.report_id, name)
        except UNAVAILABLE as error:
            _log.warning("reports.announcement_delayed", report=announcement.report_id, error=repr(error))
            await queue.delay(delivery, LATER)
        else:
            await queue.ack(delivery)
