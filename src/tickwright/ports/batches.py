"""A kind of batch, as executions see it: a plan in chunks, the work on a chunk, and its result.

Claims, fences, checkpoints and release are in ``capabilities.batches`` and the same for every kind; a kind of batch is
an implementation of :class:`BatchWork`.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

FieldType = Literal["int", "double", "string", "bool", "timestamp"]
Dialect = Literal["postgresql", "duckdb", "sqlite"]


class Run(NamedTuple):
    """One execution that is at work, under the version that was newest when it began.

    Attributes:
        kind: ``campaign`` or ``program``.
        slot_at: The occurrence that it is for: the ``now`` of expressions.
        definition: Of that version; the fields of the kind and the settings of every batch.
        product_codes: Of that version.
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
        missing: Not selected because a field that decides is not there.
        skipped: Could not be judged.
        problems: Up to ten examples of the skipped, ``{"client_id": …, "problem": …}``.
    """

    seen: int = 0
    selected: int = 0
    missing: int = 0
    skipped: int = 0
    actions: list[Action] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)


class OpenChunk(Protocol):
    """A claimed chunk, for its work."""

    @property
    def run(self) -> Run:
        """The execution that it belongs to."""
        ...

    @property
    def number(self) -> int:
        """From 0 on."""
        ...

    @property
    def value(self) -> Mapping[str, Any]:
        """The value that the plan gave it."""
        ...

    @property
    def is_completed(self) -> bool:
        """Whether it is done and counted."""
        ...

    def complete(self, result: ChunkResult) -> AbstractAsyncContextManager[Any]:
        """Open the transaction that completes the chunk, and yield its connection; leaving the block commits it.

        What is written through the connection is committed with the chunk, or not at all. ``Contended``
        (``chunk_lost``: do not retry) when the claim is lost or the execution has ended: nothing is written.
        """
        ...


class BatchWork(Protocol):
    """A kind of batch."""

    def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
        """Cut the work into chunks, in their order; at most 1,000,000.

        ``Rejected`` ends the execution as ``EXCEPTION_OCCURRED``; ``Unavailable`` is tried again.
        """
        ...

    async def work(self, chunk: OpenChunk) -> None:
        """Do one chunk and complete it, once. Errors as :meth:`plan`; anything else counts as an attempt."""
        ...


class SqlFilter(NamedTuple):
    """A condition in SQL, with ``:name`` where its values are bound. NULL means that a field is missing."""

    sql: str
    values: Mapping[str, Any]


class Verdict(Enum):
    """The decision of an expression about one client."""

    SELECTED = "selected"
    NOT = "not"
    MISSING = "missing"


class Judge(Protocol):
    """An expression that decides about clients; see ADR-0019."""

    @property
    def fields(self) -> Sequence[str]:
        """The names of the fields that it reads, without ``client.``."""
        ...

    def sql(self, dialect: Dialect, column: Callable[[str], str], now: datetime) -> SqlFilter | None:
        """Return the same condition in SQL; ``None`` where that would not be the same in every case.

        Args:
            dialect: Of the source.
            column: Returns the SQL of a field's column, which has the declared type: ``bigint``, ``double precision``,
                ``text``, ``boolean``, ``timestamptz``.
            now: The ``now`` of the expression.
        """
        ...

    def judge(self, values: Mapping[str, Any], now: datetime) -> Verdict:
        """Decide about one client.

        Args:
            values: By field: ``int float str bool datetime`` or ``None``.
            now: As for :meth:`sql`.

        Raises:
            Rejected: ``not_judged``: it divides by zero, overflows, reads no time. Permanent for this client.
        """
        ...
