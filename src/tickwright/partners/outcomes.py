"""What became of a call, as values: the contract is told, and decides what it means for everybody."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from tickwright.domain.retry_after import parse_retry_after

RETRY_AFTER_MAX = timedelta(days=1)
TOO_MANY = 429
AWAY = 503
NOT_THE_CALLERS = frozenset({401, 403, 407, 408, 425, 429})
"""Statuses of 400 to 499 that say something about us and the partner, not about what was asked for."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The partner did its work, whatever it said about what was asked for."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """The partner asks for silence.

    Attributes:
        retry_after: Zero to one day; nobody of any process calls before it is over.
    """

    retry_after: timedelta


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer that means anything: 5xx, a timeout, no connection, a refusal of our credentials.

    Attributes:
        reason: For a person; at most 500 characters are kept.
        throttled: The partner said 429 and not for how long. The breaker sees a failure, since nothing else would slow
            us down; who counts calls sees that there were too many.
    """

    reason: str
    throttled: bool = False


Outcome: TypeAlias = Answered | Throttled | Failed
ANSWERED = Answered()


def outcome_of(status: int, retry_after: str | None, *, now_unix_s: int) -> Outcome:
    """Return what an HTTP answer means for the contract.

    Args:
        status: 100 to 999.
        retry_after: The header as it came; counts with 429 and 503 only.
        now_unix_s: What a date in it is compared with.
    """
    if status in {TOO_MANY, AWAY}:
        wait = parse_retry_after(retry_after, now_unix_s=now_unix_s, most=RETRY_AFTER_MAX)
        if wait is not None:
            return Throttled(wait)
    if 200 <= status < 300 or (400 <= status < 500 and status not in NOT_THE_CALLERS):
        return ANSWERED
    return Failed(f"HTTP {status}", throttled=status == TOO_MANY)
