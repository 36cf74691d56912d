"""The pause after a failed connection: doubling, with jitter, so that a dead server is not flooded."""

from datetime import timedelta

from tickwright.domain.retries import RetryPolicy
from tickwright.ports.ids import monotonic, random_unit

PAUSE = RetryPolicy(base=timedelta(seconds=0.1), cap=timedelta(seconds=10))


class Pause:
    """Decide whether a new attempt to connect may start.

    The pause after the n-th failure in a row is between half and all of ``0.1 s * 2**(n - 1)``, at most 10 seconds. A
    success resets the count of failures.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._until_s = 0.0

    def remaining(self) -> timedelta | None:
        """Return the remaining pause, or ``None`` if an attempt may start."""
        wait_s = self._until_s - monotonic()
        return timedelta(seconds=wait_s) if wait_s > 0 else None

    def failed(self) -> None:
        """Start the next, longer pause."""
        self._failures += 1
        self._until_s = monotonic() + PAUSE.ceiling_s(self._failures) * (0.5 + random_unit() / 2)

    def succeeded(self) -> None:
        """Reset the count of failures."""
        self._failures = 0
        self._until_s = 0.0
