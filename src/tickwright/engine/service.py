"""The base class of every loop: run, tick, and stop in two steps."""

import asyncio
from abc import ABC, abstractmethod

from tickwright.engine.tasks import is_set_within
from tickwright.ports.ids import monotonic


class LoopService(ABC):
    """A loop that runs, ticks and stops in two steps; a :class:`tickwright.ports.service.Service` once it has a name.

    A subclass writes ``_work`` as ``while not self.stopping.is_set(): …`` and calls :meth:`tick` in each round. It
    overrides ``quiesce`` or ``stop`` where it has something to finish, cancel or release.

    Attributes:
        stopping: Set: the loop begins no new work.
        wakeup: Ends :meth:`wait_for_work`; may be an event of a
            :class:`tickwright.engine.wakeup.listener.WakeupListener`. The loop clears it before it checks for work,
            never after.

    Invariants:
        SVC-1: ``quiesce`` and ``stop`` return when ``run`` has ended, in any order and any number of times; at once
            where it does not run. Exceptions are services that others use until they have stopped: ``quiesce`` of the
            session, the partner contract, the merge processes and the poll source does nothing, and ``stop`` may
            return before ``run`` has ended.
        SVC-2: a request to stop ends every wait of the loop.
    """

    name: str

    def __init__(self, wakeup: asyncio.Event | None = None) -> None:
        self.stopping = asyncio.Event()
        self.wakeup = wakeup or asyncio.Event()
        self._run_ended = asyncio.Event()
        self._run_ended.set()
        self._ticked_s: float | None = None

    @abstractmethod
    async def _work(self) -> None:
        """Work until ``stopping`` is set."""

    async def run(self) -> None:
        """Work until stopped."""
        self._run_ended.clear()
        try:
            await self._work()
        finally:
            self._run_ended.set()

    def request_stop(self) -> None:
        """Ask the loop to end, without waiting."""
        self.stopping.set()
        self.wakeup.set()

    async def quiesce(self) -> None:
        """Begin no further round; return when ``run`` has ended."""
        self.request_stop()
        await self._run_ended.wait()

    async def stop(self) -> None:
        """Do what ``quiesce`` does: a loop without tasks has nothing to cancel."""
        await self.quiesce()

    def tick(self) -> None:
        """Record a round of the loop."""
        self._ticked_s = monotonic()

    def last_tick_age_s(self) -> float | None:
        """Return the seconds since the last round; ``None`` before the first one."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    async def rest(self, seconds: float) -> None:
        """Wait ``seconds``, or until the service stops."""
        await is_set_within(self.stopping, seconds)

    async def wait_for_work(self, seconds: float) -> None:
        """Wait ``seconds``, or until ``wakeup`` is set."""
        await is_set_within(self.wakeup, seconds)
