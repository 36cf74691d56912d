"""Handlers of batches that break the contract: each fails its own execution, and no claim is left."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from kit.batches import BatchWorld, Numbers
from kit.mutants import mutate
from kit.strange import FINAL, STRANGE, behave
from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
from tickwright.domain.errors import Rejected
from tickwright.engine.claimed_work import ClaimedWork
from tickwright.ports.batches import OpenChunk, PlannedChunk, Run

TRIES = {how: 1 if how in FINAL else 2 for how in STRANGE}


class Strange(Numbers):
    """A batch that behaves as its name says, in its plan or with its chunk."""

    def __init__(self, *, plans: bool) -> None:
        super().__init__(members=5)
        self._plans, self.calls = plans, Counter[str]()

    async def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
        """Cut the plan."""
        await self._behave(run, self._plans)
        async for chunk in super().plan(run):
            yield chunk

    async def work(self, chunk: OpenChunk) -> None:
        """Work on a chunk."""
        await self._behave(chunk.run, not self._plans)
        await super().work(chunk)

    async def _behave(self, run: Run, is_here: bool) -> None:
        if is_here and run.name in STRANGE:
            self.calls[run.name] += 1
            await behave(run.name)


@pytest.mark.parametrize("plans", [False, True], ids=["chunk", "plan"])
async def test_whatever_a_handler_does_fails_its_own_execution(batches: BatchWorld, plans: bool) -> None:
    """C2: each try is counted, the last one ends the execution, and the next one is worked."""
    work = Strange(plans=plans)
    process = await batches.process(work, names=[*STRANGE, "sound"])
    started = {name: await batches.start(await batches.put(name, {"attempts": 2})) for name in (*STRANGE, "sound")}
    rows = {name: await batches.over(execution) for name, execution in started.items()}
    assert rows.pop("sound")["status"] == "FINISHED"
    assert {row["status"] for row in rows.values()} == {"EXCEPTION_OCCURRED"}
    assert work.calls == TRIES
    assert not process.consumer.counts["broken"]
    assert not process.consumer.counts["released"]
    said = {name: (row["error_code"], row["error_message"]) for name, row in rows.items()}
    assert said["no_text"] == ("bad", "x")
    assert said["nameless"] == ("bad", "Rejected")
    assert said["no_code"] == ("None", "None")
    assert said["unwritable"] == ("a b?" + "c" * 96, "x y?")
    assert said["bare"] == ("exception", "Bare")
    assert said["chunk_lost"] == ("chunk_lost", "its own")
    assert said["cancels_itself"] == ("exception", "CancelledError: ")
    assert said["cancels_itself_and_fails"] == ("exception", "ValueError: its own")


async def check_an_end_that_is_not_written(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch, error: Exception, within_s: float = 30
) -> None:
    """Check an end whose first write raises ``error``."""
    failed, errors = ChunksStore.fail, [error]

    async def fails_once(self: ChunksStore, *arguments: Any) -> bool:
        if errors:
            raise errors.pop()
        return await failed(self, *arguments)

    async def fails(_chunk: OpenChunk) -> None:
        raise Rejected("its_own", "its own")

    monkeypatch.setattr(ChunksStore, "fail", fails_once)
    work = Numbers(members=5, before=fails)
    process = await batches.process(work, at_once=1)
    row = await batches.over(await batches.start(await batches.put()), within_s)
    assert (row["status"], row["error_code"], len(work.log)) == ("EXCEPTION_OCCURRED", "its_own", 2)
    assert process.consumer.counts["broken"] == 1


@pytest.mark.parametrize(
    "error", [RuntimeError("ours"), asyncpg.CharacterNotInRepertoireError("refused")], ids=["ours", "refused"]
)
async def test_a_claim_whose_end_is_not_written_is_released(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """CLW-4: it does not stay owned by a live session, and what PostgreSQL refuses is not repeated for ever."""
    await check_an_end_that_is_not_written(batches, monkeypatch, error)


async def test_the_suite_notices_a_claim_that_is_forgotten(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the process no longer knows the claim, and its session owns it."""
    mutate(monkeypatch, ClaimedWork._try, 'self._gate.unsure |= outcome == "broken"', "pass")
    with pytest.raises(AssertionError, match="has ended"):
        await check_an_end_that_is_not_written(batches, monkeypatch, RuntimeError("ours"), 5)


async def test_a_claim_whose_release_is_cancelled_is_released(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLW-3: a second stop arrives while the first one releases the claim."""
    release, working, releasing = ChunksStore.release, asyncio.Event(), asyncio.Event()

    async def release_slowly(self: ChunksStore, *arguments: Any) -> None:
        if not releasing.is_set():
            releasing.set()
            await asyncio.Event().wait()
        await release(self, *arguments)

    async def hold(_chunk: OpenChunk) -> None:
        if not working.is_set():
            working.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(ChunksStore, "release", release_slowly)
    work = Numbers(members=5, before=hold)
    process = await batches.process(work, at_once=1)
    execution_id = await batches.start(await batches.put())
    await working.wait()
    (held,) = process.consumer._held.values()
    held.cancel()
    await releasing.wait()
    held.cancel()
    assert (await batches.over(execution_id))["status"] == "FINISHED"
    assert len(work.log) == 2
