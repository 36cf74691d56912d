"""Claimed work of one process: taken while there is room, carried out in tasks, given back, and let go when it is lost.

::

    due ──claim──▶ held ──task──▶ an outcome, counted
                     │ stopped: given back as if it had not been begun
                     └ lost, or not wanted any more: cancelled within two seconds

What is claimed and what is done with it is the subclass's; that nothing outlives its claim is decided here. The
database is authoritative: a claim is lost when its row says so, and the session's own clock only stops earlier.
"""

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import structlog

from tickwright.engine.claim_gate import ClaimGate, Connect
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import TaskGroup, cancel_safe, end_task
from tickwright.engine.wakeup import WakeupListener
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection

LOOK_S = 5.0
LOOK_WITHOUT_NEWS_S = 0.5
KEEP_S = 1.0
AWAY_S = 1.0

_log = structlog.get_logger("tickwright.claims")


class Claimed(Protocol):
    """What can be claimed; the log names it by its key, and tells nothing else of it."""

    @property
    def key(self) -> object:
        """What it is."""
        ...


_C = TypeVar("_C", bound=Claimed)
_K = TypeVar("_K", bound=Hashable)
_H = TypeVar("_H", bound="Held[Any]")


@dataclass(slots=True, eq=False)
class Held(Generic[_C]):
    """One claim in this process's hands.

    Attributes:
        owner: Token of the session that claimed it.
        is_lost: It is somebody else's by now, or not wanted any more.
        is_ending: Its end is being written; whether it was still ours the answer says.
    """

    claim: _C
    owner: int
    task: asyncio.Task[None] | None = None
    is_lost: bool = False
    is_ending: bool = False

    def cancel(self) -> None:
        """End its task, now."""
        if self.task is not None:
            end_task(self.task)

    def lose(self) -> None:
        """End its task and give nothing back: whatever it still writes finds no row."""
        self.is_lost = True
        self.cancel()


class ClaimedWork(LoopService, Generic[_K, _H]):
    """Claims and carries out; a :class:`tickwright.ports.service.Service` once it has a name.

    Args:
        connect: Lends connections, for what is to be known of claims.

    Attributes:
        name: Of the service.
        counts: What became of each claim, by the outcome's name.

    Invariants:
        CLW-1: what is stopped is given back, however early; what is lost is cancelled and gives nothing back.
        CLW-2: a claim whose end is being written is not cancelled by a look beside it.
        CLW-3: what could not be given back is given back with the next claim or heartbeat.
        CLW-4: an attempt that raises an unexpected error leaves no claim with a session that lives.
        CLW-5: ``run`` raises when the check for lost claims crashes; what is held is held by the next ``run``.
    """

    name: str

    def __init__(self, session: Session, wakeups: WakeupListener, connect: Connect) -> None:
        super().__init__(wakeups.subscribe())
        self._session, self._wakeups = session, wakeups
        self._gate = ClaimGate(connect, session, self.name, self._strays)
        self.counts: Counter[str] = Counter()
        self._held: dict[_K, _H] = {}
        session.on_lost(self._lose_all)

    # ------------------------------------------------------------------ what a subclass says

    @abstractmethod
    async def _look(self) -> float:
        """Claim what is due and there is room for; return after how many seconds to look again. Raises only bugs."""

    @abstractmethod
    async def _strays(self, connection: Connection, owner: int) -> int:
        """Give back what ``owner`` has beside what is held, as if it had not been begun; return how many."""

    @abstractmethod
    async def _release(self, held: _H) -> None:
        """Give a claim back as if it had not been begun."""

    @abstractmethod
    async def _ours(self, held: Mapping[_K, _H]) -> Collection[_K]:
        """Return which of these are still ours and wanted."""

    async def _looked(self, held: Sequence[_H]) -> None:
        """Do what else is due beside each look at claims; what is lost is cancelled before."""

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        async with TaskGroup() as group:
            keeping = group.create_task(self._keep())
            while not self.stopping.is_set():
                self.wakeup.clear()
                wait_s = await self._look()
                self.tick()
                await self.wait_for_work(wait_s)
            await self._none_runs()
            keeping.cancel()

    async def quiesce(self) -> None:
        """Claim nothing more; what runs ends."""
        await super().quiesce()
        await self._none_runs()

    async def stop(self) -> None:
        """Cancel what runs and give it back."""
        for held in [*self._held.values()]:
            held.cancel()
        await self.quiesce()

    @property
    def running(self) -> int:
        """Claims in this process's hands."""
        return len(self._held)

    async def _none_runs(self) -> None:
        while tasks := [held.task for held in self._held.values() if held.task is not None]:
            await asyncio.wait(tasks)

    def _lose_all(self) -> None:
        for held in self._held.values():
            held.lose()

    @property
    def _look_s(self) -> float:
        """How long to wait where nothing is known to be due."""
        return LOOK_S if self._wakeups.works else LOOK_WITHOUT_NEWS_S

    # ------------------------------------------------------------------ carrying out

    def _begin(self, key: _K, held: _H, attempt: Callable[[_H], Awaitable[str]]) -> None:
        """Carry a claim out in a task; ``attempt`` returns what it ended as, for the counters."""
        self._held[key] = held
        held.task = asyncio.create_task(cancel_safe(self._try(key, held, attempt)))

    async def _try(self, key: _K, held: _H, attempt: Callable[[_H], Awaitable[str]]) -> None:
        outcome = "lost"
        try:
            outcome = await attempt(held)
        except asyncio.CancelledError:
            if not held.is_lost:
                outcome = "released"
                await self._let_go(held)
        except Exception:  # noqa: BLE001  what an attempt did not expect
            outcome = "broken"
            _log.exception("claims.attempt_broken", key=held.claim.key)
            await asyncio.sleep(AWAY_S)  # it is claimed again at once, and may raise again
        finally:
            if self._held.get(key) is held:
                del self._held[key]
            self._gate.unsure |= outcome == "broken"
            self.counts[outcome] += 1
            self.wakeup.set()

    async def _let_go(self, held: _H) -> None:
        try:
            await self._release(held)
        except BaseException as error:
            self._gate.unsure = True
            if not isinstance(error, UNAVAILABLE):
                raise

    async def _keep(self) -> None:
        """Find out every second what is not ours any more, or not wanted."""
        while True:
            await asyncio.sleep(KEEP_S)
            held = dict(self._held)
            if not held:
                continue
            try:
                ours = await self._ours(held)
            except UNAVAILABLE:
                continue
            for key, one in held.items():
                if key not in ours and self._held.get(key) is one and not one.is_ending:
                    one.lose()
            await self._looked([*held.values()])


async def write_surely(session: Session, held: Held[Any], write: Callable[[], Awaitable[bool]]) -> bool:
    """Write the end of a claim as long as it lives: while the database is away nobody else can take it either.

    Returns:
        What ``write`` returned; false where the session was lost meanwhile, and where an answer that was lost was a
        yes.

    Raises:
        One of ``REFUSED``: PostgreSQL refuses the values, and would refuse them again.
    """
    held.is_ending = True
    while True:
        try:
            return await write()
        except UNAVAILABLE as error:
            _log.warning("claims.end_not_written", key=held.claim.key, error=repr(error))
            if session.token != held.owner:
                return False
            await asyncio.sleep(AWAY_S)
