"""Waiting for a condition, never for a time."""

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")
PAUSE_S = 0.02
PATIENCE = float(os.environ.get("TICKWRIGHT_TEST_PATIENCE", "1"))
"""A factor of every bound of a wait; ``scripts/test_again.py`` sets a higher one for busy machines."""


def eventually(predicate: Callable[[], T], within_s: float = 10.0, *, what: str = "") -> T:
    """Return the first true value of ``predicate``; fail the test if there is none in time."""
    deadline = time.monotonic() + within_s * PATIENCE
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_message(predicate, within_s, what, value))
        time.sleep(PAUSE_S)


@overload
async def eventually_async(predicate: Callable[[], Awaitable[T]], within_s: float = 10.0, *, what: str = "") -> T: ...


@overload
async def eventually_async(predicate: Callable[[], T], within_s: float = 10.0, *, what: str = "") -> T: ...


async def eventually_async(predicate: Callable[[], Any], within_s: float = 10.0, *, what: str = "") -> Any:
    """Do the same without blocking the event loop; ``predicate`` may be a coroutine function."""
    deadline = time.monotonic() + within_s * PATIENCE
    while True:
        answer = predicate()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_message(predicate, within_s, what, value))
        await asyncio.sleep(PAUSE_S)


def _message(predicate: object, within_s: float, what: str, value: object) -> str:
    name = what or getattr(predicate, "__name__", repr(predicate))
    return f"not within {within_s * PATIENCE:g} s: {name} (last value: {value!r})"
