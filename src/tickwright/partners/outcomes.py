"""Outcomes of calls, as values that callers report to the contract."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from tickwright.domain.errors import TickwrightError, failure_text, safe_text
from tickwright.domain.retries import RECEIVER_STATUSES, parse_retry_after

RETRY_AFTER_MIN = timedelta(seconds=1)
"""Shortest silence. The breaker does not count throttled calls, so without it nothing would limit them."""
RETRY_AFTER_MAX = timedelta(days=1)
REASON_CHARS_MAX = 2000
TOO_MANY = 429
AWAY = 503


@dataclass(frozen=True, slots=True)
class Answered:
    """The partner answered, with any answer."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """The partner requested silence.

    Attributes:
        retry_after: One second to one day; no process calls before it is over.
    """

    retry_after: timedelta


@dataclass(frozen=True, slots=True)
class Failed:
    """No usable answer: 5xx, a timeout, no connection, refused credentials.

    Attributes:
        reason: Text; at most 500 characters are stored.
        throttled: The partner answered 429 without ``Retry-After``. The breaker counts it as a failure, since nothing
            else would slow calls down; the metrics count it as throttled.
    """

    reason: str
    throttled: bool = False


Outcome: TypeAlias = Answered | Throttled | Failed
ANSWERED = Answered()
_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")


def outcome_of(status: int, retry_after: str | None, *, now_unix_s: int) -> Outcome:
    """Return the outcome of an HTTP answer with ``status``, 100 to 999.

    ``retry_after`` is the header; it counts with 429 and 503 only. A date in it is compared with ``now_unix_s``.
    """
    if status in {TOO_MANY, AWAY}:
        wait = parse_retry_after(retry_after, now_unix_s=now_unix_s, most=RETRY_AFTER_MAX)
        if wait is not None:
            return Throttled(max(wait, RETRY_AFTER_MIN))
    if 200 <= status < 300 or (400 <= status < 500 and status not in RECEIVER_STATUSES):
        return ANSWERED
    return Failed(f"HTTP {status}", throttled=status == TOO_MANY)


def returned(result: object, mask: Callable[[str], str]) -> Outcome:
    """Return the outcome of a user's function, in a form that can be stored.

    Any result except ``Failed`` and ``Throttled`` is a success; ``mask`` removes secrets from a text.
    """
    if isinstance(result, Failed):
        return _failed(lambda: str(result.reason), mask, throttled=result.throttled is True)
    if not isinstance(result, Throttled):
        return ANSWERED
    wait: object = result.retry_after
    if not isinstance(wait, timedelta):
        return Failed(f"Throttled with {type(wait).__name__} instead of a timedelta")
    return Throttled(min(max(wait, RETRY_AFTER_MIN), RETRY_AFTER_MAX))


def raised(error: BaseException, mask: Callable[[str], str]) -> Failed:
    """Return the outcome of a user's function that raised ``error``."""
    if isinstance(error, TickwrightError):
        return Failed(": ".join(failure_text(error, mask))[:REASON_CHARS_MAX])
    return _failed(lambda: repr(error), mask, otherwise=type(error).__name__)


def _failed(
    text_of: Callable[[], str], mask: Callable[[str], str], *, otherwise: str = "no reason", throttled: bool = False
) -> Failed:
    masked = mask(safe_text(text_of, otherwise))  # mask before cutting: half a secret would not be found
    return Failed(_UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", masked[:REASON_CHARS_MAX]), throttled=throttled)
