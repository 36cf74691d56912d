"""A worker that runs due jobs one after the other until none is left: for tests, and for programs that only do that.

It is the worker's code: its claim, its runner, its middleware, its results, under a session with a fence. What differs
is when it claims: nothing ahead of time, one job at a time, in the order of priority, due time and id. So a test that
drains sees the same order each time, and a job sees all that the jobs before it have written. Jobs with groups come
behind those without, in the turns of their groups, whose limits and order hold. A handler of chunks gets what is due of
its type and priority at once, without a wait for more. No rate delays anything here, nor does a type's concurrency.
A paused type waits, as it does in a worker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from tickwright.capabilities.jobs.handlers import HandlerRegistry
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange, Completed, Job, TaskType
from tickwright.capabilities.jobs.worker.chunks import ChunkCall
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.capabilities.jobs.worker.worker import JobWorker, WorkerLimits
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.plugin.lifespan import Around
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.jobs.sql", "drain.sql")
_NOTHING_AHEAD = timedelta()


class DrainedJob(msgspec.Struct, frozen=True):
    """One attempt of a drain.

    Attributes:
        id: Of the job.
        name: Its task type.
        attempt: The number of the attempt, from 1.
        outcome: ``completed``, ``retried`` (it failed, and another attempt follows), ``failed``, ``snoozed``,
            ``expired``, ``cancel``, ``gone``, ``deferred`` (a payload key is missing) or ``released``.
        payload: The payload, decoded.
        result: What the handler returned, or gave an item of a chunk, as JSON has it.
        error: What it raised.
    """

    id: int
    name: str
    attempt: int
    outcome: str
    payload: Any = None
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Attempt:
    """What the handler of the running attempt has returned or raised."""

    job: Job
    result: Any = None
    error: BaseException | None = None


class JobDrain(JobWorker):
    """Runs due jobs of a program's handlers, one at a time. Not a service: it is called.

    Invariants:
        DRN-1: a job runs only once it is due by the database's clock, after every due job that comes before it.
        DRN-2: each attempt is claimed and its result is written with the fence of the session, before the next claim.
    """

    name = "drain"

    def __init__(
        self, pool: Pool, session: WorkerSession, handlers: HandlerRegistry, keys: PayloadKeys = NO_KEYS
    ) -> None:
        chunk = max((handler.call.size for handler in handlers.all() if isinstance(handler.call, ChunkCall)), default=0)
        limits = WorkerLimits(concurrency=1 + 2 * chunk, threads=1)
        super().__init__(pool, session, handlers, {}, direct=DirectConnection(None), limits=limits, keys=keys)
        self._attempts: dict[int, _Attempt] = {}
        self._outcomes: dict[int, tuple[Job, str]] = {}
        self._claimed = 0
        self.outcomes.watch(self._note_outcome)
        self._claims = ClaimStore(pool)

    async def open(self) -> None:
        """Open the slot and read the types; the session is open."""
        self.runner.start()
        await self.read_types()

    async def read_types(self) -> None:
        """Read the types again: a job or the program may have paused or changed one."""
        await self._refresh_types()

    async def aclose(self) -> None:
        """Interrupt what runs, and release it."""
        await self.runner.close()
        await self.result_writer.write_now()

    def _adopt(self, kinds: Sequence[TaskType]) -> None:
        super()._adopt([replace(kind, rate_per_s=None, concurrency=None) for kind in kinds])

    def _type_state_of(self, kind: TaskType) -> TypeState | None:
        state = super()._type_state_of(kind)
        if state is not None:
            state.around, state.is_plain = _watched(state.around, self._begin), False
        return state

    def _begin(self, job: Job) -> _Attempt:
        attempt = self._attempts[job.id] = _Attempt(job)
        return attempt

    def _note_outcome(self, job: Job, outcome: str) -> None:
        self._outcomes[job.id] = job, outcome

    def _room_of(self, name: str) -> int:  # noqa: ARG002  one type at a time
        return self._claimed

    async def now(self) -> datetime:
        """Return the database's clock."""
        now: datetime = await self._pool.fetchval(_SQL["now"])
        return now

    async def next_due(self) -> datetime | None:
        """Return the first later instant at which a job is due; ``None`` if no job is."""
        found: datetime | None = await self._pool.fetchval(_SQL["next_due"], self._runnable())
        return found

    async def run_next(self) -> Sequence[DrainedJob]:
        """Run the due job that comes first, or its chunk; return nothing if no job is due, or none can be claimed."""
        for task_type, priority in await self._pool.fetch(_SQL["due_ranges"], self._runnable()):
            if await self._claim(ClaimRange(task_type, priority)) and (ended := await self._ended()):
                return ended
        for task_type in self._runnable():
            if self.types()[task_type].task_type.has_groups:
                while await self._claim_groups(task_type):
                    if ended := await self._ended():
                        return ended
        return ()

    def _runnable(self) -> list[str]:
        return sorted(name for name, state in self.types().items() if not state.task_type.waits)

    async def _claim(self, claim_range: ClaimRange) -> bool:
        return await self._take(claim_range.task_type, [claim_range], self._claims.claim)

    async def _claim_groups(self, task_type: str) -> bool:
        claim = partial(self.groups.claim, self.types()[task_type], is_paced=False)
        return await self._take(task_type, (), claim)

    async def _take(
        self,
        task_type: str,
        ranges: Sequence[ClaimRange],
        claim: Callable[[ClaimRequest], Awaitable[ClaimedJobs | None]],
    ) -> bool:
        call = self.types()[task_type].call
        rows_max = call.size if isinstance(call, ChunkCall) else 1
        plan = ClaimPlan((task_type,), (rows_max,), rows_max)
        self._attempts.clear()
        self._outcomes.clear()
        async with self.gate.claiming() as ticket:
            request = ClaimRequest(ticket.owner, plan, ranges, _NOTHING_AHEAD, whole=frozenset(), number=ticket.number)
            if (claimed := await claim(request)) is None:
                return False
            self._clock.sample(claimed.now_s, claimed.received_s)
            self._claimed = len(claimed.rows)
            self.take(claimed)
        return bool(claimed.rows)

    async def _ended(self) -> list[DrainedJob]:
        """Wait for the end of the claimed attempts, and write their results; one that was released has none."""
        while self.runner.queued or self.runner.busy:
            await self.runner.wait_idle()
            await asyncio.sleep(0)
        await self.result_writer.write_now()
        return [self._drained(*self._outcomes[job_id]) for job_id in self._outcomes]

    def _drained(self, job: Job, outcome: str) -> DrainedJob:
        attempt = self._attempts.get(job.id) or _Attempt(job)
        result = attempt.result
        if isinstance(result, Completed):  # of an item of a chunk
            result = None if result.result is None else msgspec.json.decode(result.result)
        return DrainedJob(job.id, job.type, job.attempt, outcome, job.payload, result, attempt.error)


def _watched(around: Around | None, begin: Callable[[Job], _Attempt]) -> Around:
    """Return ``around`` with a note of what the whole attempt returns or raises."""

    async def watch(job: Job, run: Callable[[], Awaitable[Any]]) -> Any:
        attempt = begin(job)
        try:
            attempt.result = await (run() if around is None else around(job, run))
        except BaseException as error:
            if not (job.stop_reason and isinstance(error, asyncio.CancelledError)):  # that is how the runner stops it
                attempt.error = error
            raise
        return attempt.result

    return watch


async def live_jobs(
    fetch: Callable[..., Awaitable[Sequence[Any]]], name: str | None, limit: int
) -> Sequence[Mapping[str, Any]]:
    """Return live jobs of a type, or of all, for assertions of tests; ``fetch`` runs one statement."""
    return await fetch(_SQL["live"], name, limit)
