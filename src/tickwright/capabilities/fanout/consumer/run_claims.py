"""The run claims of one consumer: begun many at a time, kept while calls run, ended under the same fence.

Claims are in two stores. Redis is asked first and the ledger (PostgreSQL) second, and the ledger decides while it
answers; without it Redis keeps consumers apart. A run that began in Redis alone stays alone when the ledger answers
again. A success without the ledger is carried over to it. An end that neither store takes is kept here until one does.
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
from tickwright.engine.joined import Joined
from tickwright.engine.tasks import TaskGroup, end_task
from tickwright.ports.fanout import Begun, CarryingRunClaims, Ended, Run, RunStart, Success
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session

CARRY_BATCH = 500
CARRY_ROUNDS_MAX = 20
LEDGER_AGAIN_S = 1.0

_Key = tuple[str, str, int]
G = TypeVar("G", bound=Hashable)


class _Claims(NamedTuple):
    """A run under way: its claims, under the token that it began with; the session may have another one by now."""

    owner: int
    fast: Begun | None
    ledger: Begun | None


class TwoStoreRunClaims:
    """See :class:`tickwright.ports.fanout.RunClaims`; one for a process.

    An end that no store hears is kept in memory and is true: the run was ours. It is written by ``carry``, or lost with
    the process; then the next run hears of an older success, and fetches what was fetched before.

    Args:
        fast: Redis; ``None`` where there is none: then nothing runs while the ledger is away.
        ledger: Decides while it answers.
    """

    def __init__(self, fast: CarryingRunClaims | None, ledger: LedgerRunClaims) -> None:
        self._fast, self._ledger = fast, ledger
        self._fast_standing = StoreAvailability("fanout.runs_redis")
        self._ledger_standing = StoreAvailability("fanout.runs_ledger", again_s=LEDGER_AGAIN_S)
        self._held: dict[_Key, _Claims] = {}
        self._owed: dict[_Key, tuple[Ended, _Claims]] = {}

    # ------------------------------------------------------------------ begin

    async def begin(self, runs: Sequence[Run], owner: int) -> list[Begun]:
        """Claim in Redis, then in the ledger what Redis gave; a claim that only one of two gave is given back."""
        fast = await self._begin_fast(runs, owner)
        wanted = [n for n in range(len(runs)) if fast is None or fast[n].start is RunStart.BEGUN]
        ledger = await self._begin_ledger([runs[n] for n in wanted], owner, alone=fast is None)
        decided = {} if ledger is None else dict(zip(wanted, ledger, strict=True))
        answers = []
        refused = []
        for n, run in enumerate(runs):
            theirs, mine = None if fast is None else fast[n], decided.get(n)
            answer = _joined([one for one in (mine, theirs) if one is not None])
            if answer.start is RunStart.BEGUN:
                self._held[_key(run, answer)] = _Claims(owner, theirs, mine)
            elif theirs is not None and theirs.start is RunStart.BEGUN:
                refused.append(Ended(run, theirs, released=True))
            answers.append(answer)
        await self._give_back(refused, owner)
        return answers

    async def _begin_fast(self, runs: Sequence[Run], owner: int) -> list[Begun] | None:
        if self._fast is None or not self._fast_standing.worth_a_try():
            return None
        try:
            return await self._fast_standing.ask(self._fast.begin(runs, owner))
        except Unavailable:
            return None

    async def _begin_ledger(self, runs: Sequence[Run], owner: int, *, alone: bool) -> list[Begun] | None:
        if not runs:
            return []
        if not alone and not self._ledger_standing.worth_a_try():
            return None
        try:
            await self._pay()
            return await self._ledger_standing.ask(self._ledger.begin(runs, owner))
        except Unavailable:
            if alone:
                raise
            return None

    async def _give_back(self, refused: Sequence[Ended], owner: int) -> None:
        if not refused or self._fast is None:
            return
        try:
            await self._fast_standing.ask(self._fast.end(refused, owner))
        except Unavailable:
            return  # they end by themselves

    # ------------------------------------------------------------------ end

    async def end(self, ended: Sequence[Ended], owner: int) -> list[bool]:
        """Write how runs ended: in the ledger, or in Redis to be carried over, or here until one of them answers.

        So ``Unavailable`` is not raised.
        """
        helds = [self._claims_of(one, owner) for one in ended]
        for one in ended:
            self._held.pop(_key(one.run, one.begun), None)
        ledger = await self._end_ledger(ended, helds)
        fast = await self._end_fast(ended, helds, ledger)
        await self._tell_ledger([one for n, one in enumerate(ended) if ledger.get(n) is False and fast.get(n)])
        return [self._conclude(one, helds[n], ledger.get(n), fast.get(n)) for n, one in enumerate(ended)]

    def _claims_of(self, one: Ended, owner: int) -> _Claims:
        """Return a run's claims; of one that is not known here, such as an end said again, the stores say."""
        unknown = _Claims(owner, None if self._fast is None else one.begun, one.begun)
        return self._held.get(_key(one.run, one.begun), unknown)

    async def _end_ledger(self, ended: Sequence[Ended], helds: Sequence[_Claims]) -> Mapping[int, bool]:
        groups: dict[int, list[tuple[int, Ended]]] = defaultdict(list)
        for n, (one, held) in enumerate(zip(ended, helds, strict=True)):
            if held.ledger is not None:
                groups[held.owner].append((n, one._replace(begun=held.ledger)))
        return await _ask_groups(groups, self._ledger_standing, lambda owner, part: self._ledger.end(part, owner))

    async def _end_fast(
        self, ended: Sequence[Ended], helds: Sequence[_Claims], ledger: Mapping[int, bool]
    ) -> Mapping[int, bool]:
        fast = self._fast
        if fast is None:
            return {}
        groups: dict[tuple[int, bool], list[tuple[int, Ended]]] = defaultdict(list)
        for n, (one, held) in enumerate(zip(ended, helds, strict=True)):
            if held.fast is not None:
                began = held.fast._replace(begun_s=one.begun.begun_s)
                groups[held.owner, not ledger.get(n)].append((n, one._replace(begun=began)))
        return await _ask_groups(
            groups, self._fast_standing, lambda group, part: fast.end(part, group[0], carry=group[1])
        )

    async def _tell_ledger(self, believed: Sequence[Ended]) -> None:
        """Tell it of runs that only Redis still knew as ours, before the next ones succeed; else ``carry`` does."""
        successes = [_success(one) for one in believed if _succeeded(one)]
        if successes:
            with suppress(Unavailable):
                await self._ledger_standing.ask(self._ledger.carry_over(successes))

    def _conclude(self, one: Ended, held: _Claims, ledger: bool | None, fast: bool | None) -> bool:
        """Whether the run was ours; Redis proves it where a session was lost while the ledger was away."""
        if ledger is None and (held.ledger is not None or (fast is None and _succeeded(one))):
            self._owed[_key(one.run, one.begun)] = one, held
        if ledger or fast:
            return True
        return ledger is None and (held.ledger is not None or fast is None)

    # ------------------------------------------------------------------ renew

    async def renew(self, held: Sequence[Ended], owner: int) -> list[bool]:
        """Keep what is under way; it is lost when a store says so and the other one does not know better."""
        helds = [self._claims_of(one, owner) for one in held]
        ledger, fast = await asyncio.gather(self._renew_ledger(held, helds), self._renew_fast(held, helds))
        if held and not ledger and not fast:
            raise Unavailable("claims_unavailable", "neither the database nor Redis says whose runs these are")
        ours = [ledger.get(n, False) or fast.get(n, n not in ledger) for n in range(len(held))]
        for one in (one for one, kept in zip(held, ours, strict=True) if not kept):
            self._held.pop(_key(one.run, one.begun), None)  # nobody may ever end it
        return ours

    async def _renew_ledger(self, held: Sequence[Ended], helds: Sequence[_Claims]) -> Mapping[int, bool]:
        groups: dict[int, list[tuple[int, Ended]]] = defaultdict(list)
        for n, (one, claims) in enumerate(zip(held, helds, strict=True)):
            if claims.ledger is not None:
                groups[claims.owner].append((n, one._replace(begun=claims.ledger)))
        return await _ask_groups(groups, self._ledger_standing, lambda owner, part: self._ledger.renew(part, owner))

    async def _renew_fast(self, held: Sequence[Ended], helds: Sequence[_Claims]) -> Mapping[int, bool]:
        fast = self._fast
        if fast is None:
            return {}
        groups: dict[int, list[tuple[int, Ended]]] = defaultdict(list)
        for n, (one, claims) in enumerate(zip(held, helds, strict=True)):
            if claims.fast is not None:
                groups[claims.owner].append((n, one._replace(begun=claims.fast)))
        return await _ask_groups(groups, self._fast_standing, lambda owner, part: fast.renew(part, owner))

    # ------------------------------------------------------------------ later

    async def carry(self) -> int:
        """Write to the ledger what it could not be told; call it every second.

        Returns:
            How many ends are still kept here.

        Raises:
            Unavailable: A store does not answer. Call it again.
        """
        await self._pay()
        if self._fast is not None and self._fast_standing.worth_a_try():
            for _ in range(CARRY_ROUNDS_MAX):
                told = await self._fast_standing.ask(self._fast.carried(CARRY_BATCH))
                if not told:
                    break
                await self._ledger_standing.ask(self._ledger.carry_over(told))
                await self._fast_standing.ask(self._fast.forget(told))
        return len(self._owed)

    async def count_dropped(self, dropped: Mapping[tuple[str, int, str], int]) -> None:
        """Count messages that were dropped, by task type, window, and ``superseded`` or ``expired``."""
        await self._ledger.count_dropped(dropped)

    async def _pay(self) -> None:
        """Write the ends that no store has heard; of a session that was lost meanwhile as what succeeded alone."""
        if not self._owed:
            return
        owed = dict(self._owed)
        groups: dict[int, list[Ended]] = defaultdict(list)
        for one, held in owed.values():
            if held.ledger is not None:
                groups[held.owner].append(one._replace(begun=held.ledger))
        alone = [one for one, held in owed.values() if held.ledger is None]
        for owner, part in groups.items():
            ours = await self._ledger_standing.ask(self._ledger.end(part, owner))
            alone += [one for one, mine in zip(part, ours, strict=True) if not mine and _succeeded(one)]
        await self._ledger_standing.ask(self._ledger.carry_over([_success(one) for one in alone]))
        for key in owed:
            self._owed.pop(key, None)


async def _ask_groups(
    groups: Mapping[G, Sequence[tuple[int, Ended]]],
    standing: StoreAvailability,
    question: Callable[[G, Sequence[Ended]], Awaitable[list[bool]]],
) -> Mapping[int, bool]:
    """Return the answers by number; none for a group that the store did not answer."""
    answers: dict[int, bool] = {}
    for group, numbered in groups.items():
        if not standing.worth_a_try():
            break
        try:
            said = await standing.ask(question(group, [one for _, one in numbered]))
        except Unavailable:
            break
        answers.update(zip((n for n, _ in numbered), said, strict=True))
    return answers


def _joined(said: Sequence[Begun]) -> Begun:
    """Return what the stores say, the first one deciding; the last success is the newest that is known."""
    known = [one.last_success_s for one in said if one.last_success_s is not None]
    return said[0]._replace(last_success_s=max(known, default=None))


def _key(run: Run, begun: Begun) -> _Key:
    return run.entity_code, run.task_type, begun.fence


def _succeeded(one: Ended) -> bool:
    return one.error is None and not one.released


def _success(one: Ended) -> Success:
    return Success(one.run.entity_code, one.run.task_type, one.run.window_s, one.begun.begun_s)


RENEW_S = 3.0
LOOK_S = 1.0
CARRY_S = 1.0

_log = structlog.get_logger("tickwright.fanout")


class ClaimLostError(Exception):
    """The claim is somebody else's by now; the call was cancelled."""


@dataclass(slots=True, eq=False)
class _Held:
    ended: Ended
    task: "asyncio.Task[None]"
    lost: bool = False
    ending: bool = False


class ConsumerRunClaims:
    """See the module's text.

    Args:
        claims: Both stores.
        session: Its token owns the claims in PostgreSQL.

    Invariants:
        FAN-7: a call whose claim is lost is cancelled within ``RENEW_S`` of the loss being known; one whose end is
            being written is not, since a claim that has ended is nobody's, and the end's own answer says whose it was.
    """

    def __init__(self, claims: TwoStoreRunClaims, session: Session) -> None:
        self._claims, self._session = claims, session
        self._begins = Joined(self._begin_many)
        self._ends = Joined(self._end_many)
        self._held: set[_Held] = set()
        self._dropped: Counter[tuple[str, int, str]] = Counter()
        self._look_now = asyncio.Event()
        self.ticked_s: float | None = None
        session.on_lost(self._look_now.set)

    # ------------------------------------------------------------------ one claim

    async def begin(self, run: Run) -> Begun:
        """Claim a run; one that is granted to a caller who was cancelled meanwhile is given back.

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
        """Keep a claim while the body runs.

        A body that is cancelled from outside has not begun, as far as others can see. One that is cancelled because
        the claim is lost raises :class:`ClaimLostError`.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a claim is held by a task")
        held = _Held(ended, task)
        self._held.add(held)
        try:
            yield
        except asyncio.CancelledError:
            if held.lost:
                task.uncancel()
                raise ClaimLostError from None
            await self.end(ended._replace(released=True))
            raise
        except Exception as error:  # else nobody could run it as long as this process lives
            await self.end(ended._replace(error=type(error).__name__))
            raise
        finally:
            self._held.discard(held)

    async def end(self, ended: Ended) -> bool:
        """Write how a run ended, or keep it until a store answers; false where it was not ours any more."""
        for one in self._held:
            one.ending = one.ending or (one.ended.run, one.ended.begun) == (ended.run, ended.begun)
        return await self._ends(ended)

    def drop(self, task_type: str, window_s: int, why: str) -> None:
        """Note that a message was dropped, ``superseded`` or ``expired``; written together with others."""
        self._dropped[task_type, window_s, why] += 1

    # ------------------------------------------------------------------ all claims

    async def run(self) -> None:
        """Renew what is held, and carry over what succeeded without a database, until cancelled."""
        async with TaskGroup() as group:
            group.create_task(self._keep())
            group.create_task(self._tell())

    async def _keep(self) -> None:
        """Renew on time whatever else waits for a database that is silent: claims in Redis live for ten seconds."""
        while True:
            self._look_now.clear()
            begun_s = monotonic()
            await self._renew()
            self.ticked_s = monotonic()
            rest_s = RENEW_S if self._session.holds() else LOOK_S
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, begun_s + rest_s - self.ticked_s)):
                    await self._look_now.wait()

    async def _tell(self) -> None:
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
            _log.warning("fanout.not_renewed", runs=len(held), error=error.message)
            ours = [self._session.holds()] * len(held)
        for one, mine in zip(held, ours, strict=True):
            if not mine and one in self._held and not one.ending:
                _log.warning("fanout.claim_lost", run=one.ended.run)
                one.lost = True
                end_task(one.task)

    async def write_dropped(self) -> None:
        """Write what was dropped; what cannot be written now is written later."""
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
