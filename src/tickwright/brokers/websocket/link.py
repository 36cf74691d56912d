"""One live WebSocket connection with many pushes waiting on it, each for its own acknowledgement."""

import asyncio
from collections.abc import Callable

import aiohttp

from tickwright.brokers.websocket.frames import decode_ack, outcome_of_ack
from tickwright.ports.broker import Outcome, Unknown
from tickwright.ports.ids import monotonic

PENDING_MAX = 1000
JUNK_FRAMES_MAX = 100
_LOST = Unknown("connection_lost", "The gateway's connection broke before an acknowledgement.")


class Link:
    """Multiplexes pushes by message id; made for an open socket, useless once it is lost.

    Args:
        socket: Open; owned from now on.
        on_over: Called once, when nothing will be sent here any more; gives the session back.

    Invariants:
        WS-1: an acknowledgement settles only pushes of its own id.
        WS-2: when the connection is lost, every waiting push hears *unknown* at once.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, on_over: Callable[[], None]) -> None:
        self._socket = socket
        self._on_over = on_over
        self._pending: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._retired = False
        self.born_at_s = monotonic()
        self.acknowledged = 0
        self.reader = asyncio.get_running_loop().create_task(self._read(), name="websocket-link")

    @property
    def alive(self) -> bool:
        """Whether a push can be handed to it."""
        return not (self._socket.closed or self.reader.done())

    @property
    def pending(self) -> int:
        """How many message ids wait for an acknowledgement."""
        return len(self._pending)

    async def push(self, message_id: str, frame: str) -> Outcome:
        """Send a frame and wait for its acknowledgement; the caller sets the deadline."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = self._pending.setdefault(message_id, [])
        waiting.append(answer)
        try:
            await self._socket.send_str(frame)
            return await answer
        except (aiohttp.ClientError, OSError):
            return _LOST
        finally:
            waiting.remove(answer)
            if not waiting and self._pending.get(message_id) is waiting:
                del self._pending[message_id]
            if self._retired and not self._pending:
                self.reader.cancel()

    def retire(self) -> None:
        """Take no new push, and close when the last one has its answer."""
        self._retired = True
        if not self._pending:
            self.reader.cancel()

    async def aclose(self) -> None:
        """Close now; waiting pushes hear *unknown*. Twice is harmless."""
        self.reader.cancel()
        await asyncio.wait({self.reader})

    async def _read(self) -> None:
        junk = 0
        try:
            while junk < JUNK_FRAMES_MAX:
                frame = await self._socket.receive()
                if frame.type is not aiohttp.WSMsgType.TEXT:
                    break
                junk += not self._settle(frame.data)
        finally:
            for waiting in self._pending.values():
                for answer in waiting:
                    if not answer.done():
                        answer.set_result(_LOST)
            self._on_over()
            await self._socket.close()

    def _settle(self, text: str) -> bool:
        ack = decode_ack(text)
        if ack is None:
            return False
        self.acknowledged += 1
        for answer in self._pending.get(ack.webhook_id, ()):
            if not answer.done():
                answer.set_result(outcome_of_ack(ack))
        return True
