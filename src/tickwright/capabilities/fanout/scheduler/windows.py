"""One module of a scheduler: window after window, whoever else goes through the same ones.

The loop knows window numbers, not ticks. What is not sealed of the current window is to be published: at the start of a
process that is the whole list, after a change what is new in it, after a failure what is left.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from zlib import crc32

import structlog

from tickwright.capabilities.fanout.scheduler.entity_lists import ModuleList
from tickwright.capabilities.fanout.scheduler.publisher import CHUNKS_AT_ONCE, Fate, Publisher
from tickwright.domain.dbclock import DbClock
from tickwright.domain.errors import TickwrightError
from tickwright.domain.windows import Window, window_at
from tickwright.ports.ids import monotonic
from tickwright.ports.service import TaskGroup

CHUNK = 250
TAKEN_S = 2.0
AGAIN_S = 1.0

_log = structlog.get_logger("tickwright.fanout")


class ModuleRounds:
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
        fates: set[Fate] = set()
        async with TaskGroup() as group:
            for _ in range(min(CHUNKS_AT_ONCE, -(-len(left) // CHUNK))):
                group.create_task(self._go_through(module, window, chunks, fates))
        if Fate.AGAIN in fates:
            return monotonic() + AGAIN_S
        return monotonic() + TAKEN_S if Fate.TAKEN in fates else float("inf")

    async def _go_through(
        self, module: ModuleList, window: Window, chunks: Iterator[Sequence[str]], fates: set[Fate]
    ) -> None:
        for chunk in chunks:
            async with self._publisher.room:
                found = await self._send(module, window, chunk)
            if found is None:
                fates.add(Fate.AGAIN)
                return
            self.settled.update(code for code, fate in found.items() if fate in {Fate.PUBLISHED, Fate.SEALED})
            fates.update(found.values())
            if Fate.AGAIN in found.values() and Fate.PUBLISHED not in found.values():
                return  # the broker takes nothing: to claim all the others for it would be work for nothing

    async def _send(self, module: ModuleList, window: Window, chunk: Sequence[str]) -> Mapping[str, Fate] | None:
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
