"""The announcement of a stage: its message, which only this module writes and reads, and where it is published.

The message carries what a service in another language needs to deliver its part without a further request. Our own
listeners take it as a wake-up only: what is to be fetched, and whether it still is, the ledger says. Any program may
put messages into a queue, so every way in which one can be wrong has a code, under which it is dead-lettered.

A stage is announced to every listener over the fanout exchange, and again to single ones under their own routing keys.
Without a broker, due parts are claimed from the table at once; with one, after a grace, so that a message that is lost,
or a broker that is unavailable, costs seconds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tickwright.capabilities.reports.types.plan import Plan
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Connection
from tickwright.store.queries import load

VERSION = 1
BODY_BYTES_MAX = 262_144
FEED_BYTES_MAX = 65_536
LISTENERS_MAX = 100
YEARS = range(1970, 2200)

Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_]{1,50}\Z")]
TypeName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,49}\Z")]


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a call says beside the names of those whom it is for.

    Attributes:
        stage: From 1 on.
        conditions: Normalised; JSON values by name.
        feed: What the stages before this one give to its queries; JSON values by name.
        deadline_at: Behind which nothing counts.
    """

    report_id: int
    epoch: int
    stage: int
    type: str
    conditions: Mapping[str, Any]
    feed: Mapping[str, Any]
    requester: str
    deadline_at: datetime


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """See docs/messages.md. Members may be added under version 1; none is renamed or gets another meaning.

    Attributes:
        listeners: Who is expected in this stage; in a repeated call who is still missing.
        feed: ``None`` where it was too large: fetch it, ``GET /v1/reports/{id}/parts/{listener}``.
        announced: 1 for the first call of a stage; rises with each delayed check.
    """

    version: int
    report_id: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    epoch: Number
    stage: Number
    type: TypeName
    listeners: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=LISTENERS_MAX)]
    conditions: dict[str, Any]
    feed: dict[str, Any] | None = None
    feed_omitted: bool = False
    requester: Annotated[str, Meta(min_length=1, max_length=200)]
    deadline_at: Annotated[datetime, Meta(tz=True)]
    announced: Number


class _Head(msgspec.Struct):
    version: Any = None


class FutureVersionError(Exception):
    """A newer release wrote it; another process may know how to read it."""


_head = msgspec.json.Decoder(_Head).decode
_decode = msgspec.json.Decoder(Call).decode


def write_call(told: Announcement, listeners: Sequence[str], announced: int) -> str:
    """Return the call as JSON text.

    Args:
        told: Its feed is left out above 64 KiB.
        listeners: Whom it is for, 1 to 100.
        announced: 1 for the first call of the stage.
    """
    feed = _json(told.feed)
    large = len(feed.encode()) > FEED_BYTES_MAX
    return _json(
        {
            "version": VERSION,
            "report_id": told.report_id,
            "epoch": told.epoch,
            "stage": told.stage,
            "type": told.type,
            "listeners": [*listeners],
            "conditions": told.conditions,
            **({"feed_omitted": True} if large else {"feed": told.feed}),
            "requester": told.requester,
            "deadline_at": _instant(told.deadline_at),
            "announced": announced,
        }
    )


def read_call(body: bytes) -> Call:
    """Return the call of a message.

    Raises:
        Rejected: Why it is among the dead letters: ``oversize``, ``not_json``, ``unknown_version``,
            ``invalid_message``. Permanent for this message.
        FutureVersionError: Retry elsewhere.
    """
    if len(body) > BODY_BYTES_MAX:
        raise Rejected("oversize", f"{len(body)} bytes; at most {BODY_BYTES_MAX}")
    _check_head(body)
    try:
        call = _decode(body)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Rejected("invalid_message", str(error)[:500]) from None
    problem = _problem(call)
    if problem:
        raise Rejected("invalid_message", problem)
    return call


def _check_head(body: bytes) -> None:
    try:
        version = _head(body).version
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Rejected("not_json", str(error)[:500]) from None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise Rejected("unknown_version", "version: write 1")
    if version > VERSION:
        raise FutureVersionError(f"version {version}"[:60])


def _problem(call: Call) -> str | None:
    if len(set(call.listeners)) < len(call.listeners):
        return "listeners: each name once"
    if (call.feed is None) != call.feed_omitted:
        return "feed: an object, or feed_omitted is true"
    if call.deadline_at.year not in YEARS:
        return "deadline_at: from 1970 to 2199"
    return None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds" if at.microsecond else "seconds").replace("+00:00", "Z")


# ---------------------------------------------------------------------- routes

GRACE_S = 5.0
_RECORDS = load("tickwright.capabilities.reports.sql", "records.sql")


@dataclass(frozen=True, slots=True)
class Routes:
    """Destinations of the outbox; ``everyone`` is ``None`` where there is no broker.

    Attributes:
        everyone: Such as ``amqp:tickwright.reports/``.
        exchange: Whose routing keys are the listeners' names, such as ``tickwright.reports.listeners``.
    """

    everyone: str | None = None
    exchange: str | None = None

    @property
    def grace_s(self) -> float:
        """After how long a part that was announced may be claimed by whoever looks."""
        return 0.0 if self.everyone is None else GRACE_S

    def one(self, listener: str) -> str:
        """Return the destination that only ``listener`` hears."""
        return f"amqp:{self.exchange}/{listener}"


def served_by(kind: str, listener: str, source: str | None) -> str:
    """Return who can bring a part: a process with that function, or with that source, or the service of that name."""
    if kind == "sql":
        return f"source:{source}"
    return f"{kind}:{listener}"


async def tell_all(connection: Connection, routes: Routes, told: Announcement, plan: Plan) -> None:
    """Announce a stage to everybody who has a part in it, behind the commit of the caller's transaction."""
    if routes.everyone is not None:
        names = tuple(one.name for one in plan.listeners if one.stage == told.stage)
        key, message = f"report/{told.report_id}", write_call(told, names, 1)
        await connection.execute(_RECORDS["announce"], routes.everyone, key, message)
    await connection.execute(_RECORDS["ring"])
