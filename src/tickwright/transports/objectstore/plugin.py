"""The plugin of the object store and of this process's work folder."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tickwright.plugin import Context, Ownership, Plugin, Settings, SettingsPart
from tickwright.plugin.settings import text
from tickwright.ports.objects import LazyObjectStore, ObjectStore, StoredObject, WorkFolder
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


FOLDER = "objects"
"""The default folder of objects, below ``home``."""
OWNER_KEY = "installation"


class ObjectStoreSettings(SettingsPart):
    """Settings of the object store.

    Attributes:
        object_store: Where report files are kept: ``file:///FOLDER``, ``s3://BUCKET/PREFIX`` or ``gs://BUCKET/PREFIX``.
            Default: the folder ``objects`` in ``home``. Credentials come from the usual variables
            (``AWS_ACCESS_KEY_ID``, ...).
        report_folder: Where rows are spooled and merged. Default: ``reports`` in ``home``.
    """

    object_store: Annotated[str | None, text(parse_place, keep=True)] = None
    report_folder: Path | None = None


def objects_url(settings: Settings) -> str:
    """Return the URL of the object store. It has no password, so it may be logged."""
    return settings.part(ObjectStoreSettings).object_store or (settings.home_folder / FOLDER).as_uri()


def work_place(settings: Settings) -> Path:
    """Return the folder of all work folders. Folders there without an owner are removed."""
    return (settings.part(ObjectStoreSettings).report_folder or settings.home_folder / "reports") / "work"


class ObjectStorePlugin(Plugin):
    """Provides the object store and this process's work folder."""

    name = "objectstore"
    settings = ObjectStoreSettings

    def provide(self, context: Context) -> None:
        """Offer both ports."""
        ports, settings = context.ports, context.settings

        def objects() -> LazyObjectStore:
            store = LazyObjects(objects_url(settings), os.environ)
            ports.on_close(store.aclose)
            return store

        def folder() -> WorkFolder:
            from tickwright.transports.objectstore.folder import LazyFolder

            made = LazyFolder(work_place(settings))
            ports.on_close(made.aclose)
            return made

        ports.offer(LazyObjectStore, objects)
        ports.offer(WorkFolder, folder)

    def ownerships(self, context: Context) -> Sequence[Ownership]:
        """Return the ownership of the object store. The default folder is only reported: a user's programs share it."""
        settings = context.settings
        is_default = settings.part(ObjectStoreSettings).object_store is None
        return (
            Ownership(
                place="the object store",
                roles=frozenset({"scheduler", "report-listener"}),
                prefix=objects_url(settings),
                setting="TICKWRIGHT_OBJECT_STORE",
                mark=f"the object {OWNER_KEY}",
                claim=lambda installation: _claim(context.ports.get(LazyObjectStore), installation),
                is_shared=is_default,
                asks_twice=True,
            ),
        )


async def _claim(objects: ObjectStore, installation: str) -> str:
    """Write the mark if it is missing, and return the mark that counts.

    Not every store has a conditional write, so two processes that write at once may each read their own mark. The last
    write counts; the next check reveals it to the other process.
    """
    if await objects.size(OWNER_KEY) is None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(installation.encode())
            file.flush()
            await objects.put_file(OWNER_KEY, Path(file.name))
    pieces = objects.read(OWNER_KEY)  # the first piece holds the whole mark
    async with aclosing(pieces):  # type: ignore[type-var]  # stores return generators
        return (await anext(pieces, b"")).decode(errors="replace").strip()


PLUGIN = ObjectStorePlugin()
