"""The alerts of batches fire during a fault, name it, and clear after it."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from kit.alerts import RULES
from kit.batches import BatchWorld, Numbers
from kit.leases import LONG
from tickwright.capabilities.batches.executions.executions import Executions
from tickwright.capabilities.batches.executions.states import ExecutionAction
from tickwright.capabilities.operations.alerts.alerting import Alerting
from tickwright.engine.leases import Lease, Leases
from tickwright.ports.caller import Caller, Role
from tickwright.process.installation import overview_parts
from tickwright.process.watching import DatabaseReadings
from tickwright.store.paging import Cursors

ADMIN = Caller("ann", Role.ADMIN)
LATE = "UPDATE tickwright.executions SET due_at = now() - interval '11 minutes' WHERE id = $1"
AT_WORK = """
UPDATE tickwright.executions SET status = 'IN_PROGRESS', started_at = now() - interval '1 hour',
       planned_at = now() - interval '1 hour', next_chunk_at = now() - interval '1 hour', chunks = 10, chunks_done = 1,
       due_at = now() - interval '1 hour'
 WHERE id = $1
"""
FINISHED_LONG_AGO = """
UPDATE tickwright.executions
   SET finished_at = finished_at - ago.span, next_release_at = next_release_at - ago.span
  FROM (SELECT interval '3 hours' AS span) AS ago
"""
AGED = """
WITH chunks AS (UPDATE tickwright.execution_chunks SET done_at = done_at - interval '20 hours' WHERE execution_id = $1)
UPDATE tickwright.executions SET started_at = now() - interval '20 hours', planned_at = now() - interval '20 hours',
       due_at = now() - interval '20 hours', next_chunk_at = now() - interval '20 hours' WHERE id = $1
"""
CHUNK = """
INSERT INTO tickwright.execution_chunks (execution_id, number, value, state, done_at)
VALUES ($1, $2, '{}', 'done', now() - make_interval(mins => $3))
"""


class Watch:
    """Alerts of one world, evaluated when a test wants it."""

    def __init__(self, world: BatchWorld, lease: Lease) -> None:
        self._pool, self._lease = world.pool, lease

    async def firing(self, rule: str) -> dict[str, str]:
        """Return the subjects for which a rule fires now, with their summaries."""
        rules = [one for one in RULES if one.name == rule]
        await Alerting(Leases(self._pool, owner="test"), rules=rules).round(self._lease)
        asked = "SELECT subject, summary FROM tickwright.alerts WHERE rule = $1 AND state = 'firing'"
        found = {row["subject"]: row["summary"] for row in await self._pool.fetch(asked, rule)}
        assert not any("?" in summary for summary in found.values()), found
        return found


@pytest.fixture
async def watch(batches: BatchWorld) -> AsyncIterator[Watch]:
    """The alerts of the world."""
    lease = await Leases(batches.pool, owner="test", terms=LONG).take("alerting")
    assert lease is not None
    yield Watch(batches, lease)
    await lease.release()


async def test_a_failed_execution_is_named_until_it_is_retried(batches: BatchWorld, watch: Watch) -> None:
    """With its last error; after a day the alert ends."""
    execution_id = await batches.start(await batches.put())
    assert await watch.firing("execution_failed") == {}
    await batches.end(execution_id, "EXCEPTION_OCCURRED")
    await batches.pool.execute("UPDATE tickwright.executions SET error_message = 'it is broken'")
    said = (await watch.firing("execution_failed"))["numbers"]
    assert said.startswith("1 executions of numbers failed")
    assert said.endswith(f"the last one {execution_id}: it is broken")
    await batches.pool.execute("UPDATE tickwright.executions SET finished_at = now() - interval '25 hours'")
    assert await watch.firing("execution_failed") == {}
    await batches.pool.execute("UPDATE tickwright.executions SET finished_at = NULL, status = 'NEW'")
    assert await watch.firing("execution_failed") == {}


async def test_an_execution_that_is_due_and_not_begun_is_named(batches: BatchWorld, watch: Watch) -> None:
    """Not in its first ten minutes, and not while it is paused."""
    execution_id = await batches.start(await batches.put())
    assert await watch.firing("execution_backlog") == {}
    await batches.pool.execute(LATE, execution_id)
    assert list(await watch.firing("execution_backlog")) == ["numbers"]
    await batches.pool.execute("UPDATE tickwright.executions SET paused_at = now()")
    assert await watch.firing("execution_backlog") == {}


async def test_a_stalled_execution_is_named(batches: BatchWorld, watch: Watch) -> None:
    """Ten minutes without a finished chunk; not because of a pause or a rate."""
    execution_id = await batches.start(await batches.put())
    await batches.pool.execute(AT_WORK, execution_id)
    await batches.pool.execute(CHUNK, execution_id, 0, 11)
    said = (await watch.firing("execution_stalled"))["numbers"]
    assert "1 of 10 chunks are done" in said
    await batches.pool.execute("UPDATE tickwright.executions SET next_chunk_at = now() + interval '1 minute'")
    assert await watch.firing("execution_stalled") == {}
    await batches.pool.execute("UPDATE tickwright.executions SET next_chunk_at = now(), paused_at = now()")
    assert await watch.firing("execution_stalled") == {}
    await batches.pool.execute("UPDATE tickwright.executions SET paused_at = NULL")
    assert await watch.firing("execution_stalled")
    await batches.pool.execute(CHUNK, execution_id, 1, 1)
    assert await watch.firing("execution_stalled") == {}


async def test_a_resume_and_a_retry_begin_the_time_of_an_execution_again(batches: BatchWorld, watch: Watch) -> None:
    """After either it is neither stalled nor late until it has waited again."""
    executions = Executions(batches.pool, Cursors(batches.pool))
    execution_id = await batches.start(await batches.put())

    async def named() -> list[str]:
        return [rule for rule in ("execution_backlog", "execution_stalled") if await watch.firing(rule)]

    for at_work in (False, True):
        if at_work:
            await batches.pool.execute(AT_WORK, execution_id)
        await executions.act(ExecutionAction.PAUSE, execution_id, caller=ADMIN)
        await batches.pool.execute(AGED, execution_id)
        await executions.act(ExecutionAction.RESUME, execution_id, caller=ADMIN)
        assert await named() == []
        await batches.pool.execute(AGED, execution_id)
        assert await named() == ["execution_stalled" if at_work else "execution_backlog"]
    await batches.end(execution_id, "EXCEPTION_OCCURRED")
    await executions.act(ExecutionAction.RETRY, execution_id, caller=ADMIN)
    await batches.pool.execute("UPDATE tickwright.executions SET status = 'IN_PROGRESS'")  # as a claim does
    assert await named() == []


async def test_a_retried_execution_that_waited_for_another_is_not_stalled_at_once(
    batches: BatchWorld, watch: Watch
) -> None:
    """Its time begins with its claim, not with its retry: until then another execution of its batch was at work."""
    execution_id = await batches.start(await batches.put())
    await batches.pool.execute(AT_WORK, execution_id)
    await batches.end(execution_id, "EXCEPTION_OCCURRED")
    await Executions(batches.pool, Cursors(batches.pool)).act(ExecutionAction.RETRY, execution_id, caller=ADMIN)
    await batches.pool.execute(AGED, execution_id)
    assert await batches.store.claim_execution(1, ["program:numbers"])
    assert (await batches.execution(execution_id))["status"] == "IN_PROGRESS"
    assert await watch.firing("execution_stalled") == {}
    await batches.pool.execute(AGED, execution_id)
    assert list(await watch.firing("execution_stalled")) == ["numbers"]


async def test_batches_without_a_scheduler_are_an_alert(batches: BatchWorld, watch: Watch) -> None:
    """Due batches do not begin and no action leaves; a pause and a producer that has just begun are no fault."""
    await batches.process(Numbers())
    first = await batches.start(await batches.put("numbers"))
    await batches.over(first)
    assert await watch.firing("scheduler_stopped") == {}
    await batches.pool.execute(FINISHED_LONG_AGO)
    said = await watch.firing("scheduler_stopped")
    assert said["campaign-checker"].startswith("Actions of executions do not leave: no process is the campaign-checker")
    executions = Executions(batches.pool, Cursors(batches.pool))
    assert "no_checker" in {reason.code for reason in (await executions.explain(first)).reasons}
    await executions.act(ExecutionAction.PAUSE, first, caller=ADMIN)
    assert await watch.firing("scheduler_stopped") == {}
    due = "UPDATE tickwright.batches SET status = 'SCHEDULED', next_slot_at = now() - $1::interval"
    await batches.pool.execute(due, timedelta(minutes=1))
    assert list(await watch.firing("scheduler_stopped")) == ["campaign-producer"]
    lease = await Leases(batches.pool, owner="test", terms=LONG).take("campaign-producer")
    assert lease is not None
    assert await watch.firing("scheduler_stopped") == {}
    await batches.pool.execute(due, timedelta(minutes=11))
    assert list(await watch.firing("scheduler_stopped")) == ["campaign-producer"]
    await lease.release()


async def test_an_execution_that_cannot_be_cut_is_named(batches: BatchWorld, watch: Watch) -> None:
    """Each attempt moves its due instant and is no progress."""
    execution_id = await batches.start(await batches.put())
    await batches.pool.execute(AT_WORK, execution_id)
    later = "UPDATE tickwright.executions SET planned_at = NULL, tries = 3, due_at = now() + interval '8 seconds'"
    await batches.pool.execute(later)
    assert list(await watch.firing("execution_stalled")) == ["numbers"]


async def test_the_backlog_of_executions_is_in_the_metrics(batches: BatchWorld) -> None:
    """Waiting executions and since when, those at work, and unreleased actions, for autoscalers."""
    batch_id = await batches.put()
    work = await batches.process(Numbers())
    first = await batches.start(batch_id)
    await batches.over(first)
    await work.stop()
    await batches.start(batch_id)
    await batches.pool.execute(
        "UPDATE tickwright.executions SET due_at = now() - interval '1 min' WHERE status = 'NEW'"
    )
    readings = DatabaseReadings(batches.pool, overview_parts())
    await readings.refresh()
    found = {sample.name: sample.value for sample in readings() if sample.name.startswith("tickwright_executions")}
    assert found.pop("tickwright_executions_oldest_waiting_seconds") >= 60
    assert found == {
        "tickwright_executions_waiting": 1,
        "tickwright_executions_working": 0,
        "tickwright_executions_unreleased_actions": 13,
    }
