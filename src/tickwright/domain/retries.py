"""When a failed attempt is retried: exponential back-off with full jitter, and ``Retry-After``.

A wait that a receiver (``Retry-After``) or a handler requests can lengthen the wait of the policy, never shorten it.
Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

RETRY_AFTER_MAX = timedelta(hours=1)
"""The longest wait that a receiver can request; a longer one may be a mistake."""
WAIT_MAX = timedelta(days=3660)
"""The longest wait that a handler can request."""
DELAY_MIN = timedelta(milliseconds=100)
RECEIVER_STATUSES = frozenset({401, 403, 407, 408, 425, 429})
"""HTTP statuses of 400 to 499 that are about the receiver or our credentials, not about what was sent."""
_HEADER_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait before attempt ``n + 1``.

    Attributes:
        base: Ceiling of the first wait.
        factor: Each further ceiling is this many times the one before, 1 to 10.
    """

    base: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)

    def ceiling_s(self, attempt: int) -> float:
        """Return the longest wait in seconds after failed attempt ``attempt``; also the wait itself without jitter."""
        exponent = min(max(attempt - 1, 0), 64)
        return min(self.base.total_seconds() * self.factor**exponent, self.cap.total_seconds())

    def delay(self, attempt: int, unit: float, retry_after: timedelta | None = None) -> timedelta:
        """Return how long to wait after failed attempt ``attempt``, 1 for the first one.

        ``unit`` is a random number in ``[0, 1)``. A receiver's ``retry_after`` is first bounded by ``within_an_hour``.

        Invariants:
            RTY-1: never below 100 ms, so a failing job is never a hot loop.
            RTY-2: never below ``retry_after``, which itself counts at most 3660 days.
        """
        jittered = timedelta(seconds=self.ceiling_s(attempt) * unit)
        return max(jittered, min(retry_after or timedelta(), WAIT_MAX), DELAY_MIN)


def within_an_hour(retry_after: timedelta | None) -> timedelta | None:
    """Return the wait that a receiver requests, an hour at most."""
    return None if retry_after is None else min(retry_after, RETRY_AFTER_MAX)


def parse_retry_after(value: str | None, *, now_unix_s: int, most: timedelta) -> timedelta | None:
    """Return how long to wait, 0 to ``most``; ``None`` for a missing or invalid header.

    The header is seconds or a date, which is compared with ``now_unix_s``; see :func:`answered_at`.
    """
    text = "" if value is None or len(value) > _HEADER_CHARS_MAX else value.strip()
    if text.isascii() and text.isdigit():
        return most if int(text) >= most.total_seconds() else timedelta(seconds=int(text))
    at = _date(text)
    return None if at is None else min(max(timedelta(0), timedelta(seconds=at.timestamp() - now_unix_s)), most)


def answered_at(date: str | None, *, now_unix_s: int) -> int:
    """Return when a server answered, by its clock; by ours when its header ``Date`` is missing or invalid.

    A date to wait until is written by that clock, and ours may be wrong by hours.
    """
    at = None if date is None or len(date) > _HEADER_CHARS_MAX else _date(date.strip())
    return now_unix_s if at is None else int(at.timestamp())


def _date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
        at = at.replace(tzinfo=at.tzinfo or UTC)
        at.timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return at
