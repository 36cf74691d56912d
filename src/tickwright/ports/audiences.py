"""The places of audiences: named databases, and files of the object store."""

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from tickwright.ports.reports import Source


class SourceBook(Protocol):
    """The named databases of this process."""

    def get(self, name: str) -> Source:
        """Return the source of that name; ``Rejected`` (``unknown_source``) where this process has none."""
        ...


class FileFacts(NamedTuple):
    """The identity of an object's content: its size in bytes and its SHA-256."""

    bytes: int
    checksum: str


class AudienceFile(NamedTuple):
    """An object as a table of a local database.

    Attributes:
        table: Its name in ``source``.
        place: A column with each row's place in the order of the key, from 1 on; equal keys have equal places, a row
            without a key has none. The same in every copy of the same object.
    """

    source: Source
    table: str
    place: str
    facts: FileFacts


class AudienceFiles(Protocol):
    """Objects of the object store, as tables of this process."""

    def open(self, key: str, order: str, expected: FileFacts | None) -> AbstractAsyncContextManager[AudienceFile]:
        """Fetch the object, unless this process has it, and lend it for the length of the block.

        Args:
            key: A CSV or Parquet file under this key.
            order: The column that its rows are ordered by.
            expected: The content that was cut; ``None`` for the one that the store has now.

        Raises:
            Rejected: ``audience_changed``: its content is not the expected one; ``audience_unreadable``,
                ``object_missing``, ``object_store_refused``. Permanent until an operator acts.
            Unavailable: ``object_store_unavailable``, ``audience_folder_full``, ``source_timeout``. Retry.
        """
        ...
