"""When a failed attempt is tried again: exponential back-off with full jitter.

Pure: the random number comes in as an argument. The receiver's own wish (``Retry-After``) outranks
the policy upwards, never downwards, and nothing waits longer than the cap.
Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from dataclasses import dataclass
from datetime import timedelta

RETRY_AFTER_MAX = timedelta(hours=1)
DELAY_MIN = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait before attempt ``n + 1``.

    Attributes:
        base: Ceiling of the first wait.
        factor: Each further ceiling is this many times the one before, 1 to 10.
        cap: No ceiling is above it.
    """

    base: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)

    def delay(self, attempt: int, unit: float, retry_after: timedelta | None = None) -> timedelta:
        """Return how long to wait after failed attempt number ``attempt``.

        Args:
            attempt: 1 for the first one.
            unit: A random number in ``[0, 1)``.
            retry_after: What the receiver asked for.

        Invariants:
            RTY-1: never below 100 ms, so a failing job is never a hot loop.
            RTY-2: never below ``retry_after``, which itself counts at most one hour.
        """
        exponent = min(max(attempt - 1, 0), 64)
        ceiling_s = min(self.base.total_seconds() * self.factor**exponent, self.cap.total_seconds())
        jittered = timedelta(seconds=ceiling_s * unit)
        asked = min(retry_after or timedelta(), RETRY_AFTER_MAX)
        return max(jittered, asked, DELAY_MIN)
