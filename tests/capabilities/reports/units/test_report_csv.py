"""A report's CSV: two readers read the values back, and no cell is a formula.

The expected cells are computed in Python from the values; DuckDB writes the file.
"""

import csv
import io
import json
import re
import tempfile
import unicodedata
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tickwright.capabilities.reports.merge.merge import MergeBounds, PartFile, merge
from tickwright.ports.reports import Column

settings.register_profile("merges", deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
MERGES = settings.get_profile("merges")  # a merge for each example: shrinking one would take minutes
FORMULA = set("=+-@＝＋－＠")
COLUMNS = {
    "text": "VARCHAR",
    "whole": "BIGINT",
    "exact": "DECIMAL(38,10)",
    "float": "DOUBLE",
    "yes": "BOOLEAN",
    "day": "DATE",
    "instant": "TIMESTAMPTZ",
    "local": "TIMESTAMP",
    "nested": "JSON",
    "more": "VARCHAR[]",
}
ANY = st.characters(exclude_categories=["Cs", "Cn"])
NASTY = st.sampled_from([*"=+-@＝＋－＠\t\r\n\0 \u00a0\u3000\u200b\ufeff\u061c\v\f\x85,;\"'x5"])
TEXTS = st.text(NASTY, max_size=6) | st.text(ANY, max_size=12)


class Cell(NamedTuple):
    """A cell, and whether it is quoted."""

    text: str
    is_quoted: bool


def cells(data: str) -> list[list[Cell]]:
    """Return the rows of a file strictly by RFC 4180; anything else is an error."""
    rows: list[list[Cell]] = []
    row: list[Cell] = []
    place = 0
    while place < len(data):
        if data[place] == '"':
            end = place + 1
            while data[end] != '"' or data[end : end + 2] == '""':
                end += 2 if data[end] == '"' else 1
            row.append(Cell(data[place + 1 : end].replace('""', '"'), True))
            end += 1
        else:
            end = min(at for at in (data.find(",", place), data.find("\r\n", place)) if at >= 0)
            assert not set(data[place:end]) & set('"\r\n'), data[place:end]
            row.append(Cell(data[place:end], False))
        if data[end] == ",":
            place = end + 1
            continue
        assert data[end : end + 2] == "\r\n"
        rows.append(row)
        row, place = [], end + 2
    assert row == []
    return rows


def is_space(char: str) -> bool:
    """Return whether a spreadsheet may skip it."""
    return unicodedata.category(char).startswith("Z") or char in "\t\n\v\f\r"


def safe(text: str) -> str:
    """Return a text as the file has it."""
    seen = [char for char in text if unicodedata.category(char) not in {"Cc", "Cf"} and not is_space(char)]
    danger = (seen and seen[0] in FORMULA) or text.startswith(("\t", "\r", "\n", "\0"))
    # a cell is dangerous by its first visible character, and only if no harmless one is before that
    is_number = re.fullmatch(r"-[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", text) is not None
    return ("'" if danger and not is_number else "") + text.replace("\0", "")


def written(text: str) -> Cell:
    """Return a text's cell."""
    made = safe(text)
    quotes = made == "" or bool(set(made) & set(',"\r\n')) or is_space(made[0]) or is_space(made[-1])
    return Cell(made, quotes)


def stamp(value: datetime, end: str) -> str:
    """Return an instant with six decimals."""
    return value.isoformat(timespec="microseconds").removesuffix("+00:00") + end


def truth(row: dict[str, Any]) -> list[Cell]:
    """Return the cells of a row."""
    found = []
    for name, kind in COLUMNS.items():
        value = row[name]
        match kind:
            case _ if value is None:
                found.append(Cell("", False))
            case "VARCHAR":
                found.append(written(value))
            case "VARCHAR[]" | "JSON":
                found.append(written(json.dumps(value, ensure_ascii=False, separators=(",", ":"))))
            case "BOOLEAN":
                found.append(Cell("true" if value else "false", False))
            case "DECIMAL(38,10)":
                found.append(Cell(f"{value:.10f}", False))
            case "TIMESTAMPTZ":
                found.append(Cell(stamp(value, "Z"), False))
            case "TIMESTAMP":
                found.append(Cell(stamp(value, ""), False))
            case _:
                found.append(Cell(str(value), False))
    return found


def line(row: dict[str, Any]) -> str:
    """Return a row as a part has it: values that JSON does not have are texts."""
    return json.dumps(row, default=str, ensure_ascii=False) + "\n"


def merged(rows: Sequence[str], columns: dict[str, str], sql: str, *, bom: bool) -> bytes:
    """Return the file that a merge makes of one part."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "part.ndjson"
        path.write_text("".join(rows), encoding="utf-8")
        part = PartFile("rows", path, tuple(Column(*column) for column in columns.items()))
        out = folder / "out.csv"
        merge([part], sql, out, form="csv", bom=bom, folder=folder, bounds=MergeBounds())
        return out.read_bytes()


PLAIN_TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cn", "Cc"]), max_size=8)
ROWS = st.fixed_dictionaries(
    {
        "text": st.none() | TEXTS,
        "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
        "exact": st.none() | st.decimals(Decimal(-(10**27)), Decimal(10**27), places=10).map(lambda one: one + 0),
        "float": st.none() | st.integers(-999, 999).map(lambda one: one / 8),
        "yes": st.none() | st.booleans(),
        "day": st.none() | st.dates(date(1, 1, 1)),
        "instant": st.none() | st.datetimes(datetime(1, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
        "local": st.none() | st.datetimes(datetime(1, 1, 1)),  # noqa: DTZ001
        "nested": st.none() | st.lists(PLAIN_TEXTS | st.integers(-9, 9), max_size=3),
        "more": st.none() | st.lists(st.none() | PLAIN_TEXTS, max_size=3),
    }
)


@settings(MERGES, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROWS, max_size=25), st.booleans())
def test_values_are_read_back_unchanged_and_no_cell_is_a_formula(rows: list[dict[str, Any]], bom: bool) -> None:
    """Every cell of every row, null apart from the empty text, with Python's reader and strictly by RFC 4180."""
    data = merged([line(row) for row in rows], COLUMNS, "SELECT * FROM rows", bom=bom)
    assert data.startswith(b"\xef\xbb\xbf") == bom
    text = data.decode("utf-8-sig")
    expected = [[Cell(name, False) for name in COLUMNS], *map(truth, rows)]
    assert cells(text) == expected
    assert [*csv.reader(io.StringIO(text, newline=""), strict=True)] == [[one.text for one in row] for row in expected]
    for row in cells(text)[1:]:
        for one, kind in zip(row, COLUMNS.values(), strict=True):
            first = one.text.lstrip()[:1]
            assert kind in {"BIGINT", "DECIMAL(38,10)", "DOUBLE"} or first not in FORMULA


@settings(MERGES, max_examples=30)
@example(["-5", "-5,", "-\t", "- 5", "-Infinity5"])
@given(st.lists(st.text(NASTY, min_size=1, max_size=5).filter(lambda name: "\0" not in name), min_size=1, max_size=6))
def test_names_of_columns_are_escaped_like_cells(names: list[str]) -> None:
    """A column's name may come from a parameter or a pivot: it is quoted and escaped like a text."""
    names = [*{safe(name).casefold(): name for name in names}.values()]
    listed = ", ".join('1 AS "' + name.replace('"', '""') + '"' for name in names)
    data = merged([], {"id": "BIGINT"}, f"SELECT {listed}", bom=False).decode()
    assert cells(data) == [[written(name) for name in names], [Cell("1", False) for _ in names]]


@settings(MERGES, max_examples=20)
@given(st.lists(st.none() | TEXTS, max_size=20))
def test_a_file_of_one_column_has_no_empty_line(values: list[str | None]) -> None:
    """Most readers skip an empty line: there, null is written as an empty text."""
    data = merged([line({"text": value}) for value in values], {"text": "VARCHAR"}, "SELECT * FROM rows", bom=False)
    expected = [[safe(value or "")] for value in values]
    assert [*csv.reader(io.StringIO(data.decode(), newline=""), strict=True)] == [["text"], *expected]
