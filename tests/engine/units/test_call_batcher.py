"""Many calls in one statement: one batch at a time, each caller gets its own answer."""

import asyncio
from collections.abc import Sequence

import pytest

from tickwright.engine.call_batcher import CallBatcher


async def test_calls_that_arrive_meanwhile_share_the_next_batch() -> None:
    """The first call runs alone; those that arrive meanwhile run together, up to the bound."""
    calls: list[list[int]] = []
    first_may_end = asyncio.Event()

    async def execute(items: Sequence[int]) -> list[int]:
        calls.append([*items])
        if len(calls) == 1:
            await first_may_end.wait()
        return [item * 10 for item in items]

    joined = CallBatcher(execute, items_max=3)
    tasks = [asyncio.create_task(joined(item)) for item in range(6)]
    await asyncio.sleep(0)
    first_may_end.set()
    assert await asyncio.gather(*tasks) == [0, 10, 20, 30, 40, 50]
    assert [len(call) for call in calls] == [3, 3]
    assert await joined(7) == 70


async def test_a_failed_batch_raises_to_its_callers_only() -> None:
    """The next batch is not affected."""

    async def execute(items: Sequence[int]) -> list[int]:
        if 1 in items:
            raise ValueError("one")
        return [*items]

    joined = CallBatcher(execute, items_max=1)
    answers = await asyncio.gather(*(joined(item) for item in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, ValueError, int]


async def test_a_cancelled_caller_cancels_no_other() -> None:
    """Its item is still processed, and the others get their answers."""
    made: list[int] = []
    go = asyncio.Event()

    async def execute(items: Sequence[int]) -> list[int]:
        await go.wait()
        made.extend(items)
        return [*items]

    joined = CallBatcher(execute)
    leaving, staying = asyncio.create_task(joined(1)), asyncio.create_task(joined(2))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    go.set()
    assert await staying == 2
    assert made == [1, 2]


async def test_an_error_for_one_item_is_raised_to_its_caller_only() -> None:
    """The other items of the batch succeed."""

    async def write(items: Sequence[int]) -> list[int | Exception]:
        return [ValueError("one") if item == 1 else item for item in items]

    batcher = CallBatcher(write)
    answers = await asyncio.gather(*(batcher(item) for item in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, ValueError, int]
