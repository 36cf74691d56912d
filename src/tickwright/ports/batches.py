"""Kinds of batch for executions: a plan in chunks, the work on a chunk, its result, and the audience that it reads.

Claims, fences, checkpoints and release are the same for every kind. A kind of batch implements :class:`BatchWork`.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

from tickwright.ports.reports import Dialect, Source

FieldType = Literal["int", "double", "string", "bool", "timestamp"]


class Run(NamedTuple):
    """A running execution, with the version that was newest when it began.

    Attributes:
        kind: ``campaign`` or ``program``.
        slot_at: The occurrence that it is for: the ``now`` of expressions.
        definition: Of that version: the fields of the kind and the settings of every batch.
    """

    execution_id: int
    batch_id: int
    kind: str
    name: str
    version: int
    slot_at: datetime
    definition: Mapping[str, Any]
    product_codes: tuple[str, ...] = ()


class PlannedChunk(NamedTuple):
    """A part of the work: a JSON object that identifies it, and the number of its members."""

    value: Mapping[str, Any]
    members: int


class Action(NamedTuple):
    """A decision about one client: its id, 1 to 1,000 bytes, and the ``client`` of the message, as JSON text."""

    client_id: str
    client: str


@dataclass(slots=True)
class ChunkResult:
    """The result of a chunk.

    Attributes:
        actions: At most one per client; equal ids within a chunk count once.
        missing: Clients not selected because a field of the condition is missing.
        skipped: Clients that could not be judged.
        problems: Up to ten examples of the skipped, ``{"client_id": …, "problem": …}``.
    """

    seen: int = 0
    selected: int = 0
    missing: int = 0
    skipped: int = 0
    actions: list[Action] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)


class OpenChunk(Protocol):
    """A claimed chunk."""

    @property
    def run(self) -> Run:
        """The execution that it belongs to."""

    @property
    def number(self) -> int:
        """From 0 on."""

    @property
    def value(self) -> Mapping[str, Any]:
        """Its value from the plan."""

    @property
    def is_completed(self) -> bool:
        """Whether it is done and counted."""

    def complete(self, result: ChunkResult) -> AbstractAsyncContextManager[Any]:
        """Open the transaction that completes the chunk, and yield its connection; leaving the block commits it.

        Writes through the connection are committed with the chunk, or not at all. ``Contended`` (``chunk_lost``: do not
        retry) when the claim is lost or the execution has ended: nothing is written.
        """


class BatchWork(Protocol):
    """A kind of batch."""

    def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
        """Cut the work into chunks, in order; at most 1,000,000.

        ``Rejected`` ends the execution as ``EXCEPTION_OCCURRED``; ``Unavailable`` is retried.
        """

    async def work(self, chunk: OpenChunk) -> None:
        """Do one chunk and complete it, once. Errors as :meth:`plan`; any other error counts as an attempt."""


class SqlFilter(NamedTuple):
    """A condition in SQL, with ``:name`` for bound values. NULL means that a field is missing."""

    sql: str
    values: Mapping[str, Any]


class Verdict(Enum):
    """An expression's decision about one client."""

    SELECTED = "selected"
    NOT = "not"
    MISSING = "missing"


class Judge(Protocol):
    """An expression that decides about clients; see ADR-0019."""

    @property
    def fields(self) -> Sequence[str]:
        """The names of the fields that it reads, without ``client.``."""

    def sql(self, dialect: Dialect, column: Callable[[str], str], now: datetime) -> SqlFilter | None:
        """Return the same condition in SQL; ``None`` if that could differ in some case.

        ``column`` returns the SQL of a field's column with the declared type: ``bigint``, ``double precision``,
        ``text``, ``boolean``, ``timestamptz``. ``now`` is the ``now`` of the expression.
        """

    def judge(self, values: Mapping[str, Any], now: datetime) -> Verdict:
        """Decide about one client by fields (``int float str bool datetime`` or ``None``); ``now`` as in :meth:`sql`.

        Raises:
            Rejected: ``not_judged``: it divides by zero, overflows, reads no time. Permanent for this client.
        """


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
