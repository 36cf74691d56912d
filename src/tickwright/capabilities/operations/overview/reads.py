"""Queries of the overview and the metrics, all in ``overview.sql``; every count is bounded."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

import msgspec

from tickwright.capabilities.operations.overview.rates import CountersSaid
from tickwright.capabilities.operations.overview.views import (
    ExecutionNow,
    ExecutionsNow,
    FanoutNow,
    FiringAlert,
    LastFile,
    LatestJob,
    PartnerNow,
    ReportsNow,
)
from tickwright.engine.outbox.table import lane_heads
from tickwright.store.pool import Connection
from tickwright.store.queries import load, with_lanes, with_shared

SQL = with_shared(with_lanes(load("tickwright.capabilities.operations.sql", "overview.sql")), "lists")
COUNT_MAX = 10_000
SESSIONS_MAX = 1_000
LATEST_JOBS = 10
ACCOUNTS_SHOWN = 20
ANSWER_S = 1.0


class SessionSaid(msgspec.Struct):
    """A living session; ``counters`` is ``null`` where there is no heartbeat since the last reading."""

    id: int
    roles: list[str]
    seen_s: float
    draining: bool
    counters: msgspec.Raw

    def said(self) -> CountersSaid | None:
        """Return its counters; ``None`` where they are known already, or where another release's format differs."""
        try:
            return msgspec.json.decode(self.counters, type=CountersSaid | None)
        except msgspec.ValidationError:
            return None


_SESSIONS = msgspec.json.Decoder(list[SessionSaid])
_LATEST = msgspec.json.Decoder(list[LatestJob])
_EXECUTIONS = msgspec.json.Decoder(list[ExecutionNow])
_NEWEST = msgspec.json.Decoder(list[FiringAlert])


@dataclass(frozen=True, slots=True)
class Moment:
    """The facts that change every second.

    ``good_keys`` and ``good_sessions`` are the valid ones; ``cut``: more claim ranges have jobs than were counted.
    """

    at: datetime
    cut: bool
    due: int
    waiting: int
    oldest_due_s: float
    sessions: Sequence[SessionSaid]
    lost_lately: int
    good_keys: frozenset[int]
    good_sessions: frozenset[int]
    latest: Sequence[LatestJob]


async def read_moment(
    connection: Connection,
    *,
    after: datetime,
    keys: Collection[int],
    sessions: Collection[int] = (),
    before: Moment | None = None,
) -> Moment:
    """Read the facts of this moment with one statement.

    Counters of sessions that were not seen ``after`` that instant are known already. ``keys`` and ``sessions`` (of
    browsers) are checked. Counts that stopped at the bound in ``before`` are not repeated: they cost most and would not
    change.
    """
    known = {} if before is None else {"due": before.due, "waiting": before.waiting}
    known = {name: count for name, count in known.items() if count >= COUNT_MAX}
    due_max, waiting_max = (0 if name in known else COUNT_MAX for name in ("due", "waiting"))
    given = (due_max, after, SESSIONS_MAX, list(keys), LATEST_JOBS, waiting_max, list(sessions))
    row = await connection.fetchrow(SQL["now"], *given, timeout=ANSWER_S)
    return Moment(
        at=row["at"],
        cut=row["cut"],
        due=known.get("due", row["due"]),
        waiting=known.get("waiting", row["waiting"]),
        oldest_due_s=round(max(0.0, row["oldest_due_s"]), 3),
        sessions=_SESSIONS.decode(row["sessions"]),
        lost_lately=row["lost_lately"],
        good_keys=frozenset(row["good_keys"]),
        good_sessions=frozenset(row["good_sessions"]),
        latest=_LATEST.decode(row["latest"]),
    )


class FiringCount(msgspec.Struct):
    """How many alerts of one rule fire."""

    rule: str
    severity: str
    firing: int


_FIRING = msgspec.json.Decoder(list[FiringCount])


@dataclass(frozen=True, slots=True)
class Firing:
    """The firing alerts; ``last_id`` is the id of the newest alert in any state."""

    counts: Sequence[FiringCount]
    newest: list[FiringAlert]
    last_id: int | None


async def read_job_gauges(connection: Connection) -> Sequence[Any]:
    """Return per task type ``due processing upcoming oldest_due_s cut``."""
    rows: Sequence[Any] = await connection.fetch(SQL["job_gauges"], COUNT_MAX)
    return rows


async def read_standing(connection: Connection) -> Any:
    """Return the dead letters, the waiting outbox messages, and the leases."""
    return await connection.fetchrow(SQL["standing"], COUNT_MAX, timeout=ANSWER_S)


async def read_freshness(connection: Connection) -> Any:
    """Return how fresh the polls of accounts are."""
    return await connection.fetchrow(SQL["freshness"], ACCOUNTS_SHOWN, timeout=ANSWER_S)


async def read_poll_lags(connection: Connection) -> Sequence[Any]:
    """Return the lag of the consumers per partition."""
    rows: Sequence[Any] = await connection.fetch(SQL["poll_lags"], timeout=ANSWER_S)
    return rows


async def read_polls(connection: Connection) -> Any:
    """Return the trackers and the waiting and coming polls."""
    return await connection.fetchrow(SQL["polls"], COUNT_MAX, timeout=ANSWER_S)


async def read_partners(connection: Connection) -> list[PartnerNow]:
    """Return what became of each partner's last time slots."""
    return [PartnerNow(**dict(row)) for row in await connection.fetch(SQL["partners"], timeout=ANSWER_S)]


async def read_executions(connection: Connection) -> ExecutionsNow:
    """Return the backlog of executions, and the last few."""
    row = await connection.fetchrow(SQL["executions"], COUNT_MAX, timeout=ANSWER_S)
    latest = _EXECUTIONS.decode(row["latest"])
    return ExecutionsNow(row["waiting"], row["oldest_s"], row["working"], row["unreleased"], latest)


async def read_reports(connection: Connection) -> ReportsNow:
    """Return the reports by status, and the last file."""
    row = await connection.fetchrow(SQL["reports"], COUNT_MAX, timeout=ANSWER_S)
    last = None if row["last"] is None else msgspec.json.decode(row["last"], type=LastFile)
    counts = {name: row[name] for name in ("pending", "querying", "merging", "finished", "failed")}
    return ReportsNow(waiting=row["pending"], running=row["querying"] + row["merging"], last=last, **counts)


async def read_fanout(connection: Connection) -> FanoutNow:
    """Return the entities of fan-out, and the counters of its consumers."""
    return FanoutNow(**dict(await connection.fetchrow(SQL["fanout"], COUNT_MAX, timeout=ANSWER_S)))


async def read_alerts(connection: Connection) -> Firing:
    """Return the firing alerts."""
    row = await connection.fetchrow(SQL["alerts"], timeout=ANSWER_S)
    return Firing(_FIRING.decode(row["firing"]), _NEWEST.decode(row["newest"]), row["last_id"])


Reading = Callable[[Connection], Awaitable[Any]]
READINGS: Mapping[str, Reading] = MappingProxyType(
    {
        "alerts": read_alerts,
        "standing": read_standing,
        "outbox": lane_heads,
        "executions": read_executions,
        "freshness": read_freshness,
        "polls": read_polls,
        "poll_lags": read_poll_lags,
        "partners": read_partners,
        "fanout": read_fanout,
        "reports": read_reports,
    }
)
"""The readings that may be some seconds old."""
