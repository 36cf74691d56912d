"""``tickwright bench groups``: ten thousand groups, one with a million jobs, and how late the others start."""

from tickwright.bench.groups.backlog import BARS, main

__all__ = ["BARS", "main"]
