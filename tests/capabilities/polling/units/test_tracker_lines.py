"""The fast reader of an import's line takes exactly what the careful one takes, and reads the same in it."""

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
    """What a reader makes of a line: the tracker, or the code of the refusal."""
    try:
        return read()
    except Rejected as error:
        return error.code


def carefully(line: bytes) -> Any:
    """Read a line as if it had come alone, by the strict reader."""
    return check_tracker(strict_json.decode(line, _decoder), now=None)


def spelled(pairs: list[tuple[str, Any]], *, ascii_only: bool) -> bytes:
    """An object with these members in this order, twice where they stand twice."""
    members = ",".join(f"{json.dumps(k)}:{json.dumps(v, ensure_ascii=ascii_only)}" for k, v in pairs)
    return f"{{{members}}}".encode(errors="surrogatepass")


@given(PAIRS, st.booleans())
@example([*WHOLE.items(), ("partner", "ups")], True)
@example([*WHOLE.items(), ("status", None), ("status", None)], False)
@example([*WHOLE.items(), ("status", "a\tb")], False)
def test_fast_and_careful_agree(pairs: list[tuple[str, Any]], ascii_only: bool) -> None:
    """Members twice, strange, missing, of the wrong type, with escapes: one answer."""
    for members in (pairs, [*WHOLE.items(), *pairs]):
        line = spelled(members, ascii_only=ascii_only)
        assert outcome(lambda line=line: read_tracker(line, now=None)) == outcome(lambda line=line: carefully(line))


@given(st.binary(max_size=60), st.integers(0, 60))
def test_fast_and_careful_agree_on_damaged_lines(noise: bytes, at: int) -> None:
    """Bytes in the middle of a good line."""
    good = spelled(list(WHOLE.items()), ascii_only=True)
    line = good[:at] + noise + good[at:]
    assert outcome(lambda: read_tracker(line, now=None)) == outcome(lambda: carefully(line))
