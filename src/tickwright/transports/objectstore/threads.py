"""Blocking work in threads of a store's own, noticed when it stands still, ended when nobody waits for it any more.

A thread cannot be killed, so the work says now and then that it goes on, and hears then whether it shall end. A disk
that hangs keeps its thread, but neither its caller nor the event loop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tickwright.domain.errors import Unavailable

THREADS_MAX = 4
STALLED_AFTER_S = 30.0
GONE_WITHIN_S = 5.0
"""How long a cancelled call waits for its work to clean up."""

T = TypeVar("T")


class Beat:
    """Told by the work that it goes on."""

    def __init__(self) -> None:
        self.count = 0
        self._stopped = False

    def __call__(self) -> None:
        """Say so; raises ``Abandoned`` when nobody waits for the work any more."""
        self.count += 1
        if self._stopped:
            raise AbandonedError

    def stop(self) -> None:
        """Let the work end at its next beat."""
        self._stopped = True


class AbandonedError(Exception):
    """Nobody waits for this work any more; it cleans up and ends."""


Work = Callable[[Beat], T]


class Threads:
    """A few threads. ``stalled_after_s``: work without a beat for that long is given up."""

    def __init__(self, *, stalled_after_s: float = STALLED_AFTER_S) -> None:
        self._stalled_after_s = stalled_after_s
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="objects")

    async def run(self, work: Work[T]) -> T:
        """Return what ``work`` returns; cancelling ends the work as well, and waits for it up to five seconds.

        Raises:
            Unavailable: ``object_store_unavailable``, it stood still. Retry.
        """
        beat = Beat()
        done = asyncio.get_running_loop().run_in_executor(self._pool, work, beat)
        done.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody looks when it is late
        try:
            return await self._wait(done, beat)
        except asyncio.CancelledError:
            beat.stop()
            await asyncio.wait({done}, timeout=GONE_WITHIN_S)
            raise

    async def _wait(self, done: asyncio.Future[T], beat: Beat) -> T:
        while True:
            seen = beat.count
            await asyncio.wait({done}, timeout=self._stalled_after_s)
            if done.done():
                return done.result()
            if beat.count == seen:
                beat.stop()
                raise Unavailable(
                    "object_store_unavailable", f"the disk has not moved for {self._stalled_after_s:g} seconds"
                )

    def close(self) -> None:
        """Let no new work begin; a thread that hangs is left alone. Twice is harmless."""
        self._pool.shutdown(wait=False, cancel_futures=True)
