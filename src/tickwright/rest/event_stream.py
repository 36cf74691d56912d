"""An endless answer: server-sent events from a subscription, until the client leaves.

The stream does not wait for the client. Unread data lies in the connection's buffers, which are small; when they stay
full for ``UNREAD_S``, the connection is closed. In pauses a comment keeps proxies from closing the connection.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from tickwright.rest.listener import TRANSPORT

STREAM = "/v1/stream"
UNREAD_S = 5.0
QUIET_S = 5.0
BUFFER_BYTES = 65_536
RETRY_MS = 2000
_HEADERS = {
    "cache-control": "no-store, no-transform",
    "x-accel-buffering": "no",  # nginx would buffer small messages
    "content-type": "text/event-stream; charset=utf-8",
}


class Subscriber(Protocol):
    """A subscription for one reader."""

    @property
    def is_over(self) -> bool:
        """Whether no more messages come."""

    async def next(self, within_s: float) -> bytes | None:
        """Return the next message; ``None`` when none came in time, or the subscription is over."""


class EventStream(Response):
    """Sends each message of a subscription as an event, until it is over or the client leaves.

    The subscription opens when the answer begins; an error that it raises becomes the answer.
    """

    def __init__(self, subscribed: AbstractContextManager[Subscriber], event: str) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._subscribed, self._event = subscribed, event.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream."""
        with self._subscribed as subscriber:
            await self._stream(subscriber, scope, receive, send)

    async def _stream(self, subscriber: Subscriber, scope: Scope, receive: Receive, send: Send) -> None:
        transport = scope.get(TRANSPORT)
        _keep_buffers_small(transport)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            async for piece in self._pieces(subscriber, gone):
                async with asyncio.timeout(UNREAD_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not gone.done():
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            if transport is not None:
                transport.abort()  # close() would wait until the client has read everything
        finally:
            gone.cancel()

    async def _pieces(self, subscriber: Subscriber, gone: "asyncio.Future[None]") -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % RETRY_MS
        while not gone.done() and not subscriber.is_over:
            waiting = asyncio.ensure_future(subscriber.next(QUIET_S))
            either: set[asyncio.Future[Any]] = {waiting, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                waiting.cancel()
            elif (message := waiting.result()) is not None:
                yield b"event: %b\ndata: %b\n\n" % (self._event, message)
            elif not subscriber.is_over:
                yield b": still here\n\n"


async def client_gone(receive: Receive) -> None:
    """Return when the client has left; ignore what it sends."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _keep_buffers_small(transport: Any) -> None:
    """Make unread data noticeable soon: by default the kernel buffers megabytes first."""
    if transport is None or transport.is_closing():  # uvloop raises for a closed transport
        return
    transport.set_write_buffer_limits(high=BUFFER_BYTES)
    found = transport.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):  # the client has left
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
