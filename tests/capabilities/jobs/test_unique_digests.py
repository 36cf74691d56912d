"""What is equal for unique jobs: the digest of Python and that of SQL."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from kit.engine import connect
from tickwright import Rejected
from tickwright.capabilities.jobs.unique import digest_of_arguments

ARGUMENTS: dict[str, Any] = {"a": 1, "b": {"c": "é", "d": None}, "e": [1, {"x": 2, "y": 3}]}
DIGEST = "SELECT tickwright.unique_digest($1, CAST($2::text AS jsonb), CAST($3::text AS jsonb))"


def digest(payload: str, *by: str, task_type: str = "sync") -> bytes:
    """Return the digest of one payload."""
    return digest_of_arguments(task_type, payload, by)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 100}', '{"a": 1e2}'),
        ('{"a": 0}', '{"a": -0.0}'),
        ('{"a": 0.10}', '{"a": 0.1}'),
        ('{"a": {"x": 1, "y": [2]}}', '{"a": {"y": [2.0], "x": 1}}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ('{"a": 1}', '{"a": 1, "z": 2}'),
    ],
)
def test_equal_arguments_have_one_digest(one: str, other: str) -> None:
    """The order of keys, blanks, the spelling of numbers and arguments that are not chosen do not count."""
    assert digest(one, "a", "b") == digest(other, "a", "b")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": null}', "{}"),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": true}', '{"a": 1}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": []}', '{"a": {}}'),
        ('{"a": 9007199254740993}', '{"a": 9007199254740992}'),
        ('{"a": 0.1}', '{"a": 0.10000000000000000001}'),
        ('{"a": {"b": 1}}', '{"a.b": 1}'),
        ('{"a": 1}', '{"b": 1}'),
        ('{"a": ""}', '{"a": " "}'),
    ],
)
def test_different_arguments_have_different_digests(one: str, other: str) -> None:
    """Missing and null differ, and so do values of different types and numbers that a float would round."""
    assert digest(one, "a", "b") != digest(other, "a", "b")


def test_the_type_and_the_choice_count() -> None:
    """Two types never meet, nor two choices of arguments; the order of the names does not count."""
    payload = json.dumps(ARGUMENTS)
    assert digest(payload, "a", "b.c") == digest(payload, "b.c", "a")
    all_of_it = digest_of_arguments("sync", payload, None)
    choices = [digest(payload), digest(payload, "a"), digest(payload, "b"), digest(payload, "b.c"), all_of_it]
    assert len({*choices, digest(payload, "a", task_type="mail")}) == 6


def test_a_path_reads_objects_only() -> None:
    """A step into an array, a scalar or nothing finds nothing, and a name with a dot is not reached."""
    missing = digest('{"a": 5}', "a.b")
    assert digest('{"a": [{"b": 1}]}', "a.b") == digest('{"a.b": 1}', "a.b") == digest("[]", "a.b") == missing
    assert digest('{"a": {"b": 1}}', "a.b") != missing


def test_long_values_and_deep_ones() -> None:
    """10 kB of text are a digest like any other; numbers and levels without end are refused."""
    assert len(digest(json.dumps({"a": "x" * 10_000}), "a")) == 32
    with pytest.raises(Rejected, match="thousands of digits") as refused:
        digest('{"a": 1e999999}', "a")
    assert refused.value.code == "invalid_unique"
    with pytest.raises(Rejected, match="too many levels") as refused:
        digest('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "a")
    assert refused.value.code == "invalid_unique"


_TEXT = some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
_NUMBER = some.one_of(
    some.integers(-(2**63), 2**63),
    some.floats(allow_nan=False, allow_infinity=False),
    some.decimals(allow_nan=False, allow_infinity=False, places=4).map(float),
)
_JSON = some.recursive(
    some.one_of(some.none(), some.booleans(), _NUMBER, _TEXT),
    lambda inner: some.one_of(
        some.lists(inner, max_size=4),
        some.dictionaries(some.one_of(some.sampled_from("abc"), _TEXT), inner, max_size=4),
    ),
    max_leaves=12,
)
_PATHS = some.none() | some.lists(some.sampled_from(["a", "b", "c", "a.b", "a.b.c", "c.a"]), max_size=4, unique=True)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(some.lists(some.tuples(_JSON, _PATHS), min_size=1, max_size=20))
async def test_python_and_sql_agree(database_url: str, cases: list[tuple[Any, list[str] | None]]) -> None:
    """One rule in two languages: the digests are equal for any payload and choice."""
    connection = await connect(database_url)
    try:
        for payload, by in cases:
            text = json.dumps(payload, ensure_ascii=False)
            assert await connection.fetchval(DIGEST, "sync", text, json.dumps(by)) == digest_of_arguments(
                "sync", text, by
            ), (text, by)
    finally:
        await connection.close()
