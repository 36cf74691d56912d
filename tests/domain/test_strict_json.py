"""JSON of clients, read strictly."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import DEPTH_MAX, INT64_MAX, INT64_MIN, loads

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(INT64_MIN, INT64_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(values, st.booleans(), st.sampled_from([None, 2]))
def test_what_json_can_say_is_read_as_it_is(value: Any, ascii_only: bool, indent: int | None) -> None:
    """Nothing that is fine is refused, escaped or not."""
    assert loads(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()) == value


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\u0dD8-.eE19 \n').map(str.encode))
def test_whatever_comes_is_read_or_refused(body: bytes) -> None:
    """No other exception, and never anything that Python's own parser would not read."""
    try:
        value = loads(body)
    except Rejected as error:
        refusal: Rejected | None = error
    else:
        refusal = None
        assert value == json.loads(body)
    assert refusal is None or refusal.http_status == 400


def nested(levels: int) -> bytes:
    """Arrays in arrays."""
    return b"[" * levels + b"]" * levels


def test_depth_is_counted_outside_of_strings_only() -> None:
    """32 levels are fine, 33 are not; brackets in text do not count."""
    loads(nested(DEPTH_MAX))
    loads(b'["' + b"[{" * 100 + b'\\"[["]')
    loads(b"[" + b"[]," * 100 + b"[]]")
    with pytest.raises(Rejected, match="levels"):
        loads(nested(DEPTH_MAX + 1))
    with pytest.raises(Rejected, match="levels"):
        loads(b'{"a":' * 200_000)


@pytest.mark.parametrize(
    ("body", "place"),
    [(b'{"a":\n\n tru}', (3, 2)), (b"[1,\xff]", (1, 4)), (b'{"a":1}\n\xc3', (2, 1)), (b"", (1, 1))],
)
def test_a_syntax_error_says_line_and_column(body: bytes, place: tuple[int, int]) -> None:
    """Counted from 1."""
    with pytest.raises(Rejected) as caught:
        loads(body)
    assert caught.value.code == "invalid_json"
    assert (caught.value.details["line"], caught.value.details["column"]) == place


def test_a_pointer_escapes_what_rfc_6901_escapes() -> None:
    """``~`` and ``/`` in names."""
    with pytest.raises(Rejected) as caught:
        loads(b'{"a/b":{"c~d":[0,"\\u0000"]}}')
    assert caught.value.details["pointer"] == "/a~1b/c~0d/1"


def test_the_place_of_a_text_costs_nothing_until_it_is_shown() -> None:
    """A long key over many texts was copied for each of them: 5.6 GB for a body of 256 KB."""
    places = [place for place, _ in strict_json._strings({"k" * 1000: ["a"] * 1000}, None)]
    assert {len(place) for place in places if place is not None} == {2}
    assert len({id(place[0]) for place in places[1:] if place is not None}) == 1


def test_the_place_of_a_bad_text_is_a_json_pointer() -> None:
    """With what JSON pointers escape, and what no text can have."""
    with pytest.raises(Rejected) as refused:
        loads(b'{"a/b": [1, {"~\\u0000": "\\ud800"}]}')
    assert refused.value.details["pointer"] == "/a~1b/1/~0\\u0000"
