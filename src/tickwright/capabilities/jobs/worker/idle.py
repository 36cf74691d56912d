"""How a claimer sleeps: as long as nothing can be due, and never past a wake-up.

::

    busy ──nothing more──▶ arm the wake-up ──claim once more──▶ asleep ──time is up──▶ busy
                             │ somebody inserts right now       └──ring──▶ awake ──quiet for 30 ms──▶ busy
                             └──▶ awake a little, try again, less and less often

Awake, it claims every few milliseconds, and inserts need not ring.
"""

import asyncio

from tickwright.engine.wakeup import ArmedWakeup
from tickwright.ports.ids import monotonic

AWAKE_GAP_S = 0.003
AWAKE_FOR_S = 0.03
AWAKE_GAP_MAX_S = 0.25
WATCHED_S = 5.0
ARMED_FROM_S = 0.02


class Rest:
    """The sleep of one claimer."""

    def __init__(self, wakeup: ArmedWakeup) -> None:
        self._wakeup = wakeup
        self._awake_until_s = 0.0
        self._watched_until_s = 0.0
        self.arm_failures = 0

    def found_work(self) -> None:
        """Stay awake a little longer, when awake: inserts come in bursts."""
        if monotonic() < self._awake_until_s:
            self._awake_until_s = monotonic() + AWAKE_FOR_S

    async def sleep(self, wait_s: float) -> None:
        """Return when it is time for the next claim: after ``wait_s`` seconds, or earlier."""
        if monotonic() < self._awake_until_s:
            await self._nap(AWAKE_GAP_S)
            return
        if wait_s > ARMED_FROM_S and not await self._armed():
            return
        if await self._nap(wait_s) and self._wakeup.notified:
            self._wakeup.notified = False
            self._watched_until_s = 0.0
            self._awake_until_s = monotonic() + AWAKE_FOR_S
            await self._wakeup.disarm()

    async def _armed(self) -> bool:
        """Make sure that an insert would wake us; False when one more claim is due before sleeping."""
        if self._wakeup.armed or monotonic() < self._watched_until_s or not self._wakeup.works:
            return True
        self._wakeup.woken.clear()
        if await self._wakeup.arm() != "refused":
            self.arm_failures = 0
            if (
                not self._wakeup.armed
            ):  # another sleeper has the lock, so inserts ring for everybody: believe it for a while
                self._watched_until_s = monotonic() + WATCHED_S
            return False
        self.arm_failures += 1  # somebody inserts right now, or keeps a transaction open
        await self._nap(min(AWAKE_GAP_MAX_S, AWAKE_GAP_S * 2 ** min(self.arm_failures, 10)))
        return False

    async def _nap(self, seconds: float) -> bool:
        """Wait, or until something wakes the loop; return whether something did."""
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.woken.wait()
        except TimeoutError:
            return False
        self._wakeup.woken.clear()
        return True
