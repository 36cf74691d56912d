"""aiohttp sessions with guarded addresses, replaced every minute.

There are three guards. The resolver checks *all* addresses of a name. The socket factory checks the address to connect
to; for IP literals this is the only check. A session lives for a minute, so that no kept-alive connection outlives a
DNS change by more. Sessions use no proxy, no cookie, no redirect and nothing from the environment. This module also
bounds what aiohttp and OpenSSL do not: heads of answers, unrequested bytes, and TLS records without data.
"""

import asyncio
import functools
import socket
import ssl
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import Any, ClassVar, cast

import aiohttp
from aiohttp import ClientMiddlewareType
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

from tickwright.domain.addresses import AllowList, refusal, refusal_unasked
from tickwright.domain.errors import Rejected
from tickwright.domain.retries import RetryPolicy
from tickwright.domain.targets import WebTarget, parse_target
from tickwright.outbound.messages import BLOCKED_CODE, blocked
from tickwright.outbound.resolver import BlockedError, GuardedResolver, SystemResolver
from tickwright.ports.ids import monotonic, random_unit

# TLS with a bound on bytes that carry no data. A record can hold session tickets, key updates or another handshake.
# OpenSSL processes all received bytes in one call, and no limit above TLS counts them.

DATALESS_BYTES_MAX = 32 * 1024
"""An ordinary server's session tickets take one or two KiB."""
HANDSHAKE_BYTES_MAX = 128 * 1024
"""For certificates; OpenSSL accepts 100 KB of them."""
PORTION_BYTES = 16 * 1024
RECORD_BYTES = 96
"""Upper bound of a record's overhead."""


class TlsFloodError(ssl.SSLError):
    """The peer sends records without data."""


class BoundedTls(ssl.SSLObject):
    """Pass received bytes to OpenSSL in portions, and stop when too many of them carry no data.

    The call that exceeds the limit only reports that it needs more bytes, so that the caller can read data that arrived
    before. The next call fails.

    Invariants:
        OUT-3: bytes of records without data are read up to ``DATALESS_BYTES_MAX`` and a portion; 128 KiB in handshakes.
    """

    _received: ssl.MemoryBIO
    _portions: ssl.MemoryBIO
    _dataless_bytes = 0
    _dataless_bytes_max = HANDSHAKE_BYTES_MAX
    _flooded = False

    def take_from(self, received: ssl.MemoryBIO, portions: ssl.MemoryBIO) -> None:
        """Set the source of received bytes and the buffer that OpenSSL reads; call once, before any other method."""
        self._received, self._portions = received, portions

    def do_handshake(self) -> None:
        """Continue the handshake."""
        self._fed(super().do_handshake)
        self._dataless_bytes, self._dataless_bytes_max = 0, DATALESS_BYTES_MAX

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002
        """Return the data of one record, or the number of bytes written to ``buffer``."""
        data = self._fed(functools.partial(super().read, len, buffer))
        count = data if buffer is not None else memoryview(data).nbytes
        if count:
            self._dataless_bytes = max(0, self._dataless_bytes - count - RECORD_BYTES)
        return data

    def unwrap(self) -> None:
        """Close TLS, and wait for the peer to close it."""
        self._fed(super().unwrap)

    def pending(self) -> int:
        """Return how many bytes can be read without the network; uvloop stops reading at 0."""
        return super().pending() + self._portions.pending

    def _fed(self, step: Any) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                if not self._feed():
                    raise

    def _feed(self) -> bool:
        """Feed the next portion; return whether there was one."""
        if self._flooded:
            raise TlsFloodError("records without data and without end")
        self._flooded = self._dataless_bytes > self._dataless_bytes_max
        portion = b"" if self._flooded else self._received.read(PORTION_BYTES)
        self._dataless_bytes += self._portions.write(portion)
        return bool(portion)


def with_bounded_tls(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make a client context create :class:`BoundedTls` connections, and return it. Repeated calls are harmless."""

    def wrap_bio(incoming: ssl.MemoryBIO, *rest: Any, **options: Any) -> ssl.SSLObject:
        portions = ssl.MemoryBIO()
        made = cast("BoundedTls", type(context).wrap_bio(context, portions, *rest, **options))
        made.take_from(incoming, portions)
        return made

    context.options |= ssl.OP_NO_RENEGOTIATION
    context.sslobject_class = BoundedTls
    context.wrap_bio = wrap_bio  # type: ignore[method-assign]
    return context


@functools.cache
def system_trust() -> ssl.SSLContext:
    """Return a bounded context with the system's trust anchors, loaded once."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return with_bounded_tls(context)


HEAD_BYTES_MAX = 32 * 1024
INFORMATIONAL_MAX = 16
PIECE_BYTES_MAX = HEAD_BYTES_MAX
UNFRAMED_BYTES_MAX = 1024 * 1024
RECEIVED_BYTES_MAX = 64 * 1024
"""Receive buffer of a socket in the kernel: bounds what one turn of the event loop reads."""
SESSION_AGE_MAX_S = 60.0
DNS_CACHE_S = 5
IDLE_MAX_S = 15.0
_HEAD_END = b"\r\n\r\n"


class BoundedHead(ResponseHandler):
    """Read answers, and abort the connection of an abusive server.

    A server is abusive if it sends an endless head or endless 1xx answers, bytes between an answer and the next
    request, or, on a WebSocket, bytes that complete no frame. The WebSocket reader calls ``frame_received``.
    :class:`BoundedTls` handles records without data.

    Attributes:
        gave_up: Whether the connection was aborted for one of these reasons.
    """

    gave_up = False
    _unframed_bytes = 0
    _waits_for_head = False
    _head_bytes = 0
    _informational = 0
    _parsing = False
    _parse_error: BaseException | None = None

    def set_response_params(self, **parameters: Any) -> None:
        """Start a new answer."""
        self._parameters = parameters
        self._waits_for_head = True
        self._head_bytes = 0
        self._informational = 0
        super().set_response_params(**parameters)

    def data_received(self, data: bytes) -> None:
        """Pass on requested bytes in pieces, so that at most one piece is parsed after the end of an answer.

        Empty ``data`` makes aiohttp's parser continue with its buffer.
        """
        for start in range(0, len(data) or 1, PIECE_BYTES_MAX):
            if self.exception() is not None:
                return
            piece = data[start : start + PIECE_BYTES_MAX]
            if self._waits_for_head:
                self._head_received(piece)
            elif piece and self._idle:
                self.give_up()
            else:
                self._count_unframed(len(piece))
                super().data_received(piece)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Record whether the TLS limit ended the connection."""
        self.gave_up = self.gave_up or isinstance(exc, TlsFloodError)
        super().connection_lost(exc)

    def frame_received(self) -> None:
        """Record that a WebSocket frame arrived."""
        self._unframed_bytes = 0

    @property
    def _idle(self) -> bool:
        """Whether the answer is complete. False before the first request and on a WebSocket."""
        answering = self._payload is not None and not self._payload.is_eof()
        return not (answering or self.upgraded or self._parser is None)

    def _count_unframed(self, count: int) -> None:
        if self.upgraded:
            self._unframed_bytes += count
            if self._unframed_bytes > UNFRAMED_BYTES_MAX:
                self.give_up()

    def _head_received(self, data: bytes) -> None:
        """Count the bytes of an incomplete head. Garbage after a complete head does not discard the head."""
        self._parsing = True
        super().data_received(data)
        self._parsing = False
        if self._parse_error is not None:
            self._parse_again(data)
        elif self._waits_for_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.give_up()

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """Hold back a parser error until it is known whether a complete head preceded it.

        The reader of the body gets the error too; otherwise aiohttp lets it wait or raises ``RuntimeError``.
        """
        if self._parsing:
            self._parse_error = exc
            return
        if self._payload is not None and not self._payload.is_eof() and self._payload.exception() is None:
            self._payload.set_exception(exc)
        if exc_cause is None:
            super().set_exception(exc)
        else:
            super().set_exception(exc, exc_cause)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Pass on a parsed head, unless it is too large or too many 1xx answers preceded it."""
        if not self._waits_for_head:
            return
        message = data[0]
        head_bytes = sum(len(name) + len(value) + 4 for name, value in message.raw_headers)
        if message.code < 200 and message.code != 101:
            self._informational += 1
        else:
            self._waits_for_head = False
        if head_bytes > HEAD_BYTES_MAX or self._informational > INFORMATIONAL_MAX:
            self.give_up()
        else:
            super().feed_data(data, size)

    def _parse_again(self, data: bytes) -> None:
        error, self._parse_error = self._parse_error, None
        end = data.find(_HEAD_END)
        if end < 0 or error is None:
            self.give_up()
            return
        super().set_response_params(**self._parameters)
        super().data_received(data[: end + len(_HEAD_END)])
        if self._waits_for_head:
            self.give_up()

    def give_up(self) -> None:
        """Abort the connection without a closing handshake."""
        self.gave_up = True
        self._waits_for_head = False
        super().set_exception(HttpProcessingError(code=400, message="the head of the answer is not acceptable"))
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()


class CountedSession:
    """One session, its creation time (monotonic seconds) and the number of attempts that use it."""

    __slots__ = ("born_at_s", "retired", "session", "users")

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.born_at_s = monotonic()
        self.users = 0
        self.retired = False


class GuardedSessions:
    """Provide guarded sessions, one kind for TLS and one for plain text.

    Args:
        allow: What may be reached besides public addresses.
        connections_max: Sockets per kind; one host gets at most half of them. While a session is being replaced, the
            number can double until the old attempts end.
        resolver: Resolves names; ``None`` means the system's resolver. This object closes it.
        tls: Trust anchors; this object makes the context bounded by ``with_bounded_tls``. ``None`` means the system's.
        middlewares: aiohttp middlewares around every request; callbacks need none.

    Invariants:
        OUT-1: no socket is made for an address that ``domain.addresses.refusal`` refuses.
        OUT-2: no connection that is made here is handed to a new attempt after 60 seconds.
    """

    def __init__(
        self,
        *,
        allow: AllowList,
        connections_max: int,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
        middlewares: Sequence[ClientMiddlewareType] = (),
    ) -> None:
        self._allow = allow
        self._middlewares = middlewares
        self._connections_max = connections_max
        self._resolver = resolver
        self._tls = tls
        self._current: dict[bool, CountedSession] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether ``aclose`` was called."""
        return self._closed

    def acquire(self, *, tls: bool) -> CountedSession:
        """Return a session that is young enough; end its use with ``release``. Needs a running event loop."""
        current = self._current.get(tls)
        if current is None or monotonic() - current.born_at_s > SESSION_AGE_MAX_S:
            if current is not None:
                self._retire(current)
            current = self._current[tls] = CountedSession(self._session(tls=tls))
        current.users += 1
        return current

    def release(self, counted: CountedSession) -> None:
        """End one attempt's use. The last attempt closes a session that was replaced."""
        counted.users -= 1
        if counted.retired and counted.users == 0:
            self._close_later(counted)

    async def aclose(self) -> None:
        """Close every connection, also those in use. Repeated calls are harmless."""
        self._closed = True
        for counted in self._current.values():
            await counted.session.close()
        self._current.clear()
        if self._closing:
            await asyncio.wait(self._closing)
        if self._resolver is not None:
            await self._resolver.close()

    def _retire(self, counted: CountedSession) -> None:
        counted.retired = True
        if counted.users == 0:
            self._close_later(counted)

    def _close_later(self, counted: CountedSession) -> None:
        task = asyncio.get_running_loop().create_task(counted.session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _session(self, *, tls: bool) -> aiohttp.ClientSession:
        if self._resolver is None:
            self._resolver = SystemResolver()
        connector = aiohttp.TCPConnector(
            resolver=GuardedResolver(self._resolver, tls=tls, allow=self._allow),
            ttl_dns_cache=DNS_CACHE_S,
            limit=self._connections_max,
            limit_per_host=max(1, self._connections_max // 2),
            keepalive_timeout=IDLE_MAX_S,
            socket_factory=functools.partial(guarded_socket, tls=tls, allow=self._allow),
            ssl=with_bounded_tls(self._tls) if self._tls is not None else system_trust(),
        )
        loop = asyncio.get_running_loop()
        # aiohttp has no public way to bound a head.
        connector._factory = functools.partial(BoundedHead, loop=loop)  # type: ignore[assignment]  # noqa: SLF001
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            requote_redirect_url=False,
            read_bufsize=16 * 1024,
            middlewares=self._middlewares,
        )


def guarded_socket(info: Any, *, tls: bool, allow: AllowList) -> socket.socket:
    """Make a socket, or raise ``BlockedError`` for a blocked address: the last guard, and the only one for literals."""
    family, kind, protocol, _, address = info
    reason = refusal(ip_address(address[0].partition("%")[0]), address[1], tls=tls, allow=allow)
    if reason is not None:
        raise BlockedError(reason)
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES_MAX)
    return made


def check_address(target: WebTarget, allow: AllowList) -> None:
    """Raise ``Rejected`` if the host is an address that must not be reached. No I/O."""
    reason = refusal_unasked(target.literal, target.port, tls=target.tls, allow=allow)
    if reason is not None:
        raise Rejected(BLOCKED_CODE, blocked(reason).reason, reason=reason)


class GuardedBroker:
    """What brokers to users' hosts share: the check of a destination, and guarded sessions.

    Args:
        allow: Networks that may be reached besides public addresses, and the only ones that may be reached without TLS.
        connections_max: Concurrent sockets, 1 or more; one host gets at most half of them.
        resolver: For tests and for installations with a DNS of their own; ``None`` means the system's.
        tls: Trust anchors; ``None`` means the system's.

    Attributes:
        other_target: The text of the refusal of another destination.
    """

    schemes: frozenset[str]
    other_target: ClassVar[str]

    def __init__(
        self,
        *,
        allow: AllowList,
        connections_max: int = 512,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
        middlewares: Sequence[ClientMiddlewareType] = (),
    ) -> None:
        self._allow, self._connections_max = allow, connections_max
        self._target = functools.lru_cache(maxsize=4096)(self._checked_target)
        self._sessions = GuardedSessions(
            allow=allow, connections_max=connections_max, resolver=resolver, tls=tls, middlewares=middlewares
        )

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` for a destination that can never work: bad grammar or a blocked IP literal."""
        self._target(destination)

    async def ready(self) -> bool:
        """Whether the broker is open; receivers are not checked."""
        return not self._sessions.closed

    async def aclose(self) -> None:
        """Close all connections. Repeated calls are harmless."""
        await self._sessions.aclose()

    def _checked_target(self, destination: str) -> WebTarget:
        target = parse_target(destination)
        if not isinstance(target, WebTarget) or target.scheme not in self.schemes:
            raise Rejected("invalid_target", self.other_target)
        check_address(target, self._allow)
        return target


CONNECT_PAUSE = RetryPolicy(base=timedelta(seconds=0.1), cap=timedelta(seconds=10))


class ConnectPause:
    """Decide whether a new attempt to connect may start, so that a dead server is not flooded.

    The pause after the n-th failure in a row is between half and all of ``0.1 s * 2**(n - 1)``, at most 10 seconds. A
    success resets the count of failures.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._until_s = 0.0

    def remaining(self) -> timedelta | None:
        """Return the remaining pause, or ``None`` if an attempt may start."""
        wait_s = self._until_s - monotonic()
        return timedelta(seconds=wait_s) if wait_s > 0 else None

    def failed(self) -> None:
        """Start the next, longer pause."""
        self._failures += 1
        self._until_s = monotonic() + CONNECT_PAUSE.ceiling_s(self._failures) * (0.5 + random_unit() / 2)

    def succeeded(self) -> None:
        """Reset the count of failures."""
        self._failures = 0
        self._until_s = 0.0
