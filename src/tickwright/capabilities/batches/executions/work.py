"""The work on a chunk, by kind of batch: a campaign judges members, a program calls its function.

::

    @app.batch("ledger.reconcile", cron="0 3 * * *", audience={"source": "ledger", "table": "entries", "key": "id", …})
    async def reconcile(chunk: BatchChunk) -> None:
        wrong = [member async for member in chunk.members() if …]
        async with chunk.transaction() as connection:      # the chunk is done when this commits, or not at all
            await connection.execute(…)

A campaign reads a range of its audience, and each client that its expression selects gets an action. A program's
function gets the members of a range, or a value of the program's own plan. Everything else (executions, chunks, claims,
pauses, retries, the release of actions) is the same for both and is not here.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.audience.reader import check_json
from tickwright.capabilities.batches.audience.schema import read_audience
from tickwright.capabilities.batches.definitions.schema import Draft
from tickwright.domain.errors import Rejected
from tickwright.engine.registry import Registry
from tickwright.ports.batches import Action, BatchWork, ChunkResult, FieldType, Judge, OpenChunk, PlannedChunk, Run
from tickwright.store.pool import Connection

COMPILED_MAX = 256
"""Expressions that a process keeps compiled."""


class CampaignWork:
    """Implements :class:`tickwright.ports.batches.BatchWork`."""

    def __init__(self, audiences: Audiences) -> None:
        self._audiences = audiences

    def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
        """Cut the audience into ranges of ``chunk_rows`` members."""
        return ranges(self._audiences, run)

    async def work(self, chunk: OpenChunk) -> None:
        """Read one range, judge its members, and complete it with an action for each selected client."""
        definition, now = chunk.run.definition, chunk.run.slot_at
        audience_settings = read_audience(definition["audience"])
        types = tuple(audience_settings.types.items())
        judge = await asyncio.to_thread(_compile, definition["expression"], types)
        actions: list[Action] = []
        async with (
            self._audiences.open(audience_settings, chunk.value) as audience,
            audience.read(chunk.value, judge, now) as reading,
        ):
            async for piece in reading:
                actions += piece
        result = reading.result
        result.actions = actions
        async with chunk.complete(result):
            pass


async def ranges(audiences: Audiences, run: Run) -> AsyncIterator[PlannedChunk]:
    """Cut the audience of an execution into ranges of ``chunk_rows`` members."""
    async with audiences.open(read_audience(run.definition["audience"])) as audience:
        async for chunk in audience.cut(run.definition["chunk_rows"]):
            yield chunk


@lru_cache(maxsize=COMPILED_MAX)
def _compile(text: str, types: tuple[tuple[str, FieldType], ...]) -> Judge:
    """Compile an expression; CEL is imported here, so that only processes that work on campaigns load it."""
    from tickwright.capabilities.batches.expressions import compile_expression

    return compile_expression(text, dict(types))


PROBLEMS_MAX = 10
CLIENT_ID_BYTES_MAX = 1000
ACTION_BYTES_MAX = 960 * 1024
Function = Callable[["BatchChunk"], Awaitable[None]]
Plan = Callable[["BatchRun"], AsyncIterator[Any]]


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One execution, as a plan sees it; ``slot_at`` is its occurrence, or when it was started by hand."""

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
        value: From the plan; the range of an audience.
    """

    def __init__(self, chunk: OpenChunk, audiences: Audiences) -> None:
        self._chunk, self._audiences = chunk, audiences
        self._result = ChunkResult()
        self._seen = 0
        self.run = _run(chunk.run)
        self.number = chunk.number
        self.value: Any = chunk.value.get("value", chunk.value)

    async def members(self) -> AsyncIterator[Member]:
        """Yield the members of this chunk while they are read.

        Raises:
            Rejected: ``no_audience``: the batch has a plan of its own; the errors of the source. Permanent.
            Unavailable: The source does not answer. The chunk is tried again.
        """
        definition = self._chunk.run.definition.get("audience")
        if definition is None:
            raise Rejected("no_audience", f"batch {self.run.batch} has no audience; read chunk.value")
        value = self._chunk.value
        async with (
            self._audiences.open(read_audience(definition), value) as audience,
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
        """Record an action about one client; it is sent to the batch's ``action`` when the execution is finished.

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
        """Count a member as skipped; up to ten of them are shown with the chunk."""
        self._result.skipped += 1
        if len(self._result.problems) < PROBLEMS_MAX:
            self._result.problems.append({"client_id": client_id[:200], "problem": problem[:500]})

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Open the transaction that completes the chunk, and yield its connection to Tickwright's database; once.

        What is written through it is committed with the chunk, or not at all. Without it the chunk is done when the
        function returns.

        Raises:
            Contended: ``chunk_lost``: its claim is lost, or the execution was stopped. Nothing is written.
        """
        result = self._result
        result.seen = self._seen or result.skipped + len(result.actions)
        result.selected = len(result.actions)
        async with self._chunk.complete(result) as connection:
            yield connection


@dataclass(frozen=True, slots=True)
class DeclaredBatch:
    """A batch of ``@app.batch``, checked. A plan cuts it where it has no audience; without both it is one chunk."""

    name: str
    draft: Draft
    function: Function
    plan: Plan | None


class BatchRegistry(Registry[DeclaredBatch]):
    """The batches of one program, by their names."""

    kind = "batch"


class ProgramWork:
    """Implements :class:`tickwright.ports.batches.BatchWork` for one declared batch."""

    def __init__(self, batch: DeclaredBatch, audiences: Audiences) -> None:
        self._batch, self._audiences = batch, audiences

    async def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
        """Cut the audience, or run the program's plan; one chunk where there is neither."""
        if run.definition.get("audience") is not None:
            async for chunk in ranges(self._audiences, run):
                yield chunk
        elif self._batch.plan is not None:
            async for value in self._batch.plan(_run(run)):
                yield PlannedChunk({"value": value}, 1)
        else:
            yield PlannedChunk({}, 1)

    async def work(self, chunk: OpenChunk) -> None:
        """Call the function, and complete the chunk where it has not done so itself."""
        batch_chunk = BatchChunk(chunk, self._audiences)
        await self._batch.function(batch_chunk)
        if not chunk.is_completed:
            async with batch_chunk.transaction():
                pass


def _is_client_id(text: str) -> bool:
    with suppress(UnicodeEncodeError):
        return 1 <= len(text.encode()) <= CLIENT_ID_BYTES_MAX and "\0" not in text
    return False


def _run(run: Run) -> BatchRun:
    return BatchRun(run.name, run.execution_id, run.slot_at, run.version)


class RemoteWorks(Protocol):
    """Batches that remote workers work on for this process."""

    def served(self) -> Sequence[str]:
        """Return their ``program:NAME``, of those with a live worker."""

    def of(self, run: Run) -> BatchWork | None:
        """Return the work of an execution; ``None`` if it has no target."""


class ProcessWorks:
    """The work that this process can do: campaigns whose audience it can read, and the batches of its program.

    Args:
        remote: What it hands over to remote workers.
    """

    def __init__(
        self,
        sources: Iterable[str],
        audiences: Audiences,
        programs: BatchRegistry,
        remote: RemoteWorks | None = None,
    ) -> None:
        self._audiences, self._programs, self._remote = audiences, programs, remote
        self._campaigns = CampaignWork(audiences)
        own = [f"program:{batch.name}" for batch in programs.all()]
        self._served = [*(f"source:{name}" for name in sources), "objects", *own]

    def served(self) -> Sequence[str]:
        """Return what the process has: ``source:NAME``, ``objects``, ``program:NAME``."""
        return self._served if self._remote is None else [*self._served, *self._remote.served()]

    def of(self, run: Run) -> BatchWork:
        """Return the work of this execution.

        Raises:
            Rejected: ``unknown_batch``. Permanent for this process.
        """
        if run.kind == "campaign":
            return self._campaigns
        if self._remote is not None and (work := self._remote.of(run)) is not None:
            return work
        declared = self._programs.get(run.name)
        if declared is None:
            raise Rejected("unknown_batch", f"this program has no @app.batch({run.name!r})")
        return ProgramWork(declared, self._audiences)
