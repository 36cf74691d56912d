"""Tasks: groups that fail together, the end of tasks that run users' functions, and tasks that own something."""

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType, coroutine
from typing import Any, Self, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_ENDED: "WeakSet[asyncio.Task[Any]]" = WeakSet()


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


class TaskGroup:
    """Tasks that run together and fail together, as those of ``asyncio``, with two repairs.

    A member that ends by an unrequested cancellation, as a library may raise one, has failed; asyncio would go on
    without it, for ever. And after a failure this task is as it was before. Before Python 3.13 asyncio counts a
    cancellation of it that is never taken back: a task that catches the failure and goes on counts as cancelled, and in
    Python 3.11.2 the next timeout ends it without an error.
    Source: https://github.com/python/cpython/issues/116720
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()  # noqa: TID251  the only one
        self._cancels = 0

    async def __aenter__(self) -> Self:
        """Begin."""
        self._cancels = _cancels()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the members."""
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup:
            task = asyncio.current_task()
            if task is not None and task.cancelling() > self._cancels:
                task.uncancel()
            raise

    def create_task(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Let ``work`` run as a member."""
        member = _fails_or_ends(work)
        member.__name__, member.__qualname__ = work.__name__, work.__qualname__  # type: ignore[attr-defined]  # shown in lists of tasks
        task = self._group.create_task(member)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it is not begun
        return task


async def _fails_or_ends(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except asyncio.CancelledError as error:
        if _cancels():
            raise
        raise RuntimeError("an unrequested cancellation") from error


def _cancels() -> int:
    """Return how often this task was asked to end."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def cancel_safe(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return ``work`` for a task that owns something; a cancellation before its first step reaches its first await.

    asyncio closes a coroutine that is cancelled before its first step: neither its ``except`` nor its ``finally`` runs,
    and a claim, a message or a permit that it was to release would be held as long as the process lives.

    The returned coroutine has begun: make a task of it at once.
    """
    begun = _after_pause(work)
    begun.__name__, begun.__qualname__ = work.__name__, work.__qualname__  # type: ignore[attr-defined]  # shown in lists of tasks
    begun.send(None)
    return begun


async def _after_pause(work: Coroutine[Any, Any, T]) -> T:
    try:
        await _pause()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  only a task is cancelled
        task.uncancel()
        task.cancel()
    except GeneratorExit:  # no task was made of it
        work.close()
        raise
    return await work


@coroutine
def _pause() -> Generator[None, None, None]:
    yield
