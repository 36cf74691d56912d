"""How much of the producer's queue each topic may fill, so that topics that take nothing leave room for the others.

A topic may hold as much as is free: one alone gets half of the queue, and two get a third each. A topic whose messages
time out may hold a sixteenth of what is free: a hundred such topics leave a seventh of the queue to the others. One
message it may always have, however large, while a quarter of the queue stays free: else it could not recover. What has
no room waits for it, behind earlier messages of its topic, so that records of one key stay in order.
"""

import asyncio
from dataclasses import dataclass

LATE_PARTS = 16


@dataclass(slots=True)
class _Use:
    messages: int = 0
    size_bytes: int = 0


_NONE = _Use()


class Shares:
    """Counts what of each topic is in the queue, from before it is handed over until its delivery report.

    Args:
        messages_max: Of all topics together.
        bytes_max: Of all topics together.

    Invariants:
        KFK-3: at most ``messages_max`` messages and ``bytes_max`` bytes have room at one time.
        KFK-7: a topic that takes nothing never fills the queue.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._free = _Use(messages_max, bytes_max)
        self._kept = _Use(messages_max // 4, bytes_max // 4)
        self._used: dict[str, _Use] = {}
        self._late: set[str] = set()
        self._held: set[str] = set()
        self._waiting: dict[str, dict[asyncio.Future[None], int]] = {}
        self._granting: asyncio.Handle | None = None

    async def take(self, topic: str, size_bytes: int) -> None:
        """Take room for a message, as soon as there is some; ``give_back`` ends it."""
        if topic not in self._waiting and self._fits(topic, size_bytes):
            self._add(topic, size_bytes)
            return
        line = self._waiting.setdefault(topic, {})
        turn = asyncio.get_running_loop().create_future()
        line[turn] = size_bytes
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give_back(topic, size_bytes)
            self._grant_soon()  # where it had no room, or takes none, a smaller one behind it may have some
            raise
        finally:
            del line[turn]
            if not line:
                del self._waiting[topic]

    def give_back(self, topic: str, size_bytes: int) -> None:
        """Free the room of a message; ``grant`` gives it to others."""
        use = self._used[topic]
        use.messages -= 1
        use.size_bytes -= size_bytes
        self._free.messages += 1
        self._free.size_bytes += size_bytes
        if not use.messages:
            del self._used[topic]
            self._held.discard(topic)

    def hold(self, *, but: str) -> None:
        """Let each topic but one wait until none of its messages is in the queue: those sent now overtake them."""
        self._held = {*self._held, *self._used} - {but}

    def note(self, topic: str, *, late: bool) -> None:
        """Note whether the last message of a topic timed out, or was accepted."""
        if late:
            self._late.add(topic)
        else:
            self._late.discard(topic)

    def grant(self) -> None:
        """Let those go on for whom there is room now."""
        self._granting = None
        for topic, line in self._waiting.items():
            for turn, size_bytes in line.items():
                if turn.done():
                    continue
                if not self._fits(topic, size_bytes):
                    break
                self._add(topic, size_bytes)
                turn.set_result(None)

    def _grant_soon(self) -> None:
        """Grant once for all that stop waiting in the same moment."""
        if self._granting is None:
            self._granting = asyncio.get_running_loop().call_soon(self.grant)

    def _add(self, topic: str, size_bytes: int) -> None:
        use = self._used.setdefault(topic, _Use())
        use.messages += 1
        use.size_bytes += size_bytes
        self._free.messages -= 1
        self._free.size_bytes -= size_bytes

    def _fits(self, topic: str, size_bytes: int) -> bool:
        if topic in self._held:
            return False
        use = self._used.get(topic, _NONE)
        if topic not in self._late:
            return self._has(use.messages + 1, use.size_bytes + size_bytes)
        if self._has((use.messages + 1) * LATE_PARTS, (use.size_bytes + size_bytes) * LATE_PARTS):
            return True
        return use is _NONE and self._has(1 + self._kept.messages, size_bytes + self._kept.size_bytes)

    def _has(self, messages: int, size_bytes: int) -> bool:
        return messages <= self._free.messages and size_bytes <= self._free.size_bytes
