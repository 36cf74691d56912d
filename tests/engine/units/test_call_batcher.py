"""Many calls in one statement: one batch at a time, each caller gets its own answer."""

import asyncio
from collections.abc import Sequence

import pytest

from tickwright.engine.batch_writer import CallBatcher


async def test_what_comes_meanwhile_goes_into_the_next_call() -> None:
    """The first ask goes alone; those that come while it is under way go together, no more than allowed."""
    calls: list[list[int]] = []
    first_may_end = asyncio.Event()

    async def ask(items: Sequence[int]) -> list[int]:
        calls.append([*items])
        if len(calls) == 1:
            await first_may_end.wait()
        return [item * 10 for item in items]

    joined = CallBatcher(ask, items_max=3)
    asked = [asyncio.create_task(joined(item)) for item in range(6)]
    await asyncio.sleep(0)
    first_may_end.set()
    assert await asyncio.gather(*asked) == [0, 10, 20, 30, 40, 50]
    assert [len(call) for call in calls] == [3, 3]
    assert await joined(7) == 70


async def test_a_failed_call_is_heard_by_its_callers_only() -> None:
    """What one call raises, the next one does not hear."""

    async def ask(items: Sequence[int]) -> list[int]:
        if 1 in items:
            raise ValueError("one")
        return [*items]

    joined = CallBatcher(ask, items_max=1)
    answers = await asyncio.gather(*(joined(item) for item in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, ValueError, int]


async def test_a_caller_that_leaves_takes_nobody_with_him() -> None:
    """A cancelled caller's ask is made all the same, and the others hear theirs."""
    made: list[int] = []
    go = asyncio.Event()

    async def ask(items: Sequence[int]) -> list[int]:
        await go.wait()
        made.extend(items)
        return [*items]

    joined = CallBatcher(ask)
    leaving, staying = asyncio.create_task(joined(1)), asyncio.create_task(joined(2))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    go.set()
    assert await staying == 2
    assert made == [1, 2]


async def test_an_answer_that_is_an_error_is_raised_to_its_caller_only() -> None:
    """One refused item costs the others of its batch nothing."""

    async def write(items: Sequence[int]) -> list[int | Exception]:
        return [ValueError("one") if item == 1 else item for item in items]

    batcher = CallBatcher(write)
    answers = await asyncio.gather(*(batcher(item) for item in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, ValueError, int]
