"""Mutants of batches: with a guard taken out, the check of its promise has to fail."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import MappingProxyType, ModuleType

import asyncpg
import pytest

from kit.batches import BatchWorld, Numbers
from tickwright.capabilities.batches.executions import checker, chunks_store, producer
from tickwright.capabilities.batches.executions.chunks_store import ChunkClaim, Failure
from tickwright.capabilities.batches.executions.consumer import ClaimedChunk
from tickwright.domain.errors import Contended
from tickwright.engine.claimed_work import Held
from tickwright.ports.batches import Action, ChunkResult

Check = Callable[[BatchWorld], Awaitable[None]]
SERVED = ["program:numbers"]


async def planned(world: BatchWorld, members: int = 20) -> int:
    """Return an execution that is cut into chunks and has no owner."""
    execution_id = await world.start(await world.put())
    plan = await world.store.claim_execution(1, SERVED)
    assert plan is not None
    chunks = [chunk async for chunk in Numbers(members=members).plan(plan.run)]
    assert await world.store.end_plan(plan, 1, chunks)
    return execution_id


async def claimed(world: BatchWorld, owner: int = 1) -> ChunkClaim:
    """Claim the next chunk."""
    claim = await world.store.claim_chunk(owner, SERVED)
    assert claim is not None
    return claim


async def complete(world: BatchWorld, claim: ChunkClaim, owner: int = 1) -> bool:
    """Complete a chunk with one action; return whether that counted."""
    result = ChunkResult(seen=10, selected=1, actions=[Action(str(claim.key.number), "{}")])
    try:
        async with ClaimedChunk(world.pool, Held(claim, owner)).complete(result):
            pass
    except Contended:
        return False
    return True


# ---------------------------------------------------------------------------------------------- what has to hold


async def check_an_old_fence_completes_nothing(world: BatchWorld) -> None:
    """BCH-1: an overtaken consumer writes nothing, also under the same session."""
    execution_id = await planned(world)
    old = await claimed(world)
    await world.pool.execute("UPDATE tickwright.execution_chunks SET state = 'waiting', owner = NULL")
    new = await claimed(world)
    assert old.key == new.key
    assert not await complete(world, old), "BCH-1 broken: an old fence completed a chunk"
    assert await complete(world, new)
    assert (await world.execution(execution_id))["actions"] == 1


async def check_an_old_fence_fails_nothing(world: BatchWorld) -> None:
    """BCH-1: nor does it end the execution, or release another consumer's chunk."""
    execution_id = await planned(world)
    old = await claimed(world)
    await world.pool.execute("UPDATE tickwright.execution_chunks SET state = 'waiting', owner = NULL")
    new = await claimed(world)
    assert not await world.store.fail(old, 1, Failure("x", "y")), "BCH-1 broken: an old fence failed it"
    await world.store.release(old, 1)
    assert not await world.store.retry(old, 1, Failure("x", "y"), after_s=0), "BCH-1 broken: an old fence delayed it"
    assert await complete(world, new), "BCH-1 broken: an old fence released it"
    assert (await world.execution(execution_id))["status"] == "IN_PROGRESS"


async def check_a_stopped_execution_counts_nothing(world: BatchWorld) -> None:
    """BCK-2, BOC-1: a chunk that completes after a stop is rolled back with its actions."""
    execution_id = await planned(world)
    claim = await claimed(world)
    await world.end(execution_id)
    assert not await complete(world, claim), "BOC-1 broken: a chunk counted after the stop"
    assert await world.actions(execution_id) == []


async def check_one_execution_is_at_work(world: BatchWorld) -> None:
    """BCH-3: the second execution of a batch waits for the first."""
    batch_id = await world.put()
    for _ in range(2):
        await world.start(batch_id)
    first = await world.store.claim_execution(1, SERVED)
    assert first is not None
    try:
        second = await world.store.claim_execution(1, SERVED)
    except asyncpg.UniqueViolationError:
        second = first
    assert second is None, "BCH-3 broken: the query offers a second one, and only the index refuses it"


async def check_a_paused_execution_rests(world: BatchWorld) -> None:
    """No chunk of it is claimed."""
    await planned(world)
    await world.pool.execute("UPDATE tickwright.executions SET paused_at = clock_timestamp()")
    assert await world.store.claim_chunk(1, SERVED) is None, "a pause does not hold"


async def check_a_rate_holds(world: BatchWorld) -> None:
    """Over all consumers together."""
    await planned(world)
    await world.pool.execute("UPDATE tickwright.executions SET snapshot = snapshot || '{\"rate_per_s\": 1}'")
    await claimed(world, 1)
    assert await world.store.claim_chunk(2, SERVED) is None, "a second chunk within the rate's time"


async def check_a_batch_with_all_its_slots_is_skipped(world: BatchWorld) -> None:
    """BCO-4: a free slot goes to batches that have none."""
    await planned(world)
    held = (await claimed(world)).run.batch_id
    assert await world.store.next_in_s(SERVED, excluding=[held]) is None, "a full batch is reported as due"
    assert await world.store.claim_chunk(1, SERVED, excluding=[held]) is None, "BCO-4 broken: it took one slot more"


async def check_batches_of_other_processes_are_not_claimed(world: BatchWorld) -> None:
    """A process takes only batches that it serves."""
    await world.start(await world.put())
    assert await world.store.claim_execution(1, ["program:others"]) is None, "it took a batch that it does not serve"


async def check_a_lost_plan_is_not_written(world: BatchWorld) -> None:
    """BCH-1: a consumer that was overtaken while it cut the plan writes no chunks."""
    execution_id = await world.start(await world.put())
    old = await world.store.claim_execution(1, SERVED)
    await world.pool.execute("UPDATE tickwright.executions SET owner = NULL")
    new = await world.store.claim_execution(1, SERVED)
    assert old is not None
    assert new is not None
    assert not await world.store.end_plan(old, 1, []), "BCH-1 broken: an old fence cut it"
    assert (await world.execution(execution_id))["status"] == "IN_PROGRESS"


async def check_only_lost_sessions_are_reclaimed(world: BatchWorld) -> None:
    """A live session keeps its chunks."""
    await planned(world)
    mine = await claimed(world, 7)
    await claimed(world, 8)
    async with world.pool.acquire() as connection, connection.transaction():
        await world.store.reclaim(connection, [8])
    assert await complete(world, mine, 7), "a live session's chunk was reclaimed"
    assert (await claimed(world, 9)).key.number == 1


async def check_actions_wait_for_the_end(world: BatchWorld) -> None:
    """BCK-1: no action of an open execution leaves, unless the batch says so."""
    await planned(world)
    assert await complete(world, await claimed(world))
    await world.check()
    assert await world.sent() == [], "BCK-1 broken: an action left before the end"


async def check_actions_leave_once(world: BatchWorld) -> None:
    """BCK-1: also where two checkers believe that they hold the lease."""
    execution_id = await planned(world)
    for _ in range(2):
        assert await complete(world, await claimed(world))
    await asyncio.gather(world.check(owner="a"), world.check(owner="b"))
    await world.check()
    keys = sorted(one["key"] for one in await world.sent())
    assert keys == [f"{execution_id}:0", f"{execution_id}:1"], "BCK-1 broken: an action left twice, or not at all"


async def check_slots_move_on(world: BatchWorld) -> None:
    """BPR-2: a slot that was produced is not produced again."""
    hour = await world.pool.fetchval("SELECT date_trunc('hour', clock_timestamp())")
    columns = {"first_at": hour, "every": (1, "HOURS"), "next_slot_at": hour, "grace": timedelta(hours=2)}
    batch_id = await world.put(**columns)
    await world.produce()
    await world.pool.execute("DELETE FROM tickwright.executions")
    await world.produce()
    sql = "SELECT count(*) FROM tickwright.executions WHERE batch_id = $1"
    assert await world.pool.fetchval(sql, batch_id) == 0, "BPR-2 broken: a slot was produced again"


MUTANTS: list[tuple[str, ModuleType, str, str, str, Check]] = [
    ("a chunk without its fence", chunks_store, "lock_chunk", "AND fence = $4", "AND $4::bigint > 0",
     check_an_old_fence_completes_nothing),
    ("a failure without its fence", chunks_store, "fail_chunk", "AND fence = $4", "AND $4::bigint > 0",
     check_an_old_fence_fails_nothing),
    ("a delay without its fence", chunks_store, "retry_chunk", "AND fence = $4", "AND $4::bigint > 0",
     check_an_old_fence_fails_nothing),
    ("a release without its fence", chunks_store, "release_chunk", "AND fence = $4", "AND $4::bigint > 0",
     check_an_old_fence_fails_nothing),
    ("a stop is ignored", chunks_store, "count_chunk",
     "AND status IN ('NEW', 'IN_PROGRESS', 'EXCEPTION_OCCURRED')", "",
     check_a_stopped_execution_counts_nothing),
    ("two at work", chunks_store, "claim_execution", "AND NOT EXISTS", "AND EXISTS (SELECT 1) OR NOT EXISTS",
     check_one_execution_is_at_work),
    ("a pause is ignored", chunks_store, "claim_chunk", "AND e.paused_at IS NULL", "",
     check_a_paused_execution_rests),
    ("no rate", chunks_store, "claim_chunk", "AND e.next_chunk_at <= clock_timestamp()", "", check_a_rate_holds),
    ("a full batch takes more", chunks_store, "claim_chunk", "e.batch_id <> ALL ($4::bigint[])",
     "$4::bigint[] IS NOT NULL", check_a_batch_with_all_its_slots_is_skipped),
    ("a full batch is due", chunks_store, "next_in", "e.batch_id <> ALL ($2::bigint[])", "$2::bigint[] IS NOT NULL",
     check_a_batch_with_all_its_slots_is_skipped),
    ("any batch is claimed", chunks_store, "claim_execution", "= ANY ($2::text[])", "<> ALL ($2::text[])",
     check_batches_of_other_processes_are_not_claimed),
    ("a plan without its fence", chunks_store, "lock_plan", "AND fence = $3", "AND $3::bigint > 0",
     check_a_lost_plan_is_not_written),
    ("all sessions are reclaimed", chunks_store, "reclaim_chunks", "WHERE owner = ANY ($1::bigint[])",
     "WHERE owner IS NOT NULL AND $1::bigint[] IS NOT NULL", check_only_lost_sessions_are_reclaimed),
    ("actions do not wait", checker, "next_chunk", "e.snapshot #>> '{action,release}' = 'chunk'", "true",
     check_actions_wait_for_the_end),
    ("a released chunk is not marked", checker, "note_released", "SET state = 'released'", "SET state = state",
     check_actions_leave_once),
    ("slots stay", producer, "move_slots", "SET next_slot_at = u.next_slot_at", "SET next_slot_at = b.next_slot_at",
     check_slots_move_on),
]  # fmt: skip


@pytest.mark.parametrize("check", sorted({mutant[-1] for mutant in MUTANTS}, key=repr))
async def test_the_promise_holds(batches: BatchWorld, check: Check) -> None:
    """With every guard in its place."""
    await check(batches)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
async def test_a_mutant_is_caught(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, ModuleType, str, str, str, Check]
) -> None:
    """Without the guard the check fails and says which promise is broken."""
    _, module, name, guard, instead, check = mutant
    text = module.SQL[name]
    assert guard in text, "the mutation no longer fits the statement"
    monkeypatch.setattr(module, "SQL", MappingProxyType({**module.SQL, name: text.replace(guard, instead)}))
    with pytest.raises(AssertionError):
        await check(batches)
