"""The claims of one consumer: asked for many at a time, kept while their calls run, ended under the same fence."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from tickwright.capabilities.fanout.consumer.two_stores import RunsInTwo
from tickwright.domain.errors import Unavailable
from tickwright.engine.joined import Joined
from tickwright.ports.fanout import Begun, Ended, Run, Start
from tickwright.ports.ids import monotonic
from tickwright.ports.service import TaskGroup, end_task
from tickwright.ports.session import Session

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


class ClaimBook:
    """See the module's text.

    Args:
        claims: Both stores.
        session: Its token owns the claims in PostgreSQL.

    Invariants:
        FAN-7: a call whose claim is lost is cancelled within ``RENEW_S`` of the loss being known; one whose end is
            being written is not, since a claim that has ended is nobody's, and the end's own answer says whose it was.
    """

    def __init__(self, claims: RunsInTwo, session: Session) -> None:
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
                if begun.start is Start.BEGUN:
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
