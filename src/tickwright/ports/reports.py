"""Values and ports of reports: the shared store of parts, and sources."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

Dialect = Literal["postgresql", "duckdb", "sqlite"]
RESERVED_LISTENERS = frozenset({"record", "epoch", "queryDoneCount", "status", "dead"})
"""Fields of the hash, and a queue."""


class Column(NamedTuple):
    """A column of a part: its name and its DuckDB type (``BIGINT``, ``DECIMAL(12,2)``, ``TIMESTAMPTZ``)."""

    name: str
    type: str


class PartKey(NamedTuple):
    """One listener's part of one epoch of one report.

    ``nonce`` is random and made with the record, so Redis data of another database's record with the same number
    differs.
    """

    report_id: int
    epoch: int
    listener: str
    nonce: str


class PartFacts(NamedTuple):
    """Facts of a part's rows as NDJSON, wherever they are stored: size in bytes and SHA-256."""

    columns: tuple[Column, ...]
    rows: int
    bytes: int
    checksum: str


class Put(Enum):
    """The result of storing a part in the shared store."""

    STORED = "stored"
    ALREADY = "already"
    STALE = "stale"


class PutAnswer(NamedTuple):
    """The result. ``note`` is the one that was stored first, by us or by an earlier attempt; empty if stale."""

    put: Put
    note: str


class SharedParts(Protocol):
    """The Redis hash ``FileDownloadRecordEntity-{id}``.

    Its fields: ``record`` with the nonce, ``epoch``, ``queryDoneCount``, and per listener its name with the data (a
    JSON array of rows, or an object with their place), and ``done:<listener>`` with a note. Every method raises
    ``Unavailable`` when Redis does not answer.

    Invariants:
        RPS-1: data, note and count are written in one step, or none of them.
        RPS-2: ``queryDoneCount`` is the number of ``done:`` fields, however often a part is put.
        RPS-3: nothing of an older epoch is written into a newer hash, and a newer epoch begins with an empty one.
        RPS-4: a hash always has a time to live.
        RPS-5: another record's hash is never read, written or deleted.
    """

    async def put(self, key: PartKey, data: bytes, note: str, *, ttl: timedelta) -> PutAnswer:
        """Store a part once, and renew the time to live. ``STALE``: the hash's epoch is newer, or the report over."""

    async def get(self, key: PartKey) -> bytes | None:
        """Return a part's data; ``None`` if it is absent, or the hash is another epoch's."""

    async def touch(self, report_ids: Sequence[tuple[int, int]], *, ttl: timedelta) -> None:
        """Renew the time to live of these (report, epoch) if they exist: work on them continues."""

    async def close(self, report_id: int, status: str, *, nonce: str, ttl: timedelta) -> None:
        """Replace the hash by a tombstone without data: late writers find the report over. May be repeated."""


class UndecodableText:
    """Replaces a text in a row that is not UTF-8; a reader omits such a row, or refuses it."""


NOT_UTF8 = UndecodableText()


class Rows(Protocol):
    """An open query: its columns and, in pieces, its rows as tuples of plain values."""

    @property
    def columns(self) -> Sequence[Column]:
        """Known before the first row. The type ``""`` is unknown, and derived from the values.

        A bare ``DECIMAL`` is an exact number whose digits only its values show; they are texts.
        """

    def __aiter__(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        """Yield the rows in pieces of up to some thousand."""


class Source(Protocol):
    """A named database, only for reading."""

    @property
    def name(self) -> str:
        """The ``NAME`` in ``[sources.NAME]``."""

    @property
    def dialect(self) -> Dialect:
        """Its SQL dialect."""

    def query(self, sql: str, values: Mapping[str, Any], *, timeout: timedelta, within: str | None = None) -> Any:
        """Return an asynchronous context manager that yields :class:`Rows`.

        ``sql`` must be exactly one query, which the database checks. If it contains an operator's query, pass that as
        ``within``, which must be one query by itself, so that it cannot close our parentheses. ``sql`` names its values
        as ``:name``; they are bound, never written into it. ``Rejected`` for what this query can never do
        (``source_refused``, ``missing_value``), ``Unavailable`` (``source_unavailable``) for temporary failures.
        """
