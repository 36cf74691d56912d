"""A call of a stage is read as it was written, and each mistake in a call of another program has its own code."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tickwright.capabilities.reports.requests.store import (
    BODY_BYTES_MAX,
    FEED_BYTES_MAX,
    LISTENERS_MAX,
    Announcement,
    read_announcement,
    write_announcement,
)
from tickwright.domain.errors import Rejected
from tickwright.domain.message_versions import FutureVersionError

CALL = Announcement(
    version=1,
    report_id=1111,
    epoch=2,
    stage=1,
    type="withdrawals-by-user",
    listeners=("users",),
    conditions={"country": "DE"},
    feed={"user_ids": [1, 2]},
    requester="ops@example.com",
    deadline_at=datetime(2026, 11, 22, 4, 30, tzinfo=UTC),
    announced=1,
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,49}", fullmatch=True)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
INSTANTS = st.datetimes(datetime(1971, 1, 1), datetime(2199, 1, 1), timezones=ZONES)  # noqa: DTZ001  zones are drawn


def message(**changes: Any) -> bytes:
    """Return a valid message with ``changes``; a change to ``...`` leaves the member out."""
    members: dict[str, Any] = {**json.loads(write_announcement(CALL)), **changes}
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


@given(
    st.builds(
        Announcement,
        version=st.just(1),
        report_id=st.integers(1, 2**63 - 1),
        epoch=st.integers(1, 2**31 - 1),
        stage=st.integers(1, 10),
        type=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}", fullmatch=True),
        listeners=st.lists(NAMES, min_size=1, max_size=5, unique=True).map(tuple),
        conditions=OBJECTS,
        feed=OBJECTS,
        feed_omitted=st.just(value=False),
        requester=TEXTS.filter(bool),
        deadline_at=INSTANTS,
        announced=st.integers(1, 1001),
    ),
)
def test_a_call_is_read_as_it_was_written(announcement: Announcement) -> None:
    """Every member comes back, instants to the microsecond, values as they are in JSON."""
    assert read_announcement(write_announcement(announcement).encode()) == announcement


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_refused_and_nothing_else_is_raised(body: bytes) -> None:
    """Whatever bytes or JSON the queue has."""
    with pytest.raises((Rejected, FutureVersionError)):
        read_announcement(body)


MEMBERS = sorted(json.loads(write_announcement(CALL)))


@given(st.dictionaries(st.sampled_from(MEMBERS), VALUES, min_size=1, max_size=3))
def test_a_member_of_any_kind_is_valid_or_refused(changes: dict[str, Any]) -> None:
    """A call that is read keeps its bounds, whatever its members are; only the product's own errors are raised."""
    try:
        call = read_announcement(message(**changes))
    except (Rejected, FutureVersionError):
        return
    assert call.version == 1
    assert 1 <= call.report_id < 2**63
    assert all(1 <= number < 2**31 for number in (call.epoch, call.stage, call.announced))
    assert 1 <= len(call.listeners) <= LISTENERS_MAX
    assert call.deadline_at.tzinfo is not None
    assert call.feed is not None


@pytest.mark.parametrize("member", MEMBERS)
def test_no_member_may_be_missing(member: str) -> None:
    """A call without one of them is invalid; a call without a feed must say so."""
    with pytest.raises(Rejected) as caught:
        read_announcement(message(**{member: ...}))
    assert caught.value.code == ("unknown_version" if member == "version" else "invalid_message")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("not_json", b"not json"),
        ("not_json", b"\xff\xfe"),
        ("not_json", b"[" * 100_000),
        ("not_json", b"[]"),
        ("not_json", b""),
        ("not_json", b"null"),
        ("oversize", b" " * (BODY_BYTES_MAX + 1)),
        ("unknown_version", message(version="1")),
        ("unknown_version", message(version=0)),
        ("unknown_version", message(version=True)),
        ("unknown_version", message(version=1.5)),
        ("invalid_message", message(report_id=0)),
        ("invalid_message", message(report_id=2**63)),
        ("invalid_message", message(report_id="1")),
        ("invalid_message", message(report_id=True)),
        ("invalid_message", message(epoch=0)),
        ("invalid_message", message(epoch=2**31)),
        ("invalid_message", message(stage=-1)),
        ("invalid_message", message(announced=0)),
        ("invalid_message", message(type="")),
        ("invalid_message", message(type="a/b")),
        ("invalid_message", message(type="x" * 51)),
        ("invalid_message", message(type="users\n")),
        ("invalid_message", message(listeners=[])),
        ("invalid_message", message(listeners="users")),
        ("invalid_message", message(listeners=["users", "users"])),
        ("invalid_message", message(listeners=["a.b"])),
        ("invalid_message", message(listeners=["users\n"])),
        ("invalid_message", message(listeners=[f"l{number}" for number in range(LISTENERS_MAX + 1)])),
        ("invalid_message", message(conditions=[])),
        ("invalid_message", message(conditions=None)),
        ("invalid_message", message(feed=[1])),
        ("invalid_message", message(feed_omitted=True)),
        ("invalid_message", message(feed=None)),
        ("invalid_message", message(feed=..., feed_omitted="yes")),
        ("invalid_message", message(requester="")),
        ("invalid_message", message(requester="x" * 201)),
        ("invalid_message", message(deadline_at="2026-11-22T04:30:00")),
        ("invalid_message", message(deadline_at="tomorrow")),
        ("invalid_message", message(deadline_at=1)),
        ("invalid_message", message(deadline_at="9999-11-22T04:30:00Z")),
        ("invalid_message", message(deadline_at="1969-11-22T04:30:00Z")),
        ("not_json", b'{"version":1,"conditions":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001),
    ],
)
def test_an_invalid_call_is_refused_with_its_code(code: str, body: bytes) -> None:
    """The code is stable, and the message is at most 500 characters."""
    with pytest.raises(Rejected) as caught:
        read_announcement(body)
    assert caught.value.code == code
    assert len(caught.value.message) <= 500


def test_a_call_of_a_newer_version_is_not_an_invalid_one() -> None:
    """Whatever else a message of version 2 has, a newer process can read it."""
    with pytest.raises(FutureVersionError):
        read_announcement(b'{"version": 2, "everything": "else"}')


def test_unknown_members_of_a_call_are_ignored() -> None:
    """A newer release may add some under version 1."""
    assert read_announcement(message(tenant="x", listeners=["users"])) == read_announcement(message())


def test_a_feed_that_is_too_large_is_left_out_and_the_call_says_so() -> None:
    """The bound is 64 KiB, counted in UTF-8."""
    filler = FEED_BYTES_MAX - len('{"ids":""}')
    fits = replace(CALL, feed={"ids": "x" * filler})
    call = read_announcement(write_announcement(fits).encode())
    assert (call.feed, call.feed_omitted) == (fits.feed, False)
    for text in ("x" * (filler + 1), "ü" * (filler // 2 + 1)):
        written = write_announcement(replace(CALL, feed={"ids": text}))
        assert "feed" not in json.loads(written)
        call = read_announcement(written.encode())
        assert (call.feed, call.feed_omitted) == (None, True)


def test_a_call_that_went_through_the_outbox_is_the_same_call() -> None:
    """PostgreSQL writes JSON in its own order and with its own spaces: no reader depends on either."""
    members = json.loads(write_announcement(replace(CALL, listeners=("users", "tags"), announced=3)))
    turned = json.dumps(dict(sorted(members.items(), reverse=True)), indent=1)
    assert read_announcement(turned.encode()) == read_announcement(
        write_announcement(replace(CALL, listeners=("users", "tags"), announced=3)).encode()
    )


def test_the_deadline_is_in_utc_and_whole_seconds_have_no_fraction() -> None:
    """A reader in another language gets one form of RFC 3339."""
    texts = [
        json.loads(write_announcement(replace(CALL, deadline_at=at)))["deadline_at"]
        for at in (
            datetime(2026, 11, 22, 6, 30, tzinfo=timezone(timedelta(hours=2))),
            datetime(2026, 11, 22, 4, 30, 0, 250_000, tzinfo=UTC),
        )
    ]
    assert texts == ["2026-11-22T04:30:00Z", "2026-11-22T04:30:00.250000Z"]
