"""Figures over time as a line of bars."""

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float | None]) -> str:
    """Return a bar per value, scaled to the largest; nothing is a blank, and so is what is not known."""
    top = max((value or 0 for value in values), default=0)
    return "".join(_bar(value or 0, top) for value in values)


def _bar(value: float, top: float) -> str:
    if value <= 0:
        return " "
    return _BARS[min(len(_BARS) - 1, max(0, -int(-value * len(_BARS) // top) - 1))]
