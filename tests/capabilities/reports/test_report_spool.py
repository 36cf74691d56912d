"""Rows of a function or a source become one file, which is whole or does not exist."""

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.capabilities.reports.parts.values import COLUMNS_MAX
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import Column


async def rows_of_function(*rows: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    """Yield rows as a function does."""
    for row in rows:
        yield row


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder."""
    return list(folder.iterdir())


async def test_a_part_is_counted_and_hashed_while_it_is_written(tmp_path: Path) -> None:
    """The facts equal those of the file."""
    path = tmp_path / "users.ndjson"
    reported: list[int] = []
    rows = rows_of_function(
        *({"id": number, "amount": Decimal("1.10"), "on": date(2026, 1, 1)} for number in range(2500))
    )
    facts = await write_part(rows, path, declared={}, progress=reported.append)
    data = path.read_bytes()
    assert data.startswith(b'{"id":0,"amount":"1.10","on":"2026-01-01"}\n')
    assert (facts.rows, facts.bytes, facts.checksum) == (2500, len(data), sha256(data).hexdigest())
    assert dict(facts.columns) == {"id": "BIGINT", "amount": "DECIMAL(18,2)", "on": "DATE"}
    assert reported[-1] == 2500
    assert sorted(reported) == reported


async def test_keys_may_come_in_any_order(tmp_path: Path) -> None:
    """The file has the order of the first row."""
    await write_part(rows_of_function({"a": 1, "b": 2}, {"b": 4, "a": 3}), tmp_path / "p", declared={})
    assert (tmp_path / "p").read_text() == '{"a":1,"b":2}\n{"a":3,"b":4}\n'


def wide(columns: int, first: int = 0) -> dict[str, int]:
    """Return a row with this number of columns."""
    return {f"c{number}": number for number in range(first, first + columns)}


class SourceRows:
    """Rows of a source."""

    def __init__(self, columns: int) -> None:
        self.columns = [Column(name, "BIGINT") for name in wide(columns)]

    async def __aiter__(self) -> AsyncIterator[list[tuple[int, ...]]]:
        """Yield one row."""
        yield [tuple(range(len(self.columns)))]


@pytest.mark.parametrize(
    ("make", "row"),
    [
        (lambda columns: rows_of_function(wide(columns)), 1),
        (lambda columns: rows_of_function(wide(2), wide(columns, first=2)), 2),
        (lambda columns: rows_of_function(wide(COLUMNS_MAX), wide(columns)), 2),
        (SourceRows, None),
    ],
)
async def test_the_columns_of_a_part_are_bounded_for_every_kind_of_rows(
    tmp_path: Path, make: Callable[[int], Any], row: int | None
) -> None:
    """Those of a mapping are counted in each row, before they are compared; the error names the remedy."""
    with pytest.raises(Rejected, match="1000 columns at the most, and these are 1001: leave out") as refused:
        await write_part(make(COLUMNS_MAX + 1), tmp_path / "p", declared={})
    assert (refused.value.code, refused.value.retriable) == ("too_many_columns", False)
    assert refused.value.details.get("row") == row
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("make", [SourceRows, lambda columns: rows_of_function(wide(columns))])
async def test_a_part_may_have_as_many_columns_as_its_bound(tmp_path: Path, make: Callable[[int], Any]) -> None:
    """The bound itself is allowed."""
    facts = await write_part(make(COLUMNS_MAX), tmp_path / "p", declared={})
    assert len(facts.columns) == COLUMNS_MAX


@pytest.mark.parametrize("value", [[1] * 4_000, [[]] * 4_000, wide(4_000), {"a": [{"b": 1}] * 2_000}])
async def test_pieces_have_few_long_values(tmp_path: Path, value: Any) -> None:
    """Items of lists and members of objects take memory as columns do, even without text."""
    written: list[int] = []
    rows = rows_of_function(*({"a": value} for _ in range(30)))
    facts = await write_part(rows, tmp_path / "p", declared={}, progress=written.append)
    assert facts.rows == 30
    assert len(written) >= 10, "three rows in a piece"


async def test_a_part_without_rows_has_the_declared_columns(tmp_path: Path) -> None:
    """Its file exists and is empty."""
    facts = await write_part(rows_of_function(), tmp_path / "p", declared={"id": "int", "amount": "decimal(12, 2)"})
    assert dict(facts.columns) == {"id": "INTEGER", "amount": "DECIMAL(12,2)"}
    assert (tmp_path / "p").read_bytes() == b""
    assert (facts.rows, facts.bytes, facts.checksum) == (0, 0, sha256(b"").hexdigest())


@pytest.mark.parametrize(
    ("rows", "code", "says"),
    [
        ([{"a": 1}, {"a": 1}, {"b": 1}], "row_columns_differ", "row 3 lacks a and also has b"),
        ([{"a": 1}, {"a": 1, "c": 2}], "row_columns_differ", "row 2 also has c"),
        ([{"a": 1}, {"a": object()}], "row_value", "row 2, column a: a object has no place"),
        ([{"a": {"b": {1, 2}}}], "row_value", "column a: a set"),
        ([{"a": {1: 2}}], "row_value", "a key that is a int"),
        ([{"a": "x"}, {"a": "\ud800"}], "row_value", "row 2, column a: text with half of a surrogate pair"),
        ([{"a": ["\ud800"]}], "row_value", "row 1, column a"),
        ([{"a": 1, "A": 1}], "duplicate_column", "two columns are called A"),
        ([{"": 1}], "invalid_column", "1 to 255"),
        ([{"x": 1}], "row_columns_differ", "the column declared is declared"),
        ([[1, 2]], "row_value", "a row is a mapping"),
        ([{}], "row_value", "a row is a mapping"),
        ([{1: 2}], "row_value", "a row is a mapping"),
        ([{"a": 1}, [1]], "row_columns_differ", "row 2"),
    ],
)
async def test_an_invalid_row_is_refused_with_its_number(tmp_path: Path, rows: Any, code: str, says: str) -> None:
    """No file is left."""
    declared = {"declared": "BIGINT"} if rows == [{"x": 1}] else {}
    with pytest.raises(Rejected) as refused:
        await write_part(rows_of_function(*rows), tmp_path / "p", declared=declared)
    assert refused.value.code == code
    assert says in refused.value.message
    assert files_in(tmp_path) == []


class Missing(datetime):
    """A value like ``pandas.NaT``: a datetime of the year 1 that differs from itself."""

    def __ne__(self, other: object) -> bool:
        """Differ from everything."""
        return True

    def isoformat(self, *_: Any, **__: Any) -> str:
        """Return no instant."""
        return "NaT"

    __hash__ = datetime.__hash__


class Absent:
    """A value like ``pandas.NA``: every comparison returns the value itself."""

    def __ne__(self, other: object) -> "Absent":  # type: ignore[override]
        """Return neither true nor false."""
        return self

    def __bool__(self) -> bool:
        """Raise: the value is neither true nor false."""
        raise TypeError

    def __str__(self) -> str:
        """Return what pandas shows."""
        return "<NA>"

    __hash__ = object.__hash__


class Incomparable:
    """A value that cannot be compared."""

    def __ne__(self, other: object) -> bool:
        """Raise."""
        raise RuntimeError

    __hash__ = object.__hash__


class PandasInstant(datetime):
    """An instant like ``pandas.Timestamp``: it may have nanoseconds or a year that ``datetime`` does not have."""

    nanosecond = 0

    def __ne__(self, other: object) -> bool:
        """Compare nanoseconds, as well."""
        return self.nanosecond != getattr(other, "nanosecond", 0) or datetime.__ne__(self, other)

    __hash__ = datetime.__hash__


class NanosecondInstant(PandasInstant):
    """An instant with nanoseconds."""

    nanosecond = 789


class FarInstant(datetime):
    """An instant in a year that ``datetime`` does not have."""

    @property
    def year(self) -> int:
        """Return the year."""
        return 20_000


class NanosecondDuration(timedelta):
    """A duration like ``pandas.Timedelta``, with nanoseconds."""

    def __ne__(self, other: object) -> bool:
        """Differ from a duration without nanoseconds."""
        return not isinstance(other, NanosecondDuration)

    __hash__ = timedelta.__hash__


async def test_a_missing_value_of_another_library_is_null(tmp_path: Path) -> None:
    """Also in a list, among instants, and as the only value; a float that is NaN stays one."""
    none, instant = Missing(1, 1, 1), PandasInstant(2026, 1, 31, 10, tzinfo=UTC)
    rows = rows_of_function(
        {"at": instant, "n": 1, "only": none, "in": [none, Absent()], "f": 0.5},
        {"at": none, "n": Absent(), "only": none, "in": [instant], "f": float("nan")},
    )
    facts = await write_part(rows, tmp_path / "p", declared={})
    assert (tmp_path / "p").read_text().splitlines() == [
        '{"at":"2026-01-31T10:00:00+00:00","n":1,"only":null,"in":[null,null],"f":0.5}',
        '{"at":null,"n":null,"only":null,"in":["2026-01-31T10:00:00+00:00"],"f":"NaN"}',
    ]
    assert [kind for _, kind in facts.columns] == ["TIMESTAMPTZ", "BIGINT", "VARCHAR", "JSON", "DOUBLE"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (NanosecondInstant(2026, 1, 31), "a NanosecondInstant with nanoseconds (round it to microseconds)"),
        (NanosecondDuration(1), "a NanosecondDuration with nanoseconds"),
        (FarInstant(1972, 1, 1), "a FarInstant beyond the years 1 to 9999"),
        (Incomparable(), "a Incomparable"),
    ],
)
async def test_a_value_that_would_change_is_refused(tmp_path: Path, value: Any, says: str) -> None:
    """An instant of pandas whose nanoseconds or year do not fit does not become another instant."""
    with pytest.raises(Rejected) as refused:
        await write_part(rows_of_function({"a": value}), tmp_path / "p", declared={})
    assert refused.value.code == "row_value"
    assert says in refused.value.message


async def test_a_part_has_a_bound_in_bytes(tmp_path: Path) -> None:
    """The error is permanent: the next attempt would yield as much."""
    with pytest.raises(Rejected) as refused:
        await write_part(
            rows_of_function(*({"a": "x" * 100} for _ in range(5000))), tmp_path / "p", declared={}, bytes_max=1000
        )
    assert refused.value.code == "part_too_large"
    assert files_in(tmp_path) == []


async def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    """It is not removed, either."""
    (tmp_path / "p").write_text("mine")
    with pytest.raises(Unavailable):
        await write_part(rows_of_function({"a": 1}), tmp_path / "p", declared={})
    assert (tmp_path / "p").read_text() == "mine"


async def test_a_function_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """Its own error is raised."""

    async def failing() -> AsyncIterator[Mapping[str, Any]]:
        for number in range(3000):
            yield {"a": number}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await write_part(failing(), tmp_path / "p", declared={})
    assert files_in(tmp_path) == []
