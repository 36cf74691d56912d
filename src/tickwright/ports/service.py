"""Every loop is a service: started once, waited for, stopped twice without harm."""

import asyncio
from asyncio import TaskGroup as TaskGroup  # noqa: PLC0414, TID251  whoever needs the type has it from here
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from weakref import WeakSet

_ENDED: "WeakSet[asyncio.Task[Any]]" = WeakSet()


class Service(Protocol):
    """A loop with a life of its own.

    Stopping has two steps. ``quiesce`` stops taking new work and lets what runs finish;
    ``stop`` cancels what still runs and gives back what was not started, so that a deploy
    costs no attempt. Both may be called any number of times, in any order.
    """

    @property
    def name(self) -> str:
        """Stable, for logs, metrics and ``/readyz``."""
        ...

    async def run(self) -> None:
        """Work until stopped. Returns after a stop; raises when it cannot go on (the supervisor restarts it)."""
        ...

    async def quiesce(self) -> None:
        """Take no new work and return when what runs has finished."""
        ...

    async def stop(self) -> None:
        """Cancel what runs, release what was not started, return when ``run`` is over."""
        ...

    def last_tick_age_s(self) -> float | None:
        """Seconds since the loop last came round, by the monotonic clock; ``None`` before the first time."""
        ...


def end_task(task: "asyncio.Task[Any]") -> None:
    """Cancel a task that calls a user's function, for good; see :func:`ends_task`."""
    _ENDED.add(task)
    task.cancel()


def ends_task(error: BaseException) -> bool:
    """Return whether ``error`` is how :func:`end_task` ends this task; else a user's function raised it.

    A function may raise a cancellation of its own, or cancel its own task: a failure like any other. So how often the
    task was cancelled says nothing.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task in _ENDED


async def take_cancels_back() -> None:
    """Make this task's awaits work again behind a user's function that cancelled it.

    Raises:
        CancelledError: :func:`end_task` was called meanwhile.
    """
    task = asyncio.current_task()
    if task is None or task in _ENDED:
        return
    while task.cancelling():
        try:
            await asyncio.sleep(0)  # a cancellation that was not raised yet is raised here
        except asyncio.CancelledError as error:
            if ends_task(error):
                raise
        task.uncancel()


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """Run tasks together as ``asyncio.TaskGroup`` does, and leave this task as it was also where one of them fails.

    Before Python 3.13 a group that fails counts a cancellation of its own task and never takes it back. Whoever catches
    the failure and goes on is then taken for cancelled: in Python 3.11.2 its next timeout ends it without a word.
    Source: https://github.com/python/cpython/issues/116720
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        async with TaskGroup() as group:
            yield group
    except BaseExceptionGroup:
        if task is not None and task.cancelling() > before:
            task.uncancel()
        raise
