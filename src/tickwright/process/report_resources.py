"""What the API and the command line need of reports beside the database; opened when it is first needed.

Most commands and many processes never touch a report, and none of them should fail because a bucket is not reachable,
or load a client that it does not use.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tickwright.capabilities.reports.service import Keeping
from tickwright.ports.objects import ObjectStore, StoredObject
from tickwright.ports.reports import PartKey, PutAnswer, SharedParts
from tickwright.process.brokers import dead_calls
from tickwright.process.objects import objects_url, open_objects
from tickwright.process.reports import routes
from tickwright.process.settings import Settings
from tickwright.process.work_folder import work_folder, work_place
from tickwright.transports.objectstore.locations import parse_place

if TYPE_CHECKING:
    from tickwright.transports.redis import RedisLink


class LazyObjects:
    """An :class:`tickwright.ports.objects.ObjectStore` that is opened by its first call, which may fail so."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._store: ObjectStore | None = None
        self._opening = asyncio.Lock()

    async def _opened(self) -> ObjectStore:
        async with self._opening:
            if self._store is None:
                self._store = await self._stack.enter_async_context(open_objects(self._settings))
            return self._store

    def address(self, key: str) -> str:
        """Return where an object is, for people."""
        return parse_place(objects_url(self._settings)).address(key)

    async def put_file(self, key: str, path: Path) -> int:
        """Upload a file."""
        return await (await self._opened()).put_file(key, path)

    async def fetch_file(self, key: str, path: Path) -> int:
        """Write an object into a new file."""
        return await (await self._opened()).fetch_file(key, path)

    async def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Give an object piece by piece."""
        pieces = (await self._opened()).read(key, start)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # stores give generators

    async def size(self, key: str) -> int | None:
        """Return the bytes of an object."""
        return await (await self._opened()).size(key)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        await (await self._opened()).delete(keys)

    async def listing(self, prefix: str, limit: int) -> list[StoredObject]:
        """Return objects below a prefix."""
        return await (await self._opened()).listing(prefix, limit)

    async def link(self, key: str, *, lasts: timedelta) -> str | None:
        """Return a signed URL, where the store has one."""
        return await (await self._opened()).link(key, lasts=lasts)

    async def aclose(self) -> None:
        """Close the store, if it was opened."""
        await self._stack.aclose()


class LazyParts:
    """A :class:`tickwright.ports.reports.SharedParts` whose client is loaded by its first call."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url, self._prefix = url, prefix
        self._link: RedisLink | None = None
        self._parts: SharedParts | None = None

    def _opened(self) -> SharedParts:
        if self._parts is None:
            from tickwright.transports.redis import RedisLink, RedisParts

            self._link = RedisLink(self._url)
            self._parts = RedisParts(self._link, self._prefix)
        return self._parts

    async def put(self, key: PartKey, data: bytes, note: str, *, ttl: timedelta) -> PutAnswer:
        """Store a part once."""
        return await self._opened().put(key, data, note, ttl=ttl)

    async def get(self, key: PartKey) -> bytes | None:
        """Return a part's data."""
        return await self._opened().get(key)

    async def touch(self, report_ids: Sequence[tuple[int, int]], *, ttl: timedelta) -> None:
        """Renew lives."""
        await self._opened().touch(report_ids, ttl=ttl)

    async def close(self, report_id: int, status: str, *, nonce: str, ttl: timedelta) -> None:
        """Leave a tombstone."""
        await self._opened().close(report_id, status, nonce=nonce, ttl=ttl)

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        if self._link is not None:
            await self._link.aclose()


class ReportDesk:
    """One process's; closed with its link."""

    def __init__(self, settings: Settings) -> None:
        self._objects = LazyObjects(settings)
        url = settings.redis_url
        self._parts = None if url is None else LazyParts(url.get_secret_value(), settings.report_prefix)
        self._place, self._folders = work_place(settings), ExitStack()
        self.keeping = Keeping(
            routes(settings), self._parts, self._objects, cache(self._folder), dead_calls=dead_calls(settings)
        )

    def _folder(self) -> Path:
        return self._folders.enter_context(work_folder(self._place))

    async def aclose(self) -> None:
        """Close what was opened."""
        await asyncio.to_thread(self._folders.close)
        await self._objects.aclose()
        if self._parts is not None:
            await self._parts.aclose()
