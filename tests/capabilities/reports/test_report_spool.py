"""Rows become one file: the same from mappings and from a source, whole or not there."""

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


async def these(*rows: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    """Give rows as a function does."""
    for row in rows:
        yield row


def files_in(folder: Path) -> list[Path]:
    """Return what is there."""
    return list(folder.iterdir())


async def test_a_part_is_counted_and_hashed_while_it_is_written(tmp_path: Path) -> None:
    """The facts are those of the file."""
    path = tmp_path / "users.ndjson"
    told: list[int] = []
    rows = these(*({"id": number, "amount": Decimal("1.10"), "on": date(2026, 1, 1)} for number in range(2500)))
    facts = await write_part(rows, path, declared={}, progress=told.append)
    data = path.read_bytes()
    assert data.startswith(b'{"id":0,"amount":"1.10","on":"2026-01-01"}\n')
    assert (facts.rows, facts.bytes, facts.checksum) == (2500, len(data), sha256(data).hexdigest())
    assert dict(facts.columns) == {"id": "BIGINT", "amount": "DECIMAL(18,2)", "on": "DATE"}
    assert told[-1] == 2500
    assert sorted(told) == told


async def test_keys_may_come_in_any_order(tmp_path: Path) -> None:
    """The first row's is the file's."""
    await write_part(these({"a": 1, "b": 2}, {"b": 4, "a": 3}), tmp_path / "p", declared={})
    assert (tmp_path / "p").read_text() == '{"a":1,"b":2}\n{"a":3,"b":4}\n'


def wide(columns: int, first: int = 0) -> dict[str, int]:
    """Return a row with so many columns."""
    return {f"c{number}": number for number in range(first, first + columns)}


class OfSource:
    """Rows as a source gives them."""

    def __init__(self, columns: int) -> None:
        self.columns = [Column(name, "BIGINT") for name in wide(columns)]

    async def __aiter__(self) -> AsyncIterator[list[tuple[int, ...]]]:
        """Give one row."""
        yield [tuple(range(len(self.columns)))]


@pytest.mark.parametrize(
    ("make", "row"),
    [
        (lambda columns: these(wide(columns)), 1),
        (lambda columns: these(wide(2), wide(columns, first=2)), 2),
        (lambda columns: these(wide(COLUMNS_MAX), wide(columns)), 2),
        (OfSource, None),
    ],
)
async def test_a_part_has_a_bound_on_its_columns_wherever_they_come_from(
    tmp_path: Path, make: Callable[[int], Any], row: int | None
) -> None:
    """A mapping's are counted in each row, before they are compared; the error says what to do."""
    with pytest.raises(Rejected, match="1000 columns at the most, and these are 1001: leave out") as refused:
        await write_part(make(COLUMNS_MAX + 1), tmp_path / "p", declared={})
    assert (refused.value.code, refused.value.retriable) == ("too_many_columns", False)
    assert refused.value.details.get("row") == row
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("make", [OfSource, lambda columns: these(wide(columns))])
async def test_a_part_may_have_as_many_columns_as_its_bound(tmp_path: Path, make: Callable[[int], Any]) -> None:
    """One less than too many."""
    facts = await write_part(make(COLUMNS_MAX), tmp_path / "p", declared={})
    assert len(facts.columns) == COLUMNS_MAX


@pytest.mark.parametrize("value", [[1] * 4_000, [[]] * 4_000, wide(4_000), {"a": [{"b": 1}] * 2_000}])
async def test_long_values_are_gathered_to_few(tmp_path: Path, value: Any) -> None:
    """Items of lists and members of objects take memory as columns do, though there is no text in them."""
    written: list[int] = []
    rows = these(*({"a": value} for _ in range(30)))
    facts = await write_part(rows, tmp_path / "p", declared={}, progress=written.append)
    assert facts.rows == 30
    assert len(written) >= 10, "three rows in a piece"


async def test_a_part_without_rows_has_the_declared_columns(tmp_path: Path) -> None:
    """Its file is there and empty."""
    facts = await write_part(these(), tmp_path / "p", declared={"id": "int", "amount": "decimal(12, 2)"})
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
async def test_a_row_that_cannot_be_is_refused_by_its_place(tmp_path: Path, rows: Any, code: str, says: str) -> None:
    """No file is left."""
    declared = {"declared": "BIGINT"} if rows == [{"x": 1}] else {}
    with pytest.raises(Rejected) as refused:
        await write_part(these(*rows), tmp_path / "p", declared=declared)
    assert refused.value.code == code
    assert says in refused.value.message
    assert files_in(tmp_path) == []


class Missing(datetime):
    """A value as ``pandas.NaT``: a datetime of the year 1 that differs from itself."""

    def __ne__(self, other: object) -> bool:
        """Differ from everything."""
        return True

    def isoformat(self, *_: Any, **__: Any) -> str:
        """Give no instant."""
        return "NaT"

    __hash__ = datetime.__hash__


class Absent:
    """A value as ``pandas.NA``, which makes itself of every comparison."""

    def __ne__(self, other: object) -> "Absent":  # type: ignore[override]
        """Leave it open."""
        return self

    def __bool__(self) -> bool:
        """Refuse to be a condition."""
        raise TypeError

    def __str__(self) -> str:
        """Return what pandas shows."""
        return "<NA>"

    __hash__ = object.__hash__


class Incomparable:
    """A value that cannot be compared at all."""

    def __ne__(self, other: object) -> bool:
        """Refuse."""
        raise RuntimeError

    __hash__ = object.__hash__


class Fine(datetime):
    """An instant as ``pandas.Timestamp``: it may have nanoseconds or a year that ``datetime`` does not have."""

    nanosecond = 0

    def __ne__(self, other: object) -> bool:
        """Compare nanoseconds, too."""
        return self.nanosecond != getattr(other, "nanosecond", 0) or datetime.__ne__(self, other)

    __hash__ = datetime.__hash__


class Finer(Fine):
    """With nanoseconds."""

    nanosecond = 789


class Far(datetime):
    """In a year that its base does not have."""

    @property
    def year(self) -> int:
        """Return the year."""
        return 20_000


class FinerWait(timedelta):
    """A duration as ``pandas.Timedelta`` with nanoseconds."""

    def __ne__(self, other: object) -> bool:
        """Differ from one without."""
        return not isinstance(other, FinerWait)

    __hash__ = timedelta.__hash__


async def test_a_missing_value_of_another_library_is_null(tmp_path: Path) -> None:
    """Also in a list, beside instants, and as the only value; a float that is no number stays one."""
    none, instant = Missing(1, 1, 1), Fine(2026, 1, 31, 10, tzinfo=UTC)
    rows = these(
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
        (Finer(2026, 1, 31), "a Finer with nanoseconds (round it to microseconds)"),
        (FinerWait(1), "a FinerWait with nanoseconds"),
        (Far(1972, 1, 1), "a Far beyond the years 1 to 9999"),
        (Incomparable(), "a Incomparable"),
    ],
)
async def test_a_value_that_would_change_is_refused(tmp_path: Path, value: Any, says: str) -> None:
    """An instant of pandas whose nanoseconds or year do not fit is not another instant."""
    with pytest.raises(Rejected) as refused:
        await write_part(these({"a": value}), tmp_path / "p", declared={})
    assert refused.value.code == "row_value"
    assert says in refused.value.message


async def test_a_part_has_a_bound(tmp_path: Path) -> None:
    """It is permanent: the next attempt would bring as much."""
    with pytest.raises(Rejected) as refused:
        await write_part(these(*({"a": "x" * 100} for _ in range(5000))), tmp_path / "p", declared={}, bytes_max=1000)
    assert refused.value.code == "part_too_large"
    assert files_in(tmp_path) == []


async def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    """Nor removed."""
    (tmp_path / "p").write_text("mine")
    with pytest.raises(Unavailable):
        await write_part(these({"a": 1}), tmp_path / "p", declared={})
    assert (tmp_path / "p").read_text() == "mine"


async def test_a_function_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """Its own error comes through."""

    async def failing() -> AsyncIterator[Mapping[str, Any]]:
        for number in range(3000):
            yield {"a": number}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await write_part(failing(), tmp_path / "p", declared={})
    assert files_in(tmp_path) == []
