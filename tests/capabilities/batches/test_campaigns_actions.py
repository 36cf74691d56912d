"""Actions of operators on campaigns, by the table of states and under a lock: activate, deactivate, start, stop."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from kit.batches import BatchWorld, Numbers, new_producer
from kit.campaigns import LOAN, SIX_HOURS, CampaignApi
from kit.probes import Stops
from kit.waiting import eventually_async
from tickwright.capabilities.batches.definitions.batches import Batches
from tickwright.capabilities.batches.definitions.schema import PROGRAM
from tickwright.capabilities.batches.executions.chunks_store import ChunkKey
from tickwright.capabilities.batches.executions.executions import Executions
from tickwright.capabilities.batches.executions.states import BatchAction, ExecutionAction
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import OpenChunk
from tickwright.ports.caller import Caller, Role
from tickwright.store.paging import Cursors

ADA = Caller("ada", Role.OPERATOR)
LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)


async def test_activate_counts_from_the_next_occurrence(campaigns: CampaignApi) -> None:
    """By the database's clock, not from the first run, however long ago that was; twice changes nothing."""
    made = await campaigns.create("loans", SIX_HOURS)
    assert len(made["next_slots"]) == 5
    done = await campaigns.act("/campaigns/loans/activate")
    now = await campaigns.api.pool.fetchval("SELECT clock_timestamp()")
    next_at = datetime.fromisoformat(done["next_slot_at"])
    assert (done["outcome"], done["status"], done["executions"]) == ("activated", "SCHEDULED", [])
    assert now < next_at <= now + timedelta(hours=6)
    assert next_at == datetime.fromisoformat(made["next_slots"][0])
    assert (await campaigns.act("/campaigns/loans/activate"))["outcome"] == "unchanged"
    assert [action for _, action, _ in await campaigns.trail()] == ["campaigns.create", "campaigns.activate"]


async def test_a_campaign_that_cannot_run_by_itself_is_not_activated(campaigns: CampaignApi) -> None:
    """A manual one, and one whose only run is over."""
    await campaigns.create("by-hand")
    refused = (await campaigns.post("/campaigns/by-hand/activate")).says(409, "campaign_is_manual")
    assert "AUTOMATIC" in refused.json["detail"]
    once = {**SIX_HOURS, "restartable": False, "restartable_unit": None, "restartable_unit_type": None}
    await campaigns.create("once", once)
    (await campaigns.post("/campaigns/once/activate")).says(409, "no_occurrence")
    (await campaigns.post("/campaigns/none/activate")).says(404, "campaign_not_found")


async def test_an_edit_of_the_schedule_moves_the_next_occurrence(campaigns: CampaignApi) -> None:
    """Another edit leaves it; one that makes the campaign manual removes it."""
    await campaigns.create("loans", SIX_HOURS)
    before = (await campaigns.act("/campaigns/loans/activate"))["next_slot_at"]
    same = await campaigns.put("loans", {**SIX_HOURS, "rate": "5/s"})
    assert (same["campaign"]["next_slot_at"], same["campaign"]["status"]) == (before, "SCHEDULED")
    other = await campaigns.put("loans", {**SIX_HOURS, "date_time_execution": "2026-01-05T09:01"})
    moved = datetime.fromisoformat(other["campaign"]["next_slot_at"])
    assert moved.minute == 1
    assert other["campaign"]["next_slot_at"] == other["campaign"]["next_slots"][0]
    manual = await campaigns.put("loans", LOAN)
    assert (manual["campaign"]["status"], manual["campaign"]["next_slot_at"]) == ("IDLE", None)


async def test_start_makes_an_execution_for_this_moment(campaigns: CampaignApi) -> None:
    """Of any type and status, in the operator's name, with a later slot than every one before it."""
    await campaigns.create("loans", SIX_HOURS)
    future = datetime(2999, 1, 1, tzinfo=UTC)
    await campaigns.slot("loans", future, "FINISHED")
    done = await campaigns.act("/campaigns/loans/start")
    assert (done["outcome"], done["status"], done["executions"][0]["status"]) == ("started", "IDLE", "NEW")
    row = await campaigns.execution(done["executions"][0]["id"])
    assert (row["started_by"], row["slot_at"]) == ("operator", future + timedelta(microseconds=1))
    assert (await campaigns.trail())[-1] == ("operator", "campaigns.start", "campaign:loans")


async def test_a_start_with_an_open_execution_follows_the_overlap_policy(campaigns: CampaignApi) -> None:
    """Skip refuses, queue lets it wait, replace stops the open one."""
    for overlap in ("skip", "queue", "replace"):
        await campaigns.create(overlap, LOAN, overlap=overlap)
        await campaigns.act(f"/campaigns/{overlap}/start")
    refused = (await campaigns.post("/campaigns/skip/start")).says(409, "execution_open").json
    assert "is NEW" in refused["detail"]
    queued = (await campaigns.act("/campaigns/queue/start"))["executions"]
    assert [one["status"] for one in queued] == ["NEW"]
    replaced = (await campaigns.act("/campaigns/replace/start"))["executions"]
    assert [one["status"] for one in replaced] == ["STOPPED", "NEW"]
    row = await campaigns.execution(replaced[0]["id"])
    assert (row["status"], row["ended_why"]) == ("STOPPED", "replaced by a start by operator")
    for overlap, executions in (("skip", 1), ("queue", 2), ("replace", 2)):
        assert len((await campaigns.get(f"/executions?campaign={overlap}"))["items"]) == executions


async def test_stop_ends_open_executions_and_deactivate_also_the_schedule(campaigns: CampaignApi) -> None:
    """A stop makes them STOPPED, a deactivation DISABLED; ended ones stay as they are."""
    await campaigns.create("loans", SIX_HOURS)
    await campaigns.act("/campaigns/loans/activate")
    done = await campaigns.slot("loans", LONG_AGO, "FINISHED")
    failed = await campaigns.slot("loans", LONG_AGO + timedelta(hours=1), "EXCEPTION_OCCURRED")
    first = await campaigns.slot("loans", LONG_AGO + timedelta(hours=2), "IN_PROGRESS", owner=5)
    stopped = await campaigns.act("/campaigns/loans/stop")
    assert (stopped["status"], stopped["executions"]) == ("SCHEDULED", [{"id": first, "status": "STOPPED"}])
    row = await campaigns.execution(first)
    assert (row["status"], row["owner"], row["fence"]) == ("STOPPED", None, 1)
    assert row["finished_at"] is not None
    (await campaigns.post("/campaigns/loans/stop")).says(409, "nothing_to_stop")
    second = await campaigns.slot("loans", LONG_AGO + timedelta(hours=3), "NEW")
    disabled = await campaigns.act("/campaigns/loans/deactivate")
    assert (disabled["outcome"], disabled["status"], disabled["next_slot_at"]) == ("deactivated", "IDLE", None)
    assert disabled["executions"] == [{"id": second, "status": "DISABLED"}]
    assert (await campaigns.act("/campaigns/loans/deactivate"))["outcome"] == "unchanged"
    assert [(await campaigns.execution(one))["status"] for one in (done, failed)] == ["FINISHED", "EXCEPTION_OCCURRED"]


@pytest.mark.parametrize(("action", "status"), [("stop", "STOPPED"), ("deactivate", "DISABLED")])
async def test_a_stop_prevents_the_release_of_a_finished_execution(
    campaigns: CampaignApi, action: str, status: str
) -> None:
    """An operator who stops a campaign means its messages, too: the checker releases no more of it."""
    await campaigns.create("loans", SIX_HOURS)
    releasing = await campaigns.slot("loans", LONG_AGO, "FINISHED", chunks=3, chunks_done=3, chunks_released=1)
    released = await campaigns.slot("loans", LONG_AGO + timedelta(hours=1), "FINISHED", chunks=3, chunks_released=3)
    ended = await campaigns.act(f"/campaigns/loans/{action}")
    assert ended["executions"] == [{"id": releasing, "status": status}]
    assert (await campaigns.execution(releasing))["status"] == status
    assert (await campaigns.execution(released))["status"] == "FINISHED"


async def test_two_operators_start_one_execution(campaigns: CampaignApi) -> None:
    """Their transactions meet at the campaign's row: one starts, all others are refused."""
    await campaigns.create("loans")
    answers = await asyncio.gather(*(campaigns.post("/campaigns/loans/start") for _ in range(12)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 11, [answer.body for answer in answers]
    assert len((await campaigns.get("/executions"))["items"]) == 1


async def test_a_start_and_the_producer_do_not_miss_each_other(batches: BatchWorld) -> None:
    """The holder of the batch's row reads open executions after the lock, and so sees every earlier start."""
    hour = await batches.pool.fetchval("SELECT date_trunc('hour', clock_timestamp())")
    batch_id = await batches.put(first_at=hour, every=(1, "HOURS"), next_slot_at=hour, grace=timedelta(hours=2))
    stops = Stops()
    stops.close("batches.producing")
    producing = asyncio.create_task(batches.produce(new_producer(probe=stops)))
    await eventually_async(lambda: stops.reached_times["batches.producing"])
    started = await batches.start(batch_id)
    stops.open("batches.producing")
    await producing
    sql = "SELECT id FROM tickwright.executions WHERE batch_id = $1 AND status IN ('NEW', 'IN_PROGRESS')"
    assert [row["id"] for row in await batches.pool.fetch(sql, batch_id)] == [started]
    assert await batches.pool.fetchval("SELECT reason FROM tickwright.execution_skips") == "overlap"


async def test_an_edit_leaves_a_running_execution_on_its_version(batches: BatchWorld) -> None:
    """It goes on with the snapshot with which it began; the next one has the new definition."""
    begun = asyncio.Event()
    go_on = asyncio.Event()

    async def hold(_: OpenChunk) -> None:
        begun.set()
        await go_on.wait()

    await batches.process(Numbers(before=hold), at_once=1)
    batch_id = await batches.put(definition={"said": "old"})
    execution_id = await batches.start(batch_id)
    await asyncio.wait_for(begun.wait(), 30)
    sets = "version = 2, definition = jsonb_set(definition, '{said}', '\"new\"')"
    await batches.pool.execute(f"UPDATE tickwright.batches SET {sets} WHERE id = $1", batch_id)
    go_on.set()
    row = await batches.over(execution_id)
    shown = await Executions(batches.pool, Cursors(batches.pool)).get(execution_id)
    assert (row["status"], row["version"], b'"said": "old"' in bytes(shown.definition)) == ("FINISHED", 1, True)


async def test_a_chunk_that_is_worked_while_its_batch_is_stopped_does_not_count(batches: BatchWorld) -> None:
    """Its completion is refused: no action is written, and the execution stays stopped."""
    begun = asyncio.Event()
    go_on = asyncio.Event()

    async def hold(_: OpenChunk) -> None:
        begun.set()
        await go_on.wait()

    process = await batches.process(Numbers(before=hold), at_once=1)
    await batches.put()
    control = Batches(batches.pool, Cursors(batches.pool), PROGRAM)
    started = (await control.act(BatchAction.START, "numbers", caller=ADA)).executions[0].id
    await asyncio.wait_for(begun.wait(), 30)
    await control.act(BatchAction.STOP, "numbers", caller=ADA)
    go_on.set()
    await eventually_async(lambda: process.consumer.running == 0, what="the consumer has no chunk")
    row = await batches.execution(started)
    assert (row["status"], row["chunks_done"], row["ended_why"]) == ("STOPPED", 0, "stopped by ada")
    assert await batches.actions(started) == []


async def test_a_retry_goes_on_at_the_chunks_that_are_not_done(batches: BatchWorld) -> None:
    """No other chunk is worked again, attempts count from none, and each client has one action."""
    broken = True

    async def break_one(chunk: OpenChunk) -> None:
        if chunk.number == 1 and broken:
            raise Rejected("broken", "this chunk cannot be done")

    work = Numbers(before=break_one)
    await batches.process(work, at_once=1)
    started = await batches.start(await batches.put())
    executions = Executions(batches.pool, Cursors(batches.pool))
    assert (await batches.over(started))["status"] == "EXCEPTION_OCCURRED"
    shown = await executions.get(started)
    assert (shown.error_code, shown.error_message) == ("broken", "this chunk cannot be done")
    assert "Traceback" in (shown.error_trace or "")
    broken = False
    done_before = shown.chunks_done
    work.log.clear()
    assert (await executions.act(ExecutionAction.RETRY, started, caller=ADA)).outcome == "retried"
    row = await batches.over(started)
    assert (row["status"], row["error_code"], row["seen"]) == ("FINISHED", None, 25)
    assert len(work.log) == 3 - done_before
    assert await batches.actions(started) == sorted(str(number) for number in range(0, 25, 2))


async def test_a_chunk_that_is_at_work_while_its_execution_is_retried_still_counts(batches: BatchWorld) -> None:
    """It is not worked again, also where the execution waits for another one and is NEW meanwhile."""
    go_on = asyncio.Event()

    async def hold_and_break(chunk: OpenChunk) -> None:
        if chunk.number == 0:
            await go_on.wait()
        elif chunk.number == 1 and not go_on.is_set():
            raise Rejected("broken", "this chunk cannot be done")

    work = Numbers(before=hold_and_break)
    process = await batches.process(work, at_once=2)
    batch_id = await batches.put()
    started = await batches.start(batch_id)
    assert (await batches.over(started))["status"] == "EXCEPTION_OCCURRED"
    other = (
        "INSERT INTO tickwright.executions (batch_id, slot_at, status, owner) VALUES ($1, now(), 'IN_PROGRESS', 999)"
    )
    await batches.pool.execute(other, batch_id)
    await Executions(batches.pool, Cursors(batches.pool)).act(ExecutionAction.RETRY, started, caller=ADA)
    held = ChunkKey(started, 0)
    _, kept = await batches.store.confirm(process.session.token, {}, {held: 1})
    assert kept == {held}
    go_on.set()

    async def first_is_done() -> bool:
        return bool((await batches.execution(started))["chunks_done"] == 1)

    await eventually_async(first_is_done, what="the chunk at work has counted")
    assert (await batches.execution(started))["status"] == "NEW"
    await batches.pool.execute("UPDATE tickwright.executions SET status = 'STOPPED', owner = NULL WHERE owner = 999")
    assert (await batches.over(started))["status"] == "FINISHED"
    assert work.log.count((started, 0)) == 1


async def test_a_paused_execution_begins_nothing_until_it_is_resumed(batches: BatchWorld) -> None:
    """The chunk at work ends; the others wait."""
    begun = asyncio.Event()
    go_on = asyncio.Event()

    async def hold(_: OpenChunk) -> None:
        begun.set()
        await go_on.wait()

    work = Numbers(before=hold)
    await batches.process(work, at_once=1)
    started = await batches.start(await batches.put())
    executions = Executions(batches.pool, Cursors(batches.pool))
    await asyncio.wait_for(begun.wait(), 30)
    assert (await executions.act(ExecutionAction.PAUSE, started, caller=ADA)).paused
    go_on.set()

    async def one_is_done() -> bool:
        return bool((await batches.execution(started))["chunks_done"] == 1)

    await eventually_async(one_is_done, what="the chunk at work has ended")
    assert await batches.store.next_in_s(["program:numbers"]) is None
    assert (await executions.explain(started)).reasons[0].code == "paused"
    assert (await executions.act(ExecutionAction.PAUSE, started, caller=ADA)).outcome == "unchanged"
    assert (await executions.act(ExecutionAction.RESUME, started, caller=ADA)).outcome == "resumed"
    assert (await batches.over(started))["status"] == "FINISHED"
    assert len(work.log) == 3
