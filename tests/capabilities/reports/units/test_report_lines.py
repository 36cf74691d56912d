"""NDJSON of other programs: each error names its line; and rows of a source as a function gets them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tickwright.capabilities.reports.parts.spool import LINE_BYTES_MAX, rows_of
from tickwright.capabilities.reports.parts.values import COLUMNS_MAX
from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Column
from tickwright.sources.rows import mappings_of


def read(*chunks: bytes) -> list[dict[str, Any]]:
    """Read a stream in these chunks."""

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def rows() -> list[dict[str, Any]]:
        return [row async for row in rows_of(stream())]

    return asyncio.run(rows())


def test_lines_are_joined_however_the_stream_is_cut() -> None:
    """The last one may lack its newline; a carriage return before a newline is ignored."""
    assert read(b'{"a":', b'1}\n{"a":2}\r\n{"', b'a":3}') == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert read() == read(b"") == []


def test_a_number_with_many_digits_stays_exact() -> None:
    """A number that a float holds is a float."""
    ((row),) = read(b'{"a": 0.1, "b": 12345678901234567.89, "c": 1.0000000000000000001, "d": 1234567890.1234567}')
    assert row == {"a": 0.1, "b": Decimal("12345678901234567.89"), "c": Decimal("1.0000000000000000001"), "d": row["d"]}
    assert isinstance(row["a"], float)
    assert isinstance(row["d"], float)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"[1]", "row_value"),
        (b"1", "row_value"),
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"a": NaN}', "non_finite_number"),
        (b'{"a": 1, "a": 2}', "duplicate_key"),
        (b'{"a": 9223372036854775808}', "number_out_of_range"),
        (b'{"a": "\\ud800"}', "unsupported_character"),
        (b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "too_deep"),
        (b'{"a": "\xff"}', "invalid_json"),
        (b'{"a": "' + b"x" * LINE_BYTES_MAX + b'"}', "line_too_long"),
    ],
)
def test_the_error_for_a_line_that_cannot_be_a_row_has_its_number(line: bytes, code: str) -> None:
    """So the sender can find it."""
    with pytest.raises(Rejected, match="line 3") as refused:
        read(b'{"a": 1}\n{"a": 2}\n' + line + b"\n")
    assert (refused.value.code, refused.value.details["line"]) == (code, 3)


def test_a_line_with_too_many_columns_is_refused_before_it_is_processed() -> None:
    """Members inside a value do not count."""
    members = b",".join(b'"c%d": 1' % number for number in range(COLUMNS_MAX + 1))
    with pytest.raises(Rejected, match="row 2: a part has 1000 columns at the most, and these are 1001") as refused:
        read(b'{"a": 1}\n{' + members + b"}\n")
    assert (refused.value.code, refused.value.details["row"]) == ("too_many_columns", 2)
    ((row),) = read(b'{"a": {' + members + b"}}")
    assert len(row["a"]) == COLUMNS_MAX + 1


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    """It is refused at its bound, so memory is bounded."""
    with pytest.raises(Rejected) as refused:
        read(*[b"x" * 2**16] * 17)
    assert refused.value.code == "line_too_long"


def test_a_function_gets_values_of_python_types() -> None:
    """A value that Python cannot hold stays a text."""
    columns = [Column(name, kind) for name, kind in zip("abcdefg", KINDS, strict=True)]
    row = ("1.50", "2026-01-31", "2026-01-31 10:00:00.5+00", str(UUID(int=1)), msgspec.Raw(b'{"x":1}'), "text", 7)
    (got, odd) = mappings_of(columns, [row, ("NaN", "infinity", None, None, None, None, None)])
    at = datetime(2026, 1, 31, 10, 0, 0, 500_000, UTC)
    assert tuple(got.values()) == (Decimal("1.50"), date(2026, 1, 31), at, UUID(int=1), {"x": 1}, "text", 7)
    assert odd["a"].is_nan()
    assert (odd["b"], odd["c"]) == ("infinity", None)


KINDS = ["DECIMAL(12,2)", "DATE", "TIMESTAMPTZ", "UUID", "JSON", "VARCHAR", "INTEGER"]
