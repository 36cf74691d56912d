"""The run claims of one consumer: begun in batches, renewed while calls run, ended under the same fence.

Claims are in two stores: Redis, which is asked first, and the ledger (PostgreSQL), which decides while it answers.
Without the ledger, Redis prevents two consumers from running one task. A run that began in Redis alone stays there when
the ledger answers again. A success without the ledger is carried over to it later. An end that no store accepts is kept
in memory until one does.
"""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import structlog

from tickwright.capabilities.fanout.store_access import StoreAvailability, short_connection
from tickwright.domain.errors import Unavailable
from tickwright.engine.call_batcher import CallBatcher
from tickwright.engine.claim_gate import ClaimGate, Ticket
from tickwright.engine.tasks import TaskGroup, end_task, is_set_within
from tickwright.ports.fanout import TIMED_OUT, CarryingRunClaims, HeldRun, Run, RunClaim, RunStart, Success
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

CARRY_BATCH = 500
CARRY_ROUNDS_MAX = 20
LEDGER_RETRY_S = 1.0
RENEW_S = 3.0
RENEW_WITHOUT_SESSION_S = 1.0
CARRY_S = 1.0

_Key = tuple[str, str, int]
G = TypeVar("G", bound=Hashable)
_log = structlog.get_logger("tickwright.fanout")


# Run claims in PostgreSQL: the cursors that decide which task runs, and the counts of each window's results.
#
# A claim lives as long as its owner's session; a lost session owns nothing. Every write of a run carries the session's
# token and the claim's fence.

RUNS_MAX = 100  # of one transaction: others wait for its entities
ANSWER_S = 3.0
ERROR_CHARS_MAX = 500

_SQL = load("tickwright.capabilities.fanout.sql", "runs.sql")
HOLDINGS = (_SQL["held"],)
_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")


class LedgerRunClaims:
    """Implements :class:`tickwright.ports.fanout.RunClaims`; one for a process.

    Args:
        session: Under which runs are claimed; ``None`` when each call names a session of another process.

    Invariants:
        RUN-1: at most one task of an entity and task type is running.
        RUN-2: no window begins that is not newer than the last successful one.
        RUN-3: no entity has more runs at once than its ``at_once``, all task types and processes together.
    """

    def __init__(self, pool: Pool, session: Session | None = None) -> None:
        self._pool = pool
        self._beginning = asyncio.Lock()
        self._fences: dict[tuple[int, str, str], int] = {}
        self._gate = (
            None
            if session is None
            else ClaimGate(self._connection, session, "fanout", self._release_unknown, owns_any_sql=_SQL["owned"])
        )

    async def begin(self, runs: Sequence[Run], owner: int) -> list[RunClaim]:
        """Claim each run, in one order for all processes, so that they cannot deadlock.

        A claim whose answer was lost is released before the next one (:mod:`engine.claim_gate`), so that it cannot
        block its own process.
        """
        async with self._beginning:
            begun: dict[int, RunClaim] = {}
            for numbers in _batches(runs):
                asked = [runs[number] for number in numbers]
                begun.update(zip(numbers, await self._begin(asked, owner), strict=True))
        return [begun[number] for number in range(len(runs))]

    async def end(self, ended: Sequence[HeldRun], owner: int) -> list[bool]:
        """Write how runs ended and count them, in one statement. A repetition returns true again, and writes once."""
        ours: dict[int, bool] = {}
        for numbers in _batches([end.run for end in ended]):
            rows = await self._fetch("end", owner, *_ended_columns([ended[number] for number in numbers]))
            self._forget(owner, [ended[number] for number in numbers])
            ours.update(zip(numbers, (row["ours"] for row in rows), strict=True))
        return [ours[number] for number in range(len(ended))]

    async def renew(self, held: Sequence[HeldRun], owner: int) -> list[bool]:
        """Return which runs are still ours; their lease is the session's, which the session renews."""
        columns = [[end.run.entity_code for end in held], [end.run.task_type for end in held]]
        rows = await self._fetch("renew", owner, *columns, [end.claim.fence for end in held])
        self._forget(owner, [end for end, row in zip(held, rows, strict=True) if not row["ours"]])
        return [row["ours"] for row in rows]

    async def carry_over(self, successes: Sequence[Success]) -> None:
        """Write successes from a time without the ledger; only newer ones, so twice is harmless."""
        newest: dict[tuple[str, str], Success] = {}
        for success in sorted(successes, key=lambda success: success.window_s):
            newest[success.entity_code, success.task_type] = success
        if newest:
            await self._fetch("carry_over", *(list(column) for column in zip(*newest.values(), strict=True)))

    async def count_dropped(self, dropped: Mapping[tuple[str, int, str], int]) -> None:
        """Count dropped messages by task type, window, and ``superseded`` or ``expired``."""
        windows = sorted({(task_type, window_s) for task_type, window_s, _ in dropped})
        if windows:
            whys = [[dropped.get((*window, why), 0) for window in windows] for why in ("superseded", "expired")]
            columns = [[task_type for task_type, _ in windows], [window_s for _, window_s in windows]]
            await self._fetch("count_dropped", *columns, *whys)

    @staticmethod
    async def reclaim(connection: Connection, tokens: Sequence[int]) -> None:
        """Release the runs of lost sessions; for the transaction that declares them lost."""
        await connection.execute(_SQL["reclaim"], list(tokens))

    async def _begin(self, runs: Sequence[Run], owner: int) -> list[RunClaim]:
        codes, types = [run.entity_code for run in runs], [run.task_type for run in runs]
        windows, at_once = [run.window_s for run in runs], [run.at_once for run in runs]
        claiming = nullcontext(Ticket(owner, 0)) if self._gate is None else self._gate.claiming()
        async with claiming as (_, number):
            async with self._connection() as connection, connection.transaction():
                await connection.execute(_SQL["lock_entities"], codes)
                rows = await connection.fetch(_SQL["begin"], owner, codes, types, windows, at_once, number, TIMED_OUT)
            for run, row in zip(runs, rows, strict=True):
                if row["fence"] is not None:
                    self._fences[owner, run.entity_code, run.task_type] = row["fence"]
        return [_claim(row) for row in rows]

    def _forget(self, owner: int, runs: Sequence[HeldRun]) -> None:
        for end in runs:
            key = owner, end.run.entity_code, end.run.task_type
            if self._fences.get(key) == end.claim.fence:
                del self._fences[key]

    async def _release_unknown(self, connection: Connection, owner: int) -> int:
        self._fences = {key: fence for key, fence in self._fences.items() if key[0] == owner}
        codes, types = [key[1] for key in self._fences], [key[2] for key in self._fences]
        return int(await connection.fetchval(_SQL["release_unknown"], owner, codes, types, [*self._fences.values()]))

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        async with self._connection() as connection:
            rows: Sequence[Any] = await connection.fetch(_SQL[name], *arguments)
            return rows

    def _connection(self) -> AbstractAsyncContextManager[Connection]:
        return short_connection(self._pool, ANSWER_S, "run claims")


def _batches(runs: Sequence[Run]) -> Iterator[list[int]]:
    """Divide ``runs`` into bounded batches, as indexes in order; no batch has an entity and task type twice."""
    left = list(range(len(runs)))
    while left:
        seen: dict[tuple[str, str], int] = {}
        for number in left:
            key = runs[number].entity_code, runs[number].task_type
            if key in seen or len(seen) == RUNS_MAX:
                break
            seen[key] = number
        yield list(seen.values())
        left = left[len(seen) :]


def _claim(row: Any) -> RunClaim:
    if row["fence"] is not None:
        return RunClaim(RunStart.BEGUN, row["fence"], row["begun_s"], row["last_success_s"], row["since_timeout_s"])
    return RunClaim(RunStart.DONE if row["done"] else RunStart.BUSY, 0, row["begun_s"], row["last_success_s"])


def _ended_columns(ended: Sequence[HeldRun]) -> list[list[Any]]:
    return [
        [end.run.entity_code for end in ended],
        [end.run.task_type for end in ended],
        [end.claim.fence for end in ended],
        [end.run.window_s for end in ended],
        [end.claim.begun_s for end in ended],
        [None if end.error is None else _UNWRITABLE.sub("�", end.error)[:ERROR_CHARS_MAX] for end in ended],
        [end.released for end in ended],
    ]


class _Claims(NamedTuple):
    """The claims of a running task, under the owner that it began with; the session may have a new token by now."""

    owner: int
    redis: RunClaim | None
    ledger: RunClaim | None


class TwoStoreRunClaims:
    """Implements :class:`tickwright.ports.fanout.RunClaims`; one for a process.

    An end that no store accepts is kept in memory and counts as ours. ``carry`` writes it later; if the process ends
    before, the next run gets an older last success, and fetches some data again.

    Args:
        redis: ``None`` without Redis: then nothing runs while the ledger is unavailable.
        ledger: Decides while it answers.
    """

    def __init__(self, redis: CarryingRunClaims | None, ledger: LedgerRunClaims) -> None:
        self._redis, self.ledger = redis, ledger
        self._redis_availability = StoreAvailability("fanout.runs_redis")
        self._ledger_availability = StoreAvailability("fanout.runs_ledger", retry_s=LEDGER_RETRY_S)
        self._claims: dict[_Key, _Claims] = {}
        self._unwritten: dict[_Key, tuple[HeldRun, _Claims]] = {}

    # ------------------------------------------------------------------ begin

    async def begin(self, runs: Sequence[Run], owner: int) -> list[RunClaim]:
        """Claim in Redis, then in the ledger what Redis granted; release in Redis what the ledger refuses."""
        in_redis = await self._begin_redis(runs, owner)
        wanted = [n for n in range(len(runs)) if in_redis is None or in_redis[n].start is RunStart.BEGUN]
        ledger = await self._begin_ledger([runs[n] for n in wanted], owner, alone=in_redis is None)
        in_ledger = {} if ledger is None else dict(zip(wanted, ledger, strict=True))
        answers, refused = [], []
        for n, run in enumerate(runs):
            redis_begun, ledger_begun = None if in_redis is None else in_redis[n], in_ledger.get(n)
            answer = _decided([begun for begun in (ledger_begun, redis_begun) if begun is not None])
            if answer.start is RunStart.BEGUN:
                self._claims[_key(run, answer)] = _Claims(owner, redis_begun, ledger_begun)
            elif redis_begun is not None and redis_begun.start is RunStart.BEGUN:
                refused.append(HeldRun(run, redis_begun, released=True))
            answers.append(answer)
        if refused and self._redis is not None:
            with suppress(Unavailable):  # else the claims expire
                await self._redis_availability.watch(self._redis.end(refused, owner))
        return answers

    async def _begin_redis(self, runs: Sequence[Run], owner: int) -> list[RunClaim] | None:
        if self._redis is None or not self._redis_availability.should_try():
            return None
        try:
            return await self._redis_availability.watch(self._redis.begin(runs, owner))
        except Unavailable:
            return None

    async def _begin_ledger(self, runs: Sequence[Run], owner: int, *, alone: bool) -> list[RunClaim] | None:
        if not runs:
            return []
        if not alone and not self._ledger_availability.should_try():
            return None
        try:
            await self._write_unwritten()
            return await self._ledger_availability.watch(self.ledger.begin(runs, owner))
        except Unavailable:
            if alone:
                raise
            return None

    # ------------------------------------------------------------------ end and renew

    async def end(self, ended: Sequence[HeldRun], owner: int) -> list[bool]:
        """Write how runs ended: in the ledger, or in Redis to be carried over, or in memory until a store answers.

        So it does not raise ``Unavailable``.
        """
        claims = [self._claims_of(end, owner) for end in ended]
        for end in ended:
            self._claims.pop(_key(end.run, end.claim), None)
        ledger = await self._apply_to_ledger(self.ledger.end, ended, claims)
        redis = await self._apply_to_redis(
            lambda redis, group, part: redis.end(part, group[0], carry=group[1]), ended, claims, ledger
        )
        if lost := [end for n, end in enumerate(ended) if ledger.get(n) is False and redis.get(n) and _succeeded(end)]:
            with suppress(Unavailable):  # before the next runs succeed; else ``carry`` does it
                await self._ledger_availability.watch(self.ledger.carry_over([_success(end) for end in lost]))
        return [self._note_end(end, claims[n], ledger.get(n), redis.get(n)) for n, end in enumerate(ended)]

    async def renew(self, held: Sequence[HeldRun], owner: int) -> list[bool]:
        """Renew the claims of running tasks; one is lost if a store reports that and the other does not contradict."""
        claims = [self._claims_of(end, owner) for end in held]
        ledger, redis = await asyncio.gather(
            self._apply_to_ledger(self.ledger.renew, held, claims),
            self._apply_to_redis(lambda redis, group, part: redis.renew(part, group[0]), held, claims, {}),
        )
        if held and not ledger and not redis:
            raise Unavailable("claims_unavailable", "neither the database nor Redis answers which runs are ours")
        ours = [ledger.get(n, False) or redis.get(n, n not in ledger) for n in range(len(held))]
        for end, kept in zip(held, ours, strict=True):
            if not kept:
                self._claims.pop(_key(end.run, end.claim), None)  # it may never be ended
        return ours

    def _claims_of(self, end: HeldRun, owner: int) -> _Claims:
        """Return a run's claims. For a run that is unknown here, such as a repeated end, the stores decide."""
        unknown = _Claims(owner, None if self._redis is None else end.claim, end.claim)
        return self._claims.get(_key(end.run, end.claim), unknown)

    async def _apply_to_ledger(
        self,
        call: Callable[[Sequence[HeldRun], int], Awaitable[list[bool]]],
        runs: Sequence[HeldRun],
        claims: Sequence[_Claims],
    ) -> Mapping[int, bool]:
        groups: dict[int, list[tuple[int, HeldRun]]] = defaultdict(list)
        for n, (run, claim) in enumerate(zip(runs, claims, strict=True)):
            if claim.ledger is not None:
                groups[claim.owner].append((n, run._replace(claim=claim.ledger)))
        return await _apply_to_groups(groups, self._ledger_availability, lambda owner, part: call(part, owner))

    async def _apply_to_redis(
        self,
        call: Callable[[CarryingRunClaims, tuple[int, bool], Sequence[HeldRun]], Awaitable[list[bool]]],
        runs: Sequence[HeldRun],
        claims: Sequence[_Claims],
        ledger: Mapping[int, bool],
    ) -> Mapping[int, bool]:
        """Call it with the runs of each owner, separately for those that the ledger does not have."""
        if (redis := self._redis) is None:
            return {}
        groups: dict[tuple[int, bool], list[tuple[int, HeldRun]]] = defaultdict(list)
        for n, (run, claim) in enumerate(zip(runs, claims, strict=True)):
            if claim.redis is not None:
                claim_in_redis = claim.redis._replace(begun_s=run.claim.begun_s)
                groups[claim.owner, not ledger.get(n)].append((n, run._replace(claim=claim_in_redis)))
        return await _apply_to_groups(groups, self._redis_availability, lambda group, part: call(redis, group, part))

    def _note_end(self, end: HeldRun, claims: _Claims, ledger: bool | None, redis: bool | None) -> bool:
        """Keep an end that no store accepted, and return whether the run was ours.

        Redis proves it when the session was lost without the ledger.
        """
        if ledger is None and (claims.ledger is not None or (redis is None and _succeeded(end))):
            self._unwritten[_key(end.run, end.claim)] = end, claims
        if ledger or redis:
            return True
        return ledger is None and (claims.ledger is not None or redis is None)

    # ------------------------------------------------------------------ what is written later

    async def carry(self) -> int:
        """Write to the ledger what it lacks; call it every second.

        Returns:
            How many ends are still kept in memory.

        Raises:
            Unavailable: A store does not answer. Call it again.
        """
        await self._write_unwritten()
        if self._redis is not None and self._redis_availability.should_try():
            for _ in range(CARRY_ROUNDS_MAX):
                successes = await self._redis_availability.watch(self._redis.carried(CARRY_BATCH))
                if not successes:
                    break
                await self._ledger_availability.watch(self.ledger.carry_over(successes))
                await self._redis_availability.watch(self._redis.forget(successes))
        return len(self._unwritten)

    async def _write_unwritten(self) -> None:
        """Write the ends that no store has; for a lost session only successes."""
        if not self._unwritten:
            return
        unwritten = dict(self._unwritten)
        groups: dict[int, list[HeldRun]] = defaultdict(list)
        for end, claims in unwritten.values():
            if claims.ledger is not None:
                groups[claims.owner].append(end._replace(claim=claims.ledger))
        unclaimed = [end for end, claims in unwritten.values() if claims.ledger is None]
        for owner, part in groups.items():
            ours = await self._ledger_availability.watch(self.ledger.end(part, owner))
            unclaimed += [end for end, mine in zip(part, ours, strict=True) if not mine and _succeeded(end)]
        await self._ledger_availability.watch(self.ledger.carry_over([_success(end) for end in unclaimed]))
        for key in unwritten:
            self._unwritten.pop(key, None)


async def _apply_to_groups(
    groups: Mapping[G, Sequence[tuple[int, HeldRun]]],
    availability: StoreAvailability,
    call: Callable[[G, Sequence[HeldRun]], Awaitable[list[bool]]],
) -> Mapping[int, bool]:
    """Call it with each group, and return the answers by number; none for a group that the store did not answer."""
    answers: dict[int, bool] = {}
    for group, numbered in groups.items():
        if not availability.should_try():
            break
        try:
            found = await availability.watch(call(group, [run for _, run in numbered]))
        except Unavailable:
            break
        answers.update(zip((n for n, _ in numbered), found, strict=True))
    return answers


def _decided(claims: Sequence[RunClaim]) -> RunClaim:
    """Return the answer of the first store, with the newest last success of all."""
    successes = [claim.last_success_s for claim in claims if claim.last_success_s is not None]
    return claims[0]._replace(last_success_s=max(successes, default=None))


def _key(run: Run, claim: RunClaim) -> _Key:
    return run.entity_code, run.task_type, claim.fence


def _succeeded(end: HeldRun) -> bool:
    return end.error is None and not end.released


def _success(end: HeldRun) -> Success:
    return Success(end.run.entity_code, end.run.task_type, end.run.window_s, end.claim.begun_s)


class ClaimLostError(Exception):
    """The claim was lost to another consumer; the call was cancelled."""


@dataclass(slots=True, eq=False)
class _RunningCall:
    ended: HeldRun
    task: "asyncio.Task[None]"
    lost: bool = False
    ending: bool = False


class ConsumerRunClaims:
    """The claims that one consumer holds; calls are batched into one statement.

    The token of ``session`` owns the claims in PostgreSQL.

    Invariants:
        FAN-7: a call whose claim is lost is cancelled within ``RENEW_S`` of the loss being known. A call whose end is
            being written is not: a renewal of a claim that has ended fails, and the end's own answer decides.
    """

    def __init__(self, claims: TwoStoreRunClaims, session: Session) -> None:
        self._claims, self._session = claims, session
        self._begins = CallBatcher[Run, RunClaim](lambda runs: claims.begin(runs, self._owner()))
        self._ends = CallBatcher[HeldRun, bool](lambda ended: claims.end(ended, self._owner()))
        self._held: set[_RunningCall] = set()
        self._dropped: Counter[tuple[str, int, str]] = Counter()
        self._renew_now = asyncio.Event()
        self.ticked_s: float | None = None
        session.on_lost(self._renew_now.set)

    # ------------------------------------------------------------------ one claim

    async def begin(self, run: Run) -> RunClaim:
        """Claim a run. A claim that is granted after the caller was cancelled is released.

        Raises:
            Unavailable: Neither store answers. Retry.
        """
        asking = asyncio.ensure_future(self._begins(run))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            with suppress(Unavailable):
                begun = await asking
                if begun.start is RunStart.BEGUN:
                    await self.end(HeldRun(run, begun, released=True))
            raise

    @asynccontextmanager
    async def held(self, ended: HeldRun) -> AsyncIterator[None]:
        """Hold a claim while the body runs.

        A body that is cancelled from outside counts as not begun. One that is cancelled because its claim is lost
        raises :class:`ClaimLostError`.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a claim is held by a task")
        held = _RunningCall(ended, task)
        self._held.add(held)
        try:
            yield
        except asyncio.CancelledError:
            if held.lost:
                task.uncancel()
                raise ClaimLostError from None
            await self.end(ended._replace(released=True))
            raise
        except Exception as error:  # otherwise the entity would stay busy until this process ends
            await self.end(ended._replace(error=type(error).__name__))
            raise
        finally:
            self._held.discard(held)

    async def end(self, ended: HeldRun) -> bool:
        """Write how a run ended, or keep it until a store answers; false if the claim was lost."""
        for held in self._held:
            held.ending = held.ending or (held.ended.run, held.ended.claim) == (ended.run, ended.claim)
        return await self._ends(ended)

    def count_dropped(self, task_type: str, window_s: int, why: str) -> None:
        """Count a dropped message, ``superseded`` or ``expired``; counts are written together."""
        self._dropped[task_type, window_s, why] += 1

    # ------------------------------------------------------------------ all claims

    async def run(self) -> None:
        """Renew held claims, and carry over successes from a time without a database, until cancelled."""
        async with TaskGroup() as group:
            group.create_task(self._renew_until_cancelled())
            group.create_task(self._carry_until_cancelled())

    async def _renew_until_cancelled(self) -> None:
        """Renew on time even while the database does not answer: claims in Redis live for ten seconds."""
        while True:
            self._renew_now.clear()
            begun_s = monotonic()
            await self._renew()
            self.ticked_s = monotonic()
            rest_s = RENEW_S if self._session.holds() else RENEW_WITHOUT_SESSION_S
            await is_set_within(self._renew_now, max(0.0, begun_s + rest_s - self.ticked_s))

    async def _carry_until_cancelled(self) -> None:
        while True:
            with suppress(Unavailable):
                await self._claims.carry()
            await self.write_dropped()
            await asyncio.sleep(CARRY_S)

    async def _renew(self) -> None:
        held = [*self._held]
        if not held:
            return
        try:
            ours = await self._claims.renew([run.ended for run in held], self._owner())
        except Unavailable as error:
            _log.warning("fanout.claims_not_renewed", runs=len(held), error=error.message)
            ours = [self._session.holds()] * len(held)
        for run, mine in zip(held, ours, strict=True):
            if not mine and run in self._held and not run.ending:
                _log.warning("fanout.claim_lost", run=run.ended.run)
                run.lost = True
                end_task(run.task)

    async def write_dropped(self) -> None:
        """Write the counts of dropped messages; those that cannot be written now are written later."""
        dropped, self._dropped = self._dropped, Counter()
        if not dropped:
            return
        try:
            await self._claims.ledger.count_dropped(dropped)
        except Unavailable:
            self._dropped.update(dropped)

    def _owner(self) -> int:
        return self._session.token if self._session.holds() else 0
