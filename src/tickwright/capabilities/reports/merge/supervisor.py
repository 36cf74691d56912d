"""The supervisors of reports: each claims due steps, decides with :mod:`.steps`, and carries the step out.

Every process of the role runs one. A due step is claimed with ``FOR UPDATE SKIP LOCKED`` under a rising fence, so two
supervisors never take one step. If its process dies, the step is claimed again when the session is declared lost. The
last part of a stage notifies; the delayed check is the safety net. A step is::

    decide ─▶ announce ─▶ released until the next check
           ─▶ parts to merge, and no merge slot: released until there is one
           ─▶ next stage: fetch parts, feed, announce
           ─▶ merging: fetch parts ─▶ merge ─▶ upload ─▶ finished      (parts lost: epoch + 1; unavailable: tried again)
           ─▶ failed

Long work happens in a folder of the step and under a key of its own epoch and fence; only the last, fenced write makes
it count. A step that merges takes any time, so it needs a merge slot, separate from the slots of short steps. Without
one the step is released for the first process that has one.
"""

import asyncio
import math
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import starmap
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import structlog

from tickwright.capabilities.reports.merge.merge import MergeBounds, MergedFile, PartFile
from tickwright.capabilities.reports.merge.process_pool import MergeProcesses
from tickwright.capabilities.reports.merge.program import MergeJob
from tickwright.capabilities.reports.merge.steps import (
    RESTARTS_MAX,
    Announce,
    Decision,
    Fail,
    Merge,
    NextStage,
    Part,
    Record,
    Wait,
    check_feed,
    decide,
    missing_of,
)
from tickwright.capabilities.reports.parts.store import SQL, LostPartError, PartStorage
from tickwright.capabilities.reports.requests.store import FinishedFile, RecordsStore
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.retries import RetryPolicy
from tickwright.engine.claimed_work import POLL_S, UNAVAILABLE_S, ClaimedWork, Held
from tickwright.engine.tasks import TaskGroup
from tickwright.engine.wakeup.listener import WakeupListener
from tickwright.ports.ids import monotonic
from tickwright.ports.objects import ObjectStore
from tickwright.ports.reports import Column, PartFacts, PartKey
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection

SHORT_AT_ONCE = 8
"""Steps without a merge, at a time."""
TRIES_MAX = 10
FETCHES_MAX = 4
RETRY = RetryPolicy(cap=timedelta(seconds=30))
RENEW_S = 60.0
RELEASE_S = 2.0
"""How long the release of one step may take: a stop waits for it."""

_log = structlog.get_logger("tickwright.reports")


@dataclass(frozen=True, slots=True)
class StepResources:
    """The services of steps, and the folder, on a disk with room for parts, spilled data and the file."""

    records: RecordsStore
    storage: PartStorage
    objects: ObjectStore
    folder: Path
    merges: MergeProcesses
    bounds: MergeBounds
    probe: Probe = NO_PROBE


@dataclass(slots=True, eq=False)
class RunningStep(Held[Record]):
    """One claimed step; after a release it is due again in ``retry_s``. ``has_slot``: it has a merge slot."""

    has_slot: bool = False
    retry_s: float = 0.0


class ReportSupervisor(ClaimedWork[tuple[int, int], RunningStep]):
    """A :class:`tickwright.ports.service.Service`; steps are held by report and fence.

    Args:
        at_once: Merge slots, 1 to 16: merges take memory. There is one more, for a type that has none.

    Invariants:
        RSV-1: a step whose claim is lost is cancelled within two seconds after the loss is detected.
        RSV-2: a report's data in Redis does not expire while its step waits for a merge slot, or is under way.
        RSV-3: merges, however long they take, delay no other step; those of one type delay no merge of another type.
        RSV-4: ``run`` raises when the check for lost steps crashes; the next ``run`` keeps the held steps.
    """

    name = "report-supervisor"
    owns_any_sql = SQL["owned"]

    def __init__(self, resources: StepResources, session: Session, wakeups: WakeupListener, *, at_once: int) -> None:
        super().__init__(session, wakeups, resources.records.connect)
        self._resources, self._records, self._at_once = resources, resources.records, at_once
        self._renewed_s = monotonic()

    @property
    def is_full(self) -> bool:
        """Whether it has no room for short steps, or no merge slot for steps of any type."""
        merging = self._merging()
        return len(self._held) - len(merging) >= SHORT_AT_ONCE or self._slots(merging) <= 1

    async def _claim_due(self) -> float:
        """Claim due steps, as many as there is room for; return the seconds until the next search."""
        if not self._session.holds():
            return UNAVAILABLE_S
        try:
            async with self._gate.claiming() as (owner, number):
                merging = self._merging()
                room, slots = max(SHORT_AT_ONCE - len(self._held) + len(merging), 0), self._slots(merging)
                claimed = await self._records.claim(owner, room, number=number, merging=merging, slots=slots)
                for record in claimed:
                    self._begin(record.key, RunningStep(record, owner), self._run_step)
            if claimed:
                return 0.0  # a claim takes only one of the steps that wait for a merge slot
            if room == 0:
                return POLL_S  # a step that ends wakes this loop
            next_s = await self._records.next_in_s()
        except UNAVAILABLE as error:
            _log.warning("reports.steps_not_claimed", error=repr(error))
            return UNAVAILABLE_S
        return self._poll_s if next_s is None else min(max(next_s, 0.0), self._poll_s)

    def _merging(self) -> list[str]:
        """Return the types that have the merge slots, one item per slot."""
        return [step.claim.type for step in self._held.values() if step.has_slot]

    def _slots(self, merging: Sequence[str]) -> int:
        """Return the number of free merge slots; the last one is for a type that has none."""
        return self._at_once + 1 - len(merging)

    def _take_slot(self, step: RunningStep) -> bool:
        """Take a merge slot until the step ends; false if its type may have none. ``claim_steps`` has the same rule."""
        merging = self._merging()
        step.has_slot = self._slots(merging) > (step.claim.type in merging)
        return step.has_slot

    async def _run_step(self, step: RunningStep) -> str:
        run = StepRun(self._resources, step, self._take_slot)
        try:
            await run.run()
        except asyncio.CancelledError:
            if run.outcome == "lost":
                raise
        except (*UNAVAILABLE, TickwrightError) as error:
            _log.warning("reports.step_interrupted", report=step.claim.id, error=repr(error))
            step.retry_s = UNAVAILABLE_S
            await self._let_go(step)
        except Exception as error:  # noqa: BLE001  one report must not end the others
            _log.exception("reports.step_unexpected", report=step.claim.id, error=repr(error))
            await run.try_again(Unavailable("unexpected", repr(error)[:500]), [])  # until the report's deadline
        return run.outcome

    async def _release(self, step: RunningStep) -> None:
        async with asyncio.timeout(RELEASE_S):
            await self._records.leave(step.claim, step.owner, after_s=step.retry_s)

    async def _release_unknown(self, connection: Connection, owner: int) -> int:
        return await self._records.release_unknown(connection, owner, self._held.keys())

    async def _ours(self, held: Mapping[tuple[int, int], RunningStep]) -> Collection[tuple[int, int]]:
        return await self._records.confirm(held.keys(), self._session.token)

    async def _after_check(self, held: Sequence[RunningStep]) -> None:  # noqa: ARG002  renews all waiting steps, not these alone
        """Renew the lives in Redis once a minute, also of steps that wait for a slot and may be another process's."""
        if monotonic() - self._renewed_s < RENEW_S:
            return
        self._renewed_s = monotonic()
        with suppress(*UNAVAILABLE):
            await self._resources.storage.touch_all(await self._records.waiting(self._session.token))


class StepRun:
    """Decides one claimed step and carries it out.

    Args:
        take_slot: Takes a merge slot for the step; false if there is none for its type.

    Attributes:
        outcome: ``lost`` until something of it is written.

    Invariants:
        RSR-1: a record is finished only after a whole upload whose size was read back.
        RSR-2: a file has parts of one epoch.
        RSR-3: objects of a step that did not count are removed.
    """

    def __init__(self, resources: StepResources, step: RunningStep, take_slot: Callable[[RunningStep], bool]) -> None:
        self._resources, self._step, self._take_slot = resources, step, take_slot
        self._record, self._owner = step.claim, step.owner
        self.outcome = "lost"

    async def run(self) -> None:
        """Decide and carry out, within the report's deadline.

        Raises:
            One of ``UNAVAILABLE``: the database; the step is claimed again.
        """
        record = self._record
        parts = await self._resources.records.parts(record.id)
        decision = decide(record, parts)
        if record.tries >= TRIES_MAX and isinstance(decision, NextStage | Merge):  # errors end it one try earlier
            decision = Fail("merge_lost", f"the process that merged its parts was lost in each of {record.tries} tries")
        if _is_long(record, decision) and not self._take_slot(self._step):
            self._step.is_ending = True
            await self._resources.records.wait_for_slot(record, self._owner)
            self.outcome = "waited"
            return
        within = asyncio.timeout(max(record.left_s, 0.0) if isinstance(decision, NextStage | Merge) else None)
        try:
            async with within:
                await self._apply(decision, parts)
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
            await self.try_again(error, parts)

    async def _apply(self, decision: Decision, parts: Sequence[Part]) -> None:
        record, records = self._record, self._resources.records
        if isinstance(decision, Wait | Announce):
            await self._resources.storage.touch_all({(record.id, record.epoch): record.plan})
        match decision:
            case Wait():
                self._step.is_ending = True
                await records.leave(record, self._owner)
                self.outcome = "waited"
            case Announce(listeners):
                check = record.checks + 1
                _log.info("reports.announcement_repeated", report=record.id, listeners=listeners, check=check)
                self._step.is_ending = True
                await records.announce_again(record, self._owner, listeners)
                self.outcome = "announced"
            case NextStage():
                await self._next_stage(parts)
            case Merge(missing):
                await self._merge(parts, missing)
            case Fail():
                await self._fail(decision, parts)

    # ------------------------------------------------------------------ next stage

    async def _next_stage(self, parts: Sequence[Part]) -> None:
        record = self._record
        sql = record.plan.feeds.get(record.stage + 1)
        values: dict[str, Any] = {}
        if sql is not None:
            if not await self._resources.records.begin_try(record, self._owner):
                return
            folder = await self._folder()
            try:
                files = await self._fetch(parts, folder)
                job = MergeJob(parts=files, sql=sql, folder=folder, bounds=self._bounds())
                values = (await self._resources.merges.answer(job)).values or {}
                check_feed(record, values)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._step.is_ending = True
        if await self._resources.records.next_stage(record, self._owner, values):
            self.outcome = "staged"

    # ------------------------------------------------------------------ merge

    async def _merge(self, parts: Sequence[Part], missing: Sequence[str]) -> None:
        record, resources = self._record, self._resources
        if not await resources.records.begin_merge(record, self._owner):
            return
        await resources.probe.reached("reports.merging", report=record.id, fence=record.fence)
        folder = await self._folder()
        try:
            files = await self._fetch(parts, folder)
            out = folder / f"out.{record.plan.format}"
            job = MergeJob(
                parts=files, sql=record.plan.merge, folder=folder, bounds=self._bounds(), out=out,
                form=record.plan.format, bom=record.plan.bom,
            )  # fmt: skip
            merged = (await resources.merges.answer(job)).file
            assert merged is not None  # noqa: S101  the answer to a job with a file
            await resources.probe.reached("reports.merged", report=record.id, path=out)
            await self._upload_and_finish(out, merged, parts, missing)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _upload_and_finish(
        self, out: Path, merged: MergedFile, parts: Sequence[Part], missing: Sequence[str]
    ) -> None:
        record, resources = self._record, self._resources
        key = f"reports/{record.id}/{record.epoch}-{record.fence}/{record.type}-{record.id}.{record.plan.format}"
        is_unused = True
        try:
            size = await resources.objects.put_file(key, out)
            if size != merged.bytes:
                raise Unavailable("object_store_unavailable", f"{size} of {merged.bytes} bytes arrived; try again")
            await resources.probe.reached("reports.uploaded", report=record.id, key=key)
            file = FinishedFile(
                resources.objects.address(key),
                key,
                PartFacts((), merged.rows, merged.bytes, merged.checksum),
                manifest(record, parts, missing),
            )
            self._step.is_ending = True
            is_unused = False  # from now on a record may name the file, even if the answer is lost; retention decides
            is_unused = not await resources.records.finish(record, self._owner, file)
        finally:
            if is_unused:
                await resources.storage.drop([key])
        if not is_unused:
            self.outcome = "finished"
            await resources.probe.reached("reports.finished", report=record.id)
            await resources.storage.discard(record.id, "finished", record.nonce)

    async def _fetch(self, parts: Sequence[Part], folder: Path) -> list[PartFile]:
        """Fetch every part that is done into the folder, some at a time; a missing part becomes an empty file."""
        record, storage = self._record, self._resources.storage
        files: list[PartFile] = []
        room = asyncio.Semaphore(FETCHES_MAX)

        async def fetch(part: Part, path: Path) -> None:
            async with room:
                await storage.fetch(PartKey(record.id, record.epoch, part.listener, record.nonce), part, path)

        try:
            async with TaskGroup() as group:
                for number, part in enumerate(part for part in parts if part.stage <= record.stage):
                    path = folder / f"part-{number}.ndjson"
                    if part.state == "done":
                        group.create_task(fetch(part, path))
                        files.append(PartFile(part.listener, path, part.columns))
                    else:
                        await asyncio.to_thread(path.touch)
                        declared = record.plan.listener(part.listener).columns
                        files.append(PartFile(part.listener, path, tuple(starmap(Column, declared.items()))))
        except BaseExceptionGroup as failed:  # the first error is the reason; the other tasks were cancelled for it
            raise failed.exceptions[0] from None
        return files

    def _bounds(self) -> MergeBounds:
        """Return the limits of its merges, and the deadline as processor time in case this process hangs."""
        bounds = self._resources.bounds
        return bounds._replace(cpu_s=math.ceil(max(self._record.left_s, 0.0)) * bounds.threads)

    async def _folder(self) -> Path:
        def make() -> str:
            self._resources.folder.mkdir(parents=True, exist_ok=True)
            return mkdtemp(prefix=f"{self._record.id}-{self._record.fence}-", dir=self._resources.folder)

        try:
            return Path(await asyncio.to_thread(make))
        except OSError as error:
            raise Unavailable("no_space", f"no folder can be made for the merge: {error.strerror}") from error

    # ------------------------------------------------------------------ ends

    async def _fail(self, why: Fail, parts: Sequence[Part]) -> None:
        record = self._record
        found = manifest(record, parts, missing_of(parts))
        self._step.is_ending = True
        if await self._resources.records.fail(record, self._owner, why.code, why.text, found):
            self.outcome = "failed"
            _log.warning("reports.failed", report=record.id, type=record.type, code=why.code, reason=why.text)
            await self._resources.storage.discard(record.id, "failed", record.nonce)

    async def _restart(self, why: str, parts: Sequence[Part]) -> None:
        record = self._record
        if record.restarts >= RESTARTS_MAX:
            await self._fail(Fail("parts_lost", f"parts were lost {record.restarts + 1} times: {why}"), parts)
            return
        _log.warning("reports.restarted", report=record.id, epoch=record.epoch + 1, reason=why)
        self._step.is_ending = True
        if await self._resources.records.restart(record, self._owner):
            self.outcome = "restarted"

    async def try_again(self, error: TickwrightError, parts: Sequence[Part]) -> None:
        """Release the step until its next try, after 1, 2, 4 s …; after ten tries the report fails with ``error``."""
        record = self._record
        tries = record.tries + 1
        if tries >= TRIES_MAX:
            await self._fail(Fail(error.code, f"{error.message} ({tries} tries)"), parts)
            return
        _log.warning("reports.step_not_done", report=record.id, tries=tries, code=error.code, reason=error.message)
        self._step.is_ending = True
        await self._resources.records.leave(record, self._owner, after_s=RETRY.ceiling_s(tries))
        self.outcome = "unavailable"


def _is_long(record: Record, decision: Decision) -> bool:
    """Whether it merges parts, whose SQL may take any time."""
    return isinstance(decision, Merge) or (isinstance(decision, NextStage) and record.stage + 1 in record.plan.feeds)


_IN_MANIFEST = ("listener", "stage", "required", "state", "rows", "bytes", "error")


def manifest(record: Record, parts: Sequence[Part], missing: Sequence[str]) -> dict[str, Any]:
    """Return the parts of a file, or of a failed report."""
    return {
        "epoch": record.epoch,
        "complete": not missing,
        "missing": [*missing],
        "parts": [{name: getattr(part, name) for name in _IN_MANIFEST} | {"sha256": part.checksum} for part in parts],
    }
