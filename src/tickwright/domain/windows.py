"""Windows: time cut into equal parts that everybody cuts the same way.

A window is known by its start, so many whole seconds after 1970 by the database's clock (the ``alignedTimestamp`` of a
key). Whoever iterates windows instead of ticks cannot drift, skip one, or have two of one.
"""

from dataclasses import dataclass
from math import floor


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
