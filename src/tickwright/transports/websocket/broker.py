"""WebSocket push: one kept-open connection per gateway, many messages on it, explicit acknowledgements.

Only a frame that repeats the message id with ``"ack": true`` is an acknowledgement. That a gateway accepts the bytes
means nothing.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import cast

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from tickwright.domain.addresses import AllowList, refusal_unasked
from tickwright.domain.errors import Rejected
from tickwright.domain.targets import WebTarget, parse_target
from tickwright.outbound import BoundedHead, GuardedSessions, blocked, outcome_of
from tickwright.ports.broker import Message, Outcome, Refused
from tickwright.ports.ids import unix_seconds
from tickwright.transports.websocket.connection import ACK_BYTES_MAX, GatewayConnection, PushGateway, encode_push

GATEWAYS_MAX = 256
CONNECT_TIMEOUT_S = 10.0
HEARTBEAT_S = 20.0

_SCHEMES = frozenset({"ws", "wss"})
_CLOSING = aiohttp.ClientWSTimeout(ws_close=1.0)
_CLOSED = Refused("broker_closed", "This broker was closed; nothing was sent.")


class WebSocketBroker:
    """Pushes messages to gateways.

    Args:
        allow: Networks that may be reached besides public addresses, and the only ones that may be reached by ``ws``.
        resolver: For tests and for installations with a DNS of their own; ``None`` means the system's.
        tls: Trust anchors; ``None`` means the system's.

    Invariants:
        WS-3: ``Accepted`` means that the gateway repeated this message's id with ``"ack": true``.
        WS-4: an unavailable gateway is tried at most once per pause (0.1 s to 10 s).
    """

    def __init__(
        self,
        *,
        allow: AllowList,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allow = allow
        self._sessions = GuardedSessions(
            allow=allow,
            connections_max=GATEWAYS_MAX * 2,
            resolver=resolver,
            tls=tls,
            middlewares=(_refuse_redirects,),
        )
        self._gateways: dict[str, PushGateway] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def schemes(self) -> frozenset[str]:
        """``ws`` and ``wss``."""
        return _SCHEMES

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` for a destination that can never work: bad grammar or a blocked IP literal."""
        self._target(destination)

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

    async def ready(self) -> bool:
        """Whether the broker is open; gateways are not checked."""
        return not self._sessions.closed

    async def aclose(self) -> None:
        """Close all connections; waiting pushes end as *unknown*. Repeated calls are harmless."""
        gateways, self._gateways = list(self._gateways.values()), {}
        for gateway in gateways:
            await gateway.aclose()
        if self._closing:
            await asyncio.wait(self._closing)
        await self._sessions.aclose()

    def _target(self, destination: str) -> WebTarget:
        target = parse_target(destination)
        if not isinstance(target, WebTarget) or target.scheme not in _SCHEMES:
            raise Rejected("invalid_target", "A push goes to wss:// (or an allowed ws://).")
        reason = refusal_unasked(target.literal, target.port, tls=target.tls, allow=self._allow)
        if reason is not None:
            raise Rejected("ssrf_blocked", blocked(reason).reason, reason=reason)
        return target

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
        generation = self._sessions.acquire(tls=target.tls)
        url = URL(target.url, encoded=True)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                socket = await generation.session.ws_connect(
                    url,
                    heartbeat=HEARTBEAT_S,
                    max_msg_size=ACK_BYTES_MAX,
                    timeout=_CLOSING,
                    autoping=False,  # aiohttp would answer pings without a limit
                )
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            self._sessions.release(generation)
            return _not_connected(error)
        except asyncio.CancelledError:
            self._sessions.release(generation)
            raise
        # aiohttp has no public way from a socket to its connection.
        protocol = cast("BoundedHead", socket._conn.protocol)  # type: ignore[union-attr]  # noqa: SLF001
        return GatewayConnection(socket, protocol, url.raw_path_qs, lambda: self._sessions.release(generation))


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
