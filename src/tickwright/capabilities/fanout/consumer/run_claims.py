"""The run claims of one consumer: begun in batches, renewed while calls run, ended under the same fence.

Claims are in two stores: Redis, which is asked first, and the ledger (PostgreSQL), which decides while it answers.
Without the ledger, Redis prevents two consumers from running one task. A run that began in Redis alone stays there when
the ledger answers again. A success without the ledger is carried over to it later. An end that no store accepts is kept
in memory until one does.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import structlog

from tickwright.capabilities.fanout.consumer.runs_store import LedgerRunClaims
from tickwright.capabilities.fanout.store_access import StoreAvailability
from tickwright.domain.errors import Unavailable
from tickwright.engine.batch_writer import CallBatcher
from tickwright.engine.tasks import TaskGroup, end_task
from tickwright.ports.fanout import Begun, CarryingRunClaims, Ended, Run, RunStart, Success
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session

CARRY_BATCH = 500
CARRY_ROUNDS_MAX = 20
LEDGER_RETRY_S = 1.0
RENEW_S = 3.0
RENEW_WITHOUT_SESSION_S = 1.0
CARRY_S = 1.0

_Key = tuple[str, str, int]
G = TypeVar("G", bound=Hashable)
_log = structlog.get_logger("tickwright.fanout")


class _Claims(NamedTuple):
    """The claims of a running task, under the owner that it began with; the session may have a new token by now."""

    owner: int
    redis: Begun | None
    ledger: Begun | None


class TwoStoreRunClaims:
    """Implements :class:`tickwright.ports.fanout.RunClaims`; one for a process.

    An end that no store accepts is kept in memory and counts as ours. ``carry`` writes it later; if the process ends
    before, the next run gets an older last success, and fetches some data again.

    Args:
        redis: ``None`` without Redis: then nothing runs while the ledger is unavailable.
        ledger: Decides while it answers.
    """

    def __init__(self, redis: CarryingRunClaims | None, ledger: LedgerRunClaims) -> None:
        self._redis, self._ledger = redis, ledger
        self._redis_availability = StoreAvailability("fanout.runs_redis")
        self._ledger_availability = StoreAvailability("fanout.runs_ledger", retry_s=LEDGER_RETRY_S)
        self._claims: dict[_Key, _Claims] = {}
        self._unwritten: dict[_Key, tuple[Ended, _Claims]] = {}

    # ------------------------------------------------------------------ begin

    async def begin(self, runs: Sequence[Run], owner: int) -> list[Begun]:
        """Claim in Redis, then in the ledger what Redis granted; release in Redis what the ledger refuses."""
        in_redis = await self._begin_redis(runs, owner)
        wanted = [n for n in range(len(runs)) if in_redis is None or in_redis[n].start is RunStart.BEGUN]
        ledger = await self._begin_ledger([runs[n] for n in wanted], owner, alone=in_redis is None)
        in_ledger = {} if ledger is None else dict(zip(wanted, ledger, strict=True))
        answers, refused = [], []
        for n, run in enumerate(runs):
            redis_begun, ledger_begun = None if in_redis is None else in_redis[n], in_ledger.get(n)
            answer = _decided([one for one in (ledger_begun, redis_begun) if one is not None])
            if answer.start is RunStart.BEGUN:
                self._claims[_key(run, answer)] = _Claims(owner, redis_begun, ledger_begun)
            elif redis_begun is not None and redis_begun.start is RunStart.BEGUN:
                refused.append(Ended(run, redis_begun, released=True))
            answers.append(answer)
        if refused and self._redis is not None:
            with suppress(Unavailable):  # else the claims expire
                await self._redis_availability.ask(self._redis.end(refused, owner))
        return answers

    async def _begin_redis(self, runs: Sequence[Run], owner: int) -> list[Begun] | None:
        if self._redis is None or not self._redis_availability.should_ask():
            return None
        try:
            return await self._redis_availability.ask(self._redis.begin(runs, owner))
        except Unavailable:
            return None

    async def _begin_ledger(self, runs: Sequence[Run], owner: int, *, alone: bool) -> list[Begun] | None:
        if not runs:
            return []
        if not alone and not self._ledger_availability.should_ask():
            return None
        try:
            await self._write_unwritten()
            return await self._ledger_availability.ask(self._ledger.begin(runs, owner))
        except Unavailable:
            if alone:
                raise
            return None

    # ------------------------------------------------------------------ end and renew

    async def end(self, ended: Sequence[Ended], owner: int) -> list[bool]:
        """Write how runs ended: in the ledger, or in Redis to be carried over, or in memory until a store answers.

        So it does not raise ``Unavailable``.
        """
        claims = [self._claims_of(one, owner) for one in ended]
        for one in ended:
            self._claims.pop(_key(one.run, one.begun), None)
        ledger = await self._ask_ledger(self._ledger.end, ended, claims)
        redis = await self._end_redis(ended, claims, ledger)
        if lost := [one for n, one in enumerate(ended) if ledger.get(n) is False and redis.get(n) and _succeeded(one)]:
            with suppress(Unavailable):  # before the next runs succeed; else ``carry`` does it
                await self._ledger_availability.ask(self._ledger.carry_over([_success(one) for one in lost]))
        return [self._is_ours(one, claims[n], ledger.get(n), redis.get(n)) for n, one in enumerate(ended)]

    async def renew(self, held: Sequence[Ended], owner: int) -> list[bool]:
        """Renew the claims of running tasks; one is lost if a store reports that and the other does not contradict."""
        claims = [self._claims_of(one, owner) for one in held]
        ledger, redis = await asyncio.gather(
            self._ask_ledger(self._ledger.renew, held, claims), self._renew_redis(held, claims)
        )
        if held and not ledger and not redis:
            raise Unavailable("claims_unavailable", "neither the database nor Redis answers which runs are ours")
        ours = [ledger.get(n, False) or redis.get(n, n not in ledger) for n in range(len(held))]
        for one, kept in zip(held, ours, strict=True):
            if not kept:
                self._claims.pop(_key(one.run, one.begun), None)  # it may never be ended
        return ours

    def _claims_of(self, one: Ended, owner: int) -> _Claims:
        """Return a run's claims. For a run that is unknown here, such as a repeated end, the stores decide."""
        unknown = _Claims(owner, None if self._redis is None else one.begun, one.begun)
        return self._claims.get(_key(one.run, one.begun), unknown)

    async def _ask_ledger(
        self, call: Callable[[Sequence[Ended], int], Awaitable[list[bool]]], runs: Sequence[Ended],
        claims: Sequence[_Claims],
    ) -> Mapping[int, bool]:  # fmt: skip
        groups: dict[int, list[tuple[int, Ended]]] = defaultdict(list)
        for n, (one, claim) in enumerate(zip(runs, claims, strict=True)):
            if claim.ledger is not None:
                groups[claim.owner].append((n, one._replace(begun=claim.ledger)))
        return await _ask_groups(groups, self._ledger_availability, lambda owner, part: call(part, owner))

    async def _end_redis(
        self, ended: Sequence[Ended], claims: Sequence[_Claims], ledger: Mapping[int, bool]
    ) -> Mapping[int, bool]:
        if (redis := self._redis) is None:
            return {}
        groups: dict[tuple[int, bool], list[tuple[int, Ended]]] = defaultdict(list)
        for n, (one, claim) in enumerate(zip(ended, claims, strict=True)):
            if claim.redis is not None:
                begun = claim.redis._replace(begun_s=one.begun.begun_s)
                groups[claim.owner, not ledger.get(n)].append((n, one._replace(begun=begun)))
        return await _ask_groups(
            groups, self._redis_availability, lambda group, part: redis.end(part, group[0], carry=group[1])
        )

    async def _renew_redis(self, held: Sequence[Ended], claims: Sequence[_Claims]) -> Mapping[int, bool]:
        if (redis := self._redis) is None:
            return {}
        groups: dict[int, list[tuple[int, Ended]]] = defaultdict(list)
        for n, (one, claim) in enumerate(zip(held, claims, strict=True)):
            if claim.redis is not None:
                groups[claim.owner].append((n, one._replace(begun=claim.redis)))
        return await _ask_groups(groups, self._redis_availability, lambda owner, part: redis.renew(part, owner))

    def _is_ours(self, one: Ended, claims: _Claims, ledger: bool | None, redis: bool | None) -> bool:
        """Return whether the run was ours; Redis proves it when the session was lost without the ledger."""
        if ledger is None and (claims.ledger is not None or (redis is None and _succeeded(one))):
            self._unwritten[_key(one.run, one.begun)] = one, claims
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
        if self._redis is not None and self._redis_availability.should_ask():
            for _ in range(CARRY_ROUNDS_MAX):
                successes = await self._redis_availability.ask(self._redis.carried(CARRY_BATCH))
                if not successes:
                    break
                await self._ledger_availability.ask(self._ledger.carry_over(successes))
                await self._redis_availability.ask(self._redis.forget(successes))
        return len(self._unwritten)

    async def count_dropped(self, dropped: Mapping[tuple[str, int, str], int]) -> None:
        """Count messages that were dropped, by task type, window, and ``superseded`` or ``expired``."""
        await self._ledger.count_dropped(dropped)

    async def _write_unwritten(self) -> None:
        """Write the ends that no store has; for a lost session only successes."""
        if not self._unwritten:
            return
        unwritten = dict(self._unwritten)
        groups: dict[int, list[Ended]] = defaultdict(list)
        for one, claims in unwritten.values():
            if claims.ledger is not None:
                groups[claims.owner].append(one._replace(begun=claims.ledger))
        unclaimed = [one for one, claims in unwritten.values() if claims.ledger is None]
        for owner, part in groups.items():
            ours = await self._ledger_availability.ask(self._ledger.end(part, owner))
            unclaimed += [one for one, mine in zip(part, ours, strict=True) if not mine and _succeeded(one)]
        await self._ledger_availability.ask(self._ledger.carry_over([_success(one) for one in unclaimed]))
        for key in unwritten:
            self._unwritten.pop(key, None)


async def _ask_groups(
    groups: Mapping[G, Sequence[tuple[int, Ended]]],
    availability: StoreAvailability,
    question: Callable[[G, Sequence[Ended]], Awaitable[list[bool]]],
) -> Mapping[int, bool]:
    """Return the answers by number; none for a group that the store did not answer."""
    answers: dict[int, bool] = {}
    for group, numbered in groups.items():
        if not availability.should_ask():
            break
        try:
            found = await availability.ask(question(group, [one for _, one in numbered]))
        except Unavailable:
            break
        answers.update(zip((n for n, _ in numbered), found, strict=True))
    return answers


def _decided(begun: Sequence[Begun]) -> Begun:
    """Return the answer of the first store, with the newest last success of all."""
    successes = [one.last_success_s for one in begun if one.last_success_s is not None]
    return begun[0]._replace(last_success_s=max(successes, default=None))


def _key(run: Run, begun: Begun) -> _Key:
    return run.entity_code, run.task_type, begun.fence


def _succeeded(one: Ended) -> bool:
    return one.error is None and not one.released


def _success(one: Ended) -> Success:
    return Success(one.run.entity_code, one.run.task_type, one.run.window_s, one.begun.begun_s)


class ClaimLostError(Exception):
    """The claim was lost to another consumer; the call was cancelled."""


@dataclass(slots=True, eq=False)
class _HeldRun:
    ended: Ended
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
        self._begins = CallBatcher(self._begin_many)
        self._ends = CallBatcher(self._end_many)
        self._held: set[_HeldRun] = set()
        self._dropped: Counter[tuple[str, int, str]] = Counter()
        self._renew_now = asyncio.Event()
        self.ticked_s: float | None = None
        session.on_lost(self._renew_now.set)

    # ------------------------------------------------------------------ one claim

    async def begin(self, run: Run) -> Begun:
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
                    await self.end(Ended(run, begun, released=True))
            raise

    @asynccontextmanager
    async def held(self, ended: Ended) -> AsyncIterator[None]:
        """Hold a claim while the body runs.

        A body that is cancelled from outside counts as not begun. One that is cancelled because its claim is lost
        raises :class:`ClaimLostError`.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a claim is held by a task")
        held = _HeldRun(ended, task)
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

    async def end(self, ended: Ended) -> bool:
        """Write how a run ended, or keep it until a store answers; false if the claim was lost."""
        for one in self._held:
            one.ending = one.ending or (one.ended.run, one.ended.begun) == (ended.run, ended.begun)
        return await self._ends(ended)

    def drop(self, task_type: str, window_s: int, why: str) -> None:
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
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, begun_s + rest_s - self.ticked_s)):
                    await self._renew_now.wait()

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
            ours = await self._claims.renew([one.ended for one in held], self._owner())
        except Unavailable as error:
            _log.warning("fanout.claims_not_renewed", runs=len(held), error=error.message)
            ours = [self._session.holds()] * len(held)
        for one, mine in zip(held, ours, strict=True):
            if not mine and one in self._held and not one.ending:
                _log.warning("fanout.claim_lost", run=one.ended.run)
                one.lost = True
                end_task(one.task)

    async def write_dropped(self) -> None:
        """Write the counts of dropped messages; those that cannot be written now are written later."""
        dropped, self._dropped = self._dropped, Counter()
        if not dropped:
            return
        try:
            await self._claims.count_dropped(dropped)
        except Unavailable:
            self._dropped.update(dropped)

    # ------------------------------------------------------------------ many at a time

    def _owner(self) -> int:
        return self._session.token if self._session.holds() else 0

    async def _begin_many(self, runs: Sequence[Run]) -> Sequence[Begun]:
        return await self._claims.begin(runs, self._owner())

    async def _end_many(self, ended: Sequence[Ended]) -> Sequence[bool]:
        return await self._claims.end(ended, self._owner())
