"""Entities, trackers and reports by call, with the bounds and errors of REST.

Changes of entities and trackers are recorded in the audit trail under the name ``python``. What a program registers or
requests is not, like the jobs that it schedules: the trail is for operators.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tickwright.app.payloads import to_json
from tickwright.capabilities.fanout.entities.entities import EntityQuery
from tickwright.capabilities.fanout.entities.schemas import (
    EntityDetail,
    EntityExplanation,
    EntityRequest,
    EntityView,
    StoredEntity,
)
from tickwright.capabilities.fanout.service import FanoutService
from tickwright.capabilities.polling.service import PollingService, register, unknown_partner
from tickwright.capabilities.polling.trackers.events import StatusEvent
from tickwright.capabilities.polling.trackers.requests import (
    EVENT_ID_CHARS_MAX,
    EndedTracker,
    EventOutcome,
    NewTracker,
    TrackerDetail,
    TrackerWire,
    check_status,
    check_tracker,
)
from tickwright.capabilities.reports.requests.views import ReportRequestBody
from tickwright.capabilities.reports.service import ReportsService
from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import parse_instant
from tickwright.ports.caller import Caller
from tickwright.ports.views import Explanation, Page
from tickwright.store.borrowed import Fetching, borrow
from tickwright.store.paging import LIMIT_DEFAULT
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.app.sql", "tracking.sql")
_body = msgspec.json.Decoder(ReportRequestBody)


class Entities:
    """Common operations on entities; imports and modules are in ``app.entities.service``."""

    def __init__(self, service: FanoutService, caller: Caller) -> None:
        self.service, self._caller = service, caller

    async def put(
        self,
        code: str,
        *,
        party: Mapping[str, Any] | None = None,
        modules: str | Sequence[str] = (),
        partner: str | None = None,
        enabled: bool = True,
    ) -> StoredEntity:
        """Create or replace an entity. Schedulers use the change at once. Repeating a call changes nothing.

        Args:
            code: 1 to 100 letters, digits or ``_ . * @ + -``.
            party: Copied into every message; secrets are written ``${env:NAME}``. At most 64 KiB as JSON.
            modules: ``"LOCATIONS,TARIFFS"``, or their names.
            partner: The partner whose limits apply to its calls.
            enabled: Whether it is polled.

        Raises:
            Rejected: ``invalid_entity_code``, ``unknown_module``, ``unknown_partner``, ``plain_secret``,
                ``party_too_large``, or the error of a party like that of a payload in ``schedule``. Permanent.
        """
        document = strict_json.loads(to_json(party or {}).encode())
        if not isinstance(document, dict):
            raise Rejected("invalid_payload", "party: give a mapping", field="party")
        names = modules if isinstance(modules, str) else list(modules)
        request = EntityRequest(
            party=document, is_polling_enabled=enabled, polling_enabled_modules=names, partner=partner
        )
        return await self.service.entities.put(code, request, caller=self._caller)

    async def get(self, code: str) -> EntityDetail:
        """Return one entity and the results of its polls. Raises ``Rejected`` (``entity_not_found``)."""
        return await self.service.entities.get(code)

    async def list(
        self,
        *,
        module: str | None = None,
        enabled: bool | None = None,
        q: str = "",
        cursor: str | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> Page[EntityView]:
        """Return a page of entities by code. Raises ``Rejected`` (``invalid_limit``, ``invalid_cursor``), permanent."""
        return await self.service.entities.list(EntityQuery(module, enabled, q, cursor, limit))

    async def explain(self, code: str, module: str) -> EntityExplanation:
        """Return why it is polled for a module now, or why not. Raises ``Rejected`` (``entity_not_found``)."""
        return await self.service.entities.explain(code, module)

    async def pause(self, code: str) -> EntityView:
        """Stop polling it. Raises ``Rejected`` (``entity_not_found``)."""
        return await self.service.entities.switch(code, "pause", caller=self._caller)

    async def enable(self, code: str) -> EntityView:
        """Poll it again. Raises ``Rejected`` (``entity_not_found``)."""
        return await self.service.entities.switch(code, "enable", caller=self._caller)

    async def delete(self, code: str) -> None:
        """Stop polling it and delete it. Raises ``Rejected`` (``entity_not_found``)."""
        await self.service.entities.delete(code, caller=self._caller)


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
        event = StatusEvent(check_status(status), parse_instant(at.isoformat(), field="at"), event_id)
        return await self.service.take_event(tracker_id, event, caller=self._caller)


def new_tracker(
    account_id: str, partner: str, external_id: str, status: str | None, until: datetime | None
) -> NewTracker:
    """Return a checked tracker; errors as :func:`check_tracker`, and ``invalid_tracker`` for a non-text value."""
    for field, value in {"account_id": account_id, "partner": partner, "external_id": external_id}.items():
        if not isinstance(value, str):
            raise Rejected("invalid_tracker", f"{field}: text, not {type(value).__name__}", field=field)
    text = None if until is None else until.isoformat()
    wire = TrackerWire(
        account_id=account_id, partner=partner, external_id=external_id, status=status, tracking_until=text
    )
    return check_tracker(wire, now=None)


async def track(pool: Pool, new: NewTracker, connection: Any) -> Tracked:
    """Register ``new``, on the caller's connection if there is one."""
    if connection is not None:
        return await track_borrowed(borrow(connection), new)
    async with pool.acquire() as own, own.transaction():
        return await _register(own, new)


async def track_borrowed(connection: Fetching, new: NewTracker) -> Tracked:
    """Register ``new`` in the caller's transaction, which must see what others commit.

    A transaction that keeps its snapshot would not find a tracker that was placed meanwhile. It would return the id of
    a duplicate, which is dropped before it is placed.

    Raises:
        Rejected: ``unsupported_isolation``, ``unknown_partner``. Permanent.
    """
    await _check_isolation(connection, "another one's tracker", "register it")
    return await _register(connection, new)


async def _register(connection: Fetching, new: NewTracker) -> Tracked:
    tracker_id, created = await register(connection, new)
    if tracker_id is None:
        raise unknown_partner(new.partner)
    return Tracked(tracker_id, created)


async def _check_isolation(connection: Fetching, unseen: str, repeat: str) -> None:
    """Refuse a transaction that keeps its snapshot: it would not see what another transaction has committed."""
    isolation: str = (await connection.fetch(_SQL["isolation"]))[0][0]
    if isolation in {"repeatable read", "serializable"}:
        raise Rejected(
            "unsupported_isolation",
            f"connection: its transaction is {isolation.upper()} and would not see {unseen}; "
            f"use READ COMMITTED, or {repeat} without a connection once yours is committed",
        )


class RequestedReport(msgspec.Struct, frozen=True):
    """The id of the record, and whether this call created it or found an equal one in progress."""

    id: int
    created: bool


class _Borrowed:
    """The caller's connection, with the part of asyncpg's interface that creating a record needs."""

    def __init__(self, connection: Fetching) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *values: Any) -> Sequence[Any]:
        return await self._connection.fetch(sql, *values)

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        rows = await self._connection.fetch(sql, *values)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *values: Any) -> Any:
        rows = await self._connection.fetch(sql, *values)
        return rows[0][0] if rows else None

    async def execute(self, sql: str, *values: Any) -> None:
        await self._connection.fetch(sql, *values)


async def request_report(
    reports: ReportsService, pool: Pool, wanted: Mapping[str, Any], caller: Caller, connection: Any
) -> RequestedReport:
    """Request a report, on the caller's connection if there is one."""
    given = {name: value for name, value in wanted.items() if value is not None}
    new = await reports.records.check(strict_json.decode(to_json(given).encode(), _body), caller)
    if connection is None:
        async with pool.acquire() as own, own.transaction():
            made = await reports.records.create(own, new)
    else:
        borrowed = borrow(connection)
        await _check_isolation(borrowed, "an equal report that is under way", "ask")
        made = await reports.records.create(_Borrowed(borrowed), new)
    return RequestedReport(made.id, made.created)
