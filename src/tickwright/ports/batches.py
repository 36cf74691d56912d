"""What executions of batches need from whoever knows their work, as values: a plan in chunks, and what a chunk gave.

The pattern (claims, fences, checkpoints, release) is in ``capabilities.batches`` and knows no expression and no
action; a kind of batch is an implementation of :class:`BatchWork`.
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
        slot_at: The occurrence that it is for: what an expression calls ``now``.
        definition: Of that version; the kind's own words.
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
    """A part of the work: a JSON object that says which, and how many members it is about."""

    value: Mapping[str, Any]
    members: int


class Action(NamedTuple):
    """What was decided about one client: its id, 1 to 1,000 bytes, and what the message says of it, as JSON text."""

    client_id: str
    client: str


@dataclass(slots=True)
class ChunkResult:
    """What came of a chunk.

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
    """A claimed chunk, as its work sees it."""

    @property
    def run(self) -> Run:
        """Whose it is."""
        ...

    @property
    def number(self) -> int:
        """From 0 on."""
        ...

    @property
    def value(self) -> Mapping[str, Any]:
        """As it was planned."""
        ...

    @property
    def is_completed(self) -> bool:
        """Whether it counts already."""
        ...

    def complete(self, result: ChunkResult) -> AbstractAsyncContextManager[Any]:
        """Open the transaction that makes it count, and give its connection; leaving the block commits it as done.

        What is written through the connection is there with the chunk, or not at all. ``Contended`` (``chunk_lost``: do
        not retry) when the claim is somebody else's by now or the execution has ended: nothing is written.
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
    """What an expression says of one client."""

    SELECTED = "selected"
    NOT = "not"
    MISSING = "missing"


class Judge(Protocol):
    """An expression that decides about clients; see ADR-0019."""

    @property
    def fields(self) -> Sequence[str]:
        """The fields that it reads, without ``client.``."""
        ...

    def sql(self, dialect: Dialect, column: Callable[[str], str], now: datetime) -> SqlFilter | None:
        """Return the same condition in SQL; ``None`` where that would not be the same in every case.

        Args:
            dialect: Of the source.
            column: Gives the SQL of a field's column, which has the declared type: ``bigint``, ``double precision``,
                ``text``, ``boolean``, ``timestamptz``.
            now: What the expression calls ``now``.
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
