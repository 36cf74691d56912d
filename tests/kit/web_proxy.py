"""A reverse proxy in front of the API, as small as can be: it takes a path prefix off, or does not.

It names itself ``Host`` to the server and the browser's host in ``X-Forwarded-Host``, as many proxies do.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_HOST = re.compile(rb"\r\nhost: *([^\r]*)", re.IGNORECASE)


@asynccontextmanager
async def web_proxy(port: int, prefix: str, *, strips: bool) -> AsyncIterator[int]:
    """Give the port at which everything below ``prefix`` is passed on to ``port``; anything else is cut."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, rest = head.split(b" ", 2)
            if not path.startswith(prefix.encode()):
                return
            if strips:
                path = path.removeprefix(prefix.encode()) or b"/"
            there = b"\r\nHost: inner.example\r\nX-Forwarded-Host: \\1\r\nConnection: close"
            to_server = await asyncio.open_connection("127.0.0.1", port)
            to_server[1].write(b" ".join((method, path, _HOST.sub(there, rest, count=1))))
            await asyncio.gather(_pass_on(reader, to_server[1]), _pass_on(to_server[0], writer))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
        writer.close()
