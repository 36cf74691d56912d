"""Batches of a program: a function per chunk, over the members of an audience or over what a plan of its own gives.

::

    @app.batch("ledger.reconcile", cron="0 3 * * *", audience={"source": "ledger", "table": "entries", "key": "id", …})
    async def reconcile(chunk: BatchChunk) -> None:
        wrong = [member async for member in chunk.members() if …]
        async with chunk.transaction() as connection:      # the chunk is done when this commits, or not at all
            await connection.execute(…)

Executions, chunks, claims, pauses, retries and the release of actions are those of campaigns.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.audience.schema import read_audience
from tickwright.capabilities.batches.audience.values import check_json
from tickwright.capabilities.batches.definitions.store import Draft
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import Action, ChunkResult, OpenChunk, PlannedChunk, Run
from tickwright.store.pool import Connection

PROBLEMS_MAX = 10
CLIENT_ID_BYTES_MAX = 1000
ACTION_BYTES_MAX = 960 * 1024
Function = Callable[["BatchChunk"], Awaitable[None]]
Plan = Callable[["BatchRun"], AsyncIterator[Any]]


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One execution, as a plan sees it.

    Attributes:
        batch: Its name.
        slot_at: The occurrence that it is for; of one started by hand, the moment of that.
        version: Of the definition that it began with.
    """

    batch: str
    execution_id: int
    slot_at: datetime
    version: int


class Member(NamedTuple):
    """One member of an audience: its id, and its fields and columns by name."""

    id: str
    fields: Mapping[str, Any]


class BatchChunk:
    """One chunk, as a program's function sees it.

    The function may be called again for a chunk that did not commit: what it does outside of :meth:`transaction` has to
    bear that.

    Attributes:
        run: Whose it is.
        number: From 0 on.
        value: What the plan gave; the range of an audience.
    """

    def __init__(self, chunk: OpenChunk, audiences: Audiences) -> None:
        self._chunk, self._audiences = chunk, audiences
        self._result = ChunkResult()
        self._seen = 0
        self.run = _run(chunk.run)
        self.number = chunk.number
        self.value: Any = chunk.value.get("value", chunk.value)

    async def members(self) -> AsyncIterator[Member]:
        """Give the members of this chunk while they are read.

        Raises:
            Rejected: ``no_audience``: the batch has a plan of its own; what the source says. Permanent.
            Unavailable: The source is away. The chunk is tried again.
        """
        said = self._chunk.run.definition.get("audience")
        if said is None:
            raise Rejected("no_audience", f"batch {self.run.batch} has no audience; look at chunk.value")
        terms, value = read_audience(said), self._chunk.value
        async with (
            self._audiences.open(terms, value) as audience,
            audience.read(value, None, self.run.slot_at) as reading,
        ):
            async for piece in reading:
                for client_id, client in piece:
                    yield Member(client_id, json.loads(client))
        read = reading.result
        self._seen = read.seen
        self._result.skipped += read.skipped
        self._result.problems += read.problems

    def act(self, client_id: str, payload: Any = None) -> None:
        """Record an action about one client; it leaves to the batch's ``action`` when the execution is finished.

        Args:
            client_id: 1 to 1,000 bytes. There is one action per execution and client: a second one changes nothing.
            payload: What JSON has, up to 960 KiB; the ``client`` of the message. PostgreSQL keeps each member of a list
                in about twelve bytes, and no more than 1 MiB in all; a chunk with a larger one is not completed.

        Raises:
            Rejected: ``invalid_action``. Permanent.
        """
        try:
            made = json.dumps({} if payload is None else payload, ensure_ascii=False, allow_nan=False).encode()
            check_json(made)
        except (TypeError, ValueError, RecursionError) as error:
            raise Rejected("invalid_action", f"payload: not JSON that can be kept: {error}", field="payload") from None
        if len(made) > ACTION_BYTES_MAX:
            text = f"payload: at most {ACTION_BYTES_MAX} bytes; keep large things elsewhere"
            raise Rejected("invalid_action", text, field="payload")
        if not _is_client_id(client_id):
            text = f"client_id: 1 to {CLIENT_ID_BYTES_MAX} bytes of UTF-8 without NUL"
            raise Rejected("invalid_action", text, field="client_id")
        self._result.actions.append(Action(client_id, made.decode()))

    def skip(self, client_id: str, problem: str) -> None:
        """Count a member that nothing could be done about; up to ten of them are shown with the chunk."""
        self._result.skipped += 1
        if len(self._result.problems) < PROBLEMS_MAX:
            self._result.problems.append({"client_id": client_id[:200], "problem": problem[:500]})

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Open the transaction that makes the chunk done, and give its connection to Tickwright's database; once.

        What is written through it is there with the chunk, or not at all. Without it the chunk is done when the
        function returns.

        Raises:
            Contended: ``chunk_lost``: it is somebody else's, or the execution was stopped. Nothing is written.
        """
        result = self._result
        result.seen = self._seen or result.skipped + len(result.actions)
        result.selected = len(result.actions)
        async with self._chunk.complete(result) as connection:
            yield connection


@dataclass(frozen=True, slots=True)
class DeclaredBatch:
    """A batch that a program brings, checked.

    Attributes:
        draft: What is written about it.
        plan: Cuts it where it has no audience; without both it is one chunk.
    """

    name: str
    draft: Draft
    function: Function
    plan: Plan | None


class BatchRegistry:
    """The batches of one program, by their names."""

    def __init__(self) -> None:
        self._batches: dict[str, DeclaredBatch] = {}

    def add(self, batch: DeclaredBatch) -> None:
        """Register one.

        Raises:
            Rejected: ``duplicate_batch``. Permanent.
        """
        if batch.name in self._batches:
            raise Rejected("duplicate_batch", f"two functions for batch {batch.name!r}")
        self._batches[batch.name] = batch

    def all(self) -> list[DeclaredBatch]:
        """Return them by name."""
        return [self._batches[name] for name in sorted(self._batches)]

    def get(self, name: str) -> DeclaredBatch | None:
        """Return the one of that name."""
        return self._batches.get(name)


class ProgramWork:
    """Implements :class:`tickwright.ports.batches.BatchWork` for one declared batch."""

    def __init__(self, batch: DeclaredBatch, audiences: Audiences) -> None:
        self._batch, self._audiences = batch, audiences

    async def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
        """Cut the audience, or ask the program's plan; one chunk where there is neither."""
        said = run.definition.get("audience")
        if said is not None:
            async with self._audiences.open(read_audience(said)) as audience:
                async for chunk in audience.cut(run.definition["chunk_rows"]):
                    yield chunk
        elif self._batch.plan is not None:
            async for value in self._batch.plan(_run(run)):
                yield PlannedChunk({"value": value}, 1)
        else:
            yield PlannedChunk({}, 1)

    async def work(self, chunk: OpenChunk) -> None:
        """Call the function, and complete the chunk where it has not done so itself."""
        given = BatchChunk(chunk, self._audiences)
        await self._batch.function(given)
        if not chunk.is_completed:
            async with given.transaction():
                pass


def _is_client_id(text: str) -> bool:
    with suppress(UnicodeEncodeError):
        return 1 <= len(text.encode()) <= CLIENT_ID_BYTES_MAX and "\0" not in text
    return False


def _run(run: Run) -> BatchRun:
    return BatchRun(run.name, run.execution_id, run.slot_at, run.version)
