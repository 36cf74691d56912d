"""Events of a tracker that partners send: a webhook outranks polling.

Pure: the service loads the tracker under a lock, this module decides, the service writes. The rules, which also hold
for the answers of polls (``write_results`` in ``sql/consumer.sql``):

- Events are applied in the order of their own instants, not of their arrival: one older than the status is stale.
- An instant ahead of the database's clock counts as the instant of receipt, so that it hides no later event. A
  webhook's instant more than five minutes ahead is refused: its sender can correct it, and polling continues.
- Of two different statuses of one instant the one that arrives last counts. The same one is a duplicate.
- A terminal status ends the tracker whatever its instant, and remains its status. Later events change nothing.
- Scan events come with polls only. Each is published once, whatever the status and its instant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from tickwright.domain.errors import Rejected

TERMINAL_DEFAULT = ("Delivered",)
"""Statuses that end a tracker when its partner's settings list none."""

AHEAD_MAX = timedelta(minutes=5)
REMEMBERED = timedelta(days=7)


class EventVerdict(StrEnum):
    """What happens to an event."""

    APPLIED = "applied"
    STALE = "stale"
    DUPLICATE = "duplicate"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """A status of a tracker, as its sender reports it.

    Attributes:
        at: Since when the status holds.
    """

    status: str
    at: datetime
    event_id: str | None = None


def decide_event(tracker: Mapping[str, Any], event: StatusEvent, *, seen: bool) -> EventVerdict:
    """Return what happens to ``event``; ``seen``: its sender's id came before.

    ``tracker`` has ``status status_at ended_at terminal``, read under a lock, and ``now``, the database's clock.
    """
    at, same = tracker["status_at"], tracker["status"] == event.status
    if seen:
        return EventVerdict.DUPLICATE
    if tracker["ended_at"] is not None:
        return EventVerdict.DUPLICATE if same and at == event.at else EventVerdict.ENDED
    if is_terminal(event.status, tracker["terminal"]):
        return EventVerdict.APPLIED
    if same and (at == event.at or event.at > tracker["now"]):
        return EventVerdict.DUPLICATE
    if at is not None and min(event.at, tracker["now"]) < at:
        return EventVerdict.STALE
    return EventVerdict.APPLIED


def counted_at(tracker: Mapping[str, Any], event: StatusEvent) -> datetime:
    """Return the instant of an applied event: not ahead of the clock, and not before the known status."""
    at: datetime = min(event.at, tracker["now"])
    return at if tracker["status_at"] is None else max(at, tracker["status_at"])


def check_event(event: StatusEvent, now: datetime) -> None:
    """Refuse an event far in the future, so that its sender learns that a clock is wrong.

    Raises:
        Rejected: ``time_in_future``. Permanent; a clock of the sender is wrong.
    """
    if event.at > now + AHEAD_MAX:
        raise Rejected(
            "time_in_future",
            f"at: more than {AHEAD_MAX.seconds // 60} minutes ahead of {now.isoformat(timespec='seconds')}, "
            "the database's clock; nothing was applied. Correct the sender's clock or time zone and send it again, "
            "or send the instant of its receipt",
            field="at",
        )


def is_terminal(status: str, terminal: str | None) -> bool:
    """Return whether a status ends a tracker; ``terminal`` is the partner's JSON list, compared as written."""
    if terminal is None:
        return status in TERMINAL_DEFAULT
    listed = msgspec.json.decode(terminal)
    return isinstance(listed, list) and status in listed


def message_of(tracker: Mapping[str, Any], event: StatusEvent, *, ended: bool) -> str:
    """Return the message for the topic of poll events, as JSON text."""
    message = {
        "version": 1,
        "event": "ended" if ended else "status",
        "reason": "terminal" if ended else "event",
        "tracker_id": tracker["id"],
        "account_id": tracker["account_id"],
        "partner": tracker["partner"],
        "external_id": tracker["external_id"],
        "status": event.status,
        "previous_status": tracker["status"],
        "at": event.at,
        "event_id": event.event_id,
    }
    return msgspec.json.encode(message).decode()
