"""Writes what attempts ended as, many at once, each write fenced by the session's token.

The first result after a quiet time is written at once; further ones gather for at most
``FLUSH_GAP_S``, so a crash loses the record of at most that much work (it runs again). While the
database is away results wait, until the lease is lost: then somebody else owns those jobs and they
are dropped and counted.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import structlog

from tickwright.capabilities.jobs.claims_store import ClaimStore
from tickwright.capabilities.jobs.model import ERROR_MESSAGE_MAX
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.session import Session

FLUSH_GAP_S = 0.02
FLUSHES_AT_ONCE = 2
BATCH_MAX = 1000
RETRY_S = 0.2
PASSING = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,  # 08
    asyncpg.InvalidAuthorizationSpecificationError,  # 28
    asyncpg.ReadOnlySQLTransactionError,  # 25006: a standby, or a disk that its operator keeps from filling up
    asyncpg.IdleInTransactionSessionTimeoutError,  # 25P03
    asyncpg.TransactionRollbackError,  # 40
    asyncpg.InsufficientResourcesError,  # 53
    asyncpg.ObjectNotInPrerequisiteStateError,  # 55
    asyncpg.OperatorInterventionError,  # 57
    asyncpg.PostgresSystemError,  # 58
)
"""What passes: the database is unavailable, full, read-only or locked. Nothing was decided: the write is repeated."""

GIVEN_BACK = frozenset({"retry", "snooze"})
"""Results after which the job is pending again and may be due before anybody would look."""

FENCED = GIVEN_BACK | {"release", "release_with_error"}
"""Results whose first column is the job's fence: said twice, they must not reach a later attempt."""

_log = structlog.get_logger("tickwright.jobs")


@dataclass(slots=True)
class _Batch:
    """Results of one kind: ids and, column by column, what belongs to them."""

    ids: list[int] = field(default_factory=list)
    columns: tuple[list[Any], ...] = ()


class Settler:
    """Collects results and writes them; see the module's text."""

    def __init__(
        self,
        store: ClaimStore,
        session: Session,
        *,
        lost: Callable[[int], None],
        given_back: Callable[[], None],
        probe: Probe = NO_PROBE,
    ) -> None:
        self._store = store
        self._session = session
        self._lost = lost
        self._given_back = given_back
        self._probe = probe
        self._waiting: dict[str, _Batch] = defaultdict(_Batch)
        self.kept: list[int] = []
        self.forgotten: list[int] = []
        self._writing: dict[asyncio.Task[None], tuple[str, _Batch]] = {}
        self._woken = asyncio.Event()
        self._stopping = False
        self._awake = False
        self._idle = asyncio.Event()
        self._idle.set()

    def wake(self) -> None:
        """Say that something is waiting; cheap, called once per batch of results."""
        self._awake = True
        self._idle.clear()
        self._woken.set()

    def add_completed(self, job_id: int, *, keep: bool) -> None:
        """Queue the common case: it ended well and returned nothing."""
        (self.kept if keep else self.forgotten).append(job_id)
        if not self._awake:
            self.wake()

    def add(self, kind: str, job_id: int, *values: Any) -> None:
        """Queue one result; ``kind`` is a query of ``results.sql``, ``values`` its further columns."""
        batch = self._waiting[kind]
        if not batch.columns and values:
            batch.columns = tuple([] for _ in values)
        batch.ids.append(job_id)
        for column, value in zip(batch.columns, values, strict=True):
            column.append(value)
        self.wake()

    @property
    def backlog(self) -> int:
        """How many results are not written yet."""
        return len(self.kept) + len(self.forgotten) + sum(len(batch.ids) for batch in self._waiting.values())

    def known(self) -> list[tuple[int, int]]:
        """Return the jobs whose result is not known to be written, with their fences; 0 where it ends the job."""
        batches = [*self._waiting.items(), *self._writing.values()]
        known = [(job_id, 0) for job_id in (*self.kept, *self.forgotten)]
        for kind, batch in batches:
            fences = batch.columns[0] if kind in FENCED else [0] * len(batch.ids)
            known.extend(zip(batch.ids, fences, strict=True))
        return known

    def drop_all(self) -> None:
        """Forget what was not written: the session that it belongs to is lost."""
        dropped = self.backlog
        self.kept.clear()
        self.forgotten.clear()
        self._waiting.clear()
        if dropped:
            self._lost(dropped)

    async def run(self) -> None:
        """Write until stopped."""
        while not self._stopping or self.backlog:
            await self._woken.wait()
            self._woken.clear()
            while self.backlog:
                self._start_writes()
                await self._rest()
            self._awake = False
            if not self._writing:
                self._idle.set()
        if self._writing:
            await asyncio.wait(self._writing)

    async def _rest(self) -> None:
        if len(self._writing) >= FLUSHES_AT_ONCE:
            await asyncio.wait(self._writing, return_when=asyncio.FIRST_COMPLETED)
        elif self.backlog < BATCH_MAX:
            await asyncio.sleep(FLUSH_GAP_S)

    def _start_writes(self) -> None:
        token = self._session.token
        for kind, batch in self._take():
            task = asyncio.create_task(self._write(kind, token, batch))
            self._writing[task] = kind, batch
            task.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing.pop(task, None)
        if not self._writing and not self.backlog:
            self._idle.set()
        if not task.cancelled() and (error := task.exception()):
            _log.error("jobs.result_lost", error=repr(error))

    def _take(self) -> list[tuple[str, _Batch]]:
        taken = []
        if self.kept:
            taken.append(("complete", _Batch(self.kept[:BATCH_MAX])))
            del self.kept[:BATCH_MAX]
        if self.forgotten:
            taken.append(("complete_and_forget", _Batch(self.forgotten[:BATCH_MAX])))
            del self.forgotten[:BATCH_MAX]
        taken.extend(self._waiting.items())
        self._waiting = defaultdict(_Batch)
        return taken

    async def _write(self, kind: str, token: int, batch: _Batch) -> None:
        tried = False
        while token == self._session.token:
            try:
                await self._probe.reached("jobs.before_result", kind=kind, ids=batch.ids)
                found = await self._store.write(kind, token, batch.ids, *batch.columns)
            except PASSING as error:
                tried = True
                _log.warning("jobs.result_delayed", kind=kind, jobs=len(batch.ids), error=repr(error))
                await asyncio.sleep(RETRY_S)
            except asyncpg.PostgresError as error:
                await self._refused(kind, token, batch, error)
                return
            else:
                if found < len(batch.ids) and not tried:  # a second try may find its first one done
                    self._lost(len(batch.ids) - found)
                if kind in GIVEN_BACK:
                    self._given_back()
                return
        self._lost(len(batch.ids))

    async def _refused(self, kind: str, token: int, batch: _Batch, error: asyncpg.PostgresError) -> None:
        """Find the result that the database refuses for good: its job fails, the others are written."""
        if len(batch.ids) == 1:
            _log.error("jobs.result_refused", kind=kind, job=batch.ids[0], error=repr(error))
            if kind != "fail":
                self.add("fail", batch.ids[0], "failed", f"result_refused: {error}"[:ERROR_MESSAGE_MAX])
            return
        half = len(batch.ids) // 2
        for part in (slice(half), slice(half, None)):
            await self._write(kind, token, _Batch(batch.ids[part], tuple(column[part] for column in batch.columns)))

    async def drained(self) -> None:
        """Return when everything that was queued so far is written or dropped."""
        while self.backlog or self._writing:
            self._idle.clear()
            self._woken.set()
            await self._idle.wait()

    def stop(self) -> None:
        """Write what is left, then return from ``run``."""
        self._stopping = True
        self._woken.set()
