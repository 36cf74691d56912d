"""Conditions of a report: equal ones have one query key, different ones have different keys."""

import json
import random
import unicodedata
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tickwright.capabilities.reports.plan import Parameter
from tickwright.capabilities.reports.requests.conditions import CONDITIONS_BYTES_MAX, normalise, query_key
from tickwright.domain.errors import Rejected

NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(-(2.0**63), 2.0**63, exclude_max=True)
    | NAMES
    | st.sampled_from(["é", "é", "Å", "ﬁ", ""])
)
VALUES = st.recursive(
    SCALARS | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
CONDITIONS = st.dictionaries(NAMES, VALUES, max_size=5)
PARAMETERS = {
    "country": Parameter(),
    "since": Parameter(type="date", required=False, default="2026-01-01"),
    "at": Parameter(type="timestamp", required=False),
    "limit": Parameter(type="integer", required=False),
    "share": Parameter(type="number", required=False),
    "open": Parameter(type="boolean", required=False),
    "ids": Parameter(type="list", required=False),
}


def key(conditions: Mapping[str, Any], parameters: Mapping[str, Parameter] | None = None) -> str:
    """Return the query key of a request."""
    return query_key("t", "csv", normalise(conditions, parameters))


def ambiguous(value: Any) -> bool:
    """Whether two names of one object are the same in another form of Unicode."""
    if isinstance(value, dict):
        names = {unicodedata.normalize("NFC", name) for name in value}
        return len(names) != len(value) or any(map(ambiguous, value.values()))
    return isinstance(value, list) and any(map(ambiguous, value))


def respelled(value: Any, dice: random.Random) -> Any:
    """Return an equal value: in another order, form of Unicode, or spelling of a number."""
    if isinstance(value, dict):
        pairs = [(respelled(name, dice), respelled(item, dice)) for name, item in value.items()]
        dice.shuffle(pairs)
        return dict(pairs)
    if isinstance(value, list):
        return [respelled(item, dice) for item in value]
    if isinstance(value, str):
        return unicodedata.normalize(dice.choice(["NFC", "NFD"]), value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53:
        return dice.choice([value, float(value), -0.0 if value == 0 else value])
    return value


def meaning(value: Any) -> Any:
    """Return a value that equals another one exactly when both mean the same; computed without the product."""
    if isinstance(value, dict):
        return frozenset((unicodedata.normalize("NFC", name), meaning(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(meaning, value))
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    return value if value is None else (isinstance(value, bool), value)


@given(CONDITIONS, st.randoms(use_true_random=False))
def test_order_spelling_and_unicode_never_change_the_key(conditions: dict[str, Any], dice: random.Random) -> None:
    """Nor does a null."""
    assume(not ambiguous(conditions))
    other = {**respelled(conditions, dice), "a null member": None}
    assert key(other) == key(conditions)


@given(CONDITIONS, CONDITIONS)
def test_different_conditions_have_different_keys(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal keys exactly where the meaning is equal."""
    assume(not ambiguous(one) and not ambiguous(other))
    given_one = {name: value for name, value in one.items() if value is not None}
    given_other = {name: value for name, value in other.items() if value is not None}
    assert (key(one) == key(other)) == (meaning(given_one) == meaning(given_other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": False}),
        ({"a": 1}, {"a": "1"}),
        ({"a": 2**53 + 1}, {"a": 2**53}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": ""}, {}),
        ({"a": []}, {}),
        ({"a": 0.1}, {"a": 0.1 + 2**-56}),
        ({"a": "A"}, {"a": "a"}),
        ({"a": "ﬁ"}, {"a": "fi"}),
    ],
)
def test_similar_conditions_have_different_keys(one: dict[str, Any], other: dict[str, Any]) -> None:
    """A boolean is no number, a text is no number, and an absent value is no empty text."""
    assert key(one) != key(other)


def test_type_and_format_are_part_of_the_key() -> None:
    """The same conditions of another type, or for another format, are another query."""
    keys = {query_key(kind, form, {}) for kind in ("t", "u") for form in ("csv", "parquet")}
    assert len(keys) == 4
    assert all(len(one) == 64 and int(one, 16) >= 0 for one in keys)


@given(CONDITIONS)
def test_normalising_twice_changes_nothing(conditions: dict[str, Any]) -> None:
    """CND-1, also through JSON."""
    assume(not ambiguous(conditions))
    once = normalise(conditions, None)
    assert normalise(once, None) == once
    again = normalise(json.loads(json.dumps(once)), None)
    assert query_key("t", "csv", again) == query_key("t", "csv", once)
    backwards = dict(reversed(once.items()))  # PostgreSQL keeps names in an order of its own
    assert query_key("t", "csv", backwards) == query_key("t", "csv", once)


def test_an_absent_condition_has_its_default_or_null() -> None:
    """A query always finds its values; null and a written default equal an absent condition."""
    made = normalise({"country": "NL"}, PARAMETERS)
    assert made == {
        "at": None, "country": "NL", "ids": None, "limit": None, "open": None, "share": None, "since": "2026-01-01",
    }  # fmt: skip
    assert key({"country": "NL", "since": None, "limit": None}, PARAMETERS) == key({"country": "NL"}, PARAMETERS)
    assert key({"since": "2026-01-01", "country": "NL"}, PARAMETERS) == key({"country": "NL"}, PARAMETERS)
    assert normalise(made, PARAMETERS) == made


def test_an_instant_has_one_spelling() -> None:
    """Whatever its offset; also before 1970."""
    spellings = ["2026-01-31T09:00:00Z", "2026-01-31t10:00:00.000+01:00", "2026-01-31 04:00:00-05:00"]
    assert {normalise({"country": "NL", "at": text}, PARAMETERS)["at"] for text in spellings} == {
        "2026-01-31T09:00:00Z"
    }
    assert normalise({"country": "NL", "at": "1900-01-01T00:00:00Z"}, PARAMETERS)["at"] == "1900-01-01T00:00:00Z"


@given(st.dictionaries(st.sampled_from([*PARAMETERS, "other"]), VALUES))
def test_any_conditions_are_accepted_or_refused_with_their_code(conditions: dict[str, Any]) -> None:
    """No value raises another error, and accepted conditions are a fixed point."""
    code = "invalid_conditions"
    try:
        made = normalise(conditions, PARAMETERS)
        assert normalise(made, PARAMETERS) == made
        assert set(made) == set(PARAMETERS)
    except Rejected as error:
        code = error.code
    assert code == "invalid_conditions"


def test_every_mistake_is_named_at_once() -> None:
    """Wrong types, missing conditions, and unknown names with the nearest known one."""
    wrong = {
        "contry": "NL", "since": "31.01.2026", "at": "2026-01-31T09:00:00", "limit": 1.5, "share": "1", "open": 1,
        "ids": [[1]], "é": 1, "e\u0301": 2, "x": float("nan"), "y": 2**63, "z": "\0",
    }  # fmt: skip
    with pytest.raises(Rejected) as caught:
        normalise(wrong, PARAMETERS)
    assert caught.value.code == "invalid_conditions"
    found = caught.value.details["problems"]
    for beginning in (
        "contry: unknown; did you mean country?", "country: missing; give a text", "since: write a date",
        "at: write a time", "limit: write a whole number", "share: write a number", "open: write true",
        "ids: write a list",
        '"\\u00e9": given twice', "x: NaN", "y: a number beyond 64 bits", "z: \\u0000",
    ):  # fmt: skip
        assert any(line.startswith(beginning) for line in found), (beginning, found)


@pytest.mark.parametrize("text", ["2026-02-30", "20260131", "2026-W01-1", "", "2026-01-31T00:00:00Z"])
def test_a_date_is_an_existing_day_in_one_spelling(text: str) -> None:
    """In one spelling, so that it has one key."""
    with pytest.raises(Rejected):
        normalise({"country": "NL", "since": text}, PARAMETERS)


def test_conditions_are_bounded() -> None:
    """16 KiB as stored, and 32 levels."""
    size = CONDITIONS_BYTES_MAX - len('{"a":""}')
    normalise({"a": "x" * size}, None)
    with pytest.raises(Rejected) as caught:
        normalise({"a": "x" * (size + 1)}, None)
    assert (caught.value.code, caught.value.http_status) == ("conditions_too_large", 413)
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(Rejected, match="levels"):
        normalise({"a": deep}, None)
    with pytest.raises(Rejected, match="beyond 64 bits"):
        normalise({"a": 1e300}, None)
    with pytest.raises(Rejected, match="takes no conditions"):
        normalise({"a": 1}, {})


def test_of_many_mistakes_only_a_hundred_are_named() -> None:
    """The answer to a hostile request has the first ones; if the request is too large, only that."""
    parameters = {f"parameter_{number}": Parameter() for number in range(100)}
    with pytest.raises(Rejected) as caught:
        normalise({f"parametr{number}": 1 for number in range(900)}, parameters)
    assert len(caught.value.details["problems"]) == 100
    with pytest.raises(Rejected, match="at most 16384"):
        normalise({f"parametr{number}": 1 for number in range(20_000)}, parameters)
