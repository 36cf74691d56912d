"""What is to be done with a message, as values: the consumer decides, the source carries it out."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

SOON = timedelta(seconds=1)
LATER = timedelta(seconds=10)
MUCH_LATER = timedelta(seconds=60)
SOON_MAX, LATER_MAX = 5, 20
BUSY_SOON_MAX = 15  # seconds: longer than the claim of a killed consumer lives, in Redis or as a session
DELAYS_MAX = 30  # of what only another release can do


@dataclass(frozen=True, slots=True)
class Ack:
    """Nothing is left to do. ``why`` is what is counted: ``succeeded``, ``superseded``, ``expired``, ``given_up``."""

    why: str


@dataclass(frozen=True, slots=True)
class Delay:
    """Not now. ``why`` is what is counted: ``busy``, ``slow``, ``failed``, ``throttled`` and such."""

    why: str
    by: timedelta


@dataclass(frozen=True, slots=True)
class Bury:
    """Nobody can do this: to the dead letters, with a code and words for people."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """As if it had not been taken: this process stops, or has lost the right to do it."""


Verdict: TypeAlias = Ack | Delay | Bury | GiveBack


def patience(delays: int, soon_max: int = SOON_MAX) -> timedelta:
    """Return how long to wait after so many delays: a second ``soon_max`` times, then ten, then a minute."""
    if delays < soon_max:
        return SOON
    return LATER if delays < LATER_MAX else MUCH_LATER


def until_the_end(why: str, by: timedelta, now_s: float, end_s: int, *, over: str) -> Verdict:
    """Return a delay, or ``Ack(over)`` where it would end behind the window: the next one's message is in the queue."""
    return Delay(why, by) if now_s + by.total_seconds() < end_s else Ack(over)


def throttled(retry_after: timedelta, delays: int, now_s: float, end_s: int) -> Verdict:
    """Return a delay beyond the silence that the partner asked for.

    Who comes back at its end would be the first to call, be throttled again, and hold up the partner's other tasks.
    """
    verdict = until_the_end("throttled", retry_after + patience(delays), now_s, end_s, over="given_up")
    if isinstance(verdict, Delay):
        return verdict
    return until_the_end("throttled", max(retry_after, SOON), now_s, end_s, over="given_up")
