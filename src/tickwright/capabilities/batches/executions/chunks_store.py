"""The ledger of executions and their chunks, as consumers see it: who works on what, under which claim."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tickwright.capabilities.batches.executions.checker import refuse_too_large, tell_ended, tell_failed
from tickwright.ports.batches import Action, ChunkResult, PlannedChunk, Run
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "chunks.sql")
SMALL = 16_384
"""Characters of JSON of which a message is never too large: up to four bytes each, kept in up to six times of that."""


class ChunkKey(NamedTuple):
    """One chunk of one execution, from 0 on."""

    execution_id: int
    number: int


@dataclass(frozen=True, slots=True)
class PlanClaim:
    """An execution in this process's hands, to be cut into chunks; or one that began and has them already.

    Attributes:
        tries: Attempts before this one that failed.
        lost: Processes that went away with it.
    """

    run: Run
    fence: int
    tries: int
    lost: int
    is_to_be_planned: bool

    @property
    def key(self) -> int:
        """The execution's id."""
        return self.run.execution_id


@dataclass(frozen=True, slots=True)
class ChunkClaim:
    """A chunk in this process's hands; ``tries`` and ``lost`` as those of an execution."""

    run: Run
    key: ChunkKey
    value: Mapping[str, Any]
    fence: int
    tries: int
    lost: int


class Failure(NamedTuple):
    """Why an execution cannot go on; the trace is for people."""

    code: str
    message: str
    trace: str | None = None


class ChunksStore:
    """The rows of ``tickwright.executions`` and ``tickwright.execution_chunks``.

    Invariants:
        BCH-1: what a claim's holder writes is written only while the claim is his.
        BCH-2: a chunk is done once, in the transaction that has its actions and counts it.
        BCH-3: one execution of a batch is at work at a time, the oldest slot first.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.connect = pool.acquire

    @property
    def pool(self) -> Pool:
        """Where transactions of chunks come from."""
        return self._pool

    async def claim_execution(self, owner: int, served: Sequence[str], *, number: int = 0) -> PlanClaim | None:
        """Begin the next execution that this process can do, or take one that has no chunks yet.

        Raises:
            asyncpg.UniqueViolationError: Another one of its batch began at the same moment. Look again.
        """
        row = await self._pool.fetchrow(SQL["claim_execution"], owner, [*served], number)
        if row is None:
            return None
        return PlanClaim(_run(row, row["id"]), row["fence"], row["tries"], row["lost"], row["is_to_be_planned"])

    async def claim_chunk(
        self, owner: int, served: Sequence[str], *, number: int = 0, but: Sequence[int] = ()
    ) -> ChunkClaim | None:
        """Take one chunk of any batch but these; ``None`` where none may be taken at this moment."""
        row = await self._pool.fetchrow(SQL["claim_chunk"], owner, [*served], number, [*but])
        if row is None:
            return None
        key = ChunkKey(row["execution_id"], row["number"])
        return ChunkClaim(
            _run(row, key.execution_id), key, json.loads(row["value"]), row["fence"], row["tries"], row["lost"]
        )

    async def next_in_s(self, served: Sequence[str], *, but: Sequence[int] = ()) -> float | None:
        """Return in how many seconds something may be taken, no chunks of the batches ``but``.

        Returns:
            0 or less for now; ``None`` when there is nothing.
        """
        found: float | None = await self._pool.fetchval(SQL["next_in"], [*served], [*but])
        return found

    # ------------------------------------------------------------------ plans

    async def end_plan(self, claim: PlanClaim, owner: int, chunks: Sequence[PlannedChunk]) -> bool:
        """Write the chunks of an execution; false where it was not ours any more."""
        async with self._pool.acquire() as connection, connection.transaction():
            execution_id = claim.run.execution_id
            if await connection.fetchval(SQL["lock_plan"], execution_id, owner, claim.fence) is None:
                return False
            values = [json.dumps(chunk.value, ensure_ascii=False) for chunk in chunks]
            members = [chunk.members for chunk in chunks]
            await connection.execute(SQL["put_chunks"], execution_id, 0, values, members)
            if await connection.fetchval(SQL["end_plan"], execution_id, len(chunks), sum(members)) == "FINISHED":
                await tell_ended(connection, claim.run)
        return True

    async def plan_later(self, claim: PlanClaim, owner: int, why: Failure, *, after_s: float) -> bool:
        """Write that cutting it did not work this time."""
        key = (claim.run.execution_id, owner, claim.fence)
        return await self._wrote("plan_later", *key, after_s, why.code, why.message)

    async def plan_failed(self, claim: PlanClaim, owner: int, why: Failure) -> bool:
        """Write that cutting it will never work."""
        return await self._failed("plan_failed", claim.run, claim.run.execution_id, owner, claim.fence, *why)

    async def release_plan(self, claim: PlanClaim, owner: int) -> None:
        """Give it back as if it had not been taken."""
        if await self._wrote("release_plan", claim.run.execution_id, owner, claim.fence):
            await self._pool.execute(SQL["ring"])

    # ------------------------------------------------------------------ chunks

    async def chunk_later(self, claim: ChunkClaim, owner: int, why: str, *, after_s: float) -> bool:
        """Write that an attempt failed; it is due again later."""
        return await self._wrote("chunk_later", *claim.key, owner, claim.fence, after_s, why)

    async def chunk_failed(self, claim: ChunkClaim, owner: int, why: Failure) -> bool:
        """Write that the last attempt failed, which ends the execution; false where it has ended or is not ours."""
        return await self._failed("chunk_failed", claim.run, *claim.key, owner, claim.fence, *why)

    async def release_chunk(self, claim: ChunkClaim, owner: int) -> None:
        """Give it back as if it had not been begun."""
        if await self._wrote("release_chunk", *claim.key, owner, claim.fence):
            await self._pool.execute(SQL["ring"])

    async def kept(
        self, owner: int, plans: Mapping[int, int], chunks: Mapping[ChunkKey, int]
    ) -> tuple[set[int], set[ChunkKey]]:
        """Return which plans and chunks, by their fences, are still ours and of executions that go on."""
        ids, numbers = [key.execution_id for key in chunks], [key.number for key in chunks]
        rows = await self._pool.fetch(SQL["kept_chunks"], ids, numbers, [*chunks.values()], owner) if chunks else []
        own = await self._pool.fetch(SQL["kept_plans"], [*plans], [*plans.values()], owner) if plans else []
        return {row["id"] for row in own}, {ChunkKey(*row) for row in rows}

    async def give_back_strays(
        self, connection: Connection, owner: int, plans: Mapping[int, int], chunks: Mapping[ChunkKey, int]
    ) -> int:
        """Give back what is said to be ours beside what is known, by fences: the answer to a claim was lost."""
        ids, numbers = [key.execution_id for key in chunks], [key.number for key in chunks]
        returned = await connection.fetchval(SQL["stray_chunks"], owner, ids, numbers, [*chunks.values()])
        returned += await connection.fetchval(SQL["stray_plans"], owner, [*plans], [*plans.values()])
        if returned:
            await connection.execute(SQL["ring"])
        return int(returned)

    async def reclaim(self, connection: Connection, tokens: Sequence[int]) -> None:
        """Give back what lost sessions held; in the transaction that declares them lost."""
        await connection.execute(SQL["reclaim_chunks"], [*tokens])
        await connection.execute(SQL["reclaim_plans"], [*tokens])
        await connection.execute(SQL["ring"])

    async def _failed(self, name: str, run: Run, *values: Any) -> bool:
        async with self._pool.acquire() as connection, connection.transaction():
            if await connection.fetchval(SQL[name], *values) is None:
                return False
            await tell_failed(connection, run)
        return True

    async def _wrote(self, name: str, *values: Any) -> bool:
        return await self._pool.fetchval(SQL[name], *values) is not None


async def lock_chunk(connection: Connection, claim: ChunkClaim, owner: int) -> bool:
    """Begin the transaction that completes a chunk; false where it is somebody else's by now."""
    return await connection.fetchval(SQL["lock_chunk"], *claim.key, owner, claim.fence) is not None


async def end_chunk(connection: Connection, claim: ChunkClaim, result: ChunkResult) -> str | None:
    """Write what came of a chunk, behind :func:`lock_chunk`.

    Returns:
        The status of its execution; ``None`` where that has ended, and the caller has to roll back.
    """
    actions = await _put_actions(connection, claim.key, result.actions)
    problems = json.dumps(result.problems, ensure_ascii=False) if result.problems else None
    counts = (result.seen, result.selected, result.missing, result.skipped, actions)
    await connection.execute(SQL["end_chunk"], *claim.key, *counts, problems)
    status: str | None = await connection.fetchval(SQL["count_chunk"], claim.key.execution_id, *counts)
    return status


async def _put_actions(connection: Connection, key: ChunkKey, actions: Sequence[Action]) -> int:
    if not actions:
        return 0
    ids, clients = [one.client_id for one in actions], [one.client for one in actions]
    tag = await connection.execute(SQL["put_actions"], *key, ids, clients)
    await refuse_too_large(connection, key.execution_id, [one.client_id for one in actions if len(one.client) > SMALL])
    return int(tag.rpartition(" ")[2])


def _run(row: Any, execution_id: int) -> Run:
    snapshot = json.loads(row["snapshot"])
    codes = tuple(snapshot.get("product_codes", ()))
    return Run(execution_id, row["batch_id"], row["kind"], row["name"], row["version"], row["slot_at"], snapshot, codes)
