"""Sources of audiences: named databases, and files in the object store."""

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from tickwright.ports.reports import Source


class SourceBook(Protocol):
    """The named databases of this process."""

    def get(self, name: str) -> Source:
        """Return the source ``name``; ``Rejected`` (``unknown_source``) if this process has none."""
        ...


class FileFacts(NamedTuple):
    """The identity of an object's content: its size in bytes and its SHA-256."""

    bytes: int
    checksum: str


class AudienceFile(NamedTuple):
    """An object as a ``table`` of a local database.

    The column ``place`` has each row's rank by the key, from 1 on. Equal keys have equal ranks, a row without a key has
    none. It is the same in every copy of the object.
    """

    source: Source
    table: str
    place: str
    facts: FileFacts


class AudienceFiles(Protocol):
    """Objects of the object store as tables in this process."""

    def open(self, key: str, order: str, expected: FileFacts | None) -> AbstractAsyncContextManager[AudienceFile]:
        """Fetch the CSV or Parquet file ``key``, unless this process has it, and lend it for the block.

        Its rows are ordered by the column ``order``. ``expected`` is the content that was cut into chunks; ``None``
        accepts the store's current content.

        Raises:
            Rejected: ``audience_changed``: its content is not the expected one; ``audience_unreadable``,
                ``object_missing``, ``object_store_refused``. Permanent until an operator acts.
            Unavailable: ``object_store_unavailable``, ``audience_folder_full``, ``source_timeout``. Retry.
        """
        ...
