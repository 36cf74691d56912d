"""Objects in a bucket, through obstore: S3 and what speaks its language, and Google's store.

Every request is bounded in time and small: a large file goes up in parts and comes down in ranges, so a transfer that
stands still is noticed within one of them, and a reader that is slow itself keeps no connection waiting. The library
repeats a request that failed, a few times and within seconds; whoever calls us repeats the rest.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError

from tickwright.domain.errors import InvariantBroken, Rejected, Unavailable
from tickwright.ports.objects import StoredObject
from tickwright.transports.objectstore.bucket_errors import of_bucket
from tickwright.transports.objectstore.clients import BOUNDS, Bounds, open_bucket
from tickwright.transports.objectstore.errors import of_local_file, unavailable
from tickwright.transports.objectstore.local import new_file, write_all
from tickwright.transports.objectstore.locations import Place, check_key, clean_prefix, labels

MIB = 1024 * 1024
PIECE_BYTES = MIB
PART_BYTES = 8 * MIB
PARTS_AT_ONCE = 2
PARTS_MAX = 9_000  # S3 takes 10,000
RANGE_BYTES = PART_BYTES
KEYS_AT_ONCE = 1_000
LINK_LASTS_MAX = timedelta(days=7)

T = TypeVar("T")


class BucketStore:
    """``s3://`` and ``gs://``. What else obstore reads from the environment (roles, tokens) holds as well.

    Args:
        place: Of scheme ``s3`` or ``gs``.
        environment: ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or ``AWS_ENDPOINT``, ``AWS_ACCESS_KEY_ID``,
            ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.
        bounds: Times.

    Raises:
        Rejected: ``invalid_object_store``, the endpoint or the credentials' form is unusable. Permanent.

    Invariants:
        OBB-1: an upload that broke off has no key; its parts are given up, if the store can be reached.
        OBB-2: bytes of two objects are never read as one: every range asks for the same entity.
    """

    def __init__(self, place: Place, environment: Mapping[str, str], *, bounds: Bounds = BOUNDS) -> None:
        self._place = place
        self._bounds = bounds
        self._where = place.address("")
        self._store = open_bucket(place, environment, bounds)

    def address(self, key: str) -> str:
        """Return ``s3://bucket/prefix/key``."""
        return self._place.address(key)

    async def put_file(self, key: str, path: Path) -> int:
        """Upload in one request below 8 MiB, else in parts of 8 MiB, two at once."""
        check_key(key)
        with of_local_file(path):
            file = await asyncio.to_thread(path.open, "rb", buffering=0)
        with file:
            size = os.fstat(file.fileno()).st_size
            sent = await (self._send(key, file, path) if size < PART_BYTES else self._send_parts(key, file, path, size))
        kept = await self.size(key)
        if kept != sent:
            with suppress(Rejected, Unavailable):  # what was lost is the news
                await self.delete([key])
            raise unavailable(self.address(key), f"{kept} bytes of {sent} are there")
        return sent

    async def fetch_file(self, key: str, path: Path) -> int:
        """Fetch the object range by range; a file that is not whole is removed."""
        fetched = 0
        with new_file(path) as target:
            async for piece in self.read(key):
                with of_local_file(path):
                    await asyncio.to_thread(write_all, target, piece)
                fetched += len(piece)
        return fetched

    async def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Give the object from byte ``start`` on in pieces of up to 1 MiB, of ranges of 8 MiB."""
        check_key(key)
        meta = await self._head(key)
        for first in range(start, meta["size"], RANGE_BYTES):
            end = min(first + RANGE_BYTES, meta["size"])
            with of_bucket(self._where, self.address(key)):
                data = await self._bounded(self._range(key, first, end, meta["e_tag"]))
            if len(data) != end - first:
                raise unavailable(self.address(key), f"{len(data)} bytes of {end - first} came back")
            for at in range(0, len(data), PIECE_BYTES):
                yield data[at : at + PIECE_BYTES]

    async def size(self, key: str) -> int | None:
        """Return the object's bytes; ``None`` if there is none."""
        check_key(key)
        try:
            return int((await self._head(key))["size"])
        except Rejected as error:
            if error.code != "object_missing":
                raise
            return None

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, a thousand in a request."""
        for key in keys:
            check_key(key)
        for start in range(0, len(keys), KEYS_AT_ONCE):
            await self._delete(list(keys[start : start + KEYS_AT_ONCE]))

    async def listing(self, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects below ``prefix``; ``a/b`` is not below ``a/bc``."""
        below = clean_prefix(prefix)
        found: list[StoredObject] = []
        with of_bucket(self._where, ""):
            pages = self._store.list(below or None, chunk_size=max(1, min(limit, KEYS_AT_ONCE))).__aiter__()
            while len(found) < limit:
                page = await self._bounded(_next_page(pages))
                if not page:
                    break
                found += [StoredObject(meta["path"], meta["size"]) for meta in page]
        return found[:limit]

    async def link(self, key: str, *, lasts: timedelta) -> str | None:
        """Return a signed URL; ``lasts`` is above zero and at most seven days.

        The browser saves the object under the last part of its key, because the upload said so.
        """
        check_key(key)
        if not timedelta() < lasts <= LINK_LASTS_MAX:
            raise InvariantBroken("invalid_link", "a link lasts up to seven days")
        with of_bucket(self._where, ""):
            return await self._bounded(obstore.sign_async(self._store, "GET", key, lasts))

    def close(self) -> None:
        """Do nothing: connections end by themselves when they are idle."""

    async def _send(self, key: str, file: FileIO, path: Path) -> int:
        with of_local_file(path):
            data = await asyncio.to_thread(file.read)
        with of_bucket(self._where, ""):
            await self._bounded(self._store.put_async(key, data, use_multipart=False, attributes=labels(key)))
        return len(data)

    async def _send_parts(self, key: str, file: FileIO, path: Path, size: int) -> int:
        with of_bucket(self._where, ""):
            writer: Any = obstore.open_writer_async(
                self._store,
                key,
                buffer_size=max(PART_BYTES, -(-size // PARTS_MAX)),
                max_concurrency=PARTS_AT_ONCE,
                attributes=labels(key),
            )
            try:
                sent = await self._write(writer, file, path)
                await self._finish(writer)
            except BaseException:
                await self._abort(writer)
                raise
        return sent

    async def _write(self, writer: Any, file: FileIO, path: Path) -> int:
        sent = 0
        while True:
            with of_local_file(path):
                piece = await asyncio.to_thread(file.read, PIECE_BYTES)
            if not piece:
                return sent
            await self._bounded(writer.write(piece))
            sent += len(piece)

    async def _finish(self, writer: Any) -> None:
        """Join the parts. Cancelled, it waits a little for what it began: parts that nobody gives up cost money."""
        joining = asyncio.ensure_future(writer.close())
        try:
            await self._bounded(asyncio.shield(joining))
        except BaseException:
            with suppress(BaseError, OSError, TimeoutError):
                await asyncio.wait_for(joining, self._bounds.abort_s)
            raise

    async def _abort(self, writer: Any) -> None:
        with suppress(BaseError, OSError, TimeoutError):  # the store is away; what remains has no key
            async with asyncio.timeout(self._bounds.abort_s):
                await writer.__aexit__(RuntimeError, RuntimeError(), None)

    async def _head(self, key: str) -> Any:
        """Return what the store knows of the object.

        Its no to HEAD has no body: it says neither why, nor whether the bucket itself is missing. GET says both.
        """
        with suppress(Rejected), of_bucket(self._where, self.address(key)):
            return await self._bounded(self._store.head_async(key))
        with of_bucket(self._where, self.address(key)):
            return (await self._bounded(self._store.get_async(key))).meta

    async def _range(self, key: str, start: int, end: int, e_tag: str | None) -> bytes:
        options: Any = {"range": (start, end), **({"if_match": e_tag} if e_tag else {})}
        result = await self._store.get_async(key, options=options)
        return bytes(await result.bytes_async())

    async def _delete(self, keys: list[str]) -> None:
        try:
            with of_bucket(self._where, "one of several"):
                await self._bounded(self._store.delete_async(keys))
        except Rejected as error:  # Google's store says of a missing object that it is missing
            if error.code != "object_missing":
                raise
            if len(keys) > 1:
                for key in keys:
                    await self._delete([key])

    async def _bounded(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._bounds.call_s):
            return await call


async def _next_page(pages: Any) -> Sequence[Any]:
    try:
        page: Sequence[Any] = await anext(pages)
    except StopAsyncIteration:
        return ()
    return page
