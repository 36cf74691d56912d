"""Misbehaviour of functions of users that no contract allows: towards their own task, and with errors of Tickwright."""

import asyncio
import sys

from tickwright.domain.errors import Contended, Rejected, TickwrightError, Unavailable

STRANGE = (
    "cancels_itself",
    "cancels_itself_and_fails",
    "is_cancelled",
    "exits",
    "no_text",
    "nameless",
    "no_code",
    "unwritable",
    "bare",
    "chunk_lost",
)
FINAL = frozenset({"nameless", "no_code", "unwritable", "bare"})
"""Those that end with ``Rejected``, which is not tried again."""


class Nameless:
    """Raises when it is shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Bare(Rejected):
    """A subclass that does not call the constructor of ``Rejected``: it has neither code nor message."""

    def __init__(self) -> None:
        Exception.__init__(self)


async def behave(how: str) -> None:
    """Misbehave in one of the ways of ``STRANGE``."""
    match how:
        case "cancels_itself":
            _cancel_this_task()
            await asyncio.sleep(0)
        case "cancels_itself_and_fails":
            _cancel_this_task()  # it arrives with the next await, which is no longer the function's
            raise ValueError("its own")
        case "is_cancelled":
            raise asyncio.CancelledError
        case "exits":
            sys.exit(3)
    raise error_of(how)


def error_of(how: str) -> TickwrightError:
    """Return one of Tickwright's errors with invalid arguments."""
    match how:
        case "no_text":
            return Unavailable("bad", ValueError("x"))  # type: ignore[arg-type]
        case "nameless":
            return Rejected("bad", Nameless())  # type: ignore[arg-type]
        case "no_code":
            return Rejected(None, None)  # type: ignore[arg-type]
        case "unwritable":
            return Rejected("a\0b\ud800" + "c" * 1000, "x\0y\ud800")
        case "bare":
            return Bare()
    return Contended(how, "its own")


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
