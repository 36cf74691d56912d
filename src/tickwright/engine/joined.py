"""Asks of many callers in one: what comes while one statement is under way goes into the next one. No timer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class Joined(Generic[A, R]):
    """Calls ``ask`` with what waits, one call at a time.

    Args:
        ask: Returns one answer per item, in order; what it raises, every caller of that call hears.
        most: Items of one call.
    """

    def __init__(self, ask: Callable[[Sequence[A]], Awaitable[Sequence[R]]], *, most: int = 200) -> None:
        self._ask, self._most = ask, most
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, item: A) -> R:
        """Return the answer for ``item``; a caller that is cancelled does not call it off."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer(batch)
        finally:
            self._running = None

    async def _answer(self, batch: Sequence[tuple[A, "asyncio.Future[R]"]]) -> None:
        try:
            answers = await self._ask([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  whoever asked hears it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
