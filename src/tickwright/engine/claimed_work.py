"""Claimed work of one process: claims while there is room, runs tasks, releases what is stopped, cancels what is lost.

::

    due ──claim──▶ held ──task──▶ an outcome, counted
                     │ stopped: released as if it had not begun
                     └ lost, or no longer wanted: cancelled within two seconds

The subclass defines what is claimed and what its task does. This module ensures that no task outlives its claim. The
database is authoritative: a claim is lost when its row says so. The session's own clock only stops work earlier.
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
from tickwright.engine.wakeup.listener import WakeupListener
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection

POLL_S = 5.0
POLL_WITHOUT_WAKEUPS_S = 0.5
CHECK_S = 1.0
UNAVAILABLE_S = 1.0

_log = structlog.get_logger("tickwright.claims")


class Claimed(Protocol):
    """What can be claimed; the log shows its key and nothing else."""

    @property
    def key(self) -> object:
        """Identifies it."""


_C = TypeVar("_C", bound=Claimed)
_K = TypeVar("_K", bound=Hashable)
_H = TypeVar("_H", bound="Held[Any]")


@dataclass(slots=True, eq=False)
class Held(Generic[_C]):
    """One claim that this process holds.

    Attributes:
        owner: Token of the session that claimed it.
        is_lost: Another process may own it, or it is no longer wanted.
        is_ending: Its end is being written; the answer of that write says whether it was still ours.
    """

    claim: _C
    owner: int
    task: asyncio.Task[None] | None = None
    is_lost: bool = False
    is_ending: bool = False

    def cancel(self) -> None:
        """Cancel its task at once."""
        if self.task is not None:
            end_task(self.task)

    def lose(self) -> None:
        """Cancel its task and release nothing: what the task still writes finds no row."""
        self.is_lost = True
        self.cancel()


class ClaimedWork(LoopService, Generic[_K, _H]):
    """Claims work and runs it; a :class:`tickwright.ports.service.Service` once it has a name.

    ``counts`` has the number of claims per outcome.

    Invariants:
        CLW-1: what is stopped is released, however early; what is lost is cancelled and releases nothing.
        CLW-2: the check for lost claims cancels no claim whose end is being written.
        CLW-3: what could not be released is released with the next claim or heartbeat.
        CLW-4: an attempt that raises an unexpected error leaves no claim with a live session.
        CLW-5: ``run`` raises when the check for lost claims crashes; the next ``run`` keeps what is held.
    """

    name: str
    owns_any_sql: str
    """Whether the session $1 owns any such work."""

    def __init__(self, session: Session, wakeups: WakeupListener, connect: Connect) -> None:
        super().__init__(wakeups.subscribe())
        self._session, self._wakeups = session, wakeups
        self._gate = ClaimGate(connect, session, self.name, self._release_unknown, owns_any_sql=self.owns_any_sql)
        self.counts: Counter[str] = Counter()
        self._held: dict[_K, _H] = {}
        wakeups.join(lambda: not (self.is_full or self.stopping.is_set()))
        session.on_lost(self._lose_all)

    # ------------------------------------------------------------------ what a subclass writes

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether there is work that it could not take now."""

    @abstractmethod
    async def _claim_due(self) -> float:
        """Claim what is due, as far as there is room; return in how many seconds to try again. Raises only bugs."""

    @abstractmethod
    async def _release_unknown(self, connection: Connection, owner: int) -> int:
        """Release what ``owner`` has and the process does not hold, as if it had not begun; return the count."""

    @abstractmethod
    async def _release(self, held: _H) -> None:
        """Release a claim as if it had not begun."""

    @abstractmethod
    async def _ours(self, held: Mapping[_K, _H]) -> Collection[_K]:
        """Return which of these are still ours and wanted."""

    async def _after_check(self, held: Sequence[_H]) -> None:
        """Do other work that is due after each check of claims; lost claims are cancelled before."""

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        async with TaskGroup() as group:
            checking = group.create_task(self._check_claims())
            while not self.stopping.is_set():
                self.wakeup.clear()
                wait_s = await self._claim_due()
                self.tick()
                if self.is_full:
                    await self._wakeups.pass_on()
                await self._wakeups.wait(self.wakeup, wait_s)
            await self._none_runs()
            checking.cancel()

    async def quiesce(self) -> None:
        """Claim nothing more; return when all running tasks have ended."""
        await super().quiesce()
        await self._none_runs()

    async def stop(self) -> None:
        """Cancel what runs and release it."""
        for held in [*self._held.values()]:
            held.cancel()
        await self.quiesce()

    @property
    def running(self) -> int:
        """Number of claims that this process holds."""
        return len(self._held)

    async def _none_runs(self) -> None:
        while tasks := [held.task for held in self._held.values() if held.task is not None]:
            await asyncio.wait(tasks)

    def _lose_all(self) -> None:
        for held in self._held.values():
            held.lose()

    @property
    def _poll_s(self) -> float:
        """Seconds to wait where no due time is known."""
        return POLL_S if self._wakeups.works else POLL_WITHOUT_WAKEUPS_S

    # ------------------------------------------------------------------ carrying out

    def _begin(self, key: _K, held: _H, attempt: Callable[[_H], Awaitable[str]]) -> None:
        """Run a claim in a task; ``attempt`` returns the outcome for the counters."""
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
        except Exception:  # noqa: BLE001  the attempt's boundary
            outcome = "broken"
            _log.exception("claims.attempt_broken", key=held.claim.key)
            await asyncio.sleep(UNAVAILABLE_S)  # it will be claimed again at once, and may raise again
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

    async def _check_claims(self) -> None:
        """Check every second which claims are lost or no longer wanted."""
        while True:
            await asyncio.sleep(CHECK_S)
            held = dict(self._held)
            if not held:
                continue
            try:
                ours = await self._ours(held)
            except UNAVAILABLE:
                continue
            for key, claim in held.items():
                if key not in ours and self._held.get(key) is claim and not claim.is_ending:
                    claim.lose()
            await self._after_check([*held.values()])


async def write_end(session: Session, held: Held[Any], write: Callable[[], Awaitable[bool]]) -> bool:
    """Write the end of a claim, and retry as long as the session lives.

    While the database is unavailable no other process can take the claim either. Returns what ``write`` returned; false
    where the session was lost meanwhile, or where the answer of a successful write was lost.

    Raises:
        One of ``REFUSED``: PostgreSQL refuses the values. Permanent.
    """
    held.is_ending = True
    while True:
        try:
            return await write()
        except UNAVAILABLE as error:
            _log.warning("claims.end_not_written", key=held.claim.key, error=repr(error))
            if session.token != held.owner:
                return False
            await asyncio.sleep(UNAVAILABLE_S)
