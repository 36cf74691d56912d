"""``tickwright bench results``: from the end of a handler to its value in a caller that waits for it."""

from tickwright.bench.results.waiters import BARS, main

__all__ = ["BARS", "main"]
