"""Whatever rows are given, DuckDB reads the part back exactly, with the types that were found."""

import asyncio
import json
import math
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickwright.capabilities.reports.parts.spool import rows_of, write_part
from tickwright.capabilities.reports.parts.values import Kind, Seen, check_type, encode_column, type_of
from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Column, PartFacts

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT128 = st.integers(-(2**127), 2**127 - 1)
MONEY = st.decimals(-(10**16), 10**16, places=2, allow_nan=False)
EXACT = st.decimals(allow_nan=False, allow_infinity=False).filter(lambda value: len(value.as_tuple().digits) <= 38)
INSTANTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001  # the zone is drawn beside it
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-11))])
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT.filter(bool), inner, max_size=3),
    max_leaves=8,
)
NESTED = st.lists(JSON, max_size=3) | st.dictionaries(TEXT, JSON, max_size=3)
KINDS: Mapping[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "BIGINT": INT64,
    "HUGEINT": INT128,
    "DECIMAL": MONEY,
    "DOUBLE": st.floats(),
    "VARCHAR": TEXT,
    "DATE": st.dates(),
    "TIMESTAMP": INSTANTS,
    "TIMESTAMPTZ": st.builds(lambda instant, zone: instant.replace(tzinfo=zone), INSTANTS, ZONES),
    "TIME": st.times(),
    "INTERVAL": st.timedeltas(timedelta(days=-40_000), timedelta(days=40_000)),
    "UUID": st.uuids(),
    "JSON": NESTED,
}
ANY = st.one_of(*KINDS.values(), EXACT, st.binary(max_size=5), st.none())


async def rows_from(rows: Sequence[Mapping[str, Any]]) -> AsyncIterator[Mapping[str, Any]]:
    """Yield rows as a function does."""
    for row in rows:
        yield row


def written(rows: Sequence[Mapping[str, Any]], path: Path, **declared: str) -> PartFacts:
    """Write a part."""
    return asyncio.run(write_part(rows_from(rows), path, declared=declared))


def read_back(path: Path, columns: Sequence[Column]) -> list[tuple[Any, ...]]:
    """Read a part as a merge does, as Python's values; instants as text, for which Python needs a library."""
    kinds = ", ".join(f"'{column.name}': '{column.type}'" for column in columns)
    shown = ", ".join(f'CAST("{name}" AS VARCHAR)' if kind == "TIMESTAMPTZ" else f'"{name}"' for name, kind in columns)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        source = f"read_json('{path}', format = 'newline_delimited', columns = {{{kinds}}})"
        found = connection.execute(f"SELECT {shown} FROM {source}").fetchall()
    read = {"JSON": json.loads, "TIMESTAMPTZ": datetime.fromisoformat}
    return [
        tuple(
            value if value is None else read.get(column.type, lambda same: same)(value)
            for value, column in zip(row, columns, strict=True)
        )
        for row in found
    ]


def same(one: Any, other: Any) -> bool:
    """Compare, with NaN equal to itself and a boolean to no number."""
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_column_of_one_kind_is_read_back_exactly(kind: str, data: st.DataObject) -> None:
    """Nulls anywhere; the type found is one of that kind."""
    values = data.draw(st.lists(st.none() | KINDS[kind], min_size=1, max_size=30))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part"
        facts = written([{"number": number, "value": value} for number, value in enumerate(values)], path)
        back = read_back(path, facts.columns)
    assert [row[0] for row in back] == list(range(len(values)))
    for given_value, (_, value) in zip(values, back, strict=True):
        assert same(given_value, value), (facts.columns, given_value, value)
    if any(value is not None for value in values):
        found = facts.columns[1].type
        assert found.startswith(kind) or (kind, found) == ("HUGEINT", "BIGINT")


@settings(max_examples=30, deadline=None)
@given(st.lists(EXACT, min_size=1, max_size=10))
def test_an_exact_number_is_never_rounded(values: list[Decimal]) -> None:
    """It is a decimal of up to 38 digits, or a text with the same value."""
    with tempfile.TemporaryDirectory() as folder:
        facts = written([{"value": value} for value in values], Path(folder) / "part")
        back = [Decimal(row[0]) for row in read_back(Path(folder) / "part", facts.columns)]
    assert back == values


@settings(max_examples=30, deadline=None)
@given(st.lists(ANY, min_size=1, max_size=10))
def test_a_column_of_many_kinds_is_still_read(values: list[Any]) -> None:
    """Whatever the type found, every row is there, and null is where null was."""
    with tempfile.TemporaryDirectory() as folder:
        facts = written([{"value": value} for value in values], Path(folder) / "part")
        back = read_back(Path(folder) / "part", facts.columns)
    assert [row[0] is None for row in back] == [value is None for value in values]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(INT64, TEXT, MONEY, NESTED), min_size=1, max_size=40), st.integers(1, 200))
def test_how_a_stream_is_cut_does_not_matter(rows: list[Any], size: int) -> None:
    """A service's NDJSON gives the rows that were sent; decimals as texts keep their declared type."""
    data = b"".join(
        json.dumps({"i": i, "t": t, "d": str(d), "n": n}).encode() + b"\n" for i, t, d, n in rows if "\0" not in repr(n)
    )
    sent = [(i, t, d, n) for i, t, d, n in rows if "\0" not in repr(n)]

    async def cut() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part"
        try:
            facts = asyncio.run(write_part(rows_of(cut()), path, declared={"d": "DECIMAL(20,2)", "n": "JSON"}))
        except Rejected as refused:
            assert refused.code in {"unsupported_character", "number_out_of_range"}, refused.message  # noqa: PT017
            return
        if sent:
            assert read_back(path, facts.columns) == sent


SEEN = st.builds(
    Seen,
    st.integers(0, 2**13 - 1).map(Kind),
    st.integers(0, 2**128),
    st.integers(0, 40),
    st.integers(0, 40),
    st.booleans(),
)


@given(SEEN, SEEN, SEEN)
def test_kinds_of_values_are_joined_in_any_order(one: Seen, two: Seen, three: Seen) -> None:
    """COL-1: so the type depends neither on the order of rows nor on how they were divided."""
    assert one.join(two) == two.join(one)
    assert one.join(two).join(three) == one.join(two.join(three))
    assert one.join(one) == one
    assert one.join(Seen()) == one


@given(SEEN)
def test_a_type_that_is_found_may_be_declared(seen: Seen) -> None:
    """Both are spelled in the same way."""
    assert check_type(seen.type) == seen.type


@settings(max_examples=100)
@given(st.lists(ANY, max_size=20), st.integers(0, 20))
def test_a_column_is_the_same_in_one_piece_and_in_two(values: list[Any], at: int) -> None:
    """The fast path over a whole column and the slow one over each value agree."""
    whole, first, second = encode_column(values), encode_column(values[:at]), encode_column(values[at:])
    assert repr([*first.values, *second.values]) == repr([*whole.values])
    assert first.seen.join(second.seen) == whole.seen
    single = [encode_column([value]) for value in values]
    assert repr([value for one in single for value in one.values]) == repr([*whole.values])


@given(st.lists(st.decimals(allow_infinity=False, places=None).map(lambda number: format(number, "f")), max_size=10))
def test_exact_texts_are_measured_as_exact_numbers(texts: list[str]) -> None:
    """A database's numbers come as texts; their type holds them all."""
    texts = [text for text in texts if len(text) < 30]
    seen = encode_column(texts, "DECIMAL").seen
    found = type_of("DECIMAL", seen)
    if any("NaN" in text for text in texts):
        assert found == "VARCHAR"
    elif found.startswith("DECIMAL"):
        digits, scale = map(int, found.removeprefix("DECIMAL(").rstrip(")").split(","))
        for text in texts:
            _, numerals, exponent = Decimal(text).as_tuple()
            assert -int(exponent) <= scale
            assert len(numerals) + int(exponent) <= digits - scale or not Decimal(text)
