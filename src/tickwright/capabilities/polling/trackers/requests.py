"""Request schemas of polling, views of trackers, and reading a tracker from JSON, NDJSON or CSV.

All formats are read here, so that one rule has one error. A line of NDJSON costs a few microseconds: a line without a
backslash and with as many quotes as its fields need cannot be read differently by two parsers; only other lines go
through the strict reader.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import InstantText, parse_instant
from tickwright.ports.views import UserData

ACCOUNT_CHARS_MAX = 200
EXTERNAL_ID_CHARS_MAX = 200
STATUS_CHARS_MAX = 100
EVENT_ID_CHARS_MAX = 200
INTERVAL_MINUTES_MAX = 10_080
AGE_DAYS_MAX = 3_650
SLICE_POLLS_MAX = 1_000_000
NEEDED, OPTIONAL = ("account_id", "partner", "external_id"), ("status", "tracking_until")
COLUMNS = (*NEEDED, *OPTIONAL)
PARTNER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f]")
_STEPS = frozenset({".", ".."})
"""Browsers resolve these in a path, even when escaped, so no URL can contain such an account id."""

PartnerName = Annotated[str, Meta(min_length=1, max_length=50, pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class TrackerRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tracker to be polled."""

    account_id: Annotated[str, Meta(min_length=1, max_length=ACCOUNT_CHARS_MAX, pattern="^[^/]+$")]
    partner: PartnerName
    external_id: Annotated[
        str, Meta(min_length=1, max_length=EXTERNAL_ID_CHARS_MAX, description="The partner's id of it")
    ]
    status: Annotated[str, Meta(min_length=1, max_length=STATUS_CHARS_MAX)] | None = None
    tracking_until: InstantText | None = None


class TrackerWire(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """:class:`TrackerRequest` as it is read: :func:`check_tracker` checks the bounds, with errors of their own."""

    account_id: str
    partner: str
    external_id: str
    status: str | None = None
    tracking_until: str | None = None


class NewTracker(msgspec.Struct, frozen=True):
    """A checked tracker that is to be registered."""

    account_id: str
    partner: str
    external_id: str
    status: str | None
    tracking_until: datetime | None


class AccountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """All settings of an account; omitted ones get their defaults."""

    polling_interval_minutes: Annotated[int, Meta(ge=1, le=INTERVAL_MINUTES_MAX)] = 120
    max_age_days: Annotated[int, Meta(ge=1, le=AGE_DAYS_MAX)] = 60
    polls_per_slice_max: Annotated[int, Meta(ge=1, le=SLICE_POLLS_MAX)] | None = None
    freshness_objective: Annotated[float, Meta(ge=0.5, le=0.9999)] = 0.99


class AccountChange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Changed settings of an account; omitted ones stay. A null ``polls_per_slice_max`` removes the cap."""

    polling_interval_minutes: Annotated[int, Meta(ge=1, le=INTERVAL_MINUTES_MAX)] | msgspec.UnsetType = msgspec.UNSET
    max_age_days: Annotated[int, Meta(ge=1, le=AGE_DAYS_MAX)] | msgspec.UnsetType = msgspec.UNSET
    polls_per_slice_max: Annotated[int, Meta(ge=1, le=SLICE_POLLS_MAX)] | msgspec.UnsetType | None = msgspec.UNSET
    freshness_objective: Annotated[float, Meta(ge=0.5, le=0.9999)] | msgspec.UnsetType = msgspec.UNSET

    def of(self, present: Any) -> AccountRequest:
        """Return all settings: ``present`` with the changes."""
        given = msgspec.structs.asdict(self)
        kept = {name: getattr(present, name) for name, value in given.items() if value is msgspec.UNSET}
        return AccountRequest(**{**given, **kept})


class PreviewRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A change of an account to be previewed; omitted settings stay."""

    polling_interval_minutes: Annotated[int, Meta(ge=1, le=INTERVAL_MINUTES_MAX)] | msgspec.UnsetType = msgspec.UNSET
    polls_per_slice_max: Annotated[int, Meta(ge=1, le=SLICE_POLLS_MAX)] | msgspec.UnsetType | None = msgspec.UNSET


class EventRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An event of a tracker.

    Attributes:
        at: Since when the status holds.
        event_id: The sender's id; the same id twice is one event, whatever its other fields.
    """

    status: Annotated[str, Meta(min_length=1, max_length=STATUS_CHARS_MAX)]
    at: InstantText
    event_id: Annotated[str, Meta(min_length=1, max_length=EVENT_ID_CHARS_MAX)] | None = None


class ReplayRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """Slots to replay, whose last minute is from ``from`` to before ``to``; only counted unless ``dry_run`` is false.

    Attributes:
        topic_lost: Unread polls are no longer in Kafka; otherwise their trackers are skipped.
    """

    from_: InstantText
    to: InstantText
    partner: PartnerName | None = None
    dry_run: bool = True
    topic_lost: bool = False


class TrackerView(msgspec.Struct, kw_only=True):
    """A tracker.

    Attributes:
        state: ``waiting`` (for its place), ``placed`` or ``ended``.
        status_at: Since when its status holds, as its sender reports.
        next_poll_at: Its next poll; null while it waits, is paused or has ended.
        skip_until: An event of the partner postponed polling until then.
    """

    id: int
    account_id: str
    partner: str
    external_id: str
    state: str
    status: str
    status_at: datetime | None
    created_at: datetime
    last_polled_at: datetime | None
    next_poll_at: datetime | None
    skip_until: datetime | None
    tracking_until: datetime
    ended_at: datetime | None


class TrackerEvent(msgspec.Struct):
    """A scan event with the partner's instant."""

    at: datetime
    text: str


class TrackerDetail(TrackerView, UserData, kw_only=True):
    """One tracker; ``events`` are the last ten scan events, newest last."""

    USER_DATA: ClassVar[tuple[str, ...]] = ("events",)
    events: list[TrackerEvent] | None
    payload_hidden: bool = False


class RegisteredTracker(msgspec.Struct):
    """The answer to a registration; ``created`` is false when the partner's external id was registered before."""

    tracker: TrackerView
    created: bool


class EndedTracker(msgspec.Struct):
    """The answer to an end; ``outcome`` is ``ended``, or ``already_ended``."""

    id: int
    outcome: str
    ended_at: datetime


class EventOutcome(msgspec.Struct):
    """What happened to an event.

    ``outcome`` is ``applied``, ``stale`` (a newer status is known), ``duplicate`` (this one is known) or ``ended`` (the
    tracker has ended). ``ended`` is true when this event ended it.
    """

    id: int
    outcome: str
    status: str
    status_at: datetime | None
    skip_until: datetime | None = None
    ended: bool = False


Minutes = Literal["1", "5"]
_decoder = msgspec.json.Decoder(TrackerWire)


def read_tracker(body: bytes, *, now: datetime | None) -> NewTracker:
    """Return the checked tracker of a JSON body or line.

    ``now`` is the database's clock, as far as known; ``None`` does not compare ``tracking_until`` with it.

    Raises:
        Rejected: Syntax and unknown fields 400, values 422. Permanent.
    """
    try:
        wire = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        wire = None
    if wire is None or not _is_plain(body, wire):
        wire = strict_json.decode(body, _decoder)
    return check_tracker(wire, now=now)


def _is_plain(body: bytes, wire: TrackerWire) -> bool:
    """Return whether all parsers read a line alike: no escape, no field twice, nothing between the fields."""
    given = 3 + (wire.status is not None) + (wire.tracking_until is not None)
    return b"\\" not in body and body.count(b'"') == 4 * given and b"null" not in body


def check_tracker(wire: TrackerWire, *, now: datetime | None) -> NewTracker:
    """Return a tracker whose values are within their bounds.

    Raises:
        Rejected: ``invalid_account``, ``invalid_partner``, ``invalid_external_id``, ``invalid_status``,
            ``time_in_past``, or the errors of :func:`parse_instant`. Permanent.
    """
    check_account(wire.account_id)
    check_partner(wire.partner)
    _check_text(wire.external_id, "external_id", EXTERNAL_ID_CHARS_MAX)
    if wire.status is not None:
        check_status(wire.status)
    until = None if wire.tracking_until is None else parse_instant(wire.tracking_until, field="tracking_until")
    if until is not None and now is not None and until <= now:
        raise Rejected("time_in_past", "tracking_until: must be in the future", field="tracking_until")
    return NewTracker(wire.account_id, wire.partner, wire.external_id, wire.status, until)


def check_account(account_id: str) -> str:
    """Return a valid account id.

    Raises:
        Rejected: ``invalid_account``. Permanent.
    """
    fits = 1 <= len(account_id) <= ACCOUNT_CHARS_MAX and account_id not in _STEPS
    if not fits or "/" in account_id or _UNPRINTABLE.search(account_id):
        raise Rejected(
            "invalid_account",
            f"account_id: 1 to {ACCOUNT_CHARS_MAX} printable characters, no '/'; neither '.' nor '..'",
            field="account_id",
        )
    return account_id


def check_partner(name: str) -> str:
    """Return a valid partner name.

    Raises:
        Rejected: ``invalid_partner``. Permanent.
    """
    if not PARTNER_NAME.fullmatch(name):
        raise Rejected("invalid_partner", "partner: 1 to 50 letters, digits, '_', '.' or '-'", field="partner")
    return name


def check_status(status: str) -> str:
    """Return a valid status.

    Raises:
        Rejected: ``invalid_status``. Permanent.
    """
    return _check_text(status, "status", STATUS_CHARS_MAX)


def _check_text(text: str, field: str, chars_max: int) -> str:
    if not 1 <= len(text) <= chars_max or _UNPRINTABLE.search(text):
        raise Rejected(f"invalid_{field}", f"{field}: 1 to {chars_max} printable characters", field=field)
    return text


def tracker_of_row(row: Mapping[str, str], *, now: datetime | None) -> NewTracker:
    """Return the checked tracker of a CSV row; an empty cell is no value. Errors as :func:`check_tracker`."""
    given = {name: cell for name, cell in row.items() if cell or name in NEEDED}
    return check_tracker(TrackerWire(**given), now=now)
