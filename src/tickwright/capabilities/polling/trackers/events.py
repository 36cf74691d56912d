"""News that somebody else brings of a tracker: a courier's webhook outranks polling.

Pure: the service loads the tracker under a lock, this module decides, the service writes. The rules, which hold for the
answers of polls, too (``write_results`` in ``sql/consumer.sql``):

- News are applied in the order of their own instants, not of their arrival: what is older than the status is stale.
- An instant ahead of the database's clock counts as the instant of receipt, so that it hides nothing that comes later.
  A webhook's that is more than five minutes ahead is refused: its sender can correct it, and polls go on.
- Of two different statuses of one instant the one that arrives last counts. The same one is a duplicate.
- A terminal status ends the tracker whatever its instant, and is the status from then on. After it nothing counts.
- Scan events come with polls only. Each is told once, whatever the status and its instant: news from here hide none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from tickwright.domain.errors import Rejected

TERMINAL_DEFAULT = ("Delivered",)
"""Which statuses end a tracker where its partner's settings say nothing."""

AHEAD_MAX = timedelta(minutes=5)
REMEMBERED = timedelta(days=7)


class EventVerdict(StrEnum):
    """What becomes of news."""

    APPLIED = "applied"
    STALE = "stale"
    DUPLICATE = "duplicate"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """What somebody says of a tracker.

    Attributes:
        at: When the status came to be.
        event_id: The sender's.
    """

    status: str
    at: datetime
    event_id: str | None = None


def judge(tracker: Mapping[str, Any], news: StatusEvent, *, seen: bool) -> EventVerdict:
    """Return what becomes of ``news``.

    Args:
        tracker: ``status status_at ended_at terminal`` as they are, under a lock, and ``now``, the database's clock.
        news: As they came.
        seen: Whether the sender's id came before.
    """
    at, same = tracker["status_at"], tracker["status"] == news.status
    if seen:
        return EventVerdict.DUPLICATE
    if tracker["ended_at"] is not None:
        return EventVerdict.DUPLICATE if same and at == news.at else EventVerdict.ENDED
    if is_terminal(news.status, tracker["terminal"]):
        return EventVerdict.APPLIED
    if same and (at == news.at or news.at > tracker["now"]):
        return EventVerdict.DUPLICATE
    if at is not None and min(news.at, tracker["now"]) < at:
        return EventVerdict.STALE
    return EventVerdict.APPLIED


def counted_at(tracker: Mapping[str, Any], news: StatusEvent) -> datetime:
    """Return the instant that applied news count for: not ahead of the clock, and not before what is known."""
    at: datetime = min(news.at, tracker["now"])
    return at if tracker["status_at"] is None else max(at, tracker["status_at"])


def check_event(news: StatusEvent, now: datetime) -> None:
    """Refuse news from far in the future: whoever sends them is to hear that a clock is wrong.

    Raises:
        Rejected: ``time_in_future``. Permanent; a clock of the sender is wrong.
    """
    if news.at > now + AHEAD_MAX:
        raise Rejected(
            "time_in_future",
            f"at: more than {AHEAD_MAX.seconds // 60} minutes ahead of {now.isoformat(timespec='seconds')}, "
            "the database's clock; nothing was applied. Correct the sender's clock or time zone and send it again, "
            "or send the instant of its receipt",
            field="at",
        )


def is_terminal(status: str, terminal: str | None) -> bool:
    """Say whether a status ends a tracker; ``terminal`` is the partner's JSON list, compared as written."""
    if terminal is None:
        return status in TERMINAL_DEFAULT
    listed = msgspec.json.decode(terminal)
    return isinstance(listed, list) and status in listed


def message_of(tracker: Mapping[str, Any], news: StatusEvent, *, ended: bool) -> str:
    """Return what goes to the topic of poll events, as JSON text."""
    message = {
        "version": 1,
        "event": "ended" if ended else "status",
        "reason": "terminal" if ended else "event",
        "tracker_id": tracker["id"],
        "account_id": tracker["account_id"],
        "partner": tracker["partner"],
        "external_id": tracker["external_id"],
        "status": news.status,
        "previous_status": tracker["status"],
        "at": news.at,
        "event_id": news.event_id,
    }
    return msgspec.json.encode(message).decode()
