"""Two sources as one: polls from a log, and those that wait in the queue inside PostgreSQL beside it.

The log parks there what its partner does not take, so what lies in the queue is older and goes first. Each turn goes
back to where it came from. Everything of the queue is locked before anything of the log, by everybody.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from tickwright.ports.ids import monotonic
from tickwright.ports.polls import PollSource, Turn

LOOK_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Parked(Turn):
    """A turn that came from the queue."""


class QueueBesideLog:
    """Implements :class:`tickwright.ports.polls.PollSource` over both."""

    def __init__(self, queue: PollSource, log: PollSource) -> None:
        self._queue, self._log = queue, log
        self._again_s = -math.inf

    async def take(self, room: Mapping[int, int]) -> Sequence[Turn]:
        """Take what is parked, then what was read; where nothing was parked nobody looks for a second."""
        parked = await self._take_parked(room)
        left = dict(room)
        for turn in parked:
            left[turn.partner_no] -= 1
        try:
            read = await self._log.take({partner_no: most for partner_no, most in left.items() if most > 0})
        except BaseException:
            with suppress(Exception):  # what cannot be given back now is found and given back by the queue
                await self._queue.give_back(parked)
            raise
        return [*parked, *read]

    async def _take_parked(self, room: Mapping[int, int]) -> Sequence[Turn]:
        if monotonic() < self._again_s:
            return []
        turns = await self._queue.take(room)
        if not turns:
            self._again_s = monotonic() + LOOK_S
        names = [field.name for field in fields(Turn)]
        return [_Parked(*(getattr(turn, name) for name in names)) for turn in turns]

    async def hold(self, connection: Any, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Ask each for its own."""
        parked, read = _parted(turns)
        held = [*(await self._queue.hold(connection, parked))] if parked else []
        return [*held, *(await self._log.hold(connection, read))] if read else held

    async def finish(self, connection: Any, turns: Sequence[Turn]) -> None:
        """Tell each of its own."""
        parked, read = _parted(turns)
        await self._queue.finish(connection, parked)
        await self._log.finish(connection, read)

    async def finished(self, turns: Sequence[Turn]) -> None:
        """Tell each of its own."""
        parked, read = _parted(turns)
        await self._queue.finished(parked)
        await self._log.finished(read)

    def has_lost(self, turn: Turn) -> bool:
        """Ask where it came from."""
        return (self._queue if isinstance(turn, _Parked) else self._log).has_lost(turn)

    async def give_back(self, turns: Sequence[Turn]) -> None:
        """Give each its own back; first those that cost no database."""
        parked, read = _parted(turns)
        await self._log.give_back(read)
        if parked:
            await self._queue.give_back(parked)


def _parted(turns: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
    """Return those of the queue and those of the log."""
    return [turn for turn in turns if isinstance(turn, _Parked)], [t for t in turns if not isinstance(t, _Parked)]
