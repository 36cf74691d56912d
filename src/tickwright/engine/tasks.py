"""Tasks: groups that fail together, cancellation of users' functions, and tasks that own something."""

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType, coroutine
from typing import Any, Self, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_ENDED: "WeakSet[asyncio.Task[Any]]" = WeakSet()


def end_task(task: "asyncio.Task[Any]") -> None:
    """Cancel a task that calls a user's function, finally; see :func:`is_final_cancel`."""
    _ENDED.add(task)
    task.cancel()


def is_final_cancel(error: BaseException) -> bool:
    """Return whether ``error`` comes from :func:`end_task` and not from a user's function.

    A user's function may raise a cancellation or cancel its own task; that is a failure like any other. The number of
    cancellations therefore does not tell the two apart.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task in _ENDED


async def take_cancels_back() -> None:
    """Make this task's awaits work again after a user's function cancelled it.

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
            if is_final_cancel(error):
                raise
        task.uncancel()


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most ``seconds`` if given; return whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class TaskGroup:
    """Tasks that run and fail together, as those of ``asyncio``, with two repairs.

    1. A member that ends by an unrequested cancellation, which a library may raise, has failed. asyncio would continue
       without it for ever.
    2. A failure leaves no cancellation on this task. Before Python 3.13 asyncio leaves one: a task that catches the
       failure counts as cancelled, and in Python 3.11.2 its next timeout ends it without an error.
       Source: https://github.com/python/cpython/issues/116720
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()  # noqa: TID251  the only one
        self._cancels = 0

    async def __aenter__(self) -> Self:
        """Open the group."""
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
        """Run ``work`` as a member."""
        member = _fails_or_ends(work)
        member.__name__, member.__qualname__ = work.__name__, work.__qualname__  # type: ignore[attr-defined]  # shown in lists of tasks
        task = self._group.create_task(member)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it did not begin
        return task


async def _fails_or_ends(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except asyncio.CancelledError as error:
        if _cancels():
            raise
        raise RuntimeError("an unrequested cancellation") from error


def _cancels() -> int:
    """Return how many cancellations of this task are pending."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def cancel_safe(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return ``work`` for a task that owns something; an early cancellation reaches its first await.

    asyncio closes a coroutine that is cancelled before its first step. Neither ``except`` nor ``finally`` runs, so a
    claim, a message or a permit that the coroutine should release would be held as long as the process lives.

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
