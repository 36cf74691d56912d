"""Work that always begins: a cancellation before its first step reaches its first await."""

import asyncio

import pytest

from tickwright.engine.tasks import cancel_safe


class Work:
    """Waits, and records what reached it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.may_end = asyncio.Event()

    async def run(self) -> str:
        """Wait until it may end."""
        self.log.append("begun")
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.log.append("cancelled")
            await asyncio.sleep(0)  # only one cancellation arrives: the release may await
            raise
        finally:
            self.log.append("over")
        return "done"


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_a_cancellation_reaches_the_work_however_early_it_comes(steps: int) -> None:
    """What the work owns is released by its own ``except`` and ``finally``, and the task is a cancelled one."""
    work = Work()
    task = asyncio.create_task(cancel_safe(work.run()))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert task.cancelling() == 1
    assert work.log == ["begun", "cancelled", "over"]


async def test_work_that_is_not_cancelled_is_unchanged() -> None:
    """Its result, its error and its name are the same."""
    work = Work()
    task = asyncio.create_task(cancel_safe(work.run()))
    assert "Work.run" in repr(task)
    work.may_end.set()
    assert await task == "done"

    async def fails() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await asyncio.create_task(cancel_safe(fails()))


async def test_a_coroutine_without_a_task_is_closed() -> None:
    """A closed group takes no task; no warning reports a coroutine that was never awaited."""
    work = Work()
    cancel_safe(work.run()).close()
    assert work.log == []
