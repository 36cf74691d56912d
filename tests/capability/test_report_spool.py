"""Rows become one file: the same from mappings and from a source, whole or not there."""

from collections.abc import AsyncIterator, Mapping
from datetime import date
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tickwright.capabilities.reports.spool import write_part
from tickwright.domain.errors import Rejected, Unavailable


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
