"""Trackers by call: registered alone or in the caller's own transaction, read, updated by events and ended.

Bounds and errors are those of REST. Like a job that a program schedules, a registration is not recorded in the audit
trail, which is for operators.
"""

from datetime import datetime
from typing import Any

import msgspec

from tickwright.app.borrowed import Fetching, borrow
from tickwright.capabilities.polling.service import PollingService, register, unknown_partner
from tickwright.capabilities.polling.trackers.events import StatusEvent
from tickwright.capabilities.polling.trackers.requests import (
    EVENT_ID_CHARS_MAX,
    EndedTracker,
    EventOutcome,
    NewTracker,
    TrackerDetail,
    check_status,
    check_tracker,
)
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import parse_instant
from tickwright.ports.caller import Caller
from tickwright.ports.views import Explanation
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.app.sql", "tracking.sql")
_KEEPS_ITS_SNAPSHOT = ("repeatable read", "serializable")


class Tracked(msgspec.Struct, frozen=True):
    """The id of the tracker, and whether this call registered it."""

    id: int
    created: bool


class Trackers:
    """Common operations on trackers: ``app.trackers``. Everything else is in ``app.trackers.service``."""

    def __init__(self, service: PollingService, caller: Caller) -> None:
        self.service, self._caller = service, caller

    async def get(self, tracker_id: int) -> TrackerDetail:
        """Return one tracker. Raises ``Rejected`` (``tracker_not_found``)."""
        return await self.service.get(tracker_id)

    async def explain(self, tracker_id: int) -> Explanation:
        """Return an explanation of a tracker's state. Raises ``Rejected`` (``tracker_not_found``)."""
        return await self.service.explain(tracker_id)

    async def end(self, tracker_id: int) -> EndedTracker:
        """Stop polling a tracker. A poll that is already selected is still sent. Repeated calls are harmless.

        Raises:
            Rejected: ``tracker_not_found``. Permanent.
        """
        return await self.service.end(tracker_id, caller=self._caller)

    async def event(self, tracker_id: int, status: str, *, at: datetime, event_id: str | None = None) -> EventOutcome:
        """Report an event of a tracker. A newer status is stored, and the next poll waits for one whole interval.

        Args:
            tracker_id: Of the tracker.
            status: 1 to 100 characters.
            at: Aware: when the status began. An event not newer than the tracker's status changes nothing.
            event_id: The sender's, 1 to 200 characters: two events with one id count as one.

        Raises:
            Rejected: ``tracker_not_found``, ``time_in_future``, ``invalid_status``, ``invalid_event_id``,
                ``naive_datetime``. Permanent.
        """
        if event_id is not None and (not 1 <= len(event_id) <= EVENT_ID_CHARS_MAX or "\0" in event_id):
            raise Rejected("invalid_event_id", f"event_id: 1 to {EVENT_ID_CHARS_MAX} characters", field="event_id")
        when = parse_instant(at.isoformat(), field="at")
        news = StatusEvent(check_status(status), when, event_id)
        return await self.service.take_event(tracker_id, news, caller=self._caller)


def new_tracker(
    account_id: str, partner: str, external_id: str, status: str | None, until: datetime | None
) -> NewTracker:
    """Return a checked tracker; errors as :func:`check_tracker`, and ``invalid_tracker`` for a non-text value."""
    for field, value in {"account_id": account_id, "partner": partner, "external_id": external_id}.items():
        if not isinstance(value, str):
            raise Rejected("invalid_tracker", f"{field}: text, not {type(value).__name__}", field=field)
    text = None if until is None else until.isoformat()
    return check_tracker(account_id, partner, external_id, status=status, tracking_until=text, now=None)


async def track(pool: Pool, new: NewTracker, connection: Any) -> Tracked:
    """Register ``new``, on the caller's connection if there is one."""
    if connection is not None:
        return await track_borrowed(borrow(connection), new)
    async with pool.acquire() as own, own.transaction():
        return await track_through(own, new)


async def track_borrowed(connection: Fetching, new: NewTracker) -> Tracked:
    """Register ``new`` in the caller's transaction, which must see what others commit.

    A transaction that keeps its snapshot would not find a tracker that was placed meanwhile. It would return the id of
    a duplicate, which is dropped before it is placed.

    Raises:
        Rejected: ``unsupported_isolation``, ``unknown_partner``. Permanent.
    """
    isolation: str = (await connection.fetch(_SQL["isolation"]))[0][0]
    if isolation in _KEEPS_ITS_SNAPSHOT:
        raise Rejected(
            "unsupported_isolation",
            f"connection: its transaction is {isolation.upper()} and would not see another one's tracker; "
            "use READ COMMITTED, or register it without a connection once yours is committed",
        )
    return await track_through(connection, new)


async def track_through(connection: Fetching, new: NewTracker) -> Tracked:
    """Register ``new`` in a transaction. Raises ``Rejected`` (``unknown_partner``): permanent until it is set up."""
    tracker_id, created = await register(connection, new)
    if tracker_id is None:
        raise unknown_partner(new.partner)
    return Tracked(tracker_id, created)
