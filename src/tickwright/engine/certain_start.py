"""Work that a task certainly begins, also where it is cancelled in the turn of the loop that made it.

asyncio closes a coroutine that is cancelled before its first step: neither its ``except`` nor its ``finally`` runs. A
claim, a message or a permit that such a task was to release would be held for as long as the process lives.
"""

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def begins(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return ``work`` for a task that owns something; a cancellation before its first step reaches its first await.

    The returned coroutine has begun: it is to become a task at once.
    """
    begun = _carried_out(work)
    begun.__name__, begun.__qualname__ = work.__name__, work.__qualname__  # type: ignore[attr-defined]  # shown in lists of tasks
    begun.send(None)
    return begun


async def _carried_out(work: Coroutine[Any, Any, T]) -> T:
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
