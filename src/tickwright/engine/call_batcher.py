"""Many calls in one statement: calls that arrive while a statement runs go into the next one. No timer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class CallBatcher(Generic[A, R]):
    """Writes waiting items, one batch of at most ``items_max`` at a time, and returns each caller its own answer.

    ``write`` returns one answer per item, in order. An answer that is an exception is raised to the caller of that
    item; an exception that ``write`` raises, to every caller of the batch. Without ``write``, a subclass writes. With
    ``for_all``, a batch has no part in the context (the time limit, the share) of the request that began it.
    """

    def __init__(
        self,
        write: Callable[[Sequence[A]], Awaitable[Sequence[R | Exception]]] | None = None,
        *,
        items_max: int = 200,
        for_all: bool = False,
    ) -> None:
        self._write, self._items_max, self._for_all = write, items_max, for_all
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, item: A) -> R:
        """Return the answer for ``item``. The item of a cancelled caller is still written."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run(), context=Context() if self._for_all else None)
        return await answer

    async def _run(self) -> None:
        try:
            await self._write_waiting()
        finally:
            self._running = asyncio.create_task(self._run()) if self._waiting else None

    async def _write_waiting(self) -> None:
        """Write batches until none waits."""
        assert self._write is not None  # noqa: S101  else a subclass overrides this
        while batch := self._take():
            answers: Sequence[R | Exception]
            try:
                answers = await self._write([item for item, _ in batch])
            except Exception as error:  # noqa: BLE001  the callers' boundary
                answers = [error] * len(batch)
            self._answer(batch, answers)

    def _take(self) -> "list[tuple[A, asyncio.Future[R]]]":
        batch, self._waiting = self._waiting[: self._items_max], self._waiting[self._items_max :]
        return batch

    def _answer(self, batch: "Sequence[tuple[A, asyncio.Future[R]]]", answers: Sequence[R | Exception]) -> None:
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
