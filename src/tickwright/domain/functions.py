"""A user's function: how it can be called, and its exceptions as text that PostgreSQL can store.

A function may raise anything: an exit, a cancellation of its own, an error that cannot be printed or that contains
characters that PostgreSQL refuses, a ``TickwrightError`` with a message that is not a text. None of that may block
other work.
"""

import inspect
from collections.abc import Callable
from typing import Any

from tickwright.domain.errors import TickwrightError


def takes_one(function: Callable[..., Any]) -> bool:
    """Return whether it can be called with one positional argument and nothing else."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True


CODE_CHARS = 100


def failure_text(error: BaseException, mask: Callable[[str], str]) -> tuple[str, str]:
    """Return the code and the text of an exception of a user's function, both storable in PostgreSQL.

    The code is that of a ``TickwrightError``, otherwise ``exception``; ``mask`` removes secrets from a text.
    """
    if isinstance(error, TickwrightError):
        code = safe_text(lambda: f"{error.code}", "exception")
        text = safe_text(lambda: f"{error.message}", type(error).__name__)
    else:
        code, text = "exception", error_text(error)
    return storable(mask(code))[:CODE_CHARS], storable(mask(text))


def error_text(error: BaseException) -> str:
    """Return an error's class and, if it can be printed, its text."""
    return safe_text(lambda: f"{type(error).__name__}: {error}", type(error).__name__)


def safe_text(text_of: Callable[[], str], otherwise: str) -> str:
    """Return the text of ``text_of``, which runs code of a user's class; if that raises anything, ``otherwise``."""
    try:
        return text_of()
    except BaseException:  # noqa: BLE001  the user's class
        return otherwise


def storable(text: str) -> str:
    """Return a text without characters that PostgreSQL refuses: NUL and halves of surrogate pairs."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()
