"""Where files are kept: whole objects under keys, such as ``reports/17/1-3/users.csv``.

A key never contains ``..``, a leading slash or a control character; the product makes all keys itself. What is under a
key is whole or is not there: a broken upload leaves nothing that can be read.
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
    """One place for objects. Safe for many concurrent calls from one event loop.

    Every method raises ``Unavailable`` (``object_store_unavailable``: retry) when the store does not answer in time or
    breaks off, and ``Rejected`` (``object_store_refused``: permanent until an operator acts) when it says no.
    """

    def address(self, key: str) -> str:
        """Return where an object is, for people: ``s3://bucket/prefix/key``, never with a password."""
        ...

    async def put_file(self, key: str, path: Path) -> int:
        """Upload the file at ``path``, in parts where it is large, and return its bytes as the store reads them back.

        Bounded in memory whatever the file's size. What was there under ``key`` is replaced in one step.
        """
        ...

    async def fetch_file(self, key: str, path: Path) -> int:
        """Write the object into a new file and return its bytes; ``Rejected`` (``object_missing``) if there is none."""
        ...

    def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Give the object from byte ``start`` on, piece by piece, each at most 1 MiB; errors as ``fetch_file``.

        What is before ``start`` is not read. Nothing is behind the end.
        """
        ...

    async def size(self, key: str) -> int | None:
        """Return the bytes of an object; ``None`` if there is none."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; what is not there is no error."""
        ...

    async def listing(self, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects below ``prefix``, in no order."""
        ...

    async def link(self, key: str, *, lasts: timedelta) -> str | None:
        """Return a signed URL that anybody may read the object by until it ends; ``None`` where the store has none."""
        ...


class LazyObjectStore(ObjectStore, Protocol):
    """An object store that is opened by its first call: most processes never touch a file."""

    async def opened(self) -> ObjectStore:
        """Open it now.

        Raises:
            Rejected: ``invalid_object_store``, ``object_store_refused``. Permanent until an operator acts.
            Unavailable: ``object_store_unavailable``. Retry.
        """
        ...


class WorkFolder(Protocol):
    """A folder of this process's own, for spooled rows and merges: made when it is needed, removed with the process."""

    def path(self) -> Path:
        """Return it. Blocks: call it in a thread. Raises ``OSError`` where it cannot be made."""
        ...

    async def opened(self) -> Path:
        """Do the same from the event loop.

        Raises:
            Unavailable: ``no_space``. Retry when there is room, or permission.
        """
        ...
