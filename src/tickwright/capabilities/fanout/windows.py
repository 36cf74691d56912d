"""Modules, and the windows in which entities are polled.

A window is identified by its start in whole seconds since 1970 by the database's clock (the ``alignedTimestamp`` of a
key). Code that iterates windows instead of ticks cannot drift, skip a window, or process one twice.
"""

import re
from dataclasses import dataclass
from math import floor

MODULE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,49}")
"""The name of a module; it is the task type of a message, and a part of ``ENABLE_<NAME>_POLLING``."""


def parse_modules(text: str) -> tuple[str, ...]:
    """Return the modules in ``text``, such as ``"LOCATIONS,TARIFFS"``: in capitals, in order, without repetitions.

    Rows are also written by hand in SQL, so spaces, small letters, repetitions, empty names and empty texts are
    accepted. Names of unknown modules are returned, too; the caller checks them.

    Invariants:
        MOD-1: ``parse_modules(",".join(parse_modules(t))) == parse_modules(t)``.
    """
    names = (name.strip().upper() for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """``[start_s, end_s)`` in seconds since 1970."""

    start_s: int
    length_s: int

    @property
    def end_s(self) -> int:
        """Start of the next window."""
        return self.start_s + self.length_s


def window_at(now_s: float, length_s: int) -> Window:
    """Return the window of ``length_s``, 1 or more, that contains ``now_s``, by the database's clock.

    A length need not divide a day.

    Invariants:
        WIN-1: every instant is in exactly one window of a length, and a window includes its start.
    """
    return Window(floor(now_s / length_s) * length_s, length_s)
