"""The scheduler of fan-out: keeps the lists, knows the time, and runs one loop per module. Any number may run.

The lists come from the database every few minutes and as soon as a row changes; the time is the database's, by an
offset to the monotonic clock that is measured with each reading. In between nothing asks the database.

A module's loop knows window numbers, not ticks. It publishes what is not sealed of the current window: at the start of
a process the whole list, after a change what is new in it, after a failure what is left.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from zlib import crc32

import structlog

from tickwright.capabilities.fanout.scheduler.publisher import (
    CHUNKS_AT_ONCE,
    EMPTY,
    EntityLists,
    EntityOutcome,
    ModuleList,
    Publisher,
    read_lists,
)
from tickwright.domain.dbclock import DbClock
from tickwright.domain.errors import TickwrightError
from tickwright.domain.modules import Window, window_at
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import TaskGroup
from tickwright.engine.wakeup import WakeupListener
from tickwright.observe.metrics import Sample, Source
from tickwright.ports.ids import monotonic, random_unit
from tickwright.store.pool import UNAVAILABLE, Pool

CHUNK = 250
TAKEN_S = 2.0
AGAIN_S = 1.0

_log = structlog.get_logger("tickwright.fanout")


class ModuleLoop:
    """See the module's text.

    Args:
        name: Of the module.
        look: Returns what is to be published now; ``None`` once there is no such module, nothing while it is held back.
        shift: 0 to 1: where in the order this process begins, so that several do not claim the same places.
    """

    def __init__(
        self,
        name: str,
        publisher: Publisher,
        clock: DbClock,
        look: Callable[[], ModuleList | None],
        *,
        shift: float,
    ) -> None:
        self.name = name
        self._publisher, self._clock, self._look, self._shift = publisher, clock, look, shift
        self.window: Window | None = None
        self.settled: set[str] = set()
        self.missed = 0
        self._order: list[str] = []
        self._ordered: Mapping[str, object] | None = None
        self._ordered_window: Window | None = None
        self.changed = asyncio.Event()
        self.stopping = False

    async def run(self) -> None:
        """Publish window after window until there is no such module any more, or until ``stopping``."""
        while not self.stopping:
            self.changed.clear()
            module = self._look()
            if module is None:
                return
            window = window_at(self._now(), module.length_s)
            if window != self.window:
                self._begin(window, module)
            look_again_s = await self._publish(module, window)
            await self._rest(min(look_again_s, self._clock.monotonic_at(window.end_s)))

    def _now(self) -> float:
        return self._clock.now(monotonic())

    def _begin(self, window: Window, module: ModuleList) -> None:
        if self.window is not None and self.window.length_s == window.length_s:
            self._note_missed(self.window, self._left(module))
        self.window, self.settled = window, set()

    def _note_missed(self, window: Window, left: Sequence[str]) -> None:
        if left:
            self.missed += len(left)
            _log.warning("fanout.window_missed", module=self.name, window_s=window.start_s, entities=len(left))

    def _left(self, module: ModuleList) -> list[str]:
        """Return who is not settled in this window, in an order that differs from window to window."""
        if self._ordered_window != self.window or self._ordered is not module.entities:
            self._order = self._in_order(module.entities)
            self._ordered_window, self._ordered = self.window, module.entities
        return [code for code in self._order if code not in self.settled]

    def _in_order(self, codes: Mapping[str, object]) -> list[str]:
        salt = b"" if self.window is None else b"%d:" % self.window.start_s
        order = sorted(codes, key=lambda code: crc32(salt + code.encode()))
        begin = int(len(order) * self._shift)
        return order[begin:] + order[:begin]

    async def _publish(self, module: ModuleList, window: Window) -> float:
        """Go once through what is left; return the monotonic time at which it is worth while to look again."""
        left = self._left(module)
        if not left:
            return float("inf")
        chunks = iter([left[begin : begin + CHUNK] for begin in range(0, len(left), CHUNK)])
        fates: set[EntityOutcome] = set()
        async with TaskGroup() as group:
            for _ in range(min(CHUNKS_AT_ONCE, -(-len(left) // CHUNK))):
                group.create_task(self._go_through(module, window, chunks, fates))
        if EntityOutcome.AGAIN in fates:
            return monotonic() + AGAIN_S
        return monotonic() + TAKEN_S if EntityOutcome.TAKEN in fates else float("inf")

    async def _go_through(
        self, module: ModuleList, window: Window, chunks: Iterator[Sequence[str]], fates: set[EntityOutcome]
    ) -> None:
        for chunk in chunks:
            async with self._publisher.room:
                found = await self._send(module, window, chunk)
            if found is None:
                fates.add(EntityOutcome.AGAIN)
                return
            self.settled.update(
                code for code, fate in found.items() if fate in {EntityOutcome.PUBLISHED, EntityOutcome.SEALED}
            )
            fates.update(found.values())
            if EntityOutcome.AGAIN in found.values() and EntityOutcome.PUBLISHED not in found.values():
                return  # the broker takes nothing: to claim all the others for it would be work for nothing

    async def _send(
        self, module: ModuleList, window: Window, chunk: Sequence[str]
    ) -> Mapping[str, EntityOutcome] | None:
        """Publish one chunk; ``None`` when the round is over, and what is left is to be looked at again."""
        if self.stopping or self.changed.is_set() or self._now() >= window.end_s:
            return None
        try:
            return await self._publisher.send(module, window, chunk)
        except TickwrightError as error:
            _log.warning("fanout.cannot_publish", module=self.name, code=error.code, error=error.message)
            return None

    async def _rest(self, until_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - monotonic())):
                await self.changed.wait()


REFRESH_S = 300.0
REFRESH_WITHOUT_NEWS_S = 10.0
REFRESH_GAP_S = 1.0
REFRESH_REST = 3.0
"""Times as long as a reading took: however many rows change, at most a quarter of the time is spent on reading."""
AWAY_S = 1.0
CHANNEL = "tickwright_entities"

Gates = Callable[[str], bool | None]
"""What the environment says of a module: ``ENABLE_<NAME>_POLLING``, or nothing."""


class FanoutScheduler(LoopService):
    """A :class:`tickwright.ports.service.Service`.

    Args:
        pool: The lists are read from it.
        publisher: Of this process.
        gates: What the environment allows.
        wakeups: Of changes of the lists, on ``CHANNEL``; while it does not work they are read every ten seconds.

    Invariants:
        FAN-3: between two readings of the lists nothing asks the database, as long as Redis answers.
        FAN-4: no window begins before the database's clock says so.
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

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        try:
            async with TaskGroup() as group:
                self._group = group
                await self._refresh_until_stopped()
        finally:
            self._loops.clear()

    async def quiesce(self) -> None:
        """Begin no further chunk; what is being published is sealed."""
        for loop in self._loops.values():
            loop.stopping = True
            loop.changed.set()
        await super().quiesce()

    async def stop(self) -> None:
        """Cut what runs; a claim that it leaves is free within seconds."""
        for task in self._tasks:
            task.cancel()
        await super().quiesce()

    @property
    def counts(self) -> Counter[str]:
        """What became of messages here, by what became of them; ``missed`` are entities of windows that are over."""
        return self._publisher.counts + Counter(missed=sum(loop.missed for loop in self._loops.values()))

    @property
    def settled(self) -> int:
        """Entities of the windows under way that are published, by whomever, as far as is known here."""
        return sum(len(loop.settled) for loop in self._loops.values())

    # ------------------------------------------------------------------ lists

    async def _refresh_until_stopped(self) -> None:
        while not self.stopping.is_set():
            self.wakeup.clear()
            begun_s = monotonic()
            try:
                lists = await read_lists(self._pool)
                if self.stopping.is_set():
                    return  # a loop that began now would hear nothing of it
                self._adopt(lists)
                wait_s = REFRESH_S if self._wakeups.works else REFRESH_WITHOUT_NEWS_S
            except UNAVAILABLE as error:
                _log.warning("fanout.lists_not_read", error=repr(error))
                wait_s = AWAY_S
            await self._rest(wait_s, gap_s=max(REFRESH_GAP_S, REFRESH_REST * (monotonic() - begun_s)))

    async def _rest(self, seconds: float, *, gap_s: float) -> None:
        """Wait for news or some time; never less than the gap, since an import tells of every row."""
        now_s = monotonic()
        not_before_s, end_s = now_s + gap_s, now_s + max(seconds, gap_s)
        while not self.stopping.is_set() and now_s < end_s:
            awaited, until_s = (self.stopping, not_before_s) if now_s < not_before_s else (self.wakeup, end_s)
            if awaited.is_set():
                return
            self.tick()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(AWAY_S, until_s - now_s)):
                    await awaited.wait()
            now_s = monotonic()

    def _adopt(self, lists: EntityLists) -> None:
        if self.clock.sample(lists.now_s, lists.received_s):
            _log.warning("db_clock_jump", now_s=lists.now_s)
        if lists.unknown and lists.unknown != self.lists.unknown:
            _log.warning("fanout.unknown_modules", entities=dict(lists.unknown), advice="tickwright modules put NAME")
        self.lists, self._publisher.keys = lists, lists.keys
        for name in lists.modules:
            if name not in self._loops:
                self._begin(name)
        for loop in self._loops.values():
            loop.changed.set()

    def _begin(self, name: str) -> None:
        loop = ModuleLoop(name, self._publisher, self.clock, lambda: self._look(name), shift=self._shift)
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

    def _look(self, name: str) -> ModuleList | None:
        module = self.lists.modules.get(name)
        if module is None or not self.held_back(module):
            return module
        return replace(module, entities=MappingProxyType({}))

    def held_back(self, module: ModuleList) -> bool:
        """Return whether nothing of a module is published from here: it is paused, or its gate is closed."""
        gate = self._gates(module.name)
        return module.is_paused or gate is False or (module.is_gated and gate is None)


def scheduler_source(scheduler: FanoutScheduler) -> Source:
    """Return what reads a scheduler."""

    def read() -> Sequence[Sample]:
        samples = [
            Sample("tickwright_fanout_messages_total", count, (outcome,))
            for outcome, count in sorted(scheduler.counts.items())
        ]
        for name, module in scheduler.lists.modules.items():
            held_back = float(scheduler.held_back(module))
            samples.append(Sample("tickwright_fanout_listed_entities", len(module.entities), (name,)))
            samples.append(Sample("tickwright_fanout_module_held_back", held_back, (name,)))
        if scheduler.clock.known:
            samples.append(Sample("tickwright_fanout_lists_age_seconds", monotonic() - scheduler.lists.received_s))
        return samples

    return read
