"""The scheduler of fan-out: keeps the lists and the time, and runs one loop per module. Any number may run.

The lists are read from the database every few minutes and as soon as a row changes. The time is the database's, by an
offset to the monotonic clock that each reading measures. In between the database is not used.

A module's loop works by window numbers, not by ticks. It publishes what is not sealed of the current window: the whole
list at the start of a process, new entities after a change, the rest after a failure.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from zlib import crc32

import structlog

from tickwright.capabilities.fanout.scheduler.lists import EMPTY, EntityLists, ModuleList, read_lists
from tickwright.capabilities.fanout.scheduler.publisher import CHUNKS_AT_ONCE, EntityOutcome, Publisher
from tickwright.capabilities.fanout.windows import Window, window_at
from tickwright.domain.dbclock import DbClock
from tickwright.domain.errors import TickwrightError
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import TaskGroup, is_set_within
from tickwright.engine.wakeup.listener import WakeupListener
from tickwright.observe.metrics import Sample
from tickwright.ports.ids import monotonic, random_unit
from tickwright.store.pool import UNAVAILABLE, Pool

CHUNK = 250
TAKEN_S = 2.0
AGAIN_S = 1.0
REFRESH_S = 300.0
REFRESH_WITHOUT_WAKEUPS_S = 10.0
REFRESH_GAP_S = 1.0
REFRESH_REST = 3.0
"""The pause after a reading, in multiples of its duration: reading takes at most a quarter of the time."""
RETRY_S = 1.0
CHANNEL = "tickwright_entities"

Gates = Callable[[str], bool | None]
"""Returns the value of ``ENABLE_<NAME>_POLLING`` for a module, ``None`` without one."""

_SETTLED = {EntityOutcome.PUBLISHED, EntityOutcome.SEALED}
_log = structlog.get_logger("tickwright.fanout")


class ModuleLoop:
    """The loop of one module: publishes window after window.

    Args:
        read: Returns the module's present list, empty while the module is held back; ``None`` when the module was
            deleted.
        shift: 0 to 1: where in the order this process begins, so that several do not claim the same entities.
    """

    def __init__(
        self, name: str, publisher: Publisher, clock: DbClock, read: Callable[[], ModuleList | None], *, shift: float
    ) -> None:
        self.name = name
        self._publisher, self._clock, self._read, self._shift = publisher, clock, read, shift
        self.window: Window | None = None
        self.settled: set[str] = set()
        self._order: list[str] = []
        self._ordered: Mapping[str, object] | None = None
        self._ordered_window: Window | None = None
        self.changed = asyncio.Event()
        self.stopping = False

    async def run(self) -> None:
        """Publish window after window until the module is deleted, or until ``stopping``."""
        while not self.stopping:
            self.changed.clear()
            module = self._read()
            if module is None:
                return
            window = window_at(self._now_s(), module.length_s)
            if window != self.window:
                if self.window is not None and self.window.length_s == window.length_s:
                    self._note_missed(self.window, self._left(module))
                self.window, self.settled = window, set()
            until_s = min(await self._publish(module, window), self._clock.monotonic_at(window.end_s))
            await is_set_within(self.changed, max(0.0, until_s - monotonic()))

    def _now_s(self) -> float:
        return self._clock.now(monotonic())

    def _note_missed(self, window: Window, left: Sequence[str]) -> None:
        if left:
            self._publisher.counts["missed"] += len(left)
            _log.warning("fanout.window_missed", module=self.name, window_s=window.start_s, entities=len(left))

    def _left(self, module: ModuleList) -> list[str]:
        """Return the entities that are not settled in this window, in an order that changes with the window."""
        if self._ordered_window != self.window or self._ordered is not module.entities:
            salt = b"" if self.window is None else b"%d:" % self.window.start_s
            order = sorted(module.entities, key=lambda code: crc32(salt + code.encode()))
            begin = int(len(order) * self._shift)
            self._order = order[begin:] + order[:begin]
            self._ordered_window, self._ordered = self.window, module.entities
        return [code for code in self._order if code not in self.settled]

    async def _publish(self, module: ModuleList, window: Window) -> float:
        """Go once through the remaining entities; return the monotonic time of the next useful try."""
        left = self._left(module)
        if not left:
            return float("inf")
        chunks = iter([left[begin : begin + CHUNK] for begin in range(0, len(left), CHUNK)])
        outcomes: set[EntityOutcome] = set()
        async with TaskGroup() as group:
            for _ in range(min(CHUNKS_AT_ONCE, -(-len(left) // CHUNK))):
                group.create_task(self._publish_chunks(module, window, chunks, outcomes))
        if EntityOutcome.AGAIN in outcomes:
            return monotonic() + AGAIN_S
        return monotonic() + TAKEN_S if EntityOutcome.TAKEN in outcomes else float("inf")

    async def _publish_chunks(
        self, module: ModuleList, window: Window, chunks: Iterator[Sequence[str]], outcomes: set[EntityOutcome]
    ) -> None:
        for chunk in chunks:
            async with self._publisher.room:
                found = await self._send(module, window, chunk)
            if found is None:
                outcomes.add(EntityOutcome.AGAIN)
                return
            self.settled.update(code for code, outcome in found.items() if outcome in _SETTLED)
            outcomes.update(found.values())
            if EntityOutcome.AGAIN in found.values() and EntityOutcome.PUBLISHED not in found.values():
                return  # the broker accepts nothing: further claims would be useless

    async def _send(
        self, module: ModuleList, window: Window, chunk: Sequence[str]
    ) -> Mapping[str, EntityOutcome] | None:
        """Publish one chunk; ``None`` when the round is over and the rest must be tried again."""
        if self.stopping or self.changed.is_set() or self._now_s() >= window.end_s:
            return None
        try:
            return await self._publisher.send(module, window, chunk)
        except TickwrightError as error:
            _log.warning("fanout.publish_failed", module=self.name, code=error.code, error=error.message)
            return None


class FanoutScheduler(LoopService):
    """Reads the lists and runs a loop for each module.

    ``wakeups`` report changes of the lists, on ``CHANNEL``; while they do not work the lists are read every ten
    seconds.

    Invariants:
        FAN-3: between two readings of the lists the database is not used, as long as Redis answers.
        FAN-4: no window begins before its instant by the database's clock.
    """

    name = "fanout-scheduler"

    def __init__(self, pool: Pool, publisher: Publisher, *, gates: Gates, wakeups: WakeupListener) -> None:
        super().__init__(wakeups.subscribe())
        self._pool, self._publisher, self._gates, self._wakeups = pool, publisher, gates, wakeups
        self.clock = DbClock()
        self.lists: EntityLists = EMPTY
        self._loops: dict[str, ModuleLoop] = {}
        self._shift = random_unit()
        self._group: TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def _work(self) -> None:
        try:
            async with TaskGroup() as group:
                self._group = group
                await self._refresh_until_stopped()
        finally:
            self._loops.clear()

    async def quiesce(self) -> None:
        """Start no further chunk; chunks that are being published are sealed."""
        for loop in self._loops.values():
            loop.stopping = True
            loop.changed.set()
        await super().quiesce()

    async def stop(self) -> None:
        """Cancel running chunks; their claims expire within seconds."""
        for task in self._tasks:
            task.cancel()
        await super().quiesce()

    @property
    def counts(self) -> Counter[str]:
        """Messages by result; ``missed`` counts entities of windows that are over."""
        return self._publisher.counts

    @property
    def settled(self) -> int:
        """Entities of the current windows that are published, by any process, as far as this process knows."""
        return sum(len(loop.settled) for loop in self._loops.values())

    def samples(self) -> Sequence[Sample]:
        """Return the counts and gauges for the metrics of this process."""
        samples = [
            Sample("tickwright_fanout_messages_total", n, (outcome,)) for outcome, n in sorted(self.counts.items())
        ]
        for name, module in self.lists.modules.items():
            samples.append(Sample("tickwright_fanout_listed_entities", len(module.entities), (name,)))
            samples.append(Sample("tickwright_fanout_module_held_back", float(self.held_back(module)), (name,)))
        if self.clock.known:
            samples.append(Sample("tickwright_fanout_lists_age_seconds", monotonic() - self.lists.received_s))
        return samples

    # ------------------------------------------------------------------ lists

    async def _refresh_until_stopped(self) -> None:
        while not self.stopping.is_set():
            self.wakeup.clear()
            begun_s = monotonic()
            try:
                lists = await read_lists(self._pool)
                if self.stopping.is_set():
                    return  # a loop that starts now would not be stopped
                self._adopt(lists)
                wait_s = REFRESH_S if self._wakeups.works else REFRESH_WITHOUT_WAKEUPS_S
            except UNAVAILABLE as error:
                _log.warning("fanout.lists_not_read", error=repr(error))
                wait_s = RETRY_S
            await self._wait(wait_s, gap_s=max(REFRESH_GAP_S, REFRESH_REST * (monotonic() - begun_s)))

    async def _wait(self, seconds: float, *, gap_s: float) -> None:
        """Wait for a wake-up notification or some time, but at least the gap: an import notifies of every row.

        It ticks meanwhile: a module that waits for its next window is not stuck.
        """
        now_s = monotonic()
        not_before_s, end_s = now_s + gap_s, now_s + max(seconds, gap_s)
        while not self.stopping.is_set() and now_s < end_s:
            awaited, until_s = (self.stopping, not_before_s) if now_s < not_before_s else (self.wakeup, end_s)
            if awaited.is_set():
                return
            self.tick()
            await is_set_within(awaited, min(RETRY_S, until_s - now_s))
            now_s = monotonic()

    def _adopt(self, lists: EntityLists) -> None:
        if self.clock.sample(lists.now_s, lists.received_s):
            _log.warning("fanout.db_clock_jump", now_s=lists.now_s)
        if lists.unknown and lists.unknown != self.lists.unknown:
            _log.warning("fanout.unknown_modules", entities=dict(lists.unknown), advice="tickwright modules put NAME")
        self.lists, self._publisher.keys = lists, lists.keys
        for name in lists.modules:
            if name not in self._loops:
                self._start_loop(name)
        for loop in self._loops.values():
            loop.changed.set()

    def _start_loop(self, name: str) -> None:
        loop = ModuleLoop(name, self._publisher, self.clock, lambda: self._list_of(name), shift=self._shift)
        self._loops[name] = loop
        if self._group is not None:
            task = self._group.create_task(self._run(loop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, loop: ModuleLoop) -> None:
        try:
            await loop.run()
        finally:
            if self._loops.get(loop.name) is loop:
                del self._loops[loop.name]

    def _list_of(self, name: str) -> ModuleList | None:
        module = self.lists.modules.get(name)
        if module is None or not self.held_back(module):
            return module
        return replace(module, entities=MappingProxyType({}))

    def held_back(self, module: ModuleList) -> bool:
        """Return whether this process publishes nothing of a module: it is paused, or its gate is closed."""
        gate = self._gates(module.name)
        return module.is_paused or gate is False or (module.is_gated and gate is None)
