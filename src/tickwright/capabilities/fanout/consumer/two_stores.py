"""Run claims in two stores behind one: the ledger decides while it answers, Redis keeps consumers apart without it.

Redis is asked first and the ledger second, so a run that began in Redis alone stays alone when the ledger is back. What
succeeds without the ledger is carried over. What can be told neither of them is kept here until one answers.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from tickwright.capabilities.fanout.availability import Standing
from tickwright.capabilities.fanout.consumer.runs_store import LedgerRuns
from tickwright.domain.errors import Unavailable
from tickwright.ports.fanout import Begun, CarryingRunClaims, Ended, Run, Start, Success

CARRY_BATCH = 500
CARRY_ROUNDS_MAX = 20
LEDGER_AGAIN_S = 1.0

_Key = tuple[str, str, int]
G = TypeVar("G", bound=Hashable)


class _Held(NamedTuple):
    """A run under way: its claims, under the token that it began with; the session may have another one by now."""

    owner: int
    fast: Begun | None
    ledger: Begun | None


class RunsInTwo:
    """See :class:`tickwright.ports.fanout.RunClaims`; one for a process.

    An end that no store hears is kept in memory and is true: the run was ours. It is written by ``carry``, or lost with
    the process; then the next run hears of an older success, and fetches what was fetched before.

    Args:
        fast: Redis; ``None`` where there is none: then nothing runs while the ledger is away.
        ledger: Decides while it answers.
    """

    def __init__(self, fast: CarryingRunClaims | None, ledger: LedgerRuns) -> None:
        self._fast, self._ledger = fast, ledger
        self._fast_standing = Standing("fanout.runs_redis")
        self._ledger_standing = Standing("fanout.runs_ledger", again_s=LEDGER_AGAIN_S)
        self._held: dict[_Key, _Held] = {}
        self._owed: dict[_Key, tuple[Ended, _Held]] = {}

    # ------------------------------------------------------------------ begin

    async def begin(self, runs: Sequence[Run], owner: int) -> list[Begun]:
        """Claim in Redis, then in the ledger what Redis gave; a claim that only one of two gave is given back."""
        fast = await self._begin_fast(runs, owner)
        wanted = [n for n in range(len(runs)) if fast is None or fast[n].start is Start.BEGUN]
        ledger = await self._begin_ledger([runs[n] for n in wanted], owner, alone=fast is None)
        decided = {} if ledger is None else dict(zip(wanted, ledger, strict=True))
        answers = []
        refused = []
        for n, run in enumerate(runs):
            theirs, mine = None if fast is None else fast[n], decided.get(n)
            answer = _joined([one for one in (mine, theirs) if one is not None])
            if answer.start is Start.BEGUN:
                self._held[_key(run, answer)] = _Held(owner, theirs, mine)
            elif theirs is not None and theirs.start is Start.BEGUN:
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

    def _claims_of(self, one: Ended, owner: int) -> _Held:
        """Return a run's claims; of one that is not known here, such as an end said again, the stores say."""
        unknown = _Held(owner, None if self._fast is None else one.begun, one.begun)
        return self._held.get(_key(one.run, one.begun), unknown)

    async def _end_ledger(self, ended: Sequence[Ended], helds: Sequence[_Held]) -> Mapping[int, bool]:
        groups: dict[int, list[tuple[int, Ended]]] = defaultdict(list)
        for n, (one, held) in enumerate(zip(ended, helds, strict=True)):
            if held.ledger is not None:
                groups[held.owner].append((n, one._replace(begun=held.ledger)))
        return await _ask_groups(groups, self._ledger_standing, lambda owner, part: self._ledger.end(part, owner))

    async def _end_fast(
        self, ended: Sequence[Ended], helds: Sequence[_Held], ledger: Mapping[int, bool]
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

    def _conclude(self, one: Ended, held: _Held, ledger: bool | None, fast: bool | None) -> bool:
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

    async def _renew_ledger(self, held: Sequence[Ended], helds: Sequence[_Held]) -> Mapping[int, bool]:
        groups: dict[int, list[tuple[int, Ended]]] = defaultdict(list)
        for n, (one, claims) in enumerate(zip(held, helds, strict=True)):
            if claims.ledger is not None:
                groups[claims.owner].append((n, one._replace(begun=claims.ledger)))
        return await _ask_groups(groups, self._ledger_standing, lambda owner, part: self._ledger.renew(part, owner))

    async def _renew_fast(self, held: Sequence[Ended], helds: Sequence[_Held]) -> Mapping[int, bool]:
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
    standing: Standing,
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
