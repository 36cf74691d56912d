"""A request becomes a record with its parts, announced in the same transaction, or finds the equal one under way."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from tickwright.capabilities.reports.requests.announcements import Routes, served_by, tell_all
from tickwright.capabilities.reports.requests.messages import Announcement
from tickwright.capabilities.reports.requests.store import SQL
from tickwright.capabilities.reports.types.plan import Plan
from tickwright.domain.errors import Contended
from tickwright.store.pool import Connection

CREATE_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReport:
    """What is asked for, checked. ``plan`` has the request's own format in it."""

    type: str
    query_key: str
    conditions: Mapping[str, Any]
    requester: str
    plan: Plan
    source: str = ""
    department: str | None = None
    notify: str | None = None


class Created(NamedTuple):
    """The record that answers a request; ``created`` is false where an equal one was under way."""

    id: int
    created: bool


async def create_record(connection: Connection, routes: Routes, new: NewReport) -> Created:
    """Make a record with its parts and announce it, in the caller's transaction, or find the equal one under way.

    Raises:
        Contended: ``report_in_flight``: equal ones come and go faster than they can be seen. Retry.

    Invariants:
        RRC-1: one report under way per requester and query key.
    """
    for _ in range(CREATE_TRIES):
        row = await connection.fetchrow(
            SQL["insert_report"], new.source, new.type, new.query_key, json.dumps(new.conditions), new.department,
            new.requester, msgspec.json.encode(new.plan).decode(), new.notify, float(new.plan.deadline_s),
            float(new.plan.check_every_s),
        )  # fmt: skip
        if row is not None:
            await _expect(connection, routes, row["id"], new.plan)
            told = Announcement(
                row["id"], row["epoch"], 1, new.type, new.conditions, {}, new.requester, row["deadline_at"]
            )
            await tell_all(connection, routes, told, new.plan)
            return Created(row["id"], created=True)
        found = await connection.fetchval(SQL["running_report"], new.requester, new.query_key)
        if found is not None:
            return Created(found, created=False)
    raise Contended("report_in_flight", "an equal report is being asked for or ends just now; try again")


async def _expect(connection: Connection, routes: Routes, report_id: int, plan: Plan) -> None:
    listeners = plan.listeners
    await connection.execute(
        SQL["insert_parts"],
        report_id,
        [one.name for one in listeners],
        [one.stage for one in listeners],
        [one.kind for one in listeners],
        [served_by(one.kind, one.name, one.source) for one in listeners],
        [one.required for one in listeners],
        routes.grace_s,
    )
