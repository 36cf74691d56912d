"""One live WebSocket connection with many pushes waiting on it, each for its own acknowledgement."""

import asyncio
import itertools
from collections.abc import Callable

import aiohttp

from tickwright.outbound import BoundedHead
from tickwright.ports.broker import Outcome, Unknown
from tickwright.ports.ids import monotonic
from tickwright.transports.websocket.frames import decode_ack, outcome_of_ack

PENDING_MAX = 1000
FRAMES_SPARE_MAX = 100
FRAMES_PER_S = 1.0
FRAMES_PER_TURN = 16
PONG_S_MAX = 10.0
_LOST = Unknown("connection_lost", "The gateway's connection broke before an acknowledgement.")


class Link:
    """Multiplexes pushes by message id; made for an open socket, useless once it is lost.

    Args:
        socket: Open, without ``autoping``; owned from now on.
        protocol: Of its connection.
        path: Path and query of the gateway's address, which may hold a credential.
        on_over: Called once, when nothing will be sent here any more; gives the session back.

    Invariants:
        WS-1: an acknowledgement settles only pushes of its own id.
        WS-2: when the connection is lost, every waiting push hears *unknown* at once.
        WS-5: of a gateway's frames at most one per push is read, 100 more, and one more each second.
    """

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, protocol: BoundedHead, path: str, on_over: Callable[[], None]
    ) -> None:
        self._socket = socket
        self._protocol = protocol
        self._path = path
        self._on_over = on_over
        self._pending: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._retired = False
        self.born_at_s = self._spare_at_s = monotonic()
        self._spare_frames = float(FRAMES_SPARE_MAX)
        self.acknowledged = 0
        self.reader = asyncio.get_running_loop().create_task(self._read(), name="websocket-link")

    @property
    def alive(self) -> bool:
        """Whether a push can be handed to it."""
        return not (self._socket.closed or self.reader.done())

    @property
    def cut(self) -> bool:
        """Whether it was ended because of what the gateway sent."""
        return self._protocol.gave_up

    @property
    def pending(self) -> int:
        """How many message ids wait for an acknowledgement."""
        return len(self._pending)

    async def push(self, message_id: str, frame: str) -> Outcome:
        """Send a frame and wait for its acknowledgement; the caller sets the deadline."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = self._pending.setdefault(message_id, [])
        waiting.append(answer)
        self._spare_frames += 1  # its answer, which may come too late to settle anything
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
        try:
            await self._read_frames()
        except (aiohttp.ClientError, OSError):
            pass  # a ping could not be answered
        finally:
            for waiting in self._pending.values():
                for answer in waiting:
                    if not answer.done():
                        answer.set_result(_LOST)
            self._on_over()
            transport = self._protocol.transport
            # ``close`` would wait for the gateway's farewell behind all its frames, or until it reads ours
            if transport is not None and (self._socket.close_code is None or transport.get_write_buffer_size()):
                transport.abort()
            await self._socket.close()

    async def _read_frames(self) -> None:
        for number in itertools.count(1):
            frame = await self._socket.receive()
            self._protocol.heard()
            if not self._afford():
                self._protocol.give_up()
                return
            match frame.type:
                case aiohttp.WSMsgType.TEXT:
                    self._settle(frame.data)
                case aiohttp.WSMsgType.PING:
                    async with asyncio.timeout(PONG_S_MAX):
                        await self._socket.pong(frame.data)
                case aiohttp.WSMsgType.PONG:
                    pass
                case _:
                    return
            if number % FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)  # ``receive`` waits for nothing while frames are there

    def _afford(self) -> bool:
        """Return whether one more frame is in order; late answers, pings and pongs are."""
        now_s = monotonic()
        grown = self._spare_frames + (now_s - self._spare_at_s) * FRAMES_PER_S
        self._spare_frames = max(self._spare_frames, min(grown, FRAMES_SPARE_MAX)) - 1
        self._spare_at_s = now_s
        return self._spare_frames >= 0

    def _settle(self, text: str) -> None:
        ack = decode_ack(text)
        if ack is None:
            return
        self.acknowledged += 1
        for answer in self._pending.get(ack.webhook_id, ()):
            if not answer.done():
                answer.set_result(outcome_of_ack(ack, self._path))
