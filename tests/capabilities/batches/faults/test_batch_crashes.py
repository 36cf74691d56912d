"""Consumers, producers and checkers are killed or stopped: each client has one action, each slot one execution."""

from datetime import timedelta
from pathlib import Path

import pytest

from kit.batches import AGAIN_S, MEMBERS, BatchWorld, Numbers, is_right, redone, sent_once, start
from kit.fanout import killed
from kit.fanout_worlds import killed_at_the_end, stopped
from kit.report_faults import wake
from kit.waiting import eventually_async

CONSUMER_POINTS = ("claimed", "cut", "chunk_claimed", "chunk_decided", "chunk_written", "chunk_done")
HOUR = "SELECT date_trunc('hour', clock_timestamp())"


async def begun(world: BatchWorld, name: str) -> int:
    """Start an execution of a batch of its own."""
    return await world.start(await world.put(name))


@pytest.mark.storm
async def test_a_killed_consumer_is_resumed_at_its_chunk(batches: BatchWorld, tmp_path: Path) -> None:
    """Kill -9 at every point between two effects: the same actions, once, and at most the open chunk runs again."""
    for point in CONSUMER_POINTS:
        child = start(batches, "consumer", tmp_path / f"{point}.log", BATCH_KILL_AT=f"batches.{point}")
        async with killed_at_the_end(child):
            await batches.pool.execute("DELETE FROM tickwright.batches")
            execution_id = await begun(batches, "numbers")
            await killed(child, within_s=60)
        heir = await batches.process(Numbers(members=MEMBERS))
        await batches.over(execution_id, AGAIN_S)
        await is_right(batches, execution_id)
        assert await redone(batches) <= 1, point
        await heir.stop()


async def test_ten_kills_in_one_execution_double_and_lose_nothing(batches: BatchWorld, tmp_path: Path) -> None:
    """Each kill costs the open chunk, and finished ones never run again."""
    await batches.process(Numbers(members=0), names=["others"])  # finds lost sessions while no consumer works
    execution_id = await begun(batches, "numbers")
    for number in range(5):
        variables = {"BATCH_KILL_AT": "batches.chunk_decided", "BATCH_TIMES": "2"}
        child = start(batches, "consumer", tmp_path / f"{number}.log", **variables)
        async with killed_at_the_end(child):
            await killed(child, within_s=AGAIN_S)
    await batches.process(Numbers(members=MEMBERS))
    await batches.over(execution_id, AGAIN_S)
    await is_right(batches, execution_id)
    assert await redone(batches) <= 5


async def test_a_consumer_that_slept_through_its_lease_writes_nothing(batches: BatchWorld, tmp_path: Path) -> None:
    """Stopped before its transaction, overtaken and resumed: its fence is old, and nothing counts twice."""
    child = start(batches, "consumer", tmp_path / "zombie.log", BATCH_STOP_AT="batches.chunk_decided")
    async with killed_at_the_end(child):
        execution_id = await begun(batches, "numbers")
        await stopped(child, within_s=60)
        await batches.process(Numbers(members=MEMBERS))
        await batches.over(execution_id, AGAIN_S)
        wake(child)
        log = tmp_path / "zombie.log"
        await eventually_async(lambda: b"lost" in log.read_bytes() or child.poll() is not None, AGAIN_S)
        await is_right(batches, execution_id)
    counts = await batches.pool.fetchval("SELECT sum(actions) FROM tickwright.execution_chunks")
    assert counts == MEMBERS // 2


async def test_a_killed_checker_releases_each_action_once(batches: BatchWorld, tmp_path: Path) -> None:
    """Kill -9 inside the transaction and after it; the next checker goes on from the table's state."""
    await batches.process(Numbers(members=MEMBERS))
    execution_id = await begun(batches, "numbers")
    await batches.over(execution_id)
    for number, point in enumerate(("releasing", "released", "releasing")):
        child = start(batches, "checker", tmp_path / f"{number}.log", BATCH_KILL_AT=f"batches.{point}", BATCH_TIMES="2")
        async with killed_at_the_end(child):
            await killed(child, within_s=AGAIN_S)
    child = start(batches, "checker", tmp_path / "heir.log")
    async with killed_at_the_end(child):
        await eventually_async(lambda: _all_released(batches, execution_id), AGAIN_S)
    await sent_once(batches, execution_id)


async def _all_released(world: BatchWorld, execution_id: int) -> bool:
    row = await world.execution(execution_id)
    return bool(row["chunks_released"] == row["chunks"])


async def test_a_killed_or_stopped_producer_makes_each_execution_once(batches: BatchWorld, tmp_path: Path) -> None:
    """Whether it had written or not, and also when it resumes while another producer runs."""
    hour = await batches.pool.fetchval(HOUR)
    first = hour - timedelta(hours=9)
    children = [
        start(batches, "producer", tmp_path / "a.log", BATCH_KILL_AT="batches.producing"),
        start(batches, "producer", tmp_path / "b.log", BATCH_KILL_AT="batches.written"),
        start(batches, "producer", tmp_path / "c.log", BATCH_STOP_AT="batches.written"),
    ]
    async with killed_at_the_end(*children):
        for number in range(20):
            await batches.put(
                f"b{number}", first_at=first, every=(1, "HOURS"), next_slot_at=first, misfire="all", overlap="queue"
            )
        for child in children[:2]:
            await killed(child, within_s=AGAIN_S)
        await stopped(children[2], within_s=AGAIN_S)
        heir = start(batches, "producer", tmp_path / "heir.log")
        async with killed_at_the_end(heir):
            await eventually_async(lambda: _nothing_due(batches), AGAIN_S)
            wake(children[2])
            await eventually_async(lambda: b"lost" in (tmp_path / "c.log").read_bytes(), AGAIN_S)
    counts = await batches.pool.fetch("SELECT count(*) AS n FROM tickwright.executions GROUP BY batch_id")
    assert [row["n"] for row in counts] == [10] * 20


async def _nothing_due(world: BatchWorld) -> bool:
    sql = "SELECT count(*) FROM tickwright.batches WHERE next_slot_at <= now()"
    return bool(await world.pool.fetchval(sql) == 0)
