"""Executions are begun, cut, worked and finished, each chunk once, whatever is killed or stopped meanwhile."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asyncpg.transaction import Transaction

from kit.batches import BatchWorld, Numbers
from kit.claims import ClaimChecks
from kit.probes import Stops
from kit.waiting import eventually_async
from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.batches import ChunkResult, OpenChunk, PlannedChunk, Run

EVEN = sorted(str(number) for number in range(0, 25, 2))


async def test_an_execution_is_cut_worked_and_finished(batches: BatchWorld) -> None:
    """Every member is seen once, every selected one has one action, and the counts say so."""
    work = Numbers()
    await batches.process(work)
    execution_id = await batches.start(await batches.put())
    row = await batches.over(execution_id)
    assert (row["status"], row["version"], row["chunks"], row["chunks_done"]) == ("FINISHED", 1, 3, 3)
    assert (row["members"], row["seen"], row["selected"], row["actions"]) == (25, 25, 13, 13)
    assert await batches.actions(execution_id) == EVEN
    assert sorted(work.log) == [(execution_id, number) for number in range(3)]


async def test_no_members_is_a_finished_execution(batches: BatchWorld) -> None:
    """Without a chunk there is no work left."""
    await batches.process(Numbers(members=0))
    row = await batches.over(await batches.start(await batches.put()))
    assert (row["status"], row["chunks"], row["members"]) == ("FINISHED", 0, 0)


async def test_a_killed_consumer_repeats_only_its_open_chunks(batches: BatchWorld) -> None:
    """They are due again when its session is lost; finished chunks stay finished."""
    stops, reached = Stops(), asyncio.Event()

    async def hold_the_second(chunk: OpenChunk) -> None:
        if chunk.number == 1:
            reached.set()
            await asyncio.Event().wait()

    first = await batches.process(Numbers(before=hold_the_second), at_once=1, probe=stops)
    execution_id = await batches.start(await batches.put())
    await reached.wait()
    await first.vanish()
    heir = Numbers()
    await batches.process(heir, at_once=1)
    row = await batches.over(execution_id)
    assert row["status"] == "FINISHED"
    assert sorted(heir.log) == [(execution_id, 1), (execution_id, 2)]
    assert await batches.actions(execution_id) == EVEN
    fences = await batches.pool.fetch("SELECT fence FROM tickwright.execution_chunks ORDER BY number")
    assert [row["fence"] for row in fences] == [1, 2, 1]


async def test_a_consumer_that_lost_its_chunk_writes_nothing(batches: BatchWorld) -> None:
    """A zombie's fence is old: it writes no action, no count, no mark."""
    stops = Stops()
    stops.close("batches.chunk_decided")
    zombie = await batches.process(Numbers(members=4), at_once=1, probe=stops)
    execution_id = await batches.start(await batches.put())
    await eventually_async(lambda: stops.reached_times["batches.chunk_decided"])
    await batches.pool.execute("UPDATE tickwright.execution_chunks SET state = 'waiting', owner = NULL")
    await batches.process(Numbers(members=4), at_once=1)
    row = await batches.over(execution_id)
    stops.open("batches.chunk_decided")
    await eventually_async(lambda: zombie.consumer.running == 0)
    assert zombie.consumer.counts["done"] == 0
    assert (row["chunks_done"], row["actions"]) == (1, 2)
    assert (await batches.execution(execution_id))["chunks_done"] == 1


async def test_a_stopped_execution_takes_no_more_results(batches: BatchWorld) -> None:
    """A chunk that runs when it is stopped writes nothing, and its work is cancelled."""
    working = asyncio.Event()

    async def hold(chunk: OpenChunk) -> None:
        if chunk.number == 1:
            working.set()
            await asyncio.Event().wait()

    process = await batches.process(Numbers(before=hold), at_once=1)
    execution_id = await batches.start(await batches.put())
    await working.wait()
    await batches.end(execution_id)
    await eventually_async(lambda: process.consumer.running == 0)
    row = await batches.execution(execution_id)
    assert (row["status"], row["chunks_done"], row["actions"]) == ("STOPPED", 1, 5)


async def test_a_pause_holds_between_chunks(batches: BatchWorld) -> None:
    """The running chunk ends; none is claimed until the resume."""
    stops = Stops()
    stops.close("batches.chunk_decided")
    await batches.process(Numbers(), at_once=1, probe=stops)
    execution_id = await batches.start(await batches.put())
    await eventually_async(lambda: stops.reached_times["batches.chunk_decided"])
    await batches.pool.execute("UPDATE tickwright.executions SET paused_at = clock_timestamp()")
    stops.open("batches.chunk_decided")
    await eventually_async(lambda: stops.reached_times["batches.chunk_done"])
    claimed = await batches.store.claim_chunk(1, ["program:numbers"])
    assert claimed is None
    assert (await batches.execution(execution_id))["chunks_done"] == 1
    await batches.pool.execute("UPDATE tickwright.executions SET paused_at = NULL")
    assert (await batches.over(execution_id))["status"] == "FINISHED"


@pytest.mark.parametrize(
    ("end", "outcomes"),
    [
        ("end_plan", Counter(planned=1, done=1)),
        ("retry", Counter(planned=1, retried=1, done=1)),
        ("fail", Counter(planned=1, failed=1)),
    ],
)
async def test_a_check_of_claims_during_an_end_loses_none(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch, end: str, outcomes: Counter[str]
) -> None:
    """CLW-2: the ledger no longer has the claim because it has ended; it counts with its outcome."""
    ClaimChecks(monkeypatch, ChunksStore, "confirm").beside(end)
    errors: dict[str, list[Exception]] = {
        "retry": [Unavailable("source_unavailable", "away")],
        "fail": [Rejected("source_refused", "no table")],
    }

    async def fail(_: OpenChunk) -> None:
        if errors.get(end):
            raise errors[end].pop()

    process = await batches.process(Numbers(members=4, before=fail))
    await batches.over(await batches.start(await batches.put()))
    await eventually_async(lambda: process.consumer.running == 0)
    assert process.consumer.counts == outcomes


async def test_a_check_of_claims_during_the_commit_of_a_chunk_does_not_lose_it(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLW-2: neither before the answer to the commit arrives, nor while its work goes on after the chunk."""
    looks, stops = ClaimChecks(monkeypatch, ChunksStore, "confirm"), Stops()
    stops.close("batches.chunk_done")
    process = await batches.process(Numbers(members=4), probe=stops)
    commit = Transaction.__aexit__

    async def commit_slowly(self: Transaction, *how: Any) -> None:
        await commit(self, *how)
        if asyncio.current_task() in [held.task for held in process.consumer._held.values()]:
            await looks.passed()

    monkeypatch.setattr(Transaction, "__aexit__", commit_slowly)
    await batches.over(await batches.start(await batches.put()))
    await eventually_async(lambda: stops.reached_times["batches.chunk_done"] or not process.consumer.running)
    await looks.passed()
    stops.open("batches.chunk_done")
    await eventually_async(lambda: process.consumer.running == 0)
    assert process.consumer.counts == Counter(planned=1, done=1)


async def test_a_chunk_that_did_not_end_can_be_lost_again(batches: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """BCO-2: if its transaction failed and its work goes on, a stop of the execution still cancels it."""
    ClaimChecks(monkeypatch, ChunksStore, "confirm")

    failed = asyncio.Event()

    class Stubborn(Numbers):
        async def work(self, chunk: OpenChunk) -> None:
            with pytest.raises(TypeError, match="not JSON"):
                async with chunk.complete(ChunkResult(problems=[{"problem": object()}])):  # type: ignore[dict-item]
                    pass
            failed.set()
            await asyncio.Event().wait()

    process = await batches.process(Stubborn(members=4))
    execution_id = await batches.start(await batches.put())
    await failed.wait()
    await batches.end(execution_id)
    await eventually_async(lambda: process.consumer.running == 0)
    assert process.consumer.counts == Counter(planned=1, lost=1)


@pytest.mark.storm
async def test_a_temporary_error_is_retried(batches: BatchWorld) -> None:
    """An unavailable source costs the chunk an attempt, and the execution nothing."""
    failures = [Unavailable("source_unavailable", "away"), ConnectionResetError("gone"), ValueError("\ud800\0")]

    async def fail(_: OpenChunk) -> None:
        if failures:
            raise failures.pop(0)

    process = await batches.process(Numbers(members=4, before=fail))
    row = await batches.over(await batches.start(await batches.put()))
    assert (row["status"], row["actions"], process.consumer.counts["retried"]) == ("FINISHED", 2, 3)


async def test_a_permanent_error_ends_the_execution_with_text_and_trace(batches: BatchWorld) -> None:
    """Finished chunks stay finished, so that a retry goes on at that chunk."""

    async def refuse(chunk: OpenChunk) -> None:
        if chunk.number == 1:
            raise Rejected("source_refused", "there is no column income")

    await batches.process(Numbers(before=refuse), at_once=1)
    execution_id = await batches.start(await batches.put())
    row = await batches.over(execution_id)
    assert (row["status"], row["error_code"]) == ("EXCEPTION_OCCURRED", "source_refused")
    assert "no column income" in row["error_message"]
    assert "refuse" in row["error_trace"]
    assert row["chunks_done"] == 1


async def test_the_last_failed_attempt_ends_the_execution(batches: BatchWorld) -> None:
    """Its error has the program's own text."""

    async def fail(_: OpenChunk) -> None:
        raise ZeroDivisionError("by nothing")

    await batches.process(Numbers(before=fail), at_once=1)
    row = await batches.over(await batches.start(await batches.put(definition={"attempts": 2})))
    assert (row["status"], row["error_code"]) == ("EXCEPTION_OCCURRED", "exception")
    assert row["error_message"] == "ZeroDivisionError: by nothing"


@pytest.mark.parametrize("error", [Rejected("invalid_audience", "no table"), RuntimeError("no plan")])
async def test_a_plan_that_fails_ends_the_execution(batches: BatchWorld, error: Exception) -> None:
    """At once if the error is permanent, otherwise after its attempts."""

    class Unplannable(Numbers):
        async def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
            for chunk in [PlannedChunk({}, run.batch_id)]:
                yield chunk
                raise error

    await batches.process(Unplannable())
    row = await batches.over(await batches.start(await batches.put(definition={"attempts": 2})))
    assert row["status"] == "EXCEPTION_OCCURRED"
    assert str(error) in row["error_message"]


async def test_a_batch_has_one_execution_at_work_and_the_oldest_first(batches: BatchWorld) -> None:
    """The others wait, ordered by their slots."""
    batch_id = await batches.put()
    ids = [await batches.start(batch_id) for _ in range(3)]
    work = Numbers(members=20)
    await batches.process(work, at_once=4)
    for execution_id in ids:
        assert (await batches.over(execution_id))["status"] == "FINISHED"
    assert [one for one, _ in work.log] == sorted(one for one, _ in work.log)


async def test_two_consumers_share_the_chunks(batches: BatchWorld) -> None:
    """Each chunk is worked once, and both consumers work at the same time."""
    both = asyncio.Event()
    at_work: set[int] = set()

    def meet(number: int):  # type: ignore[no-untyped-def]
        async def wait(_: OpenChunk) -> None:
            at_work.add(number)
            if len(at_work) == 2:
                both.set()
            await both.wait()

        return wait

    works = [Numbers(members=100, before=meet(number)) for number in range(2)]
    for work in works:
        await batches.process(work, at_once=1)
    execution_id = await batches.start(await batches.put())
    row = await batches.over(execution_id)
    assert (row["chunks_done"], row["actions"]) == (10, 50)
    assert sorted(works[0].log + works[1].log) == [(execution_id, number) for number in range(10)]


@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_batch_whose_chunks_do_not_end_leaves_a_slot_to_others(batches: BatchWorld, at_once: int) -> None:
    """BCO-4: alone it has every slot of a process; others have one more, one chunk at a time."""
    never = asyncio.Event()
    at_work: Counter[str] = Counter()
    most: list[Counter[str]] = []

    async def hold_the_slow(chunk: OpenChunk) -> None:
        at_work[chunk.run.name] += 1
        most.append(at_work.copy())
        if chunk.run.name == "slow":
            await never.wait()
        at_work[chunk.run.name] -= 1

    names = ["slow", "quick", "later"]
    process = await batches.process(Numbers(members=200, before=hold_the_slow), names=names, at_once=at_once)
    slow = await batches.start(await batches.put("slow"))
    await eventually_async(lambda: at_work["slow"] == at_once)
    others = [await batches.start(await batches.put(name)) for name in names[1:]]
    assert [(await batches.over(one))["status"] for one in others] == ["FINISHED"] * 2
    assert process.consumer.running == at_work["slow"] == at_once
    assert max(one.total() for one in most) == at_once + 1
    assert (await batches.execution(slow))["chunks_done"] == 0


async def test_a_deploy_costs_no_attempt(batches: BatchWorld) -> None:
    """A chunk that a stop cancels is released as if it had not begun."""
    working = asyncio.Event()

    async def hold(_: OpenChunk) -> None:
        working.set()
        await asyncio.Event().wait()

    process = await batches.process(Numbers(before=hold), at_once=1)
    execution_id = await batches.start(await batches.put())
    await working.wait()
    process.consumer.stopping.set()
    await process.consumer.stop()
    chunk = await batches.pool.fetchrow("SELECT * FROM tickwright.execution_chunks WHERE number = 0")
    assert (chunk["state"], chunk["tries"], chunk["lost"]) == ("waiting", 0, 0)
    await batches.process(Numbers())
    assert (await batches.over(execution_id))["status"] == "FINISHED"
