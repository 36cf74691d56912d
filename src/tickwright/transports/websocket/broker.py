"""WebSocket push: one kept-open connection per gateway, many messages on it, explicit acknowledgements.

Only a frame that repeats the message id with ``"ack": true`` is an acknowledgement. That a gateway accepts the bytes
means nothing.
"""

import asyncio
import itertools
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import cast

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from tickwright.domain.addresses import AllowList
from tickwright.domain.errors import Rejected
from tickwright.domain.signatures import sign
from tickwright.domain.targets import WebTarget
from tickwright.outbound import BoundedHead, ConnectPause, GuardedBroker, check_message, excerpt, outcome_of
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.ports.ids import monotonic, unix_seconds

# The push protocol: its frames, one connection with many waiting pushes, and one gateway with its reconnects.

FRAME_BYTES_MAX = 1024 * 1024
ACK_BYTES_MAX = 64 * 1024
RETRY_AFTER_S_MAX = 3600.0

_encode = msgspec.json.Encoder().encode


class Ack(msgspec.Struct, rename={"webhook_id": "webhook-id"}):
    """An answer of a gateway; unknown members are ignored."""

    webhook_id: str
    ack: bool
    error: str = ""
    retry_after: float | None = None


_acks = msgspec.json.Decoder(Ack)


def encode_push(message: Message, *, now_unix_s: int) -> str:
    """Return the text frame of a message; its last member is the body, byte for byte.

    Raises:
        Rejected: ``not_json``, ``too_large``, ``invalid_secret``, or the code of a header that cannot be sent.
            Permanent: do not retry.
    """
    check_message(message)
    headers = {**message.headers, "webhook-timestamp": str(now_unix_s)}
    if message.signing_secrets:
        headers["webhook-signature"] = sign(message.id, now_unix_s, message.body, message.signing_secrets)
    frame = b'{"webhook-id":%b,"type":%b,"headers":%b,"payload":%b}' % (
        _encode(message.id),
        _encode(message.headers.get("tickwright-task-type", "")),
        _encode(headers),
        message.body,
    )
    if len(frame) > FRAME_BYTES_MAX:
        raise Rejected("too_large", f"A push frame has at most {FRAME_BYTES_MAX} bytes.")
    try:
        msgspec.json.decode(message.body, type=msgspec.Raw)
        return frame.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Rejected("not_json", "A WebSocket push carries JSON in UTF-8.") from None


def decode_ack(text: str) -> Ack | None:
    """Return the acknowledgement in a frame, or ``None`` if the frame is something else."""
    try:
        return _acks.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def outcome_of_ack(ack: Ack, path: str) -> Outcome:
    """Return the outcome of an acknowledgement. Its text omits path and query of the gateway's address."""
    if ack.ack:
        return Accepted()
    text = excerpt(ack.error.encode("utf-8", "backslashreplace"), path)
    retry_after: timedelta | None = None
    if ack.retry_after is not None and ack.retry_after >= 0:
        retry_after = timedelta(seconds=min(ack.retry_after, RETRY_AFTER_S_MAX))
    return Refused("gateway_refused", text or "The gateway refused the message.", retry_after=retry_after)


PENDING_MAX = 1000
FRAMES_SPARE_MAX = 100
FRAMES_PER_S = 1.0
FRAMES_PER_TURN = 16
PONG_S_MAX = 10.0
_LOST = Unknown("connection_lost", "The gateway's connection broke before an acknowledgement.")


class GatewayConnection:
    """One open WebSocket that multiplexes pushes by message id. It is not reused after a loss.

    Args:
        socket: Open, without ``autoping``; closed by this object.
        path: Path and query of the gateway's address, which can hold a credential.
        on_over: Called once, after the last send; releases the session.

    Invariants:
        WS-1: an acknowledgement settles only pushes of its own id.
        WS-2: when the connection is lost, every waiting push ends as *unknown* at once.
        WS-5: at most one frame per push, 100 more, and one more each second are read from a gateway.
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
        self.reader = asyncio.get_running_loop().create_task(self._read(), name="websocket-connection")

    @property
    def alive(self) -> bool:
        """Whether the connection accepts pushes."""
        return not (self._socket.closed or self.reader.done())

    @property
    def cut(self) -> bool:
        """Whether the connection was aborted because of what the gateway sent."""
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
        self._spare_frames += 1  # an answer can be too late to settle anything
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
        """Accept no more pushes, and close after the last answer."""
        self._retired = True
        if not self._pending:
            self.reader.cancel()

    async def aclose(self) -> None:
        """Close now; waiting pushes end as *unknown*. Repeated calls are harmless."""
        self.reader.cancel()
        await asyncio.wait({self.reader})

    async def _read(self) -> None:
        try:
            await self._read_frames()
        except (aiohttp.ClientError, OSError):
            pass  # a pong could not be sent
        finally:
            for waiting in self._pending.values():
                for answer in waiting:
                    if not answer.done():
                        answer.set_result(_LOST)
            self._on_over()
            transport = self._protocol.transport
            # ``close`` would wait for the gateway's close frame behind all its frames, or until the gateway reads ours.
            if transport is not None and (self._socket.close_code is None or transport.get_write_buffer_size()):
                transport.abort()
            await self._socket.close()

    async def _read_frames(self) -> None:
        for number in itertools.count(1):
            frame = await self._socket.receive()
            self._protocol.frame_received()
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
                await asyncio.sleep(0)  # ``receive`` does not suspend while frames are buffered

    def _afford(self) -> bool:
        """Return whether one more frame is within the limit; late answers, pings and pongs count."""
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


CONNECTION_AGE_MAX_S = 600.0

_LATE = Refused("connect_timeout", "No connection to the gateway within the timeout; nothing was sent.")
_BUSY = Refused("gateway_busy", f"{PENDING_MAX} pushes wait for this gateway already; nothing was sent.")
_SILENT = Unknown("timeout", "No acknowledgement within the timeout; it may have been taken.")


class PushGateway:
    """One destination: keeps at most one young connection to it.

    A pause starts when a connection cannot be opened, is lost before its first acknowledgement, or is aborted for
    flooding. It doubles from 0.1 to 10 seconds. Pushes during the pause are refused at once, so that an unavailable
    gateway causes no connection storm and delays no other gateway.
    """

    def __init__(self, connect: Callable[[], Awaitable[GatewayConnection | Refused]]) -> None:
        self._connect = connect
        self._connection: GatewayConnection | None = None
        self._connecting: asyncio.Task[GatewayConnection | Refused] | None = None
        self._pause = ConnectPause()
        self.users = 0

    @property
    def idle(self) -> bool:
        """Whether no push is running."""
        return self.users == 0

    async def push(self, message_id: str, frame: str, timeout: timedelta) -> Outcome:
        """Send one frame within ``timeout``; the README has the outcomes."""
        late: Outcome = _LATE
        self.users += 1
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                connection = await self._young_connection()
                if isinstance(connection, Refused):
                    return connection
                if connection.pending >= PENDING_MAX:
                    return _BUSY
                late = _SILENT
                return await connection.push(message_id, frame)
        except TimeoutError:
            return late
        finally:
            self.users -= 1

    async def aclose(self) -> None:
        """Close the connection. Repeated calls are harmless."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._connection is not None:
            await self._connection.aclose()

    async def _young_connection(self) -> GatewayConnection | Refused:
        connection = self._connection
        if connection is not None and connection.alive:
            if monotonic() - connection.born_at_s < CONNECTION_AGE_MAX_S:
                return connection
            connection.retire()
            self._connection = None
        elif connection is not None:
            self._lost(connection)
        if self._connecting is None:
            wait = self._pause.remaining()
            if wait is not None:
                reason = "The gateway was unreachable a moment ago; nothing was sent."
                return Refused("gateway_unavailable", reason, retry_after=wait)
            self._connecting = asyncio.get_running_loop().create_task(self._open())
        return await asyncio.shield(self._connecting)

    async def _open(self) -> GatewayConnection | Refused:
        try:
            made = await self._connect()
            if isinstance(made, Refused):
                self._pause.failed()
            else:
                self._connection = made
            return made
        finally:
            self._connecting = None

    def _lost(self, connection: GatewayConnection) -> None:
        self._connection = None
        if connection.acknowledged and not connection.cut:
            self._pause.succeeded()
        else:
            self._pause.failed()


GATEWAYS_MAX = 256
CONNECT_TIMEOUT_S = 10.0
HEARTBEAT_S = 20.0

_CLOSING = aiohttp.ClientWSTimeout(ws_close=1.0)
_CLOSED = Refused("broker_closed", "This broker was closed; nothing was sent.")


class WebSocketBroker(GuardedBroker):
    """Pushes messages to gateways.

    Invariants:
        WS-3: ``Accepted`` means that the gateway repeated this message's id with ``"ack": true``.
        WS-4: an unavailable gateway is tried at most once per pause (0.1 s to 10 s).
    """

    schemes = frozenset({"ws", "wss"})
    other_target = "A push goes to wss:// (or an allowed ws://)."

    def __init__(
        self, *, allow: AllowList, resolver: AbstractResolver | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(
            allow=allow, connections_max=GATEWAYS_MAX * 2, resolver=resolver, tls=tls, middlewares=(_refuse_redirects,)
        )
        self._gateways: dict[str, PushGateway] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def publish(self, message: Message) -> Outcome:
        """Push one message and return its outcome."""
        if self._sessions.closed:
            return _CLOSED
        try:
            target = self._target(message.destination)
            frame = encode_push(message, now_unix_s=unix_seconds())
        except Rejected as error:
            return Refused(error.code, error.message, final=True)
        gateway = self._gateway(target)
        if gateway is None:
            return Refused("too_many_gateways", f"{GATEWAYS_MAX} gateways are in use; nothing was sent.")
        return await gateway.push(message.id, frame, message.timeout)

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Push several at once; outcomes in order."""
        return list(await asyncio.gather(*map(self.publish, messages)))

    async def aclose(self) -> None:
        """Close all connections; waiting pushes end as *unknown*. Repeated calls are harmless."""
        gateways, self._gateways = list(self._gateways.values()), {}
        for gateway in gateways:
            await gateway.aclose()
        if self._closing:
            await asyncio.wait(self._closing)
        await super().aclose()

    def _gateway(self, target: WebTarget) -> PushGateway | None:
        gateway = self._gateways.pop(target.url, None)
        if gateway is None:
            if len(self._gateways) >= GATEWAYS_MAX and not self._evict():
                return None
            gateway = PushGateway(lambda: self._connect(target))
        self._gateways[target.url] = gateway  # the most recently used is the last
        return gateway

    def _evict(self) -> bool:
        idle = next((url for url, gateway in self._gateways.items() if gateway.idle), None)
        if idle is None:
            return False
        task = asyncio.get_running_loop().create_task(self._gateways.pop(idle).aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return True

    async def _connect(self, target: WebTarget) -> GatewayConnection | Refused:
        counted = self._sessions.acquire(tls=target.tls)
        url = URL(target.url, encoded=True)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                socket = await counted.session.ws_connect(
                    url,
                    heartbeat=HEARTBEAT_S,
                    max_msg_size=ACK_BYTES_MAX,
                    timeout=_CLOSING,
                    autoping=False,  # aiohttp would answer pings without a limit
                )
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            self._sessions.release(counted)
            return _not_connected(error)
        except asyncio.CancelledError:
            self._sessions.release(counted)
            raise
        # aiohttp has no public way from a socket to its connection.
        protocol = cast("BoundedHead", socket._conn.protocol)  # type: ignore[union-attr]  # noqa: SLF001
        return GatewayConnection(socket, protocol, url.raw_path_qs, lambda: self._sessions.release(counted))


async def _refuse_redirects(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    response = await handler(request)
    if 300 <= response.status < 400:
        response.close()
        message = "redirects are never followed"
        raise aiohttp.WSServerHandshakeError(response.request_info, (), status=response.status, message=message)
    return response


def _not_connected(error: BaseException) -> Refused:
    """Return a refusal for a failed handshake: no message was sent."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        code = "http_redirect" if 300 <= error.status < 400 else f"http_{error.status}"
        reason = f"The gateway answered HTTP {error.status} instead of opening a WebSocket."
        return Refused(code, reason, status=error.status, gone=error.status == 410)
    outcome = outcome_of(error)
    if isinstance(outcome, Refused):
        return outcome
    return Refused("handshake_failed", f"The WebSocket handshake failed ({outcome.code}); nothing was sent.")
