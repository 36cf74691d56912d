"""Open the store of a URL. The bucket library is loaded only for a bucket."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tickwright.ports.objects import ObjectStore, StoredObject
from tickwright.transports.objectstore.locations import parse_place

if TYPE_CHECKING:
    from tickwright.transports.objectstore.bucket import BucketStore
    from tickwright.transports.objectstore.folder import FolderStore


def open_store(url: str, environment: Mapping[str, str]) -> "FolderStore | BucketStore":
    """Return the store of ``url``. Blocks for some ten milliseconds: call it in a thread.

    Args:
        url: ``file:///folder`` (made if it is missing), ``s3://bucket/prefix`` or ``gs://bucket/prefix``.
        environment: Holds a bucket's endpoint and credentials, such as ``AWS_ENDPOINT_URL``.

    Raises:
        Rejected: ``invalid_object_store``: the URL has no such form; ``object_store_refused``: the folder may not be
            made or written. Permanent until an operator acts.
        Unavailable: ``object_store_unavailable``: the folder's disk is full or fails. Retry.
    """
    place = parse_place(url)
    if place.scheme == "file":
        from tickwright.transports.objectstore.folder import FolderStore

        return FolderStore(place)
    from tickwright.transports.objectstore.bucket import BucketStore

    return BucketStore(place, environment)


class LazyObjects:
    """A :class:`tickwright.ports.objects.LazyObjectStore`."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        self._url, self._environment = url, environment
        self._store: FolderStore | BucketStore | None = None
        self._opening = asyncio.Lock()

    async def opened(self) -> ObjectStore:
        """Open the store if needed, and return it."""
        async with self._opening:
            if self._store is None:
                self._store = await asyncio.to_thread(open_store, self._url, self._environment)
            return self._store

    def address(self, key: str) -> str:
        """Return the address of an object, for people."""
        return parse_place(self._url).address(key)

    async def put_file(self, key: str, path: Path) -> int:
        """Upload a file."""
        return await (await self.opened()).put_file(key, path)

    async def fetch_file(self, key: str, path: Path) -> int:
        """Write an object into a new file."""
        return await (await self.opened()).fetch_file(key, path)

    async def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Yield an object in pieces."""
        pieces = (await self.opened()).read(key, start)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # stores return generators

    async def size(self, key: str) -> int | None:
        """Return the size of an object in bytes."""
        return await (await self.opened()).size(key)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        await (await self.opened()).delete(keys)

    async def listing(self, prefix: str, limit: int) -> list[StoredObject]:
        """Return objects below a prefix."""
        return await (await self.opened()).listing(prefix, limit)

    async def link(self, key: str, *, lasts: timedelta) -> str | None:
        """Return a signed URL, or ``None`` if the store has none."""
        return await (await self.opened()).link(key, lasts=lasts)

    async def aclose(self) -> None:
        """Close the store, if it was opened."""
        if self._store is not None:
            self._store.close()
