"""Claims of remote workers: at once where jobs are due, otherwise when a notification or a due time wakes this process.

::

    claim ──jobs are due──▶ answer
      └──none──▶ waits ──an insert notifies, or a job is due──▶ one claim for the worker that waits longest, and so on
                   └──its time is up, the process stops──▶ answer without jobs      until a claim finds none

Calls of consumers (polls, tasks, chunks; :mod:`tickwright.engine.remote`) are claimed beside jobs: the kind that comes
first changes with each claim, so that neither fills every answer.

One connection listens for all that wait. A round claims once for each worker that gets jobs, and once more for each set
of types without jobs, however many workers wait for them.

Only due jobs are claimed, because a client has no clock of the database; the process waits for due times in its place.
Jobs of a type with a rate are the exception: each has its start, which the answer has as a wait.

The process keeps nothing that another one needs. If it is killed between claim and answer, the worker's next claim says
what the worker knows of, and the jobs that it does not know of are released (``held``), as
:mod:`tickwright.engine.claim_gate` does it for a Python worker.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import asyncpg
import msgspec
import structlog

from tickwright.capabilities.jobs.model import ClaimedRow, ClaimPlan, Deferred, Errored, TaskType, plan_claim
from tickwright.capabilities.jobs.remote.found import AskedClaim, FoundJobs
from tickwright.capabilities.jobs.remote.messages import (
    RemoteAttempt,
    RemoteClaim,
    RemoteFail,
    RemoteJob,
    RemoteJobs,
    RemoteRelease,
    RemoteWork,
)
from tickwright.capabilities.jobs.remote.results import DeferredAttempt, Ended, ExpiredAttempt, RemoteResultWriter
from tickwright.capabilities.jobs.remote.sessions import CALL_S, SQL, RemoteSession, RemoteSessions, session_lost
from tickwright.capabilities.jobs.task_types import load_types
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.encryption import WorkerEncryption
from tickwright.capabilities.jobs.worker.frontier import ClaimFrontier, fair_plan
from tickwright.capabilities.jobs.worker.groups import GroupClaims
from tickwright.capabilities.jobs.worker.idle_sleep import IdleSleep, worker_wakeup
from tickwright.capabilities.jobs.worker.shared_limits import claim_at_rate, lock_limited
from tickwright.domain.errors import Contended, Rejected, TickwrightError
from tickwright.domain.time_texts import parse_duration
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.engine.remote.calls import CALLS_CHANNEL
from tickwright.engine.remote.work import CallStore
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.bounds import for_all_callers, within
from tickwright.store.pool import UNAVAILABLE, Connection, Pool
from tickwright.store.queries import load

WAIT_MAX = timedelta(seconds=60)
CLAIMS_AT_ONCE = 3
POLL_S, HEARD_POLL_S = 1.0, 2.0
PLACES_S = 0.2
"""How often to look for free places of a limited type, and for a free start of a type with a rate."""
TYPES_S = 1.0
LONG_MAX = 8
"""How many payloads that may have up to 2 MB as text one claim returns."""
ANSWER_CHARS_MAX = 8 * 1024 * 1024
"""Of all payloads of an answer. What does not fit is released; the first job always fits."""
ROUNDS_MAX = 200
_AT_ONCE = timedelta()
_Claim = Callable[[ClaimRequest, Connection], Awaitable[ClaimedJobs]]
_WORKERS = load("tickwright.engine.sql", "workers.sql")
_log = structlog.get_logger("tickwright.remote")


@dataclass(eq=False, slots=True)
class _Waiting:
    asked: AskedClaim
    answer: "asyncio.Future[RemoteJobs]"
    turn: "asyncio.Future[None] | None" = None
    """Ends when the claim that is under way for it has ended."""


class RemoteClaimer(LoopService):
    """The claims of all remote workers that call this process; see the module."""

    name = "remote-claims"

    def __init__(
        self,
        pool: Pool,
        store: ClaimStore,
        sessions: RemoteSessions,
        *,
        keys: PayloadKeys = NO_KEYS,
        direct: DirectConnection | None = None,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__()
        self._encryption = WorkerEncryption(keys)
        self._pool, self._store, self._sessions, self._probe = pool, store, sessions, probe
        self.calls = CallStore(pool, probe=probe)
        self.results = RemoteResultWriter(
            pool, store, self.kind, self.calls, released=self.wake, keys=keys, probe=probe
        )
        self._frontier = ClaimFrontier(lambda _: False)
        self._wakeup = worker_wakeup(
            direct or DirectConnection(None),
            cancelled=_ignore,
            types_changed=self._retype,
            more={CALLS_CHANNEL: lambda _: self.wake()},
        )
        self._sleep = IdleSleep(self._wakeup)
        self._waiting: dict[_Waiting, None] = {}
        self._claims = asyncio.Semaphore(CLAIMS_AT_ONCE)
        self._in_progress = 0
        self._turn = self._following = 0
        self._limited_claims = Counter[str]()
        self._calls_first = False
        self._types: dict[str, TaskType] = {}
        self._groups: dict[str, GroupClaims] = {}
        self._types_until_s = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Task[object]] = set()

    @property
    def waiting(self) -> int:
        """How many claims wait for a job."""
        return len(self._waiting)

    # ------------------------------------------------------------------ types

    def kind(self, name: str) -> TaskType | None:
        """Return a task type as it was read last."""
        return self._types.get(name)

    async def read_types(self) -> None:
        """Read the types, at most once a second; after a change of one, at once."""
        if monotonic() < self._types_until_s:
            return
        if self._reading is None or self._reading.done():
            with for_all_callers():
                self._reading = asyncio.create_task(self._read_types())
        await asyncio.shield(self._reading)

    async def _read_types(self) -> None:
        self._types_until_s = monotonic() + TYPES_S
        try:
            with within(CALL_S):
                async with self._pool.acquire() as connection:
                    self._types = {kind.name: kind for kind in await load_types(connection)}
        except BaseException:
            self._types_until_s = 0.0
            raise

    def _retype(self) -> None:
        self._types_until_s = 0.0
        self.wake()

    def wake(self) -> None:
        """Claim again for those that wait: jobs are pending again, places are free, or types have changed."""
        self._wakeup.woken.set()
        self.wakeup.set()

    # ------------------------------------------------------------------ calls

    async def claim(self, session: RemoteSession, body: RemoteClaim) -> RemoteJobs:
        """Return due jobs and waiting calls, or those that come within the wait; empty when there are none.

        If the caller is cancelled, what was claimed for it is released.

        Raises:
            Rejected: ``unknown_type``: not one of the registration; ``invalid_duration``. Permanent.
            Contended: ``session_lost``; ``claim_superseded``: a later claim said what the worker holds. Permanent.
                ``busy``: another transaction has locked a job of the session; claim again, with ``held``.
        """
        asked, wait_s = self._read(session, body)
        if body.held is not None:
            await self._release_unknown(session, body.claim, body.held)
        if session.drains or self.stopping.is_set():
            return RemoteJobs([], drain=session.drains)
        await self.read_types()
        if (found := await self._claim_or_release(asked)).count:
            return found.answer()
        await self._check(asked)
        return await self._wait(asked, wait_s) if wait_s > 0 else RemoteJobs([], drain=False)

    @staticmethod
    def _read(session: RemoteSession, body: RemoteClaim) -> tuple[AskedClaim, float]:
        names = session.types if body.types is None else tuple(dict.fromkeys(body.types))
        if strange := set(names).difference(session.types):
            text = f"the worker did not register for the type {min(strange)!r}; it did for: {', '.join(session.types)}"
            raise Rejected("unknown_type", text[:500], field="types")
        wait = parse_duration(body.wait, field="wait")
        if wait > WAIT_MAX:
            raise Rejected("invalid_duration", f"wait: at most {WAIT_MAX.seconds} s", field="wait")
        calls = session.calls if body.types is None else ()
        return AskedClaim(session, body.claim, names, body.max, calls), wait.total_seconds()

    async def _check(self, asked: AskedClaim) -> bool:
        """Tell a claim that found no job from one that was refused; return whether the worker is to stop."""
        session = await self._sessions.again(asked.session)
        if session.claims_from > asked.number:
            text = (
                f"a claim of number {session.claims_from} said what the worker holds; this one, {asked.number}, is over"
            )
            raise Contended("claim_superseded", text, status=409)
        return session.drains

    async def _wait(self, asked: AskedClaim, wait_s: float) -> RemoteJobs:
        waiting = _Waiting(asked, asyncio.get_running_loop().create_future())
        self._waiting[waiting] = None
        self.wake()
        try:
            await asyncio.wait([waiting.answer], timeout=wait_s)
            if not waiting.answer.done() and waiting.turn is not None:
                await asyncio.wait([waiting.turn], timeout=CALL_S)
            return waiting.answer.result() if waiting.answer.done() else RemoteJobs([], drain=False)
        except asyncio.CancelledError:
            if waiting.answer.done() and waiting.answer.exception() is None:
                self._release_later(asked.session, waiting.answer.result())
            raise
        finally:
            waiting.answer.cancel()
            del self._waiting[waiting]

    async def _claim_or_release(self, asked: AskedClaim) -> FoundJobs:
        """Claim in a task of its own, which a caller that leaves does not end: its jobs are released."""
        with for_all_callers():
            claiming = asyncio.create_task(self._claim(asked))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            claiming.add_done_callback(lambda done: self._release_found(asked.session, done))
            raise

    def _release_found(self, session: RemoteSession, claiming: "asyncio.Task[FoundJobs]") -> None:
        if not claiming.cancelled() and claiming.exception() is None:
            self._release_later(session, claiming.result().answer())

    def _release_later(self, session: RemoteSession, found: RemoteJobs) -> None:
        if found.jobs or found.calls:
            with for_all_callers():
                task: asyncio.Task[object] = asyncio.create_task(self._release(session, found))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _release(self, session: RemoteSession, found: RemoteJobs) -> None:
        """Release what no client gets. Where that fails, the client's next claim says what it holds."""
        releases = [RemoteRelease(id=job.id, fence=job.fence) for job in found.jobs]
        releases += [RemoteRelease(id=call.id, fence=call.fence, kind=call.kind) for call in found.calls]
        with suppress(*UNAVAILABLE, TickwrightError):
            await self.results.record(session, releases)

    async def _release_unknown(self, session: RemoteSession, number: int, held: Sequence[RemoteAttempt]) -> None:
        """Release what the session holds besides ``held``, and refuse its earlier claims from now on."""
        known = [(one.id, one.fence) for one in held if one.kind == "job"]
        known_calls = [(one.id, one.fence) for one in held if one.kind != "job"]
        async with self._pool.acquire() as connection:
            await connection.fetchval(_WORKERS["refuse_claims"], session.id, number)
            async with connection.transaction():
                if await connection.fetchval(_WORKERS["hold_session"], session.id) is None:
                    raise session_lost()
                released, locked = await self._store.release_unknown(connection, session.id, known)
                await connection.execute(SQL["recount_places"], session.id, [job_id for job_id, _ in known])
                released += await self.calls.release_unknown(connection, session.id, known_calls)
        if released:
            _log.warning("claims.released_unknown", kind="remote", session=session.id, count=released)
            self.wake()
        if locked:
            text = f"another transaction has locked {len(locked)} jobs of this session; claim again, with held"
            raise Contended("busy", text, status=409)

    async def close(self, session: RemoteSession) -> int:
        """End a session, and release what it holds without counting an attempt; return how many jobs and calls."""
        async with self._pool.acquire() as connection:
            await connection.fetchval(_WORKERS["refuse_claims"], session.id, 2**63 - 1)
            async with connection.transaction():
                if await connection.fetchval(_WORKERS["hold_session"], session.id) is None:
                    raise session_lost()
                released, locked = await self._store.release_unknown(connection, session.id, [])
                released += await self.calls.release_unknown(connection, session.id, [])
                await connection.execute(SQL["expire" if locked else "leave"], session.id)
        self.wake()
        return released

    # ------------------------------------------------------------------ claims

    async def _claim(self, asked: AskedClaim) -> FoundJobs:
        found = FoundJobs()
        plain, limited, grouped = list[str](), list[TaskType](), list[TaskType]()
        for name in asked.names:
            kind = self._types.get(name)
            if kind is None or kind.waits or kind.target != f"remote:{asked.session.pool}":
                continue
            if not self._encryption.can_run(kind):
                continue
            if kind.concurrency is None and kind.rate_per_s is None:
                plain.append(name)
            else:
                limited.append(kind)
            if kind.has_groups:
                grouped.append(kind)
        async with self._claims:
            self._in_progress += 1
            try:
                with within(CALL_S):
                    calls_first = self._calls_first = not self._calls_first
                    if calls_first:
                        await self._claim_calls(asked, found)
                    if plain and found.count < asked.max:
                        await self._claim_plain(asked, plain, found)
                    await self._claim_each(asked, limited, found, grouped=False)
                    if not calls_first:
                        await self._claim_calls(asked, found)
                    await self._claim_each(asked, grouped, found, grouped=True)
            finally:
                self._in_progress -= 1
        return found

    async def _claim_each(self, asked: AskedClaim, kinds: list[TaskType], found: FoundJobs, *, grouped: bool) -> None:
        """Claim of one type after the other, another one first each time: its jobs with a limit, or with a group."""
        for kind in self._rotated(kinds):
            if found.count >= asked.max:
                return
            if not grouped:
                await self._claim_limited(asked, kind, found)
                continue
            with suppress(asyncpg.LockNotAvailableError):  # a transaction has changed the type: other jobs do not wait
                await self._claim_limited(asked, kind, found, self._groups_of(kind))

    async def _claim_calls(self, asked: AskedClaim, found: FoundJobs) -> None:
        """Claim polls, tasks and chunks that consumers have handed over."""
        if not asked.calls or found.count >= asked.max:
            return
        room, session = asked.max - found.count, asked.session
        claimed = await self.calls.claim(session.id, asked.number, session.pool, asked.calls, room)
        for one in claimed:
            payload = msgspec.Raw(one.payload.encode())
            found.calls.append(RemoteWork(one.id, one.kind, one.name, payload, one.timeout_ms, one.fence))

    def _rotated(self, kinds: list[TaskType]) -> list[TaskType]:
        turn = self._turn % len(kinds) if kinds else 0
        return kinds[turn:] + kinds[:turn]

    async def _claim_plain(self, asked: AskedClaim, names: Sequence[str], found: FoundJobs) -> None:
        for _ in range(ROUNDS_MAX):
            self._turn += 1
            room = asked.max - found.count
            plan = plan_claim(dict.fromkeys(names, room), self._frontier.hot, room, self._turn)
            if plan is None:
                return
            scope = self._frontier.scope(plan.types)
            if follows := self._frontier.follows(plan):
                self._following += 1
                plan = fair_plan(plan, self._following, scope)
            sweeps = (follows or self._frontier.dragging) and bool(self._frontier.sweep_due(plan))
            bounded = (follows or self._frontier.dragging) and not sweeps
            discovers = self._frontier.may_discover()
            checked = self._frontier.next_to_check(scope.ranges) if discovers and self._in_progress == 1 else ()
            began = monotonic()
            claimed = await self._store.claim(
                ClaimRequest(
                    asked.session.id,
                    plan,
                    scope.ranges,
                    _AT_ONCE,
                    bounded=bounded,
                    whole=scope.whole if discovers else frozenset(),
                    number=asked.number,
                    long_max=LONG_MAX,
                    checked=checked,
                )
            )
            took_s = monotonic() - began
            if discovers:
                self._frontier.discovered(took_s)
            if sweeps:
                self._frontier.swept(took_s)
            elif not bounded:
                self._frontier.watch(took_s=took_s, rows=len(claimed.rows), ranges=len(scope.ranges))
            if not claimed.rows:
                await self._check(asked)  # a claim that was refused says nothing about the jobs of others
            more = self._frontier.note(plan, scope, claimed)
            await self._take(asked, claimed, found)
            if found.jobs or not (more or follows):  # the last claim of a drain did not start from the head
                return

    def _groups_of(self, kind: TaskType) -> _Claim:
        """Return the claim of a type's jobs with groups, one for each place: clients may run them beside each other."""
        claims = self._groups.setdefault(kind.name, GroupClaims(kind.name))

        async def claim(request: ClaimRequest, connection: Connection) -> ClaimedJobs:
            return await claims.claim(request, connection, kind=kind)

        return claim

    async def _claim_limited(
        self, asked: AskedClaim, kind: TaskType, found: FoundJobs, claim: _Claim | None = None
    ) -> None:
        """Claim jobs of a type with a limit, which the transaction keeps for all workers; or by ``claim``."""
        async with self._pool.acquire() as connection, connection.transaction():
            claimed = await self._claim_within(connection, asked, kind, found, claim or self._store.claim)
        if claimed is not None:
            await self._take(asked, claimed, found)

    async def _claim_within(
        self,
        connection: Connection,
        asked: AskedClaim,
        kind: TaskType,
        found: FoundJobs,
        claim: _Claim,
    ) -> ClaimedJobs | None:
        rows = asked.max - len(found.jobs)
        if kind.concurrency is not None:
            await lock_limited(connection, [kind.name])
            left = await connection.fetchval(SQL["places_left"], kind.name)
            rows = rows if left is None else min(rows, left)
            if rows <= 0:
                found.note_next(PLACES_S)
                return None
        scope = self._frontier.whole_scope([kind.name])
        self._limited_claims[kind.name] += 1
        plan = fair_plan(ClaimPlan((kind.name,), (rows,), rows), self._limited_claims[kind.name], scope)
        request = ClaimRequest(
            asked.session.id,
            plan,
            scope.ranges,
            _AT_ONCE,
            whole=scope.whole,
            number=asked.number,
            long_max=LONG_MAX,
        )
        if kind.rate_per_s is None:
            claimed = await claim(request, connection)
        else:
            rated = await claim_at_rate(claim, connection, kind, request)
            if rated.claimed is None:
                found.note_next(rated.wait_s)
                return None
            claimed = rated.claimed
        self._frontier.learn(claimed.new_ranges)
        if claimed.new_ranges and not claimed.rows:
            found.note_next(0.0)
        if claimed.rows and kind.concurrency is not None:
            await connection.execute(SQL["take_places"], kind.name, asked.session.id, len(claimed.rows))
        return claimed

    async def _take(self, asked: AskedClaim, claimed: ClaimedJobs, found: FoundJobs) -> None:
        """Add claimed jobs to ``found``, as many as fit; those that expired before their start end here."""
        if claimed.next_due_s is not None:
            found.note_next(max(0.0, claimed.next_due_s - claimed.now_s))
        left_out: list[Ended] = []
        for claimed_row in claimed.rows:
            kind = self._types.get(claimed_row.task_type)
            row = self._readable(claimed_row, left_out) if kind is not None and kind.opens else claimed_row
            if row is None:
                continue
            if row.expires_s is not None and row.expires_s <= claimed.now_s:
                left_out.append(ExpiredAttempt(row.id, row.fence))
            elif found.jobs and found.size + len(row.payload) > ANSWER_CHARS_MAX:
                left_out.append(RemoteRelease(id=row.id, fence=row.fence))
            else:
                found.size += len(row.payload)
                found.jobs.append(self._view(row, claimed))
        if left_out:
            await self.results.record(asked.session, left_out)

    def _readable(self, row: ClaimedRow, left_out: list[Ended]) -> ClaimedRow | None:
        """Return a row with its plain payload; without one, add what becomes of its attempt to ``left_out``."""
        match self._encryption.open(row):
            case ClaimedRow() as opened:
                return opened
            case Deferred(code=code, message=message):
                left_out.append(DeferredAttempt(row.id, row.fence, f"{code}: {message}"))
            case Errored(code=code, message=message):
                left_out.append(RemoteFail(id=row.id, fence=row.fence, message=message, code=code, final=True))
        return None

    def _view(self, row: ClaimedRow, claimed: ClaimedJobs) -> RemoteJob:
        kind = self._types.get(row.task_type)
        execute_s = row.due_s if row.execute_s is None else row.execute_s
        timeout_ms = row.timeout_ms or (int(kind.timeout.total_seconds() * 1000) if kind else 30_000)
        start_s = claimed.fire_s.get(row.id, 0.0) - claimed.now_s
        return RemoteJob(
            row.id,
            row.task_type,
            msgspec.Raw(row.payload.encode()),
            row.attempts,
            row.max_attempts,
            row.fence,
            datetime.fromtimestamp(execute_s, UTC).isoformat().replace("+00:00", "Z"),
            timeout_ms,
            max(0, -int(-start_s * 1000 // 1)) if start_s > 0 else 0,
            None if row.expires_s is None else int((row.expires_s - claimed.now_s) * 1000),
            row.attempts >= row.max_attempts,
            row.traceparent,
        )

    # ------------------------------------------------------------------ the loop for those that wait

    async def _work(self) -> None:
        try:
            while not self.stopping.is_set():
                self.tick()
                if not self._waiting:
                    await self._wakeup.unlisten()
                    self.wakeup.clear()
                    if not self._waiting:
                        await is_set_within(self.wakeup, HEARD_POLL_S)
                    continue
                await self._wakeup.listen()
                try:
                    next_in_s = await self._serve()
                except UNAVAILABLE as error:
                    _log.warning("remote.claim_failed", error=repr(error))
                    next_in_s = POLL_S
                if self._waiting and not self.stopping.is_set():
                    poll_s = HEARD_POLL_S if self._wakeup.works else POLL_S
                    await self._sleep.sleep(
                        min(poll_s, poll_s if next_in_s is None else max(0.001, next_in_s)), late=True
                    )
        finally:
            await self._wakeup.unlisten()
            self._let_go()

    def request_stop(self) -> None:
        """Answer those that wait, and begin no more claims."""
        super().request_stop()
        self.wake()
        self._let_go()

    def _let_go(self) -> None:
        for waiting in self._waiting:
            if not waiting.answer.done() and waiting.turn is None:
                waiting.answer.set_result(RemoteJobs([], drain=False))

    async def _serve(self) -> float | None:
        """Claim for those that wait, the longest first; return when there may be more jobs."""
        await self.read_types()
        dry, dry_calls, next_in_s = set[str](), set[tuple[str, str, str]](), list[float]()
        for waiting in list(self._waiting):
            asked, pool = waiting.asked, waiting.asked.session.pool
            names = tuple(name for name in asked.names if name not in dry)
            calls = tuple(call for call in asked.calls if (pool, *call) not in dry_calls)
            if (names or calls) and not waiting.answer.done():
                found = await self._claim_for(waiting, names, calls)
                if found is not None:
                    dry.update(names)
                    dry_calls.update((pool, *call) for call in calls)
                    next_in_s += [] if found.next_in_s is None else [found.next_in_s]
            if self.stopping.is_set():
                break
        return min(next_in_s, default=None)

    async def _claim_for(
        self, waiting: _Waiting, names: tuple[str, ...], calls: tuple[tuple[str, str], ...]
    ) -> FoundJobs | None:
        """Claim for one worker; return what was found unless that was work: of these there is none."""
        asked = replace(waiting.asked, names=names, calls=calls)
        waiting.turn = turn = asyncio.get_running_loop().create_future()
        try:
            found = await self._claim(asked)
            if found.count:
                if waiting.answer.done():  # its client left
                    self._release_later(asked.session, found.answer())
                else:
                    waiting.answer.set_result(found.answer())
                return None
            if await self._check(asked) and not waiting.answer.done():
                waiting.answer.set_result(RemoteJobs([], drain=True))
        except (*UNAVAILABLE, TickwrightError) as error:
            if not waiting.answer.done():
                waiting.answer.set_exception(error)
            if isinstance(error, UNAVAILABLE):
                raise
            return None
        else:
            return found
        finally:
            waiting.turn = None
            turn.set_result(None)


def _ignore(_job_id: int) -> None:
    """A heartbeat finds cancelled jobs."""
