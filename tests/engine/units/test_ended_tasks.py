"""Whether Tickwright or the user's function cancelled a task, and what remains of a cancellation by the latter."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tickwright.engine.tasks import TaskGroup, end_task, is_final_cancel, take_cancels_back


def _this_task() -> "asyncio.Task[None]":
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_only_cancellations_by_tickwright_end_a_task() -> None:
    """A function that cancels its own task, or raises a cancellation, has failed."""
    results: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            results.append(is_final_cancel(error))

    for cancel in (asyncio.Task.cancel, end_task):
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        cancel(task)
        await asyncio.wait([task])
    assert results == [False, True]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("is_raised", [False, True], ids=["pending", "raised"])
async def test_every_await_works_after_a_function_that_cancelled_its_task(times: int, is_raised: bool) -> None:
    """After cancellations that were raised already, and those that the next await would raise."""

    async def work() -> str:
        for _ in range(times):
            _this_task().cancel()
            if is_raised:
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(0)
        await take_cancels_back()
        await asyncio.sleep(0)
        return f"{_this_task().cancelling()} left"

    assert await asyncio.create_task(work()) == "0 left"


async def test_a_cancellation_by_tickwright_in_the_same_step_is_not_lost() -> None:
    """Both arrive as one."""

    async def work() -> None:
        asyncio.get_running_loop().call_soon(end_task, _this_task())
        _this_task().cancel()
        await take_cancels_back()
        raise AssertionError("it went on")

    task = asyncio.create_task(work())
    await asyncio.wait([task])
    assert task.cancelled()


async def _fail() -> None:
    raise ValueError("a bug")


async def _cancelled() -> None:
    raise asyncio.CancelledError


async def _failing_group(member: Callable[[], Coroutine[Any, Any, None]] = _fail) -> None:
    async with TaskGroup() as group:
        group.create_task(asyncio.sleep(60))
        group.create_task(member())


async def test_a_failed_group_leaves_its_task_uncancelled() -> None:
    """Otherwise a task that catches the failure and continues counts as cancelled, and its timeouts do not end."""
    with pytest.raises(ExceptionGroup):
        await _failing_group()
    assert not _this_task().cancelling()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()


async def test_a_member_that_tickwright_cancels_ends_alone() -> None:
    """Also before its first step; the group continues, and no coroutine stays without an await."""
    async with TaskGroup() as group:
        ended = [group.create_task(asyncio.sleep(60)) for _ in range(2)]
        ended[0].cancel()
        other = group.create_task(asyncio.sleep(0, "done"))
        await asyncio.sleep(0)
        ended[1].cancel()
    assert [one.cancelled() for one in ended] == [True, True]
    assert other.result() == "done"


async def test_a_member_that_cancels_itself_has_failed() -> None:
    """As a library may do: asyncio would continue without it."""
    with pytest.raises(ExceptionGroup) as failed:
        await _failing_group(_cancelled)
    assert str(failed.value.exceptions[0]) == "an unrequested cancellation"
