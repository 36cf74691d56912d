"""The `traceparent` of clients: what is read of it, and that a malformed one is ignored."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain.traceparent import read_traceparent, traceparent_of

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEX = "0123456789abcdef"


def test_a_good_one_is_read_as_it_is() -> None:
    """Whatever its flags are: the collector decides on them."""
    assert read_traceparent(GOOD) == GOOD
    assert read_traceparent(GOOD[:-2] + "00") == GOOD[:-2] + "00"


def test_a_later_version_is_read_as_far_as_the_first_one_goes() -> None:
    """The standard's own rule for versions that are not known yet."""
    assert read_traceparent("cc" + GOOD[2:]) == GOOD
    assert read_traceparent("cc" + GOOD[2:] + "-what-will-be") == GOOD


@pytest.mark.parametrize(
    "text",
    [
        None,
        42,
        "",
        GOOD.upper(),
        GOOD + "-more",
        GOOD + "\n",
        " " + GOOD,
        "ff" + GOOD[2:],
        "cc" + GOOD[2:] + "more",
        "cc" + GOOD[2:] + "-" + "x" * 1000,
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        GOOD[:-3],
        GOOD.replace("-", "_"),
    ],
)
def test_a_malformed_one_is_ignored(text: object) -> None:
    """It is neither an error nor a trace."""
    assert read_traceparent(text) is None


@given(st.one_of(st.text(), st.from_regex(re.compile(r"[0-9a-f]{2}-[0-9a-f]{30,34}-[0-9a-f]{15,17}-[0-9a-f]{2}.*"))))
def test_whatever_is_read_is_well_formed_and_reads_as_itself(text: str) -> None:
    """TRC-1, for everything that a client may send."""
    read = read_traceparent(text)
    if read is not None:
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", read)
        assert read_traceparent(read) == read


def test_a_request_with_two_of_them_has_none() -> None:
    """Neither of them can be preferred."""
    one = (b"traceparent", GOOD.encode())
    assert traceparent_of([(b"accept", b"*/*"), one]) == GOOD
    assert traceparent_of([(b"traceparent", b"\t" + GOOD.encode() + b" ")]) == GOOD
    assert traceparent_of([one, one]) is None
    assert traceparent_of([(b"traceparent", b"\xff\xfe")]) is None
    assert traceparent_of([]) is None
