"""The announcement of a stage: its message, which only this module writes and reads, and its routes.

The message carries what a service in another language needs to deliver its part without a further request. For
Tickwright's own listeners it is only a wake-up notification: the ledger decides what is still to be fetched. Any
program may put messages into a queue, so every defect has a code, under which the message is dead-lettered.

A stage is announced to every listener over the broadcast exchange, and again to single listeners by their routing keys.
Without a broker, due parts are claimed from the table at once; with one, after a grace period, so a lost message or an
unavailable broker costs seconds.
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
class AnnouncedStage:
    """The content of an announcement besides its listeners.

    Attributes:
        conditions: Normalised; JSON values by name.
        feed: Values from the stages before for the queries of this one, by name.
        deadline_at: After which no part counts.
    """

    report_id: int
    epoch: int
    stage: int
    type: str
    conditions: Mapping[str, Any]
    feed: Mapping[str, Any]
    requester: str
    deadline_at: datetime


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """See docs/messages.md. Members may be added under version 1; none is renamed or gets another meaning.

    Attributes:
        listeners: Expected in this stage; in a repeated announcement those that are still missing.
        feed: ``None`` if it was too large: fetch it, ``GET /v1/reports/{id}/parts/{listener}``.
        announced: 1 for the first one of a stage; rises with each delayed check.
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
    """A message of a newer release, which a process of that release can read."""


_head = msgspec.json.Decoder(_Head).decode
_decode = msgspec.json.Decoder(Announcement).decode


def write_announcement(stage: AnnouncedStage, listeners: Sequence[str], announced: int) -> str:
    """Return the announcement as JSON text; a feed above 64 KiB is left out. ``announced`` is 1 at first."""
    feed = _json(stage.feed)
    large = len(feed.encode()) > FEED_BYTES_MAX
    return _json(
        {
            "version": VERSION,
            "report_id": stage.report_id,
            "epoch": stage.epoch,
            "stage": stage.stage,
            "type": stage.type,
            "listeners": [*listeners],
            "conditions": stage.conditions,
            **({"feed_omitted": True} if large else {"feed": stage.feed}),
            "requester": stage.requester,
            "deadline_at": _instant(stage.deadline_at),
            "announced": announced,
        }
    )


def read_announcement(body: bytes) -> Announcement:
    """Return the announcement of a message.

    Raises:
        Rejected: ``oversize``, ``not_json``, ``unknown_version``, ``invalid_message``: dead-letter the message.
            Permanent for this message.
        FutureVersionError: Retry elsewhere.
    """
    if len(body) > BODY_BYTES_MAX:
        raise Rejected("oversize", f"{len(body)} bytes; at most {BODY_BYTES_MAX}")
    _check_head(body)
    try:
        announcement = _decode(body)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Rejected("invalid_message", str(error)[:500]) from None
    problem = _problem(announcement)
    if problem:
        raise Rejected("invalid_message", problem)
    return announcement


def _check_head(body: bytes) -> None:
    try:
        version = _head(body).version
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Rejected("not_json", str(error)[:500]) from None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise Rejected("unknown_version", "version: write 1")
    if version > VERSION:
        raise FutureVersionError(f"version {version}"[:60])


def _problem(found: Announcement) -> str | None:
    if len(set(found.listeners)) < len(found.listeners):
        return "listeners: each name once"
    if (found.feed is None) != found.feed_omitted:
        return "feed: an object, or feed_omitted is true"
    if found.deadline_at.year not in YEARS:
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
    """Destinations in the outbox; ``everyone`` is ``None`` without a broker.

    Attributes:
        everyone: Such as ``amqp:tickwright.reports/``.
        exchange: Its routing keys are the listeners' names, such as ``tickwright.reports.listeners``.
    """

    everyone: str | None = None
    exchange: str | None = None

    @property
    def grace_s(self) -> float:
        """How long an announced part is reserved for its announcement."""
        return 0.0 if self.everyone is None else GRACE_S

    def single(self, listener: str) -> str:
        """Return the destination of one listener."""
        return f"amqp:{self.exchange}/{listener}"


def served_by(kind: str, listener: str, source: str | None) -> str:
    """Return what serves a part: its function or service, or its source."""
    if kind == "sql":
        return f"source:{source}"
    return f"{kind}:{listener}"


async def announce_stage(connection: Connection, routes: Routes, stage: AnnouncedStage, plan: Plan) -> None:
    """Announce a stage to all of its listeners, after the commit of the caller's transaction."""
    if routes.everyone is not None:
        names = tuple(one.name for one in plan.listeners if one.stage == stage.stage)
        key, message = f"report/{stage.report_id}", write_announcement(stage, names, 1)
        await connection.execute(_RECORDS["announce"], routes.everyone, key, message)
    await connection.execute(_RECORDS["notify"])
