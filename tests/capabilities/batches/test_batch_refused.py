"""When PostgreSQL refuses to release actions, only that action or that execution is affected."""

import pytest

from kit.batches import BatchWorld, Numbers
from kit.waiting import eventually_async
from tickwright.capabilities.batches.executions.executions import Executions
from tickwright.store.paging import Cursors

LARGE = """
UPDATE tickwright.execution_actions SET client = ('[' || repeat('1e131071,', 40) || '1]')::jsonb
 WHERE client_id = $1 AND execution_id = $2
"""
RATE = """
UPDATE tickwright.batches SET definition = definition || jsonb_build_object('rate_per_s', $2::jsonb) WHERE id = $1
"""
FINISH = """
UPDATE tickwright.executions SET status = 'FINISHED', finished_at = now() WHERE id = $1 AND status = 'IN_PROGRESS'
"""
LEFT = "SELECT payload ->> 'client_id' AS client_id FROM {table} WHERE payload ->> 'campaign' = $1"
TABLES = {"pg:actions": "tickwright.outbox", "python:act": "tickwright.scheduled_tasks"}


async def finished(batches: BatchWorld, name: str, **definition: object) -> int:
    """Return a finished execution of five members: 0, 2 and 4 have actions, that of 4 in another chunk."""
    await batches.process(Numbers(members=5, chunk_rows=4), names=[name])
    execution_id = await batches.start(await batches.put(name, definition))
    assert (await batches.over(execution_id))["status"] == "FINISHED"
    return execution_id


async def explained(batches: BatchWorld, execution_id: int) -> str:
    """Return the explanation of an execution."""
    reasons = (await Executions(batches.pool, Cursors(batches.pool)).explain(execution_id)).reasons
    return "\n".join(reason.text for reason in reasons)


async def left(batches: BatchWorld, name: str, target: str) -> list[str]:
    """Return the clients whose actions have left."""
    rows = await batches.pool.fetch(LEFT.format(table=TABLES[target]), name)
    return sorted(row["client_id"] for row in rows)


@pytest.mark.parametrize("target", TABLES)
async def test_an_action_that_is_too_large_blocks_no_other(batches: BatchWorld, target: str) -> None:
    """BCK-3: it alone stays, the problems of its execution name it, and other executions are released."""
    bad = await finished(batches, "bad", action={"target": target, "release": "finished"})
    good = await finished(batches, "good", action={"target": target, "release": "finished"})
    await batches.pool.execute(LARGE, "2", bad)
    await batches.check()
    assert await left(batches, "bad", target) == ["0", "4"]
    assert await left(batches, "good", target) == ["0", "2", "4"]
    row = await batches.execution(bad)
    assert (row["actions"], row["released"], row["chunks_released"], row["status"]) == (3, 2, 2, "FINISHED")
    assert (await batches.execution(good))["released"] == 3
    problems = await batches.pool.fetchval(
        "SELECT problems FROM tickwright.execution_chunks WHERE problems IS NOT NULL"
    )
    assert '"client_id": "2"' in problems
    assert "larger than 1 MiB" in problems
    executions = Executions(batches.pool, Cursors(batches.pool))
    said = {one.client_id: one.released for one in (await executions.actions(bad)).items}
    assert said == {"0": True, "2": False, "4": True}
    assert [one.released for one in (await executions.actions(bad, client_id="2")).items] == [False]
    explanation = await explained(batches, bad)
    assert "1 of its 3 actions were never released; they are too large" in explanation


async def test_an_execution_that_is_refused_as_a_whole_blocks_no_other(batches: BatchWorld) -> None:
    """BCK-3: it is set aside with the reason, and is released once the reason is gone."""
    bad = await finished(batches, "bad", action={"target": "python:no type", "release": "finished"})
    good = await finished(batches, "good")
    await batches.check()
    assert await left(batches, "good", "pg:actions") == ["0", "2", "4"]
    row = await batches.execution(bad)
    assert (row["error_code"], row["released"], row["status"]) == ("not_released", 0, "FINISHED")
    assert "task_type" in row["error_message"]
    assert "its actions cannot leave: job refused: task_type" in await explained(batches, bad)
    await batches.pool.execute(
        "UPDATE tickwright.executions SET next_release_at = now(),"
        " snapshot = jsonb_set(snapshot, '{action,target}', '\"python:act\"') WHERE id = $1", bad,
    )  # fmt: skip
    await batches.check()
    assert await left(batches, "bad", "python:act") == ["0", "2", "4"]
    row = await batches.execution(bad)
    assert (row["error_code"], row["error_message"], row["released"]) == (None, None, 3)
    assert (await batches.execution(good))["released"] == 3


async def test_jobs_of_an_encrypted_type_do_not_leave_and_block_no_other(batches: BatchWorld) -> None:
    """BCK-3: where the type became encrypted after the definition, the execution keeps its actions and says why."""
    await batches.pool.execute(
        "INSERT INTO tickwright.task_types (name, target, encrypted) VALUES ('secret', 'python:secret', true)"
    )
    bad = await finished(batches, "bad", action={"target": "python:secret", "release": "finished"})
    await finished(batches, "good")
    await batches.check()
    assert await left(batches, "good", "pg:actions") == ["0", "2", "4"]
    row = await batches.execution(bad)
    assert (row["error_code"], row["released"], row["status"]) == ("not_released", 0, "FINISHED")
    assert "its task type is encrypted" in await explained(batches, bad)
    assert await left(batches, "bad", "python:act") == []


@pytest.mark.parametrize("rate", ["1e-20", "5e-324", "1e-400", "1e400", "0", "null"])
async def test_an_extreme_rate_blocks_no_other_execution(batches: BatchWorld, rate: str) -> None:
    """For a stored rate: the next release stays within what a timestamp holds, and others are released."""
    work = Numbers(members=5, chunk_rows=4)
    await batches.process(work, names=["bad", "good"])
    bad_batch, good_batch = await batches.put("bad"), await batches.put("good")
    await batches.pool.execute(RATE, bad_batch, rate)
    bad, good = await batches.start(bad_batch), await batches.start(good_batch)
    await batches.over(good)
    await eventually_async(lambda: (bad, 0) in work.log)
    await batches.pool.execute(FINISH, bad)

    async def released() -> bool:
        await batches.check()  # skips executions that a consumer has locked
        rows = [await batches.execution(one) for one in (bad, good)]
        return bool(rows[0]["chunks_released"] > 0 and rows[1]["released"] == 3)

    await eventually_async(released)
