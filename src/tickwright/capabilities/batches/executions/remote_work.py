"""Chunks of batches in other languages: a batch with the target ``remote:POOL`` is worked on by remote workers.

The consumer claims the chunk, reads its members, hands them over, and completes the chunk with what the worker returns:
the chunk is done once, with its actions, in the consumer's transaction. The worker may see a chunk again that did not
complete, so what it does elsewhere has to bear that.
"""

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.executions.work import BatchChunk, ranges
from tickwright.domain.errors import Contended, Rejected
from tickwright.domain.time_texts import parse_duration
from tickwright.engine.remote.calls import PAYLOAD_CHARS_MAX, CallEnd, CallRequest, RemoteCalls, pool_of
from tickwright.ports.batches import BatchWork, OpenChunk, PlannedChunk, Run
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "remote.sql")
KIND: Final = "chunk"
TIMEOUT = "15m"
PATIENCE = timedelta(seconds=10)
LATER = timedelta(seconds=5)


class ChunkPostponed(Exception):
    """The chunk was not worked on; it is due again after ``by``. ``is_lost``: its remote worker was lost with it."""

    def __init__(self, by: timedelta, *, is_lost: bool = False) -> None:
        super().__init__("no remote worker has ended the chunk")
        self.by, self.is_lost = by, is_lost


class _Action(msgspec.Struct, forbid_unknown_fields=True):
    client_id: str
    payload: Any = None


class _Skipped(msgspec.Struct, forbid_unknown_fields=True):
    client_id: str
    problem: str


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    """The result of a chunk, as a remote worker returns it."""

    actions: list[_Action] = []
    skipped: list[_Skipped] = []


class RemoteBatchWork:
    """Implements :class:`tickwright.ports.batches.BatchWork` for batches with a target."""

    def __init__(self, calls: RemoteCalls, audiences: Audiences, pool: str) -> None:
        self._calls, self._audiences, self._pool = calls, audiences, pool

    async def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
        """Cut the audience; without one the batch is one chunk."""
        if run.definition.get("audience") is None:
            yield PlannedChunk({}, 1)
            return
        async for chunk in ranges(self._audiences, run):
            yield chunk

    async def work(self, chunk: OpenChunk) -> None:
        """Hand the chunk over, and complete it with the worker's result.

        Raises:
            ChunkPostponed: No worker has ended it.
            Rejected: ``chunk_too_large``, ``invalid_chunk_result``, ``invalid_action``, or the worker's final failure.
                Permanent.
            Contended: The worker's failure, or ``timeout``. Counts as an attempt.
        """
        batch_chunk, run = BatchChunk(chunk, self._audiences), chunk.run
        timeout = parse_duration(run.definition.get("timeout") or TIMEOUT)
        payload = await _payload(batch_chunk, has_audience=run.definition.get("audience") is not None)
        call = CallRequest(KIND, self._pool, run.name, payload, timeout, PATIENCE)
        result = _result_of(await self._calls.call(call), timeout)
        for action in result.actions:
            batch_chunk.act(action.client_id, action.payload)
        for one in result.skipped:
            batch_chunk.skip(one.client_id, one.problem)
        async with batch_chunk.transaction():
            pass


async def _payload(chunk: BatchChunk, *, has_audience: bool) -> str:
    """Return what the worker gets, as JSON."""
    head: Mapping[str, Any] = {
        "batch": chunk.run.batch,
        "execution_id": chunk.run.execution_id,
        "number": chunk.number,
        "slot_at": chunk.run.slot_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "version": chunk.run.version,
    }
    members, size = list[str](), 0
    if has_audience:
        async for member in chunk.members():
            members.append(json.dumps({"id": member.id, "fields": member.fields}, ensure_ascii=False))
            size += len(members[-1]) + 1
            if size > PAYLOAD_CHARS_MAX - 10_000:
                text = f"the members of a chunk have more than {PAYLOAD_CHARS_MAX} characters; make chunk_rows smaller"
                raise Rejected("chunk_too_large", text)
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "members": [{",".join(members)}]}}'


def _result_of(end: CallEnd, timeout: timedelta) -> _Result:
    match end.outcome:
        case "complete":
            try:
                return msgspec.convert({} if end.result is None else end.result, _Result)
            except msgspec.ValidationError as error:
                text = f"the remote worker's result is not one of a chunk: {error}"
                raise Rejected("invalid_chunk_result", text[:500]) from None
        case "fail":
            if end.final:
                raise Rejected(end.code, end.message)
            raise Contended(end.code, end.message, wait_s=end.wait_s or 0.0)
        case "timeout":
            raise Contended("timeout", f"the remote worker did not end the chunk within {timeout}")
        case "snooze":
            raise ChunkPostponed(end.wait)
        case _:
            raise ChunkPostponed(LATER, is_lost=end.outcome == "lost")


class _RemoteBatch(NamedTuple):
    name: str
    target: str
    needs: str | None


class RemoteBatches:
    """Implements :class:`tickwright.capabilities.batches.executions.work.RemoteWorks`.

    Args:
        has: What the process can read: ``source:NAME``, ``objects``.
    """

    def __init__(self, calls: RemoteCalls, audiences: Audiences, has: Collection[str]) -> None:
        self._calls, self._audiences, self._has = calls, audiences, has
        self._batches: Sequence[_RemoteBatch] = ()

    async def read(self, database: Pool | Connection) -> Callable[[], None]:
        """Read the batches with a target, also with the heartbeat; return what adopts them."""
        batches = [_RemoteBatch(*row) for row in await database.fetch(SQL["remote_batches"])]

        def adopt() -> None:
            self._batches = batches

        return adopt

    def served(self) -> Sequence[str]:
        """Return ``program:NAME`` of those that have a live worker, and whose audience this process can read."""
        return [
            f"program:{one.name}"
            for one in self._batches
            if (one.needs is None or one.needs in self._has) and self._calls.serves(KIND, one.target, one.name)
        ]

    def of(self, run: Run) -> BatchWork | None:
        """Return the work of an execution that began with a target."""
        pool = pool_of(run.definition.get("target"))
        return None if pool is None else RemoteBatchWork(self._calls, self._audiences, pool)
