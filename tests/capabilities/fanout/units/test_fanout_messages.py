"""A task of fan-out is read as it was written, and each fault of a foreign message has its own code."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.capabilities.fanout.messages import (
    BODY_BYTES_MAX,
    Task,
    message_id,
    read_task,
    write_task,
)
from tickwright.capabilities.fanout.windows import Window, window_at
from tickwright.domain.errors import Rejected
from tickwright.domain.message_versions import FutureVersionError
from tickwright.ports.task_queue import Delivery

NOW_S = 1_700_000_000.0
WINDOW = window_at(NOW_S, 900)
CODES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.*@+-]{0,30}", fullmatch=True)
MODULES = st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True)


def delivery(body: bytes, *, encoding: str | None = None) -> Delivery:
    """Return a delivery of ``body``."""
    return Delivery(body, {}, "m", encoding, 1, 0, None)


def message(**changes: Any) -> bytes:
    """Return a valid message with ``changes``; a change to ``...`` leaves the member out."""
    _, body = write_task("NL-TNM", "LOCATIONS", b'{"url": "https://a"}', WINDOW, NOW_S - 60, 60_000, None, 3)
    members: dict[str, Any] = {**json.loads(body), **changes}
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


@given(
    st.sets(st.builds("A{}{}".format, st.text("B.", max_size=8), st.integers(0, 91).map(lambda n: "." * n)), max_size=9)
)
def test_every_code_has_an_id_that_queues_accept(codes: set[str]) -> None:
    """At most 255 characters, no dot, always the same, and different for each code."""
    ids = {message_id(code, "LOCATIONS_OF_A_LONG_NAME", WINDOW) for code in codes}
    assert len(ids) == len(codes)
    assert all(len(one) <= 255 and "." not in one for one in ids)
    assert ids == {message_id(code, "LOCATIONS_OF_A_LONG_NAME", WINDOW) for code in codes}
    assert message_id("NL.ABC", "LOCATIONS", WINDOW) == f"fanout:NL%2EABC:LOCATIONS:{WINDOW.start_s}"


@given(
    code=CODES,
    module=MODULES,
    party=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    last_s=st.none() | st.integers(1, 2_000_000_000_000_000).map(lambda micros: micros / 1e6),
    length_s=st.integers(1, 86_400),
)
def test_a_task_is_read_as_it_was_written(
    code: str, module: str, party: Mapping[str, str], last_s: float | None, length_s: int
) -> None:
    """Every member comes back, the document whole and instants to the microsecond."""
    window = window_at(NOW_S, length_s)
    known, body = write_task(code, module, json.dumps(party).encode(), window, last_s, 5000, "dhl", 7)
    task = read_task(delivery(body), NOW_S)
    assert task.last_success_s == (None if last_s is None else pytest.approx(last_s, abs=1e-6))
    assert task == Task(known, module, code, dict(party), task.last_success_s, window, 5.0, "dhl", 7)


@given(st.tuples(CODES, MODULES, st.integers(0, 3)), st.tuples(CODES, MODULES, st.integers(0, 3)))
def test_two_tasks_have_two_ids(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    """``A_B`` and ``C`` are not ``A`` and ``B_C``: no part can have the separator."""
    ids = [message_id(code, module, Window(start, 1)) for code, module, start in (one, other)]
    assert (ids[0] == ids[1]) == (one == other)
    assert not any("." in known for known in ids)


def test_the_message_is_the_documents() -> None:
    """The document's three members keep their names, and the entity's document is unchanged."""
    members = json.loads(message())
    assert members["TaskType"] == "LOCATIONS"
    assert members["EntityParty"] == {"url": "https://a"}
    assert members["LastExecutedAt"] == "2023-11-14T22:12:20Z"
    assert (members["Window"], members["DropDeadAt"]) == ("2023-11-14T22:00:00Z", "2023-11-14T22:15:00Z")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("not_json", b"not json"),
        ("not_json", b"\xff\xfe"),
        ("not_json", b"[" * 100_000),
        ("not_json", b"[]"),
        ("not_json", b""),
        ("oversize", b" " * (BODY_BYTES_MAX + 1)),
        ("unknown_version", message(Version=...)),
        ("unknown_version", message(Version="1")),
        ("unknown_version", message(Version=0)),
        ("unknown_version", message(Version=True)),
        ("missing_id", message(MessageId=...)),
        ("missing_id", message(MessageId="")),
        ("invalid_message", message(MessageId="x" * 256)),
        ("invalid_message", message(TaskType=...)),
        ("invalid_message", message(TaskType="locations")),
        ("invalid_message", message(TaskType="A:B")),
        ("invalid_message", message(EntityCode="")),
        ("invalid_message", message(EntityCode="a\nb")),
        ("invalid_message", message(EntityCode="x" * 101)),
        ("invalid_message", message(EntityParty=[1])),
        ("invalid_message", message(EntityParty=...)),
        ("invalid_message", message(LastExecutedAt="yesterday")),
        ("invalid_message", message(Window="2023-11-14T22:00:00")),
        ("invalid_message", message(Window="2023-11-14T22:00:00.5Z")),
        ("invalid_message", message(DropDeadAt="2023-11-14T22:00:00Z")),
        ("invalid_message", message(DropDeadAt="9999-11-14T22:00:00Z")),
        ("invalid_message", message(DropDeadAt="2023-11-15T22:00:01Z")),
        ("invalid_message", message(TimeoutMs=0)),
        ("invalid_message", message(TimeoutMs=1_500_001)),
        ("window_in_future", message(Window="2023-11-14T22:15:00Z", DropDeadAt="2023-11-14T22:30:00Z")),
    ],
)
def test_every_fault_of_a_message_has_a_code(code: str, body: bytes) -> None:
    """Whatever is in the queue is refused by its code, and nothing else is raised."""
    with pytest.raises(Rejected) as caught:
        read_task(delivery(body), NOW_S)
    assert caught.value.code == code


def test_a_compressed_message_is_refused_unread() -> None:
    """No compressed body is decompressed."""
    with pytest.raises(Rejected) as caught:
        read_task(delivery(message(), encoding="gzip"), NOW_S)
    assert caught.value.code == "encoded"


def test_a_message_of_a_newer_version_is_no_fault() -> None:
    """Whatever else a message of version 2 has, a newer consumer can read it."""
    with pytest.raises(FutureVersionError):
        read_task(delivery(b'{"Version": 2, "Everything": "else"}'), NOW_S)


def test_a_window_that_begins_within_the_skew_is_taken() -> None:
    """Two clocks may differ by a minute; a reader without a clock takes every window."""
    body = message(Window="2023-11-14T22:14:10Z", DropDeadAt="2023-11-14T22:30:00Z")
    assert read_task(delivery(body), NOW_S + 0.0).window.start_s == int(NOW_S) + 50
    far = message(Window="2100-01-01T00:00:00Z", DropDeadAt="2100-01-01T00:01:00Z")
    assert read_task(delivery(far), None).window.length_s == 60
