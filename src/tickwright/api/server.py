"""uvicorn with the bounds that it lacks: a deadline and a size for the head of a request, a cap on connections."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tickwright.api.event_stream import TRANSPORT
from tickwright.api.problems import problem
from tickwright.domain.errors import Rejected

HEAD_TIMEOUT_S = 10.0
HEAD_BYTES_MAX = 32_768
KEEP_ALIVE_S = 75
CONNECTIONS_MAX = 4_096
BACKLOG = 2_048
DRAIN_S = 10
_, _HEADERS, _BODY = problem(
    Rejected("head_too_large", f"the head of a request has at most {HEAD_BYTES_MAX} bytes", status=431)
)
_TOO_LARGE = b"\r\n".join(
    [
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"connection: close",
        *(name + b": " + value for name, value in _HEADERS),
        b"",
        _BODY,
    ]
)


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose request head is too slow or too large."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True
    _head_begun = False

    def connection_made(self, transport: Any) -> None:
        """Give the first head its deadline."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head; a head that is not complete with these bytes has a deadline."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._head_begun and self._head_timer is None:
            self._arm()

    def on_message_begin(self) -> None:
        """The first bytes of a head are there; between two requests there is none, and no deadline."""
        self._head_begun = True
        super().on_message_begin()
        self.scope[TRANSPORT] = self.transport  # type: ignore[literal-required]  # for answers that do not end

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head = self._head_begun = False
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """What comes next is another head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:  # type: ignore[redundant-expr]  # None at first
            self._arm()  # an answer may take longer than a head: it is not cut because the next head has begun
        elif not self.transport.is_closing():
            self.transport.close()


def make_server(app: Any, host: str, port: int) -> uvicorn.Server:
    """Return a server for ``app``; ``serve(sockets=…)`` or ``serve()`` runs it, ``should_exit`` drains and ends it.

    Args:
        app: From ``create_app``.
        host: An address, not a name.
        port: 0 takes a free one.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=BoundedProtocol,
        ws="none",
        loop="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
        limit_concurrency=CONNECTIONS_MAX,
        backlog=BACKLOG,
    )
    return uvicorn.Server(config)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that the port is known, and nobody else's, before the server runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)  # only this keeps others away: two sockets that do not listen may share a port
    except BaseException:
        made.close()
        raise
    return made
