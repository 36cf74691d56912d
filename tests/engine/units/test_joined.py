"""Asks that are joined: one call at a time, each caller hears his own answer."""

import asyncio
from collections.abc import Sequence

import pytest

from tickwright.engine.joined import Joined


async def test_what_comes_meanwhile_goes_into_the_next_call() -> None:
    """The first ask goes alone; those that come while it is under way go together, no more than allowed."""
    calls: list[list[int]] = []
    first_may_end = asyncio.Event()

    async def ask(items: Sequence[int]) -> list[int]:
        calls.append([*items])
        if len(calls) == 1:
            await first_may_end.wait()
        return [item * 10 for item in items]

    joined = Joined(ask, most=3)
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

    joined = Joined(ask, most=1)
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

    joined = Joined(ask)
    leaving, staying = asyncio.create_task(joined(1)), asyncio.create_task(joined(2))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    go.set()
    assert await staying == 2
    assert made == [1, 2]
