"""What a consumer says of itself in its session, for operators and alert rules: the queue, and its last minute.

A session is renewed every few seconds anyway, so this costs nothing but the words.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from tickwright.ports.ids import monotonic

TELL_S = 2.0
MINUTE_S = 60.0
OUTCOMES = {
    "succeeded": ("succeeded",),
    "failed": ("failed", "given_up"),
    "superseded": ("superseded",),
    "expired": ("expired",),
}


class Counting(Protocol):
    """The consumer, as far as it counts: what became of messages since the start of its process."""

    counts: Counter[str]


class Queue(Protocol):
    """The source of tasks, as far as it knows how many there are."""

    @property
    def queued(self) -> Sequence[int] | None:
        """Tasks that nobody holds, and dead letters, as counted last; ``None`` while nobody can count."""
        ...


class LastMinute:
    """Differences of counters over about a minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Counter[str]]] = deque()

    def since(self, counts: Mapping[str, int], now_s: float) -> dict[str, int]:
        """Return what was added within the last minute, or since the first call, by what operators call it."""
        self._seen.append((now_s, Counter(counts)))
        while now_s - self._seen[0][0] > MINUTE_S:
            self._seen.popleft()
        before = self._seen[0][1]
        return {name: sum(counts.get(one, 0) - before[one] for one in ones) for name, ones in OUTCOMES.items()}


class Telling:
    """A :class:`tickwright.ports.service.Service`.

    Args:
        consumer: Of this process.
        queue: Where it takes tasks from.
        facts: Of the process's session. ``fanout_dead_letters`` and ``fanout_queued`` keep what was counted last while
            nobody can count: that RabbitMQ is away is no news of the dead letters in it.
    """

    name = "fanout-telling"

    def __init__(self, consumer: Counting, queue: Queue, facts: dict[str, Any]) -> None:
        self._consumer, self._queue, self._facts = consumer, queue, facts
        self._minute = LastMinute()
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()
        self._ticked_s: float | None = None

    async def run(self) -> None:
        """Tell until stopped."""
        self._over.clear()
        try:
            while not self._stopping.is_set():
                self.tell()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TELL_S):
                        await self._stopping.wait()
        finally:
            self._over.set()

    def tell(self) -> None:
        """Say what is so now."""
        self._ticked_s = monotonic()
        self._facts["fanout_last_minute"] = self._minute.since(self._consumer.counts, self._ticked_s)
        queued = self._queue.queued
        if queued is not None:
            self._facts["fanout_queued"], self._facts["fanout_dead_letters"] = queued

    async def quiesce(self) -> None:
        """Tell on: what still runs counts."""

    async def stop(self) -> None:
        """Be silent."""
        self._stopping.set()
        await self._over.wait()

    def last_tick_age_s(self) -> float | None:
        """Seconds since it last told."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s
