"""``tickwright bench workflow``: chains, of which each job releases the next one, and a job that waits for many."""

from tickwright.bench.workflow.chains import BARS, main

__all__ = ["BARS", "main"]
