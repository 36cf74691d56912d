"""The supervisors of reports, as ``processMessageOrRequeue``: look whether the step can be taken, else come back later.

Every process of the role runs one. What is due is taken with ``FOR UPDATE SKIP LOCKED`` under a rising fence, so two of
them never take one step, and a step whose process died is taken again when its session is declared lost. The last part
of a stage rings, so that nobody waits for the delayed check; that one is the safety net.

A step that puts parts together takes as long as its SQL does. It needs a place for that, beside those of the short
steps; where there is none it goes back to the ledger, for the first process that has one.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from tickwright.capabilities.reports.merge.step_run import StepRun, Workshop
from tickwright.capabilities.reports.merge.steps import Record
from tickwright.capabilities.reports.requests.store import RecordsStore
from tickwright.domain.errors import TickwrightError
from tickwright.engine.certain_start import begins
from tickwright.engine.claim_gate import ClaimGate
from tickwright.engine.hearing import Hearing
from tickwright.ports.ids import monotonic
from tickwright.ports.service import TaskGroup
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection

LOOK_S = 5.0
LOOK_WITHOUT_NEWS_S = 0.5
HELD_LOOK_S = 1.0
RENEW_S = 60.0
AWAY_S = 1.0
SHORT_AT_ONCE = 8
"""Steps that put no parts together, at a time."""

_log = structlog.get_logger("tickwright.reports")


class ReportSupervisor:
    """A :class:`tickwright.ports.service.Service`.

    Args:
        at_once: Places to put parts together, 1 to 16: merges take memory. There is one more, for a type that has none.

    Invariants:
        RSV-1: a step whose claim is lost is cancelled within two seconds of the loss being known.
        RSV-2: what Redis keeps of a report does not end while its step waits for room, or is under way.
        RSV-3: merges, however long they take, keep no other step waiting; those of one type no merge of another type.
        RSV-4: ``run`` raises when the check for lost steps crashes; what is held is held by the next ``run``.
    """

    name = "report-supervisor"

    def __init__(self, shop: Workshop, session: Session, hearing: Hearing, *, at_once: int) -> None:
        self._shop, self._session, self._hearing, self._at_once = shop, session, hearing, at_once
        self.counts: Counter[str] = Counter()
        self._news = hearing.subscribe()
        self._running: dict[int, tuple[int, asyncio.Task[None]]] = {}
        self._merging: dict[tuple[int, int], str] = {}  # the types, by report and fence
        self._free = asyncio.Event()
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()
        self._ticked_s: float | None = None
        self._gate = ClaimGate(shop.records.connect, session, self.name, self._give_back_unknown)
        session.on_lost(self._drop_all)

    @property
    def _records(self) -> RecordsStore:
        return self._shop.records

    @property
    def running(self) -> int:
        """Steps in this process's hands."""
        return len(self._running)

    # ------------------------------------------------------------------ service

    async def run(self) -> None:
        """Take steps until stopped."""
        self._over.clear()
        try:
            async with TaskGroup() as group:
                looking = group.create_task(self._look_after_held())
                await self._take_until_stopped()
                looking.cancel()
        finally:
            self._over.set()

    async def _take_until_stopped(self) -> None:
        while not self._stopping.is_set():
            self._free.clear()
            wait_s = await self._take()
            self._ticked_s = monotonic()
            await self._rest(wait_s)
        await self._none_runs()

    async def quiesce(self) -> None:
        """Take no further step; those that run end."""
        self._wake()
        await self._over.wait()
        await self._none_runs()

    async def stop(self) -> None:
        """Cancel what runs; the steps are given back."""
        self._wake()
        self._drop_all()
        await self._over.wait()
        await self._none_runs()

    def last_tick_age_s(self) -> float | None:
        """Seconds since it looked what is due."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    def _wake(self) -> None:
        self._stopping.set()
        self._free.set()

    def _drop_all(self) -> None:
        for _, task in self._running.values():
            task.cancel()

    async def _none_runs(self) -> None:
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])

    # ------------------------------------------------------------------ steps

    async def _take(self) -> float:
        """Begin what is due and there is room for; return after how many seconds to look again."""
        self._news.clear()
        room = max(SHORT_AT_ONCE - len(self._running) + len(self._merging), 0)
        if not self._session.holds():
            return AWAY_S
        try:
            async with self._gate.claiming() as (owner, number):
                claimed = await self._records.claim(
                    owner, room, number=number, merging=[*self._merging.values()], places=self._places
                )
                for record in claimed:
                    self._begin(record, owner)
            if claimed:
                return 0.0  # of those that wait for a place one comes at a time
            if room == 0:
                return LOOK_S  # a step that ends frees its place, and that wakes
            next_s = await self._records.next_in_s()
        except UNAVAILABLE as error:
            _log.warning("reports.steps_not_taken", error=repr(error))
            return AWAY_S
        look_s = LOOK_S if self._hearing.works else LOOK_WITHOUT_NEWS_S
        return look_s if next_s is None else min(max(next_s, 0.0), look_s)

    @property
    def _places(self) -> int:
        """Places to put parts together that are left; the last one is for a type that has none."""
        return self._at_once + 1 - len(self._merging)

    def _place(self, record: Record) -> bool:
        """Take a place until the step has ended; false where there is none for its type. The claim says the same."""
        if self._places <= (record.type in self._merging.values()):
            return False
        self._merging[record.id, record.fence] = record.type
        return True

    def _begin(self, record: Record, owner: int) -> None:
        task = asyncio.create_task(begins(self._step(record, owner)))
        self._running[record.id] = (record.fence, task)
        task.add_done_callback(lambda _: self._ended(record, task))

    def _ended(self, record: Record, task: asyncio.Task[None]) -> None:
        if record.id in self._running and self._running[record.id][1] is task:  # it may have been taken again
            del self._running[record.id]
        self._merging.pop((record.id, record.fence), None)
        self._free.set()

    async def _step(self, record: Record, owner: int) -> None:
        run = StepRun(self._shop, record, owner, self._place)
        try:
            await run.run()
        except asyncio.CancelledError:
            async with self._strays():
                async with asyncio.timeout(2):
                    await self._records.leave(record, owner, after_s=0.0)
            raise
        except (*UNAVAILABLE, TickwrightError) as error:
            _log.warning("reports.step_broken", report=record.id, error=repr(error))
            async with self._strays():
                await self._records.leave(record, owner, after_s=AWAY_S)
        except Exception as error:  # noqa: BLE001  one report must not end the others
            _log.exception("reports.unexpected", report=record.id, error=repr(error))
            async with self._strays():
                await run.give_up(error)
        finally:
            self.counts[run.outcome] += 1

    @asynccontextmanager
    async def _strays(self) -> AsyncIterator[None]:
        """Give a step back in the block; while the database is away it stays ours, and is given back behind that."""
        try:
            yield
        except Exception as error:
            self._gate.unsure = True
            if not isinstance(error, UNAVAILABLE):
                raise

    async def _give_back_unknown(self, connection: Connection, owner: int) -> int:
        known = {report_id: fence for report_id, (fence, _) in self._running.items()}
        return await self._records.give_back_strays(connection, owner, known)

    async def _look_after_held(self) -> None:
        """Cancel what is not ours any more: cancelled by a user, or taken after we were declared lost."""
        renewed_s = monotonic()
        while True:
            await asyncio.sleep(HELD_LOOK_S)
            if monotonic() - renewed_s >= RENEW_S:
                renewed_s = monotonic()
                with suppress(*UNAVAILABLE):
                    await self._shop.places.touch_all(await self._records.waiting(self._session.token))
            held = {report_id: fence for report_id, (fence, _) in self._running.items()}
            if not held:
                continue
            try:
                ours = await self._records.held(held, self._session.token)
            except UNAVAILABLE:
                continue
            for report_id, fence in held.items():
                found = self._running.get(report_id)
                if report_id not in ours and found is not None and found[0] == fence:
                    found[1].cancel()

    async def _rest(self, seconds: float) -> None:
        """Wait for news, a place that becomes free, or so long."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._news, self._free)]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
