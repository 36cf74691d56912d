"""The HTTP listeners of a process, for the API and for the probes: uvicorn with additional limits.

A connection has an absolute deadline while it waits for its client: for a head, for the next request, for the end of a
body that the answer did not wait for, and for the reading of an answer. Arriving bytes move no deadline; the begin of a
head and the end of an answer do. One loop checks all connections, so a request starts no timer.

Input is parsed in one way only. An ``Upgrade`` is ignored, together with its effect on the parser, which would take the
body for the next request. After an answer to a request whose body has not ended, and after a refusal, nothing more is
parsed: the connection closes. Everything that is stored besides bodies has a limit: heads, trailers, bytes between
chunks, and requests that wait for earlier answers. The application gets a request when the client has read the answer
before it, so a connection stores one answer.

:mod:`tickwright.rest.admission` limits connections and unread bytes, and decides which connection makes room.
"""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any

import structlog
import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tickwright.ports.caller import CALLER
from tickwright.rest.admission import UNREAD_UNCOUNTED, Admission, Admitted, ListenerLimits
from tickwright.rest.problems import SAFE_HEADERS

HEAD_BYTES_MAX = 32_768
FIELDS_MAX = 256
PIPELINED_MAX = 8
ACCEPTS_AT_ONCE = 32
BACKLOG = 2_048
TICKS_PER_S = 10
TRANSPORT = "tickwright.transport"
PROBES = frozenset({b"healthz", b"readyz", b"metrics"})
_CLOSE = [(b"connection", b"close")]
_log = structlog.get_logger("tickwright.listener")


class _Refusal:
    """An ASGI application with one answer: a problem, then the connection closes."""

    def __init__(self, status: int, title: str, code: str, detail: str) -> None:
        self.code = code
        fields = {"type": f"urn:tickwright:problem:{code}", "title": title, "status": status}
        self._body = json.dumps({**fields, "detail": detail, "code": code}).encode()
        self._status, self._title = status, title
        self._headers = [
            *((b"content-type", b"application/problem+json"), (b"content-length", str(len(self._body)).encode())),
            *(SAFE_HEADERS + _CLOSE),
            *([(b"retry-after", b"1")] if status == 503 else []),
        ]

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        """Answer."""
        await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})

    def raw(self) -> bytes:
        """Return the answer as bytes, for a request that reaches no application."""
        lines = [b"HTTP/1.1 %d %b" % (self._status, self._title.encode())]
        return b"\r\n".join([*lines, *(name + b": " + value for name, value in self._headers), b"", self._body])


_TOO_LARGE = _Refusal(
    431,
    "Request Header Fields Too Large",
    "head_too_large",
    f"the head of a request has at most {HEAD_BYTES_MAX} bytes and {FIELDS_MAX} fields; so have trailers",
)
_MALFORMED = _Refusal(400, "Bad Request", "invalid_http", "this is no request of HTTP/1.1")
_TOO_DEEP = _Refusal(
    503,
    "Service Unavailable",
    "too_many_pipelined",
    f"at most {PIPELINED_MAX} requests of a connection wait for the answers before theirs",
)
_NO_TUNNEL = _Refusal(400, "Bad Request", "connect_not_allowed", "this is no proxy: CONNECT is not answered here")
_TOO_MANY = _Refusal(
    503,
    "Service Unavailable",
    "too_many_connections",
    "too many requests are under way on connections of this address, or of all; try again with fewer connections",
)
_NOT_OURS = _Refusal(
    421,
    "Misdirected Request",
    "host_not_allowed",
    "the Host of this request is no name of ours; use an address, or list the name in TICKWRIGHT_ALLOWED_HOSTS",
)


class _Refused(Exception):
    """Raised in a callback, because nothing else stops the parser within a segment."""

    def __init__(self, refusal: _Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class BoundedProtocol(HttpToolsProtocol):
    """One connection with its deadlines; see the module."""

    def __init__(self, *given: Any, admission: Admission, **named: Any) -> None:
        super().__init__(*given, **named)
        self._admission, self._limits = admission, admission.limits
        self._due_s = self._unread_due_s = inf
        self._unread_bytes = self._bare_bytes = 0
        self._head_bytes = self._fields = 0  # of a head or of trailers
        self._in_head, self._head_begun = True, False
        self._is_spare = self._lingers = self._is_deaf = False
        self._answering: Any = None  # the last request that the application got

    @property
    def waits_for_client(self) -> bool:
        """Whether the next step is the client's: to send or to read. Such a connection may be displaced."""
        cycle = self._answering
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    @property
    def has_key(self) -> bool:
        """Whether the current request was authenticated."""
        return self._answering is not None and CALLER in self._answering.scope

    # ------------------------------------------------------------------ callbacks of the transport

    def connection_made(self, transport: Any) -> None:
        """Set the deadline of the first head, or refuse the connection."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNREAD_UNCOUNTED)
        self._due_s = self.loop.time() + self._limits.head_s
        admitted = self._admission.admit(self, self.client[0] if self.client else "")
        self._is_spare = admitted is Admitted.SPARE
        if admitted is Admitted.REFUSED:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting, and notify the request in progress; uvicorn notifies only the last one."""
        self._admission.forget(self)
        self._let_go(self._answering)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, unless the connection only waits for its end; refuse too much data and invalid HTTP."""
        if self._reads_no_more():
            return
        self._bare_bytes += len(data)
        try:
            self._parse(data)
        except HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.refusal if isinstance(cause, _Refused) else _MALFORMED)
        else:
            if self._bare_bytes > HEAD_BYTES_MAX:
                self._refuse(_TOO_LARGE)

    def _reads_no_more(self) -> bool:
        cycle: Any = self.cycle  # None before the first head
        closes = cycle is not None and cycle.response_started and cycle.more_body  # answered before its body ended
        return closes or self._is_deaf or self._lingers or self.transport.is_closing()

    def _parse(self, data: bytes) -> None:
        """Feed the parser. Where it stops at an upgrade, a new parser reads the same head without that field."""
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                line = b" ".join(
                    [self.parser.get_method(), self.url, b"HTTP/" + self.parser.get_http_version().encode()]
                )
                fields = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
                data = b"\r\n".join([line, *fields, b"", data[upgrade.args[0] :]])
                self.parser = HttpRequestParser(self)
            else:
                return

    def _refuse(self, refusal: _Refusal) -> None:
        """Read nothing more. Complete requests are answered; if there are none, the refusal is the answer."""
        self._is_deaf = True
        _log.warning("listener.refused", code=refusal.code)
        cycle: Any = self.cycle
        if self.transport.is_closing():
            return
        if self._is_answering and not cycle.more_body:
            cycle.keep_alive = False
            cycle.transport = _ClosesLater(self)
        elif self.pipeline or (self._is_answering and cycle.response_started):
            self.transport.abort()
        else:
            self._let_go(cycle)
            self.transport.write(refusal.raw())
            self.linger()

    @staticmethod
    def _let_go(cycle: Any) -> None:
        """Tell the application that the client has left."""
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def pause_writing(self) -> None:
        """Set a deadline for a client that does not read."""
        super().pause_writing()
        self._watch_reading(self.loop.time())
        self._admission.note_unread(self)

    def resume_writing(self) -> None:
        """Remove that deadline after the client has read."""
        super().resume_writing()
        self._unread_due_s = inf
        self._admission.note_read(self)
        self._begin_next()

    # ------------------------------------------------------------------ callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin a head at its first byte; an empty line before it does not count."""
        self._check_pipeline()
        self._head_begun = True
        self._head_bytes = self._fields = 0
        self._due_s = self.loop.time() + self._limits.head_s
        super().on_message_begin()
        self.scope[TRANSPORT] = self.transport  # type: ignore[literal-required]  # for answers that do not end

    def on_url(self, url: bytes) -> None:
        """Keep a part of the target."""
        self._count(len(url), fields=0)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of a head; count and drop trailers."""
        self._count(len(name) + len(value) + len(b":\r\n"), fields=1)
        if self._is_of_head():
            super().on_header(name, value)

    def _check_pipeline(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise _Refused(_TOO_DEEP)

    def _count(self, length: int, *, fields: int) -> None:
        """Refuse a head that is too large, even when it came in one segment with the rest of its request."""
        self._head_bytes += length
        self._fields += fields
        if self._fields > FIELDS_MAX or self._head_bytes > HEAD_BYTES_MAX:
            raise _Refused(_TOO_LARGE)

    def _is_of_head(self) -> bool:
        return self._in_head

    def on_headers_complete(self) -> None:
        """Begin the request; an answer that begins before the body has ended closes the connection."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Refused(_NO_TUNNEL)
            return  # the head is parsed again
        self._in_head = self._head_begun = False
        self._bare_bytes = self._head_bytes = self._fields = 0
        self._due_s = inf
        if (refusal := self._refusal()) is not None:
            self.app = refusal
        super().on_headers_complete()
        self.cycle.default_headers = [*self.cycle.default_headers, *_CLOSE]
        self.cycle.transport = _ClosesLater(self)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Reset the count of bytes outside bodies."""
        self._bare_bytes = 0
        super().on_body(body)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.pipeline.appendleft((cycle, app))
        self._begin_next()
        if self.pipeline:  # it waits for an earlier answer
            self.flow.pause_reading()

    def _begin_next(self) -> None:
        """Begin the request that waits longest, if it may begin."""
        if not self._may_begin():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._answering, app = self.pipeline.pop()
            super()._start_asgi_task(self._answering, app)

    def _may_begin(self) -> bool:
        """Whether the previous answer is complete and read, and the connection continues."""
        cycle = self._answering
        is_made = cycle is None or cycle.response_complete
        ends = self._lingers or self.transport.is_closing()
        return is_made and not self.flow.write_paused and not ends

    def _refusal(self) -> _Refusal | None:
        if self._is_spare and self.url.partition(b"?")[0].rpartition(b"/")[2] not in PROBES:
            return _TOO_MANY
        hosts = [value for name, value in self.headers if name == b"host"]
        ours = len(hosts) < 2 and all(self._admission.hosts.allow(host) for host in hosts)
        return None if ours else _NOT_OURS  # a browser always sends one

    def on_message_complete(self) -> None:
        """End the body: the answer may leave the connection open, and a head comes next."""
        if self.parser.should_upgrade():
            return  # only for the parser; the body follows
        self._in_head, self._bare_bytes = True, 0
        self.cycle.transport = self.transport
        self.cycle.default_headers = self.server_state.default_headers
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin the next request, or wait for a head; uvicorn's own timer would end with any byte."""
        if self.transport.is_closing() or self._lingers:
            return
        now_s = self.loop.time()
        if not self.pipeline and not self._head_begun:
            self._due_s = now_s + self._limits.idle_s
        self._begin_next()
        if self._unread_due_s == inf and self.transport.get_write_buffer_size():
            self._watch_reading(now_s)

    # ------------------------------------------------------------------ deadlines

    def linger(self) -> None:
        """Send nothing more, and read for a moment: closing at once could destroy the answer on its way."""
        if not self._lingers and not self.transport.is_closing():
            self._lingers = True
            self._due_s = self.loop.time() + self._limits.linger_s
            self.flow.resume_reading()
            self.transport.write_eof()

    def check(self, now_s: float) -> bool:
        """Close the connection if its client took too long; return whether it was closed."""
        if now_s >= self._unread_due_s and not self._has_read():
            self.transport.abort()
            return True
        if self.transport.is_closing():
            if self._unread_due_s == inf:  # what is written is sent before the close
                self._watch_reading(now_s)
            return False
        if now_s < self._due_s:
            return False
        if self._lingers:
            self.transport.abort()
        elif self._is_answering:  # the next head has begun; it does not end the answer before it
            self._due_s = now_s + self._limits.head_s
            return False
        elif self.transport.get_write_buffer_size():  # the client still reads the previous answer
            self._due_s = now_s + self._limits.idle_s
            if self._unread_due_s == inf:
                self._watch_reading(now_s)
            return False
        else:
            self.transport.close()
        return True

    @property
    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _watch_reading(self, now_s: float) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread_due_s = now_s + self._limits.unread_s

    def _has_read(self) -> bool:
        """Return whether the client has read enough since the last check; then restart its deadline."""
        left, before = self.transport.get_write_buffer_size(), self._unread_bytes
        if not left and not self.transport.is_closing():
            self._unread_due_s = inf
            return True
        self._watch_reading(self.loop.time())
        return before - left >= self._limits.unread_s * self._limits.bytes_per_s


class _ClosesLater:
    """The transport for an answer whose request has not ended: ``close`` lingers."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self.write, self.is_closing = protocol.transport.write, protocol.transport.is_closing

    def close(self) -> None:
        """Close when the client has received the answer."""
        self._protocol.linger()


class Listener(uvicorn.Server):
    """Runs one application on listening sockets with ``serve(sockets=[…])``.

    ``should_exit`` ends it; requests in progress have ``drain_s`` then.
    """

    def __init__(self, app: Any, *, limits: ListenerLimits | None = None, drain_s: int = 10) -> None:
        self._limits = limits or ListenerLimits()
        self.admission = Admission(self._limits)
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(BoundedProtocol, admission=self.admission),  # type: ignore[arg-type]
                ws="none",
                loop="none",
                interface="asgi3",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=drain_s,
                backlog=ACCEPTS_AT_ONCE,  # an accepted socket takes a descriptor before it can be refused
            )
        )
        self._sweep_ticks = max(1, min(TICKS_PER_S, int(self._limits.shortest_s * TICKS_PER_S / 4)))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until ``should_exit``; close everything at the end, also after a cancellation."""
        try:
            await super().serve(sockets)
        finally:
            for server in getattr(self, "servers", ()):
                server.close()
            for listening in sockets or ():
                listening.close()
            for connection in list(self.server_state.connections):
                connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin; the kernel's queue may be longer than the number accepted at once."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Check all deadlines."""
        if counter % self._sweep_ticks == 0:
            now_s = asyncio.get_running_loop().time()
            connections: list[Any] = list(self.server_state.connections)
            self.admission.cut += sum([connection.check(now_s) for connection in connections])
        if counter % (10 * TICKS_PER_S) == 0 and (facts := self.admission.take_counts()):
            _log.warning("listener.overloaded", **facts)
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the supervisor."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, which reserves the port before the server runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # asyncio turns Nagle's delay off for these only
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)  # reserves the port: two sockets that do not listen may share it
    except BaseException:
        made.close()
        raise
    return made
