"""The fast reader of import lines accepts exactly what the strict one accepts, with the same result."""

import json
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from tickwright.capabilities.polling.trackers.requests import COLUMNS, TrackerWire, check_tracker, read_tracker
from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected

_decoder = msgspec.json.Decoder(TrackerWire)
TEXT = st.text(alphabet=st.sampled_from('ab"\\/\t\x00\x7fü{}:,\u2028 1')) | st.text(max_size=8)
VALUES = TEXT | st.none() | st.integers() | st.sampled_from(["2031-01-01T00:00:00Z", "null", "dhl", ""])
PAIRS = st.lists(st.tuples(st.sampled_from([*COLUMNS, "id", "partner "]), VALUES), max_size=7)
WHOLE = {"account_id": "a", "partner": "dhl", "external_id": "x"}


def outcome(read: Any) -> Any:
    """Return the tracker that a reader returns, or the code of its refusal."""
    try:
        return read()
    except Rejected as error:
        return error.code


def read_strictly(line: bytes) -> Any:
    """Read a line with the strict reader, as in a request of its own."""
    return check_tracker(strict_json.decode(line, _decoder), now=None)


def spelled(pairs: list[tuple[str, Any]], *, ascii_only: bool) -> bytes:
    """Return an object with these members in this order, repeated ones included."""
    members = ",".join(f"{json.dumps(k)}:{json.dumps(v, ensure_ascii=ascii_only)}" for k, v in pairs)
    return f"{{{members}}}".encode(errors="surrogatepass")


@given(PAIRS, st.booleans())
@example([*WHOLE.items(), ("partner", "ups")], True)
@example([*WHOLE.items(), ("status", None), ("status", None)], False)
@example([*WHOLE.items(), ("status", "a\tb")], False)
def test_fast_and_strict_reader_agree(pairs: list[tuple[str, Any]], ascii_only: bool) -> None:
    """Members that are repeated, unknown, missing, escaped or of the wrong type: both readers agree."""
    for members in (pairs, [*WHOLE.items(), *pairs]):
        line = spelled(members, ascii_only=ascii_only)
        assert outcome(lambda line=line: read_tracker(line, now=None)) == outcome(lambda line=line: read_strictly(line))


@given(st.binary(max_size=60), st.integers(0, 60))
def test_fast_and_strict_reader_agree_on_damaged_lines(noise: bytes, at: int) -> None:
    """Bytes in the middle of a good line."""
    good = spelled(list(WHOLE.items()), ascii_only=True)
    line = good[:at] + noise + good[at:]
    assert outcome(lambda: read_tracker(line, now=None)) == outcome(lambda: read_strictly(line))
