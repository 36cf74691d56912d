"""The supervisors of reports: each takes steps that are due, decides with :mod:`.steps`, and carries the step out.

Every process of the role runs one. A step that is due is claimed with ``FOR UPDATE SKIP LOCKED`` under a rising fence,
so two supervisors never take one step, and a step whose process died is claimed again when its session is declared
lost. The last part of a stage notifies, so that the step does not wait for the delayed check; that one is the safety
net. A step is::

    decide ─▶ announce ─▶ released until the next check
           ─▶ parts to merge, and no merge slot: released until there is one
           ─▶ next stage: fetch parts, feed, announce
           ─▶ merging: fetch parts ─▶ merge ─▶ upload ─▶ finished      (parts lost: epoch + 1; unavailable: tried again)
           ─▶ failed

What takes time happens in a folder of the step and under a key of its own epoch and fence; only the last write, which
is fenced, makes it count. A step that merges takes as long as its SQL does. It needs a merge slot, beside the slots of
the short steps; without one the step goes back to the ledger, for the first process that has one.
"""

import asyncio
import math
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import structlog

from tickwright.capabilities.reports.merge.merge import MergeBounds, MergedFile, PartFile
from tickwright.capabilities.reports.merge.process_pool import MergeProcesses
from tickwright.capabilities.reports.merge.steps import (
    RESTARTS_MAX,
    Announce,
    Fail,
    Merge,
    NextStage,
    Part,
    Record,
    Step,
    Wait,
    check_feed,
    decide,
)
from tickwright.capabilities.reports.parts.storage import LostPartError, PartPlaces
from tickwright.capabilities.reports.parts.store import columns_from
from tickwright.capabilities.reports.requests.store import FinishedFile, RecordsStore
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.engine.claim_gate import ClaimGate
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import TaskGroup, cancel_safe
from tickwright.engine.wakeup import WakeupListener
from tickwright.ports.ids import monotonic
from tickwright.ports.objects import ObjectStore
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.reports import Column, PartFacts, PartKey
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection

TRIES_MAX = 10
FETCHES_MAX = 4
RETRY_CAP_S = 30.0

_log = structlog.get_logger("tickwright.reports")


@dataclass(frozen=True, slots=True)
class Workshop:
    """What steps work with.

    Attributes:
        folder: Where steps have their folders; on a disk with room for parts, spilling and the file.
    """

    records: RecordsStore
    places: PartPlaces
    objects: ObjectStore
    folder: Path
    merges: MergeProcesses
    bounds: MergeBounds
    probe: Probe = NO_PROBE


class StepRun:
    """One claimed step.

    Args:
        place: Takes a place for a step that puts parts together; false where there is none for its type.

    Invariants:
        RSR-1: a record is finished only behind a whole upload whose size was read back.
        RSR-2: a file has parts of one epoch.
        RSR-3: what a step made that did not count is removed.
    """

    def __init__(self, shop: Workshop, record: Record, owner: int, place: Callable[[Record], bool]) -> None:
        self._shop, self._record, self._owner, self._place = shop, record, owner, place
        self.outcome = "lost"

    async def run(self) -> None:
        """Decide and carry out, within the report's deadline.

        Raises:
            One of ``UNAVAILABLE``: the database went away; the step is taken again.
        """
        record = self._record
        parts = await self._shop.records.parts(record.id)
        step = decide(record, parts)
        if record.tries >= TRIES_MAX and isinstance(step, NextStage | Merge):  # errors end it one try earlier
            step = Fail(
                "merge_lost", f"the process that put its parts together was lost again and again ({record.tries} tries)"
            )
        if _is_long(record, step) and not self._place(record):
            self.outcome = "waited"
            await self._shop.records.wait_for_place(record, self._owner)
            return
        within = asyncio.timeout(max(record.left_s, 0.0) if isinstance(step, NextStage | Merge) else None)
        try:
            async with within:
                await self._carry_out(step, parts)
        except TimeoutError:
            if not within.expired():
                raise
            text = f"it was not finished within {record.plan.deadline_s} s; its parts were there"
            await self._fail(Fail("deadline_passed", text), parts)
        except LostPartError as error:
            await self._restart(str(error), parts)
        except Rejected as error:
            await self._fail(Fail(error.code, error.message), parts)
        except Unavailable as error:
            await self._again(error, parts)

    async def _carry_out(self, step: Step, parts: Sequence[Part]) -> None:
        record, records = self._record, self._shop.records
        match step:
            case Wait():
                self.outcome = "waited"
                await self._shop.places.touch(record.id, record.epoch, record.plan)
                await records.leave(record, self._owner)
            case Announce(listeners):
                self.outcome = "announced"
                await self._shop.places.touch(record.id, record.epoch, record.plan)
                _log.info("reports.announced_again", report=record.id, listeners=listeners, check=record.checks + 1)
                await records.announce_again(record, self._owner, listeners)
            case NextStage():
                await self._next_stage(parts)
            case Merge(missing):
                await self._merge(parts, missing)
            case Fail():
                await self._fail(step, parts)

    # ------------------------------------------------------------------ next stage

    async def _next_stage(self, parts: Sequence[Part]) -> None:
        record = self._record
        sql = record.plan.feeds.get(record.stage + 1)
        values: dict[str, Any] = {}
        if sql is not None:
            if not await self._shop.records.begin_try(record, self._owner):
                return
            folder = await self._folder()
            try:
                files = await self._fetch(parts, folder)
                values = await self._shop.merges.feed(files, sql, folder=folder, bounds=self._bounds())
                check_feed(record, values)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if await self._shop.records.next_stage(record, self._owner, values):
            self.outcome = "staged"

    # ------------------------------------------------------------------ merge

    async def _merge(self, parts: Sequence[Part], missing: Sequence[str]) -> None:
        record, shop = self._record, self._shop
        if not await shop.records.begin_merge(record, self._owner):
            return
        await shop.probe.reached("reports.merging", report=record.id, fence=record.fence)
        folder = await self._folder()
        try:
            files = await self._fetch(parts, folder)
            out = folder / f"out.{record.plan.format}"
            merged = await shop.merges.merge(
                files, record.plan.merge, out, form=record.plan.format, bom=record.plan.bom, folder=folder,
                bounds=self._bounds(),
            )  # fmt: skip
            await shop.probe.reached("reports.merged", report=record.id, path=out)
            await self._deliver(out, merged, parts, missing)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _deliver(self, out: Path, merged: MergedFile, parts: Sequence[Part], missing: Sequence[str]) -> None:
        record, shop = self._record, self._shop
        key = f"reports/{record.id}/{record.epoch}-{record.fence}/{record.type}-{record.id}.{record.plan.format}"
        nobodys = True
        try:
            there = await shop.objects.put_file(key, out)
            if there != merged.bytes:
                raise Unavailable("object_store_unavailable", f"{there} of {merged.bytes} bytes arrived; try again")
            await shop.probe.reached("reports.uploaded", report=record.id, key=key)
            file = FinishedFile(
                shop.objects.address(key),
                key,
                PartFacts((), merged.rows, merged.bytes, merged.checksum),
                manifest(record, parts, missing),
            )
            nobodys = False  # from here on the record may have it, though its answer is lost; upkeep knows
            nobodys = not await shop.records.finish(record, self._owner, file)
        finally:
            if nobodys:
                await shop.places.drop([key])
        if not nobodys:
            self.outcome = "finished"
            await shop.probe.reached("reports.finished", report=record.id)
            await shop.places.close(record.id, "finished", record.nonce)

    async def _fetch(self, parts: Sequence[Part], folder: Path) -> list[PartFile]:
        """Bring every part that is there into the folder, some at a time; one that is left out has no rows."""
        record, places = self._record, self._shop.places
        files: list[PartFile] = []
        room = asyncio.Semaphore(FETCHES_MAX)

        async def fetch(part: Part, path: Path) -> None:
            async with room:
                await places.fetch(PartKey(record.id, record.epoch, part.listener, record.nonce), part, path)

        try:
            async with TaskGroup() as group:
                for number, part in enumerate(part for part in parts if part.stage <= record.stage):
                    path = folder / f"part-{number}.ndjson"
                    if part.state == "done":
                        group.create_task(fetch(part, path))
                        files.append(PartFile(part.listener, path, columns_from(part.columns)))
                    else:
                        await asyncio.to_thread(path.touch)
                        files.append(PartFile(part.listener, path, self._declared(part.listener)))
        except BaseExceptionGroup as failed:  # the first one says why; the others were cancelled for it
            raise failed.exceptions[0] from None
        return files

    def _declared(self, listener: str) -> tuple[Column, ...]:
        one = self._record.plan.listener(listener)
        return columns_from([*one.columns.items()]) if one is not None else ()

    def _bounds(self) -> MergeBounds:
        """Return what its merges may use; the deadline as well, for when this process hangs and cannot end them."""
        bounds = self._shop.bounds
        return bounds._replace(cpu_s=math.ceil(max(self._record.left_s, 0.0)) * bounds.threads)

    async def _folder(self) -> Path:
        def make() -> str:
            self._shop.folder.mkdir(parents=True, exist_ok=True)
            return mkdtemp(prefix=f"{self._record.id}-{self._record.fence}-", dir=self._shop.folder)

        try:
            return Path(await asyncio.to_thread(make))
        except OSError as error:
            raise Unavailable("no_space", f"no folder can be made for the merge: {error.strerror}") from error

    # ------------------------------------------------------------------ ends

    async def _fail(self, why: Fail, parts: Sequence[Part]) -> None:
        record = self._record
        said = manifest(record, parts, [part.listener for part in parts if part.state != "done"])
        if await self._shop.records.fail(record, self._owner, why.code, why.text, said):
            self.outcome = "failed"
            _log.warning("reports.failed", report=record.id, type=record.type, code=why.code, reason=why.text)
            await self._shop.places.close(record.id, "failed", record.nonce)

    async def _restart(self, why: str, parts: Sequence[Part]) -> None:
        record = self._record
        if record.restarts >= RESTARTS_MAX:
            await self._fail(Fail("parts_lost", f"parts were lost {record.restarts + 1} times: {why}"), parts)
            return
        _log.warning("reports.restarted", report=record.id, epoch=record.epoch + 1, reason=why)
        if await self._shop.records.restart(record, self._owner):
            self.outcome = "restarted"

    async def give_up(self, error: Exception) -> None:
        """Try again later after something that nobody expected; the report's deadline ends that."""
        await self._again(Unavailable("unexpected", repr(error)[:500]), [])

    async def _again(self, error: TickwrightError, parts: Sequence[Part]) -> None:
        record = self._record
        tries = record.tries + 1
        if tries >= TRIES_MAX:
            await self._fail(Fail(error.code, f"{error.message} ({tries} tries)"), parts)
            return
        self.outcome = "unavailable"
        _log.warning("reports.step_not_done", report=record.id, tries=tries, code=error.code, reason=error.message)
        await self._shop.records.leave(record, self._owner, after_s=min(2.0 ** (tries - 1), RETRY_CAP_S))


def _is_long(record: Record, step: Step) -> bool:
    """Whether it puts parts together: their SQL takes what it takes."""
    return isinstance(step, Merge) or (isinstance(step, NextStage) and record.stage + 1 in record.plan.feeds)


def manifest(record: Record, parts: Sequence[Part], missing: Sequence[str]) -> dict[str, Any]:
    """Return what a file was made of, or what there was when the report failed."""
    return {
        "epoch": record.epoch,
        "complete": not missing,
        "missing": [*missing],
        "parts": [
            {
                "listener": part.listener,
                "stage": part.stage,
                "required": part.required,
                "state": part.state,
                "rows": part.rows,
                "bytes": part.bytes,
                "sha256": part.checksum,
                "error": part.error,
            }
            for part in parts
        ],
    }


LOOK_S = 5.0
LOOK_WITHOUT_NEWS_S = 0.5
HELD_LOOK_S = 1.0
RENEW_S = 60.0
AWAY_S = 1.0
SHORT_AT_ONCE = 8
"""Steps that put no parts together, at a time."""


class ReportSupervisor(LoopService):
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

    def __init__(self, shop: Workshop, session: Session, wakeups: WakeupListener, *, at_once: int) -> None:
        super().__init__(wakeups.subscribe())
        self._shop, self._session, self._wakeups, self._at_once = shop, session, wakeups, at_once
        self.counts: Counter[str] = Counter()
        self._running: dict[int, tuple[int, asyncio.Task[None]]] = {}
        self._merging: dict[tuple[int, int], str] = {}  # the types, by report and fence
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

    async def _work(self) -> None:
        async with TaskGroup() as group:
            looking = group.create_task(self._look_after_held())
            while not self.stopping.is_set():
                self.wakeup.clear()
                wait_s = await self._take()
                self.tick()
                await self.wait_for_work(wait_s)
            await self._none_runs()
            looking.cancel()

    async def quiesce(self) -> None:
        """Take no further step; those that run end."""
        await super().quiesce()
        await self._none_runs()

    async def stop(self) -> None:
        """Cancel what runs; the steps are released."""
        self._drop_all()
        await self.quiesce()

    def _drop_all(self) -> None:
        for _, task in self._running.values():
            task.cancel()

    async def _none_runs(self) -> None:
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])

    # ------------------------------------------------------------------ steps

    async def _take(self) -> float:
        """Begin what is due and there is room for; return after how many seconds to look again."""
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
        look_s = LOOK_S if self._wakeups.works else LOOK_WITHOUT_NEWS_S
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
        task = asyncio.create_task(cancel_safe(self._step(record, owner)))
        self._running[record.id] = (record.fence, task)
        task.add_done_callback(lambda _: self._ended(record, task))

    def _ended(self, record: Record, task: asyncio.Task[None]) -> None:
        if record.id in self._running and self._running[record.id][1] is task:  # it may have been taken again
            del self._running[record.id]
        self._merging.pop((record.id, record.fence), None)
        self.wakeup.set()

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
