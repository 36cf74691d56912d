"""Which bytes on the topic are a poll: any program may write there."""

import json
from typing import Any

import pytest

from kit.mutants import mutate
from tickwright.capabilities.polling.relay import batches
from tickwright.capabilities.polling.relay.batches import read_poll

POLL = {
    "version": 1,
    "id": "poll_42_1795255200",
    "tracker_id": 42,
    "due_at": "2026-11-21T10:00:00Z",
    "partner": "dhl",
    "account_id": "shop",
    "external_id": "JD014600",
    "slot_id": 7,
}


def of(**changed: Any) -> bytes:
    """Return the value of a poll."""
    return json.dumps({**POLL, **changed}).encode()


def nested(depth: int) -> bytes:
    """Return a poll with an unknown member of this depth."""
    return of()[:-1] + b',"more":' + b"[" * depth + b"]" * depth + b"}"


def test_a_poll_is_read_from_its_value_alone() -> None:
    """Its slot, too, which may be absent; unknown members are skipped."""
    poll = read_poll(nested(3))
    assert (poll.tracker_id, poll.slot_id, poll.partner, poll.external_id) == (42, 7, "dhl", "JD014600")
    assert read_poll(of(slot_id=None)).slot_id is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"\xff",
        of().replace(b"42,", b"1e400,"),
        of().replace(b"dhl", b"\xed\xa0\x80"),
        nested(1500),
        nested(100_000),
        of(slot_id=-1),
        of(slot_id=2**31),
        of(due_at="9999-12-31T23:59:59Z"),
        of(partner="p" * 51),
        of(account_id="a" * 201),
        of(external_id="e" * 900_000),
        of(external_id="\0"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_is_no_poll_is_a_value_error(value: bytes) -> None:
    """No other error is raised: the reader skips the record."""
    with pytest.raises(ValueError, match=r"."):
        read_poll(value)


def test_names_as_long_as_the_columns_are_read() -> None:
    """In characters, as the database counts."""
    assert len(read_poll(of(partner="p" * 50, account_id="ä" * 200, external_id="€" * 200)).external_id) == 200


def test_the_mutants_without_a_bound_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guards deep nesting raises another error, and long names are accepted."""
    mutate(monkeypatch, read_poll, "(msgspec.MsgspecError, RecursionError)", "msgspec.MsgspecError")
    with pytest.raises(RecursionError):
        read_poll(nested(1500))
    mutate(monkeypatch, batches._is_storable, "len(text) > most or ", "")
    assert len(read_poll(of(external_id="e" * 900_000)).external_id) == 900_000
