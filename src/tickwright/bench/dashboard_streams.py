"""Viewers of the overview as far as the server sees them: streams that are open and read."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import aiohttp

from tickwright.bench.ground import wait_until

OPEN_WITHIN_S = 30.0
_Result = TypeVar("_Result")


class Watchers:
    """So many streams, each read as fast as it comes.

    Attributes:
        received: How many snapshots each stream has had.
    """

    def __init__(self, url: str, key: str, clients: int) -> None:
        self._url, self._headers = url, {"authorization": f"Bearer {key}"}
        self.received = [0] * clients
        self._reading: list[asyncio.Task[None]] = []

    def least(self) -> int:
        """How many snapshots came on the stream with the fewest."""
        return min(self.received)

    def open(self) -> int:
        """How many streams have not ended."""
        return sum(not one.done() for one in self._reading)

    async def begin(self) -> None:
        """Open them."""
        self._reading = [asyncio.create_task(self._read(number)) for number in range(len(self.received))]

    async def end(self) -> None:
        """Close them; raise the error of one that ended by itself."""
        for one in self._reading:
            one.cancel()
        ended = await asyncio.gather(*self._reading, return_exceptions=True)
        broken = [one for one in ended if not isinstance(one, asyncio.CancelledError)]
        if broken:
            raise RuntimeError(f"{len(broken)} streams ended by themselves: {broken[0]!r}")

    async def _read(self, number: int) -> None:
        no_end = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(self._url, headers=self._headers, timeout=no_end) as http,
            http.get("/v1/stream") as answer,
        ):
            answer.raise_for_status()
            async for line in answer.content:
                self.received[number] += line.startswith(b"data:")


@contextmanager
def watching(url: str, key: str, clients: int) -> Iterator[Watchers]:
    """Keep streams open, in a thread of their own; each has had a snapshot when the block begins."""
    watchers = Watchers(url, key, clients)
    with looping() as run:
        run(watchers.begin())
        try:
            wait_until(watchers.least, OPEN_WITHIN_S, "a snapshot on every stream")
            yield watchers
        finally:
            run(watchers.end())


@contextmanager
def looping() -> Iterator[Callable[[Coroutine[Any, Any, _Result]], _Result]]:
    """Run an event loop in a thread; the function that is yielded runs a coroutine in it and waits."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
