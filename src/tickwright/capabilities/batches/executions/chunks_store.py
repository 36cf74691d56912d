"""The ledger of executions and their chunks for consumers: claims, and the results that are written under them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tickwright.capabilities.batches.executions.checker import refuse_too_large, report_end, report_failure
from tickwright.ports.batches import Action, ChunkResult, PlannedChunk, Run
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "chunks.sql")
HOLDINGS = (SQL["held"],)
SMALL = 16_384
"""Up to so many characters of JSON an action always fits into a message: four bytes each, kept in six times of that."""


class ChunkKey(NamedTuple):
    """One chunk of one execution, from 0 on."""

    execution_id: int
    number: int


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """What this process has claimed: before it, ``tries`` attempts failed, and ``lost`` sessions were lost with it."""

    run: Run
    fence: int
    tries: int
    lost: int


@dataclass(frozen=True, slots=True)
class PlanClaim(BatchClaim):
    """An execution, to be cut into chunks; or one that began and has them already."""

    is_to_be_planned: bool

    @property
    def key(self) -> int:
        """The execution's id."""
        return self.run.execution_id


@dataclass(frozen=True, slots=True)
class ChunkClaim(BatchClaim):
    """A chunk, and its value from the plan."""

    key: ChunkKey
    value: Mapping[str, Any]


class Failure(NamedTuple):
    """Why an attempt failed."""

    code: str
    message: str
    trace: str | None = None


class ChunksStore:
    """The rows of ``tickwright.executions`` and ``tickwright.execution_chunks``.

    Invariants:
        BCH-1: what the holder of a claim writes is written only while it has the claim.
        BCH-2: a chunk is done once, in the transaction that has its actions and counts it.
        BCH-3: one execution of a batch is at work at a time, the oldest slot first.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool, self.connect = pool, pool.acquire

    async def claim_execution(self, owner: int, served: Sequence[str], *, number: int = 0) -> PlanClaim | None:
        """Begin the next execution that this process can do, or claim one that has no chunks yet.

        Raises:
            asyncpg.UniqueViolationError: Another execution of its batch began at the same moment. Retry.
        """
        row = await self.pool.fetchrow(SQL["claim_execution"], owner, [*served], number)
        if row is None:
            return None
        return PlanClaim(_run(row, row["id"]), row["fence"], row["tries"], row["lost"], row["is_to_be_planned"])

    async def claim_chunk(
        self, owner: int, served: Sequence[str], *, number: int = 0, excluding: Sequence[int] = ()
    ) -> ChunkClaim | None:
        """Claim one chunk of any batch but these; ``None`` where none may be claimed now."""
        row = await self.pool.fetchrow(SQL["claim_chunk"], owner, [*served], number, [*excluding])
        if row is None:
            return None
        key = ChunkKey(row["execution_id"], row["number"])
        run, value = _run(row, key.execution_id), json.loads(row["value"])
        return ChunkClaim(run, row["fence"], row["tries"], row["lost"], key, value)

    async def next_in_s(self, served: Sequence[str], *, excluding: Sequence[int] = ()) -> float | None:
        """Return in how many seconds something may be claimed, ``None``: never. ``excluding`` are batches."""
        found: float | None = await self.pool.fetchval(SQL["next_in"], [*served], [*excluding])
        return found

    async def end_plan(self, claim: PlanClaim, owner: int, chunks: Sequence[PlannedChunk]) -> bool:
        """Write the chunks of an execution; false where the claim is lost."""
        async with self.pool.acquire() as connection, connection.transaction():
            if not await _wrote(connection, "lock", claim, owner):
                return False
            values = [json.dumps(chunk.value, ensure_ascii=False) for chunk in chunks]
            members = [chunk.members for chunk in chunks]
            await connection.execute(SQL["put_chunks"], claim.key, values, members)
            if await connection.fetchval(SQL["end_plan"], claim.key, len(chunks), sum(members)) == "FINISHED":
                await report_end(connection, claim.run)
        return True

    async def retry(self, claim: PlanClaim | ChunkClaim, owner: int, why: Failure, *, after_s: float) -> bool:
        """Write that an attempt failed; it is due again later; false where the claim is lost."""
        return await _wrote(self.pool, "retry", claim, owner, after_s, why.code, why.message)

    async def postpone(self, claim: ChunkClaim, owner: int, *, after_s: float, lost: int) -> bool:
        """Release a chunk that is due again later, which costs no try; false where the claim is lost."""
        return await _wrote(self.pool, "postpone", claim, owner, after_s, lost)

    async def fail(self, claim: PlanClaim | ChunkClaim, owner: int, why: Failure) -> bool:
        """Write that an attempt failed permanently, which ends the execution; false where the claim is lost."""
        async with self.pool.acquire() as connection, connection.transaction():
            if not await _wrote(connection, "fail", claim, owner, *why):
                return False
            await report_failure(connection, claim.run)
        return True

    async def release(self, claim: PlanClaim | ChunkClaim, owner: int) -> None:
        """Release it as if it had not been claimed."""
        if await _wrote(self.pool, "release", claim, owner):
            await self.pool.execute(SQL["wake"])

    async def confirm(
        self, owner: int, plans: Mapping[int, int], chunks: Mapping[ChunkKey, int]
    ) -> tuple[set[int], set[ChunkKey]]:
        """Return the plans and chunks, of those with these fences, that ``owner`` still has and that go on."""
        ids, numbers = [key.execution_id for key in chunks], [key.number for key in chunks]
        rows = await self.pool.fetch(SQL["confirm_chunks"], ids, numbers, [*chunks.values()], owner) if chunks else []
        own = await self.pool.fetch(SQL["confirm_plans"], [*plans], [*plans.values()], owner) if plans else []
        return {row["id"] for row in own}, {ChunkKey(*row) for row in rows}

    async def release_unknown(
        self, connection: Connection, owner: int, plans: Mapping[int, int], chunks: Mapping[ChunkKey, int]
    ) -> int:
        """Release what ``owner`` has beside the claims with these fences: the answer to a claim was lost."""
        ids, numbers = [key.execution_id for key in chunks], [key.number for key in chunks]
        returned = await connection.fetchval(SQL["release_unknown_chunks"], owner, ids, numbers, [*chunks.values()])
        returned += await connection.fetchval(SQL["release_unknown_plans"], owner, [*plans], [*plans.values()])
        if returned:
            await connection.execute(SQL["wake"])
        return int(returned)

    @staticmethod
    async def reclaim(connection: Connection, tokens: Sequence[int]) -> None:
        """Release what lost sessions had claimed; in the transaction that declares them lost."""
        await connection.execute(SQL["reclaim_chunks"], [*tokens])
        await connection.execute(SQL["reclaim_plans"], [*tokens])
        await connection.execute(SQL["wake"])


async def _wrote(where: Pool | Connection, verb: str, claim: PlanClaim | ChunkClaim, owner: int, *values: Any) -> bool:
    """Make a write about a plan or a chunk; false where the claim is lost."""
    noun, key = ("chunk", claim.key) if isinstance(claim, ChunkClaim) else ("plan", (claim.key,))
    return await where.fetchval(SQL[f"{verb}_{noun}"], *key, owner, claim.fence, *values) is not None


async def lock_chunk(connection: Connection, claim: ChunkClaim, owner: int) -> bool:
    """Begin the transaction that completes a chunk; false where the claim is lost."""
    return await _wrote(connection, "lock", claim, owner)


async def end_chunk(connection: Connection, claim: ChunkClaim, result: ChunkResult) -> str | None:
    """Write the result of a chunk, after :func:`lock_chunk`, and return the status of its execution.

    ``None``: that has ended, and the caller has to roll back.
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
    ids, clients = [action.client_id for action in actions], [action.client for action in actions]
    tag = await connection.execute(SQL["put_actions"], *key, ids, clients)
    large = [action.client_id for action in actions if len(action.client) > SMALL]
    await refuse_too_large(connection, key.execution_id, large)
    return int(tag.rpartition(" ")[2])


def _run(row: Any, execution_id: int) -> Run:
    snapshot = json.loads(row["snapshot"])
    codes = tuple(snapshot.get("product_codes", ()))
    return Run(execution_id, row["batch_id"], row["kind"], row["name"], row["version"], row["slot_at"], snapshot, codes)
