"""Consumers of batches are woken by changes, and not by claims."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast
from unittest.mock import AsyncMock

import pytest

from kit.batches import BatchWorld, Numbers, Process
from kit.claims import open_owners
from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
from tickwright.capabilities.batches.executions.consumer import CHANNEL
from tickwright.engine import claimed_work
from tickwright.engine.wakeup import listener
from tickwright.ports.batches import OpenChunk
from tickwright.store.pool import Pool, connect

BATCH = (
    "INSERT INTO tickwright.batches (name, kind, type, definition) VALUES ('b', 'program', 'MANUAL', '{}') RETURNING id"
)


async def test_a_claim_that_takes_nothing_wakes_no_consumer(pool: Pool, database_url: str) -> None:
    """Otherwise every idle consumer would wake all of them, itself included, which claim again, without end."""
    notified: asyncio.Queue[str] = asyncio.Queue()
    listening = await connect(database_url)
    await listening.add_listener(CHANNEL, lambda *said: notified.put_nowait(said[-1]))
    await open_owners(pool)
    store = ChunksStore(pool)
    for _ in range(3):
        assert await store.claim_execution(1, ["program"]) is None
        assert await store.claim_chunk(1, ["program"]) is None
    await pool.execute("SELECT pg_notify($1, 'last')", CHANNEL)
    assert await notified.get() == "last"
    await pool.execute("UPDATE tickwright.batches SET status = status")
    await pool.fetchval(BATCH)
    assert await notified.get() == ""
    await listening.close()


NEVER_S = 3600.0


async def three_work_at_once(batches: BatchWorld, monkeypatch: pytest.MonkeyPatch, within_s: float) -> None:
    """Run an execution with consumers of one slot, and return when all of them work."""
    monkeypatch.setattr(listener, "LATER_S", NEVER_S)  # no other begins to lead meanwhile
    monkeypatch.setattr(listener, "FOLLOW_S", NEVER_S)
    monkeypatch.setattr(listener, "DEPUTY_AFTER_S", NEVER_S)
    monkeypatch.setattr(claimed_work, "POLL_S", NEVER_S)
    at_work: set[int] = set()
    all_work = asyncio.Event()

    def meet(number: int) -> Callable[[OpenChunk], Awaitable[None]]:
        async def wait(_: OpenChunk) -> None:
            at_work.add(number)
            if len(at_work) == 3:
                all_work.set()
            await all_work.wait()

        return wait

    processes = [await batches.process(Numbers(members=30, before=meet(number)), at_once=1) for number in range(3)]
    for process in processes:
        await process.session.renew()  # they know of each other
    execution_id = await batches.start(await batches.put())
    await asyncio.wait_for(all_work.wait(), within_s)
    await batches.over(execution_id)


async def test_a_full_consumer_passes_chunks_on(batches: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notification wakes one of three; all of them work at once nevertheless."""
    await three_work_at_once(batches, monkeypatch, 60)


def leads(process: Process) -> bool:
    """Return whether new work is announced to it."""
    return cast("listener.LedWakeup", process.consumer._wakeups)._turns.listens()


async def test_an_execution_does_not_wait_for_a_leader_that_is_gone(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends as a killed process does, and nothing else tells the other one of the execution."""
    monkeypatch.setattr(listener, "FOLLOW_S", NEVER_S)
    processes = [await batches.process(Numbers(members=30)) for _ in range(2)]
    for process in processes:
        await process.session.renew()  # they know of each other
    leader = next(process for process in processes if leads(process))
    await leader.vanish()
    row = await batches.over(await batches.start(await batches.put()))
    assert row["chunks_done"] == 3


@pytest.mark.mutant
async def test_the_suite_notices_a_consumer_that_passes_nothing_on(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then one of them does all of the work."""
    monkeypatch.setattr(listener.LedWakeup, "pass_on", AsyncMock())
    with pytest.raises(TimeoutError):
        await three_work_at_once(batches, monkeypatch, 10)
