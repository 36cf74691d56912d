"""The object store: complete objects under keys, such as ``reports/17/1-3/users.csv``.

A key never contains ``..``, a leading slash or a control character; the product makes all keys. An object is complete
or absent: a broken upload leaves nothing readable.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, Protocol


class StoredObject(NamedTuple):
    """One object of a listing."""

    key: str
    bytes: int


class ObjectStore(Protocol):
    """A store of objects. Safe for many concurrent calls from one event loop.

    Every method raises ``Unavailable`` (``object_store_unavailable``: retry) when the store does not answer in time or
    breaks off, and ``Rejected`` (``object_store_refused``: permanent until an operator acts) when it refuses.
    """

    def address(self, key: str) -> str:
        """Return an object's address for people: ``s3://bucket/prefix/key``, never with a password."""

    async def put_file(self, key: str, path: Path) -> int:
        """Upload the file at ``path``, in parts if it is large; return its size in bytes, as read back from the store.

        Memory is bounded whatever the file's size. An object under ``key`` is replaced in one step.
        """

    async def fetch_file(self, key: str, path: Path) -> int:
        """Write the object into a new file and return its bytes; ``Rejected`` (``object_missing``) if there is none."""

    def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Yield the object from byte ``start`` on, in pieces of at most 1 MiB; errors as ``fetch_file``.

        Bytes before ``start`` are not read. From the end on there is nothing.
        """

    async def size(self, key: str) -> int | None:
        """Return the bytes of an object; ``None`` if there is none."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing object is no error."""

    async def listing(self, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects below ``prefix``, in no order."""

    async def link(self, key: str, *, lasts: timedelta) -> str | None:
        """Return a signed URL, valid for ``lasts``, with which anyone can read the object; ``None`` if unsupported."""


class LazyObjectStore(ObjectStore, Protocol):
    """An object store that opens with its first call: most processes use no file."""

    async def opened(self) -> ObjectStore:
        """Open it now.

        Raises:
            Rejected: ``invalid_object_store``, ``object_store_refused``. Permanent until an operator acts.
            Unavailable: ``object_store_unavailable``. Retry.
        """


class WorkFolder(Protocol):
    """A folder of this process for spooled rows and merges: made when needed, removed with the process."""

    def path(self) -> Path:
        """Return the folder. Blocks: call it in a thread. Raises ``OSError`` if it cannot be made."""

    async def opened(self) -> Path:
        """Return the folder, from the event loop.

        Raises:
            Unavailable: ``no_space``. Retry when there is room, or permission.
        """
