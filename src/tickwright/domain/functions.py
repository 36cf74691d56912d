"""What can be said of a function that somebody's program brings, without calling it."""

import inspect
from collections.abc import Callable
from typing import Any


def takes_one(function: Callable[..., Any]) -> bool:
    """Return whether it can be called with one positional argument and nothing else."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True
