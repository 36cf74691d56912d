"""What reports need from above and below, as values: the shared store of parts, sources, and who waits for a part."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple, Protocol

from tickwright.ports.batches import Dialect

RESERVED_LISTENERS = frozenset(
    {"record", "epoch", "queryDoneCount", "status", "dead"}
)  # fields of the hash, and a queue


class Column(NamedTuple):
    """A column of a part: its name and its type in DuckDB's words (``BIGINT``, ``DECIMAL(12,2)``, ``TIMESTAMPTZ``)."""

    name: str
    type: str


class PartKey(NamedTuple):
    """One listener's part of one epoch of one report.

    Attributes:
        nonce: Random, made with the record: what Redis has of a record of the same number in another database is not
            taken for ours.
    """

    report_id: int
    epoch: int
    listener: str
    nonce: str


class PartFacts(NamedTuple):
    """What is known of a part's rows, wherever they are kept: as NDJSON, so many bytes with this SHA-256."""

    columns: tuple[Column, ...]
    rows: int
    bytes: int
    checksum: str


class Put(Enum):
    """What became of a part that was put into the shared store."""

    STORED = "stored"
    ALREADY = "already"
    STALE = "stale"


class PutAnswer(NamedTuple):
    """The answer. ``note`` is the one that was stored first, ours or the earlier attempt's; empty when stale."""

    put: Put
    note: str


class SharedParts(Protocol):
    """The Redis hash ``FileDownloadRecordEntity-{id}``.

    Its fields: ``record`` with the nonce, ``epoch``, ``queryDoneCount``, and per listener its name with the data, a
    JSON array of rows or an object that says where they are, and ``done:<listener>`` with a note. Every method raises
    ``Unavailable`` when Redis does not answer.

    Invariants:
        RPS-1: data, note and count are written in one step, or none of them.
        RPS-2: ``queryDoneCount`` is the number of ``done:`` fields, however often a part is put.
        RPS-3: nothing of an older epoch is written into a newer hash, and a newer epoch begins with an empty one.
        RPS-4: a hash always has a time to live.
        RPS-5: nothing is read from, written into or thrown away with another record's hash.
    """

    async def put(self, key: PartKey, data: bytes, note: str, *, ttl: timedelta) -> PutAnswer:
        """Store a part once. ``STALE``: the hash belongs to a newer epoch, or the report is over. Renews the life."""
        ...

    async def get(self, key: PartKey) -> bytes | None:
        """Return a part's data; ``None`` when it is not there, or the hash is another epoch's."""
        ...

    async def touch(self, report_ids: Sequence[tuple[int, int]], *, ttl: timedelta) -> None:
        """Renew the life of these (report, epoch) where they are there: somebody works on them."""
        ...

    async def close(self, report_id: int, status: str, *, nonce: str, ttl: timedelta) -> None:
        """Replace the hash by a tombstone without data: what comes late finds the report over. Twice is harmless."""
        ...


class UndecodableText:
    """What rows have in place of a text that is not UTF-8; a reader leaves such a row out, or refuses it."""


NOT_UTF8 = UndecodableText()


class Rows(Protocol):
    """An open query: its columns, and its rows piece by piece, each row a tuple of plain values in their order."""

    @property
    def columns(self) -> Sequence[Column]:
        """Known before the first row. A type of ``""`` is not known: it is found in the values.

        A bare ``DECIMAL`` is an exact number of which only its values say how many digits it has; they are texts.
        """
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        """Give the rows in pieces of up to some thousand."""
        ...


class Source(Protocol):
    """A named database that is read, never written."""

    @property
    def name(self) -> str:
        """As in ``[sources.NAME]``."""
        ...

    @property
    def dialect(self) -> Dialect:
        """Whose SQL it speaks."""
        ...

    def query(self, sql: str, values: Mapping[str, Any], *, timeout: timedelta, within: str | None = None) -> Any:
        """Return an asynchronous context manager that gives :class:`Rows`.

        ``sql`` is one query and nothing else, which the database itself decides. Where it was made around a query of an
        operator, that one is ``within``, and is one query by itself: it cannot close our parentheses. ``sql`` names its
        values as ``:name``; they are bound, never written into it. ``Rejected`` for what this query
        can never do (``source_refused``, ``missing_value``), ``Unavailable`` (``source_unavailable``) for what may
        pass.
        """
        ...
