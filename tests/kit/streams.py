"""A stream of server-sent events, as the dashboard reads it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from kit.api import Client
from kit.waiting import PATIENCE


class CountingProbe:
    """Counts visits of all points."""

    def __init__(self) -> None:
        self.reached_times = 0

    async def reached(self, _name: str, /, **_facts: object) -> None:
        """Count."""
        self.reached_times += 1


class Stream:
    """Reads events one after the other."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self, within_s: float = 15.0) -> Any:
        """Return the next overview."""
        async with asyncio.timeout(within_s * PATIENCE):
            while True:
                line = await self.answer.content.readline()
                assert line, "the stream has ended"
                if line.startswith(b"data: "):
                    return json.loads(line[6:])

    async def until(self, wanted: Any, within_s: float = 30.0) -> Any:
        """Return the first overview for which ``wanted`` holds."""
        async with asyncio.timeout(within_s * PATIENCE):
            while not wanted(found := await self.next()):
                pass
        return found

    async def ended(self, within_s: float) -> None:
        """Return when it has ended."""
        async with asyncio.timeout(within_s * PATIENCE):
            while await self.answer.content.readline():
                pass


@asynccontextmanager
async def open_stream(client: Client, signed: Mapping[str, str] | None = None) -> AsyncIterator[Stream]:
    """Open the stream with a client's key, or with the headers of a browser."""
    headers = signed or {"Authorization": f"Bearer {client.key}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=30)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"{client.base}/v1/stream", headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        yield Stream(answer)
