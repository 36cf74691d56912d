"""Couriers: the function that calls a partner, from a poll to an answer, and the registry of a program's couriers."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeAlias

from tickwright.capabilities.polling.trackers.requests import STATUS_CHARS_MAX
from tickwright.domain.errors import Rejected, storable
from tickwright.engine.registry import Registry
from tickwright.engine.remote.calls import Postponed
from tickwright.partners.outcomes import Failed, Throttled

EVENTS_MAX = 100
EVENT_TEXT_CHARS_MAX = 500
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Poll:
    """One call to make.

    Attributes:
        id: Of the message, ``poll_<tracker id>_<due second>``; the same one whenever this poll is tried again.
        external_id: The partner's id: the tracking number.
        timeout: The call is cancelled after it.
    """

    id: str
    tracker_id: int
    external_id: str
    account_id: str
    partner: str
    due_at: datetime
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class ScanEvent:
    """An event of the tracked shipment.

    Attributes:
        at: When, by the partner's clock; aware.
        text: At most 500 characters.
    """

    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a partner answered.

    Attributes:
        status: 1 to 100 characters; ``None`` when it is unknown to the partner, which changes nothing.
        at: Since when the status holds; aware. A status older than the known one is stale and changes nothing.
        events: At most 100, in any order. Events that were not published before are published, whatever the status; one
            that is older than ten known events is not.
        terminal: The tracker ends. It also ends when the partner's settings list the status.
    """

    status: str | None
    at: datetime | None = None
    events: tuple[ScanEvent, ...] = field(default=())
    terminal: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be written, so that one bad answer does not delay others.

        The events become a tuple, so that later changes of a list have no effect.

        Raises:
            Rejected: ``invalid_answer``. Permanent.
        """
        _check_types(self)
        if self.status is not None:
            object.__setattr__(self, "status", str.__str__(self.status))  # a subclass may compare as it likes
        object.__setattr__(self, "events", _events_of(self.events))
        if self.status is not None and not 0 < len(self.status) <= STATUS_CHARS_MAX:
            raise _invalid(f"status: 1 to {STATUS_CHARS_MAX} characters")
        for text in (self.status or "", *(event.text for event in self.events)):
            if storable(text) != text:
                raise _invalid("PostgreSQL cannot store a text with NUL or half a character in it")
        if any(len(event.text) > EVENT_TEXT_CHARS_MAX for event in self.events):
            raise _invalid(f"events: a text has at most {EVENT_TEXT_CHARS_MAX} characters")
        for at in (self.at, *(event.at for event in self.events)):
            if at is not None and (at.tzinfo is None or not EARLIEST <= at <= LATEST):
                raise _invalid("at: give an aware datetime from 1970 to 2200")


def _check_types(answer: Answer) -> None:
    for name, kind, expected in (
        ("status", str | None, "a text or None"),
        ("at", datetime | None, "an aware datetime or None"),
        ("terminal", bool, "True or False"),
    ):
        value: object = getattr(answer, name)
        if not isinstance(value, kind):
            raise _invalid(f"{name}: {expected}, not {type(value).__name__}")


def _events_of(given: Iterable[ScanEvent]) -> tuple[ScanEvent, ...]:
    events = tuple(islice(given, EVENTS_MAX + 1))
    if len(events) > EVENTS_MAX:
        raise _invalid(f"events: at most {EVENTS_MAX}")
    for event in events:
        if not isinstance(event, ScanEvent):
            raise _invalid(f"events: each is a ScanEvent, not {type(event).__name__}")
        values: tuple[object, object] = event.at, event.text
        if not isinstance(values[0], datetime) or not isinstance(values[1], str):
            raise _invalid("events: each has a datetime and a text")
    return events


def _invalid(problem: str) -> Rejected:
    return Rejected("invalid_answer", problem)


Result: TypeAlias = Answer | Throttled | Failed | Postponed
Courier: TypeAlias = Callable[[Poll], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class DeclaredPartner:
    """A partner that a program declares.

    Attributes:
        settings: Its limits, checked, as ``tickwright.partners`` stores them.
    """

    name: str
    settings: Mapping[str, Any]
    courier: Courier


class CourierRegistry(Registry[DeclaredPartner]):
    """The couriers of one program, by the partner's name."""

    kind = "partner"

    def _check(self, declared: DeclaredPartner) -> None:
        if not inspect.iscoroutinefunction(declared.courier):
            raise Rejected("invalid_partner", f"{declared.name}: the function must be async")
