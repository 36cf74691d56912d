"""Modules, and the windows that entities are polled in.

A window is known by its start in whole seconds since 1970 by the database's clock (the ``alignedTimestamp`` of a key).
Code that iterates windows instead of ticks cannot drift, skip a window, or have one twice.
"""

import re
from dataclasses import dataclass
from math import floor

MODULE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,49}")
"""A whole name of a module; it is the task type of a message, and a part of ``ENABLE_<NAME>_POLLING``."""


def parse_modules(text: str) -> tuple[str, ...]:
    """Return the modules that ``text``, such as ``"LOCATIONS,TARIFFS"``, names: in capitals, each once, in their order.

    Rows are also written by hand in SQL, so spaces, small letters, doubles and empty names are no mistake. A name
    without a module is returned as well: the caller knows which ones there are.

    Args:
        text: Names with commas between; may be empty.

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
        """Where the next one begins."""
        return self.start_s + self.length_s


def window_at(now_s: float, length_s: int) -> Window:
    """Return the window that ``now_s`` lies in.

    Args:
        now_s: Seconds since 1970 by the database's clock.
        length_s: 1 or more; it need not divide a day.

    Invariants:
        WIN-1: every instant lies in exactly one window of a length, and the start belongs to it.
    """
    return Window(floor(now_s / length_s) * length_s, length_s)
