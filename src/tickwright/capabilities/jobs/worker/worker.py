"""One worker of one-shot jobs: claimer, runner, result writer and wake-up under one leased session.

The database decides: the worker runs the types of ``task_types``, holds what a claim returned, and its results count
while its session's token does. When the session is lost, it cancels every handler, drops every result, and continues
under a new token.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import structlog

from tickwright.capabilities.jobs.handlers import HandlerRegistry
from tickwright.capabilities.jobs.model import (
    AttemptOutcome,
    Begin,
    Completed,
    Errored,
    Job,
    TaskType,
    ahead_max,
    type_slots_max,
)
from tickwright.capabilities.jobs.task_types import load_types, mark_gone
from tickwright.capabilities.jobs.worker.chunks import ChunkCall
from tickwright.capabilities.jobs.worker.claimer import Claimer
from tickwright.capabilities.jobs.worker.claims import OWNED, ClaimedJobs, ClaimStore
from tickwright.capabilities.jobs.worker.encryption import WorkerEncryption
from tickwright.capabilities.jobs.worker.groups import ClaimedGroups, WorkerGroups
from tickwright.capabilities.jobs.worker.idle_sleep import worker_wakeup
from tickwright.capabilities.jobs.worker.pools import ALL, WorkerScope
from tickwright.capabilities.jobs.worker.queue_slots import SlotPools
from tickwright.capabilities.jobs.worker.result_writer import RETRY_S, OutcomeRecorder, ResultWriter
from tickwright.capabilities.jobs.worker.runner import Runner
from tickwright.capabilities.jobs.worker.shared_limits import SharedLimits
from tickwright.capabilities.jobs.worker.steps import Steps, WorkerSteps
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.domain import traceparent
from tickwright.domain.dbclock import DbClock
from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Unavailable
from tickwright.domain.retries import within_an_hour
from tickwright.engine.call_batcher import CallBatcher
from tickwright.engine.claim_gate import ClaimGate
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.engine.tasks import TaskGroup
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.turns import Turns, group_of
from tickwright.observe import traces
from tickwright.ports.broker import Accepted, Broker, Message, Outcome, Refused
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

DELIVERY_GRACE_S = 2.0
CHECK_AFTER_S = 0.5
UNHEARD_S = 1.0

_log = structlog.get_logger("tickwright.jobs")


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The bounds of one worker: attempts and synchronous handlers at once; a stuck handler keeps its thread."""

    concurrency: int = 256
    threads: int = 32


class JobWorker:
    """Runs one-shot jobs until stopped; a :class:`tickwright.ports.service.Service`."""

    name = "jobs"

    def __init__(
        self,
        pool: Pool,
        session: Session,
        handlers: HandlerRegistry,
        brokers: Mapping[str, Broker],
        *,
        direct: DirectConnection,
        limits: WorkerLimits | None = None,
        scope: WorkerScope = ALL,
        keys: PayloadKeys = NO_KEYS,
        probe: Probe = NO_PROBE,
    ) -> None:
        limits = limits or WorkerLimits()
        self.encryption = WorkerEncryption(keys)
        self._pool, self._session, self._handlers, self._brokers = pool, session, handlers, brokers
        self._store, self._clock = ClaimStore(pool), DbClock()
        self._types: dict[str, TypeState] = {}
        self._former: dict[str, TypeState] = {}
        self._suspending: set[str] = set()
        self._marking: set[Job] = set()
        self.lost_results = 0
        self.reclaimed = 0
        self.result_writer = ResultWriter(
            self._store, session, lost=self._count_lost, released=self._claim_again, probe=probe
        )
        begins = CallBatcher(self._begin_last)
        self.outcomes = OutcomeRecorder(
            self.result_writer, gone=self._suspend, freed=self._claim_again, begins=begins, keys=keys
        )
        self.scope, slots = scope, scope.slots or limits.concurrency
        self.runner = Runner(self.outcomes, self._clock, slots=slots, threads=limits.threads)
        self.runner.pools = self._pools = SlotPools(scope) if scope.has_pools else None
        self._steps = WorkerSteps(pool, session, self.runner.loop, keys)
        self.wakeup = worker_wakeup(direct, cancelled=self._cancel_notified, types_changed=self._types_changed)
        self._limits = SharedLimits(pool, self._store, session)
        self.gate = ClaimGate(pool.acquire, session, "jobs", self._release_unknown, owns_any_sql=OWNED)
        targets = sorted(handler.defaults.target for handler in handlers.all())
        group = group_of("jobs", targets, [*sorted(brokers), *sorted(keys.names)], *self.scope.group())
        turns = Turns(session.join(group, lambda: not self.claimer.claims_nothing))
        self.groups = WorkerGroups(pool, self.runner.places)
        self.claimer = Claimer(
            self._store,
            self.gate,
            session,
            self.runner,
            self._clock,
            self.wakeup,
            self,
            self._limits,
            self.groups,
            turns,
        )
        self._refreshing: asyncio.Task[None] | None = None
        self._types_notified = False
        self._notified: set[int] = set()
        self._checking: asyncio.Task[None] | None = None
        session.on_beat(self._beat)
        session.on_reclaim(self._reclaim)
        session.on_lost(self._session_lost)

    async def run(self) -> None:
        """Work until stopped."""
        self.runner.start()
        try:
            await self._refresh_types()
            async with TaskGroup() as group:
                checking = group.create_task(self._check_unheard())
                group.create_task(self.result_writer.run())
                claiming = group.create_task(self.claimer.run())
                claiming.add_done_callback(lambda _: checking.cancel())
        finally:
            await self.runner.close()

    async def quiesce(self) -> None:
        """Stop claiming; release what is not started; return when running attempts have ended and are written."""
        self.claimer.stop()
        self._release_all_unstarted()
        await self.claimer.wait_stopped()
        self._release_all_unstarted()
        await self.runner.wait_idle()
        await self.result_writer.drained()
        await self._leave_groups()

    async def stop(self) -> None:
        """Interrupt running attempts, release them without counting the attempt, and end."""
        self.claimer.stop()
        await self.claimer.wait_stopped()
        self._release_all_unstarted()
        await self.runner.close()
        self._release_all_unstarted()
        await self.result_writer.drained()
        await self._leave_groups()
        self.result_writer.stop()

    async def _leave_groups(self) -> None:
        """Let other workers look at the groups of the jobs that ended here; a later hint of upkeep does the same."""
        with suppress(*UNAVAILABLE):
            await self.groups.hint()

    def last_tick_age_s(self) -> float | None:
        """Return the seconds since the last claim, by the monotonic clock."""
        return None if self.claimer.ticked_s is None else monotonic() - self.claimer.ticked_s

    def types(self) -> Mapping[str, TypeState]:
        """Return the task types that this worker can run now."""
        return self._types

    def backlog(self) -> int:
        """Return how many results are not written yet."""
        return self.result_writer.backlog

    def queues_full(self) -> list[str]:
        """Return the queues without a free slot, with ``*`` for those without a reserve."""
        return [] if self._pools is None else self._pools.full()

    def _types_changed(self) -> None:
        self._types_notified = True
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._follow_types())

    async def _follow_types(self) -> None:
        """Read the types until no notification arrives during the read: it may miss a change that commits meanwhile."""
        with suppress(*UNAVAILABLE):  # a heartbeat reads them again
            while self._types_notified:
                self._types_notified = False
                await self._refresh_types()

    async def _refresh_types(self) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            self._adopt(await load_types(connection))
            committed = await self._share_out(connection)
        committed()
        self.claimer.wake()

    async def _share_out(self, connection: Connection) -> Callable[[], None]:
        self.claimer.note_room()
        return await self._limits.share_out(
            connection,
            self._types,
            self.claimer.may_return,
            left=self._former,
            shares=not self.claimer.claims_nothing,
        )

    async def share_again(self) -> None:
        """Settle the grants of limited types: this worker has room again, or others must release some."""
        async with self._pool.acquire() as connection, connection.transaction():
            committed = await self._share_out(connection)
        committed()

    def _adopt(self, kinds: Sequence[TaskType]) -> None:
        types: dict[str, TypeState] = {}
        for read in kinds:
            kind = replace(read, gone=True) if read.name in self._suspending else read
            old = self._types.get(kind.name) or self._back(kind.name)
            if old is not None and old.task_type == kind:
                types[kind.name] = old
            elif (state := self._type_state_of(kind)) is not None:
                if old is not None:
                    is_slower = _is_slower(kind.rate_per_s, old.task_type.rate_per_s)
                    old.update_from(state)
                    self.runner.recompute_starts(old)
                    if kind.waits or is_slower:
                        self._release_unstarted(old)
                types[kind.name] = old or state
        self._limit_slots([state.task_type for state in types.values() if not state.task_type.waits])
        for name in self._types.keys() - types.keys():  # attempts of a type that cannot run here now still count
            state = self._types[name]
            state.task_type = replace(state.task_type, gone=True)
            self._release_unstarted(state)
            self._former[name] = state
        self._types = types
        self._former = {name: state for name, state in self._former.items() if name not in types and state.in_use}

    def _limit_slots(self, runnable: Sequence[TaskType]) -> None:
        """Compute how many slots one of the types that may run may have."""
        self.runner.type_slots_max = type_slots_max(self.runner.slots, types=len(runnable))
        if self._pools is not None:
            self._pools.limit_types(Counter(kind.queue for kind in runnable))

    def _back(self, name: str) -> TypeState | None:
        """Return the kept state of a type, if it returns; it has no grant."""
        state = self._former.get(name)
        if state is not None and state.granted is not None:
            state.granted = 0
        return state

    def _release_unstarted(self, state: TypeState) -> None:
        """Release the unstarted attempts of a type that waits, or whose rate is lower now.

        Their jobs are claimed again when they are due; until then they would take the slots of other types. As many as
        the worker may take ahead at the new rate stay, with their starts.
        """
        kind = state.task_type
        keep = 0 if kind.waits or kind.rate_per_s is None else ahead_max(kind.rate_per_s)
        for job in self.runner.remove_type(state, keep=keep):
            self.outcomes.record_unstarted(job, "waits")

    def _type_state_of(self, kind: TaskType) -> TypeState | None:
        if not (self.scope.serves(kind.name, kind.queue, kind.needs) and self.encryption.can_run(kind)):
            return None
        queue = None if self._pools is None else self._pools.of(kind.queue)
        scheme, _, rest = kind.target.partition(":")
        if scheme == "python":
            handler = self._handlers.get(rest)
            if handler is None:
                return None
            around = self.encryption.around(kind, handler.around)
            state = TypeState(kind, handler.call, is_async=handler.is_async, around=around, queue=queue)
            if isinstance(handler.call, ChunkCall):
                handler.call.room = partial(self._room_of, kind.name)
            return state
        broker = self._brokers.get(scheme)
        if broker is None:
            return None
        around, call = self.encryption.around(kind, None), BrokerCall(kind, broker)
        return TypeState(kind, call, is_async=True, grace_s=DELIVERY_GRACE_S, around=around, queue=queue)

    def _room_of(self, name: str) -> int:
        """Return how many attempts of a type may run here."""
        state = self._types.get(name)
        if state is None:
            return self.runner.type_slots_max
        most = self.runner.slots_of(state)
        return most if state.granted is None else min(state.granted, most)

    def take(self, claimed: ClaimedJobs) -> None:
        """Run the claimed jobs, each at its instant."""
        fire_s = claimed.fire_s
        claimed.sort()
        jobs = []
        for row in claimed.rows:
            state = self._types.get(row.task_type)
            if state is None or state.task_type.waits:  # its type was deleted or paused during the claim
                self.result_writer.add("release", row.id, row.fence)
                continue
            state.held += 1
            if row.fence > 1:
                self._supersede(row.id)
            timeout_s = state.timeout_s if row.timeout_ms is None else row.timeout_ms / 1000
            job = Job(row, state, self, fire_s[row.id] if fire_s else row.due_s, timeout_s)
            if row.expires_s is not None and row.expires_s <= claimed.now_s:
                self.outcomes.record_expired(job)
            else:
                jobs.append(job)
        if claimed.details_chars:
            self._expect_soon(jobs)
        if isinstance(claimed, ClaimedGroups):
            jobs = self.runner.places.enter(jobs, claimed.places, claimed.unfinished, claimed.depth)
        self.runner.put(jobs)
        for state in filter(None, map(self._types.get, claimed.counts)):
            if _is_slower(state.task_type.rate_per_s, claimed.rate_per_s):  # it was lowered during the claim
                self._release_unstarted(state)

    def _expect_soon(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.was_awaited():
                self.outcomes.expect_soon(job)

    async def _begin_last(self, jobs: Sequence[Job]) -> Sequence[Begin]:
        """Write that last attempts begin. While the database is unavailable, try again as long as the session lives."""
        token = self._session.token
        ids, fences = [job.id for job in jobs], [job.fence for job in jobs]
        while token and token == self._session.token:
            try:
                ours = await self._store.begin_last(token, ids, fences)
            except UNAVAILABLE as error:
                _log.warning("jobs.begin_delayed", jobs=len(jobs), error=repr(error))
                await asyncio.sleep(RETRY_S)
            else:
                found = {True: Begin.BEGINS, False: Begin.LOCKED, None: Begin.LOST}
                return [found[ours.get(job.id)] for job in jobs]
        return [Begin.LOST] * len(jobs)

    def _suspend(self, job: Job, why: str) -> None:
        """Make a type wait whose endpoint is gone: here at once, elsewhere after the write; then release its jobs."""
        job.type_state.task_type = replace(job.type_state.task_type, gone=True)
        self._suspending.add(job.type)
        unstarted = self.runner.remove_type(job.type_state)
        self._marking.update([job, *unstarted])
        task = asyncio.ensure_future(self._mark_gone(job, why, unstarted))
        task.add_done_callback(lambda done: done.exception() if not done.cancelled() else None)

    async def _mark_gone(self, job: Job, why: str, unstarted: Sequence[Job]) -> None:
        try:
            await mark_gone(self._pool, job.type)
        finally:
            self._suspending.discard(job.type)
            self._marking.difference_update([job, *unstarted])
            self.result_writer.add("release_with_error", job.id, job.fence, why)
            for other in unstarted:
                self.outcomes.record_unstarted(other, "waits")
        await self._refresh_types()

    def _release_all_unstarted(self) -> None:
        for job in self.runner.remove_all():
            self.outcomes.record_unstarted(job, "shutdown")

    def _claim_again(self) -> None:
        self.claimer.wake()

    def _count_lost(self, count: int) -> None:
        self.lost_results += count
        _log.warning("jobs.results_dropped", jobs=count)

    async def report_progress(self, job: Job, progress: str) -> bool:
        """Write a running job's progress. Raises ``Unavailable`` (``database_unavailable``): retry, or go on."""
        if job.type_state.task_type.encrypted:
            progress = self.encryption.keys.seal(progress, Purpose.PROGRESS, str(job.id))
        try:
            return await self._store.report_progress(self._session.token, job.id, job.fence, progress)
        except UNAVAILABLE as error:
            text = f"the progress of job {job.id} is not written: {error}"
            raise Unavailable("database_unavailable", text) from error

    def steps_of(self, job: Job) -> Steps:
        """Return the steps of a running attempt."""
        return Steps(job, self._steps)

    async def _release_unknown(self, connection: Connection, token: int) -> int:
        held = [(job.id, job.fence) for job in (*self.runner.held(), *self._marking)]
        claimed = [(row.id, row.fence) for row in self.claimer.unaccepted()]
        known = [*held, *claimed, *self.result_writer.known()]
        released, locked = await self._store.release_unknown(connection, token, known)
        for job_id, fence in locked:  # known from now on; released when the other session ends its transaction
            self.result_writer.add("release", job_id, fence)
        self.claimer.wake()
        return released

    async def _beat(self, connection: Connection) -> Callable[[], None]:
        self._adopt(await load_types(connection))
        await self._check_held(connection)
        return await self._share_out(connection)

    async def _check_held(self, connection: Connection) -> None:
        """Stop jobs that are cancelled or that another session owns now, also unstarted ones; note awaited ones."""
        held = self.runner.held(CHECK_AFTER_S)
        if not held:
            return
        found = await self._store.check_held(connection, self._session.token, [job.id for job in held])
        self._note_awaited({job_id for job_id, (_, awaited) in found.items() if awaited})
        reasons = {job: reason for job in held if (reason := found.get(job.id, (None, False))[0]) is not None}
        for job in self.runner.remove_jobs(reasons.keys()):
            self.outcomes.record_unstarted(job, reasons[job])
        for job, reason in reasons.items():
            self.runner.stop_job(job, reason)

    async def _check_unheard(self) -> None:
        """Look for cancelled jobs every second while this worker hears no notification of them.

        Also release the jobs that wait in a place of their group behind one that runs for longer.
        """
        while True:
            await asyncio.sleep(UNHEARD_S)
            if held_up := self.runner.places.held_up():
                for job in self.runner.remove_jobs(held_up):
                    self.outcomes.record_unstarted(job, "waits")
            if self.wakeup.works or not self.runner.held(CHECK_AFTER_S):
                continue
            with suppress(*UNAVAILABLE):
                async with self._pool.acquire() as connection:
                    await self._check_held(connection)

    def _cancel_notified(self, job_id: int) -> None:
        self._notified.add(job_id)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_notified())

    async def _check_notified(self) -> None:
        """Stop the jobs whose rows are cancelled, and note those that are awaited.

        The rows decide: every user of the database may notify, whatever its rights.
        """
        with suppress(*UNAVAILABLE):  # a heartbeat checks them again
            while self._notified:
                ids, self._notified = self._notified, set()
                async with self._pool.acquire() as connection:
                    held = await self._store.check_held(connection, self._session.token, list(ids))
                self._note_awaited({job_id for job_id, (_, awaited) in held.items() if awaited})
                for job_id, (reason, _) in held.items():
                    if reason == "cancel":
                        self._cancel(job_id)

    def _note_awaited(self, ids: AbstractSet[int]) -> None:
        """Write the ends of jobs soon; also those that are queued already."""
        if ids:
            for job in self.runner.held():
                if job.id in ids:
                    self.outcomes.expect_soon(job)
            self.result_writer.write_soon()

    def _cancel(self, job_id: int) -> None:
        if (job := self.runner.remove_job(job_id)) is not None:
            self.outcomes.record_unstarted(job, "cancel")
            return
        self._stop_running(job_id, "cancel")

    def _supersede(self, job_id: int) -> None:
        """Stop the older attempt of a held job that was released elsewhere and claimed here again."""
        if (job := self.runner.remove_job(job_id)) is not None:
            self.outcomes.record_stopped(job, "lost")
        self._stop_running(job_id, "lost")

    def _stop_running(self, job_id: int, reason: str) -> None:
        for job in self.runner.running():
            if job.id == job_id:
                self.runner.stop_job(job, reason)

    async def _reclaim(self, connection: Connection, tokens: Sequence[int]) -> None:
        self.reclaimed += sum(await self._store.reclaim(connection, tokens))
        self.claimer.wake()

    def _session_lost(self) -> None:
        for job in self.runner.remove_all():
            self.outcomes.record_stopped(job, "lost")
        for job in self.runner.running():
            self.runner.stop_job(job, "lost")
        self.result_writer.drop_all()
        self._limits.session_lost(self._types.values())


def _is_slower(rate_per_s: float | None, former_per_s: float | None) -> bool:
    return (rate_per_s or math.inf) < (former_per_s or math.inf)


class BrokerCall:
    """The call of a task type with an outside target: HTTP callback, WebSocket push, RabbitMQ or Kafka publish.

    A job row is its own outbox row, so the worker delivers it through the broker port. The message id is the job's on
    every attempt; the fence shows a receiver which attempt is the newest. The id is also the key: the attempts of a job
    are in one partition of a Kafka topic, in their order.
    """

    def __init__(self, kind: TaskType, broker: Broker) -> None:
        self._kind, self._broker = kind, broker
        with suppress(Exception):  # a job that goes there reports it; here the check only loads the broker's code
            broker.check(kind.target)

    async def __call__(self, job: Job) -> AttemptOutcome:
        """Send one attempt and return its outcome."""
        headers = {
            "tickwright-task-type": job.type,
            "tickwright-attempt": str(job.attempt),
            "tickwright-fence": str(job.fence),
            "tickwright-execute-at": job.execute_at.isoformat().replace("+00:00", "Z"),
        }
        if (here := traces.current()) is not None:
            headers[traceparent.NAME] = here
        message_id = f"job_{job.id}"
        message = Message(
            id=message_id,
            key=message_id,
            destination=self._kind.target,
            body=job.payload_json.encode(),
            headers=headers,
            timeout=timedelta(seconds=job.deadline_s or self._kind.timeout.total_seconds()),
            signing_secrets=self._kind.secrets,
        )
        return _outcome_of(await self._broker.publish(message), self._kind)


def _outcome_of(outcome: Outcome, kind: TaskType) -> AttemptOutcome:
    if isinstance(outcome, Accepted):
        return Completed()
    text = f"{outcome.code}: {outcome.reason}"
    if isinstance(outcome, Refused):
        final = outcome.final or outcome.status in kind.final_statuses
        wait = within_an_hour(outcome.retry_after)
        return Errored(outcome.code, text, final=final, gone=outcome.gone, retry_after=wait)
    return Errored(outcome.code, text)
