"""Merging a report's parts into one file, and into one row of values: what is written, and what is refused."""

import csv
import hashlib
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from tickwright.capabilities.reports.merge.merge import MergeBounds, MergedFile, PartFile, feed, merge
from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.capabilities.reports.plan import Format
from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Column

BOUNDS = MergeBounds()
USERS = {"id": "BIGINT", "name": "VARCHAR"}
WITHDRAWALS = {"id": "BIGINT", "user_id": "BIGINT", "amount": "DECIMAL(12,2)", "at": "TIMESTAMPTZ"}


def part(folder: Path, listener: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> PartFile:
    """Return a part whose file has these rows."""
    path = folder / f"{listener}.ndjson"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PartFile(listener, path, tuple(Column(name, kind) for name, kind in columns.items()))


def merged(
    folder: Path, parts: Sequence[PartFile], sql: str, *, form: Format = "csv", bom: bool = False
) -> tuple[MergedFile, bytes]:
    """Return the facts that a merge reports of its file, and the file's bytes."""
    out = folder / f"out.{form}"
    found = merge(parts, sql, out, form=form, bom=bom, folder=folder, bounds=BOUNDS)
    return found, out.read_bytes()


def table(folder: Path, parts: Sequence[PartFile], sql: str) -> list[list[str]]:
    """Return the rows of a merge's CSV as Python reads them, the header first."""
    _, data = merged(folder, parts, sql)
    return [*csv.reader(io.StringIO(data.decode(), newline=""), strict=True)]


@pytest.fixture
def shop(tmp_path: Path) -> list[PartFile]:
    """Three users and four withdrawals."""
    users = [{"id": number, "name": name} for number, name in enumerate(["Ann", "=cmd|' /C calc'!A0", None])]
    taken = [
        {"id": number, "user_id": user, "amount": amount, "at": f"2026-01-0{number + 1}T00:00:00+00:00"}
        for number, (user, amount) in enumerate([(0, "1.10"), (0, "2.00"), (1, "-3.50"), (2, "1000000.01")])
    ]
    return [part(tmp_path, "users", USERS, users), part(tmp_path, "withdrawals", WITHDRAWALS, taken)]


JOIN = "SELECT w.id, u.name, w.amount, w.at FROM withdrawals AS w JOIN users AS u ON u.id = w.user_id ORDER BY w.amount"


def test_parts_are_joined_into_one_csv(tmp_path: Path, shop: list[PartFile]) -> None:
    """Rows in the SELECT's order; exact decimals, instants in UTC, a name that is a formula is escaped."""
    found, data = merged(tmp_path, shop, JOIN)
    assert data.decode() == (
        "id,name,amount,at\r\n"
        "2,'=cmd|' /C calc'!A0,-3.50,2026-01-03T00:00:00.000000Z\r\n"
        "0,Ann,1.10,2026-01-01T00:00:00.000000Z\r\n"
        "1,Ann,2.00,2026-01-02T00:00:00.000000Z\r\n"
        "3,,1000000.01,2026-01-04T00:00:00.000000Z\r\n"
    )
    assert found == MergedFile(4, len(data), hashlib.sha256(data).hexdigest())


def test_a_feed_is_one_row_of_json_values(tmp_path: Path, shop: list[PartFile]) -> None:
    """Lists and numbers as JSON has them; decimals and instants as text, because they are exact there."""
    sql = (
        'SELECT list(id ORDER BY id) AS ids, max("at") AS last, sum(amount) AS total, count(*) AS n, '
        "sum(id) AS small, [1.5, 0.1::DECIMAL(3,2)] AS d, 'nan'::DOUBLE AS no, NULL AS nothing, true AS yes, "
        "'x' || chr(0) AS nul, {'a': 1, 'b': ['inf'::DOUBLE]} AS pair, 2::HUGEINT ** 0 AS p FROM withdrawals"
    )
    assert feed(shop, sql, folder=tmp_path, bounds=BOUNDS) == {
        "ids": [0, 1, 2, 3],
        "last": "2026-01-04T00:00:00.000000Z",
        "total": "999999.61",
        "n": 4,
        "small": 6,
        "d": ["1.50", "0.10"],
        "no": "nan",
        "nothing": None,
        "yes": True,
        "nul": "x",
        "pair": {"a": 1, "b": ["inf"]},
        "p": 1.0,
    }


def refused(folder: Path, parts: Sequence[PartFile], sql: str, *, form: Format = "csv") -> Rejected:
    """Return the error of a merge; it leaves no file and names no path."""
    with pytest.raises(Rejected) as caught:
        merged(folder, parts, sql, form=form)
    assert leftovers(folder) == []
    assert str(folder) not in caught.value.message
    assert len(caught.value.message) <= 1000
    return caught.value


def leftovers(folder: Path) -> list[str]:
    """Return the names of files that are no parts."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".ndjson")


def test_a_result_without_rows_is_a_file_with_a_header(tmp_path: Path, shop: list[PartFile]) -> None:
    """With a byte order mark, if that is requested."""
    found, data = merged(tmp_path, shop, "SELECT id, name FROM users WHERE false", bom=True)
    assert (found.rows, data) == (0, b"\xef\xbb\xbfid,name\r\n")


def test_a_part_without_rows_has_its_columns(tmp_path: Path, shop: list[PartFile]) -> None:
    """The empty part of an optional listener can be joined; its columns are null."""
    empty = part(tmp_path, "limits", {"user_id": "BIGINT", "most": "DECIMAL(10,2)"}, [])
    sql = "SELECT id, most FROM users LEFT JOIN limits ON id = user_id ORDER BY id"
    assert table(tmp_path, [*shop, empty], sql) == [["id", "most"], ["0", ""], ["1", ""], ["2", ""]]


def test_selecting_columns_of_a_part_without_known_columns_is_refused(tmp_path: Path, shop: list[PartFile]) -> None:
    """Its rows can be counted; the error for a SELECT of its columns names the part."""
    empty = part(tmp_path, "limits", {}, [])
    assert table(tmp_path, [*shop, empty], "SELECT count(*) AS n FROM limits") == [["n"], ["0"]]
    error = refused(tmp_path, [*shop, empty], "SELECT most FROM limits")
    assert error.code == "merge_refused"
    assert "nothing is known of the columns of: limits" in error.message


def test_parquet_keeps_types_and_values(tmp_path: Path, shop: list[PartFile]) -> None:
    """Without apostrophes; integers of 128 bits, such as every sum, stay exact."""
    sql = (
        "SELECT name, sum(w.id) AS s, max(amount) AS m, max(w.at) AS last "
        "FROM withdrawals w JOIN users u ON u.id = user_id"
    )
    found, _ = merged(tmp_path, shop, f"{sql} GROUP BY name ORDER BY s", form="parquet")
    with duckdb.connect() as connection:
        read = f"SELECT name, s, m, s, typeof(s), typeof(m), typeof(last) FROM '{tmp_path}/out.parquet'"
        rows = connection.execute(read).fetchall()
    assert found.rows == 3
    assert [row[0] for row in rows] == ["Ann", "=cmd|' /C calc'!A0", None]
    assert {row[4:] for row in rows} == {("DECIMAL(38,0)", "DECIMAL(12,2)", "TIMESTAMP WITH TIME ZONE")}


@pytest.mark.parametrize("value", ["{n}::HUGEINT", "[{n}::HUGEINT]", "{{'a': {n}::UHUGEINT}}"])
def test_an_integer_that_parquet_cannot_hold_is_refused_with_the_remedy(
    tmp_path: Path, shop: list[PartFile], value: str
) -> None:
    """38 digits are kept; 39 are refused instead of rounded to a double; as a text all are kept."""
    most, more = "9" * 38, str(2**127 - 1)
    merged(tmp_path, shop, f"SELECT {value.format(n=most)} AS v", form="parquet")
    assert most in str(duckdb.read_parquet(f"{tmp_path}/out.parquet").fetchall())
    (tmp_path / "out.parquet").unlink()
    error = refused(tmp_path, shop, f"SELECT {value.format(n=more)} AS v", form="parquet")
    assert (error.code, "CAST(n AS VARCHAR)" in error.message) == ("merge_refused", True)
    merged(tmp_path, shop, f"SELECT CAST({value.format(n=more)} AS VARCHAR) AS v", form="parquet")
    assert more in str(duckdb.read_parquet(f"{tmp_path}/out.parquet").fetchall())


@pytest.mark.parametrize("value", ["{v}", "[{v}]", "{{'a': {v}}}"])
def test_a_negative_interval_in_parquet_is_refused_with_the_remedy(
    tmp_path: Path, shop: list[PartFile], value: str
) -> None:
    """DuckDB raises an error of the disk, but the value is the cause: the error is not retriable."""
    negative = "INTERVAL '1 day -00:00:01'"
    sql = f"SELECT {value.format(v=negative)} AS v"
    error = refused(tmp_path, shop, sql, form="parquet")
    assert (error.code, error.retriable) == ("merge_refused", False)
    assert "CAST(v AS VARCHAR)" in error.message
    merged(tmp_path, shop, f"SELECT CAST(v AS VARCHAR) AS v FROM ({sql})", form="parquet")
    assert "1 day -00:00:01" in str(duckdb.read_parquet(f"{tmp_path}/out.parquet").fetchall())
    assert "1 day -00:00:01" in merged(tmp_path, shop, sql)[1].decode()


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT id, nope FROM users", '"nope" not found'),
        ("SELECT name::INTEGER AS n FROM users", "Could not convert string"),
        ("SELECT id AS a, name AS A FROM users", "two columns of the result are called A"),
        ('SELECT id AS "=a", name AS "\'=a" FROM users', "two columns of the result are called '=a"),
        ("SELECT error(repeat('x', 5000)) AS e", "xxx"),
        ("SELECT error('part-0:0:0:') AS e", "part-0:0:0:"),
    ],
)
def test_sql_that_does_not_fit_is_refused_with_its_reason(
    tmp_path: Path, shop: list[PartFile], sql: str, says: str
) -> None:
    """With DuckDB's message, within 1,000 characters."""
    error = refused(tmp_path, shop, sql)
    assert error.code == "merge_refused"
    assert says in error.message


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BIGINT", 2.5), ("BIGINT", True), ("BIGINT", "x"), ("BIGINT", "2.5"), ("BIGINT", 2**63), ("BIGINT", "0x10"),
        ("UTINYINT", -1), ("DECIMAL(12,2)", "1.005"), ("DECIMAL(12,2)", 1.005), ("DECIMAL(38,2)", 12345678901234567.89),
        ("DECIMAL(4,2)", "100"), ("DECIMAL(12,2)", "1e-9"), ("DOUBLE", True), ("DOUBLE", "x"), ("BOOLEAN", 5),
        ("DATE", "2026-02-30"), ("DATE", "2026-01-01T10:00:00"), ("TIMESTAMPTZ", "soon"), ("UUID", "x"),
        ("TIME", "25:00"),
    ],
)  # fmt: skip
def test_the_error_for_a_value_that_does_not_fit_names_its_place(tmp_path: Path, kind: str, value: Any) -> None:
    """It is never rounded, cut or guessed into another value."""
    rows = [{"id": 1, "v": None}, {"id": 2, "v": value}]
    error = refused(tmp_path, [part(tmp_path, "users", {"id": "BIGINT", "v": kind}, rows)], "SELECT * FROM users")
    assert error.code == "part_unreadable"
    assert error.message.startswith(f"the part of users: row 2, column v: no {kind}: ")


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("BIGINT", -(2**63), str(-(2**63))), ("BIGINT", "7", "7"), ("HUGEINT", str(10**30), str(10**30)),
        ("DECIMAL(38,2)", "123456789012345678901234567890.12", "123456789012345678901234567890.12"),
        ("DECIMAL(12,2)", 1.1, "1.10"), ("DECIMAL(12,2)", 5, "5.00"), ("DECIMAL(12, 2)", "1.1000", "1.10"),
        ("DECIMAL(38,10)", "1E-7", "0.0000001000"), ("DECIMAL(12,2)", "1e3", "1000.00"), ("NUMERIC", "1.125", "1.125"),
        ("DOUBLE", 0.1, "0.1"), ("DOUBLE", "NaN", "nan"), ("DOUBLE", "-Infinity", "-inf"), ("DOUBLE", 1e300, "1e+300"),
        ("BOOLEAN", True, "true"), ("BOOLEAN", "false", "false"), ("DATE", "2026-02-28", "2026-02-28"),
        ("DATE", "-infinity", "'-infinity"), ("TIMESTAMP", "-infinity", "'-infinity"),
        ("TIMESTAMPTZ", "2026-01-01T02:00:00.5+02:00", "2026-01-01T00:00:00.500000Z"),
        ("TIMESTAMP", "2026-01-01 00:00:00", "2026-01-01T00:00:00.000000"), ("TIME", "10:00:00.5", "10:00:00.5"),
        ("TIMESTAMP_NS", "2026-01-01T00:00:00.123456789", "2026-01-01T00:00:00.123456789"),
        ("INTERVAL", "-1 days", "'-1 day"),
        ("VARCHAR", "-Infinity", "-Infinity"), ("VARCHAR", "-inf", "-inf"), ("VARCHAR", "-Infinity()", "'-Infinity()"),
        ("VARCHAR", "-inf1", "'-inf1"), ("VARCHAR", "-5", "-5"), ("VARCHAR", "-5-1", "'-5-1"), ("VARCHAR", "+5", "'+5"),
        ("VARCHAR", "-5\n", "'-5\n"), ("VARCHAR", "a\u0000b", "ab"),
        ("JSON", {"a": [1, "=x"]}, '{"a":[1,"=x"]}'), ("JSON", -5, "-5"), ("BIGINT[]", [1, None], "[1,null]"),
        ("STRUCT(a BIGINT)", {"a": 1}, '{"a":1}'), ("UUID", "6BA7B810-9dad-11d1-80b4-00c04fd430c8",
         "6ba7b810-9dad-11d1-80b4-00c04fd430c8"), ("BLOB", "=x", "3d78"),
    ],
)  # fmt: skip
def test_values_of_each_type_are_written_in_one_form(tmp_path: Path, kind: str, value: Any, written: str) -> None:
    """By its type: exact, in UTC, and safe."""
    rows = part(tmp_path, "users", {"v": kind, "n": "BIGINT"}, [{"v": value, "n": 1}])
    assert table(tmp_path, [rows], "SELECT * FROM users") == [["v", "n"], [written, "1"]]


async def test_numbers_too_long_for_every_type_are_not_escaped_as_formulas(tmp_path: Path) -> None:
    """A decimal of more than 38 digits makes its column a text column; its negative numbers are not escaped."""
    wide = "-" + "1234567890" * 5 + ".25"

    async def rows() -> AsyncIterator[dict[str, Any]]:
        names = ("=1+1", "-5+cmd|' /C calc'!A0", "@x", "-", "-Infinity+1")
        for amount, name in zip((wide, "-5", "-0.50", "7", "-Infinity"), names, strict=True):
            yield {"amount": Decimal(amount), "name": name}

    facts = await write_part(rows(), tmp_path / "users.ndjson", declared={})
    assert dict(facts.columns)["amount"] == "VARCHAR"
    users = PartFile("users", tmp_path / "users.ndjson", facts.columns)
    _, *found = table(tmp_path, [users], "SELECT amount, name FROM users")
    assert [row[0] for row in found] == [wide, "-5", "-0.50", "7", "-Infinity"]
    assert [row[1] for row in found] == ["'=1+1", "'-5+cmd|' /C calc'!A0", "'@x", "'-", "'-Infinity+1"]
    _, *found = table(tmp_path, [users], "SELECT a.amount, b.amount AS same FROM users a JOIN users b USING (amount)")
    assert ["-Infinity", "-Infinity"] in found


class SourceRows:
    """Rows of a source, in one piece."""

    def __init__(self, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> None:
        self.columns = [Column(name, kind) for name, kind in columns]
        self._rows = rows

    async def __aiter__(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        """Give the piece."""
        yield self._rows


LONG = "12345678901234567.89"


async def test_numbers_in_documents_keep_their_digits(tmp_path: Path) -> None:
    """In the part, in the file, in lists and structs of documents, and in a feed."""
    whole = str(2**127 - 1)
    texts = [
        f'{{"a": {LONG}, "b c": "x  y"}}',
        f"[{whole}, 1E400]",
        '{"a": 1.5}',
        LONG,
        '"5"',
        "null",
        '"json text 1e5"',
    ]
    rows = SourceRows([("doc", "JSON")], [[msgspec.Raw(text.encode())] for text in texts])
    facts = await write_part(rows, tmp_path / "docs.ndjson", declared={})
    docs = PartFile("docs", tmp_path / "docs.ndjson", facts.columns)
    _, *found = table(tmp_path, [docs], "SELECT doc FROM docs")
    kept = [f'{{"a":{LONG},"b c":"x  y"}}', f"[{whole},1E400]", '{"a":1.5}', LONG, '"5"', "", '"json text 1e5"']
    assert [row[0] for row in found] == kept
    values = "list(doc) AS l, {'d': any_value(doc)} AS s, MAP {'k': [any_value(doc)]} AS m"
    nested = f"SELECT {values} FROM docs WHERE doc->>'b c' = 'x  y'"
    _, row = table(tmp_path, [docs], nested)
    assert row == [f"[{kept[0]}]", f'{{"d":{kept[0]}}}', f'{{"k":[{kept[0]}]}}']
    fed = feed([docs], nested.replace("list(doc) AS l", "any_value(doc) AS l, list(doc) AS n"), folder=tmp_path)
    one = {"a": LONG, "b c": "x  y"}
    assert fed == {"l": one, "n": [one], "s": {"d": one}, "m": {"k": [one]}}
    _, row = table(
        tmp_path, [docs], "SELECT doc->'$.b c', json_transform(doc, '{\"a\": \"DECIMAL(30,2)\"}').a FROM docs LIMIT 1"
    )
    assert row == ['"x  y"', LONG]


async def test_documents_of_functions_stay_unchanged(tmp_path: Path) -> None:
    """An object like the internal form of a document, and a text among objects, are kept as they are."""
    values: list[Any] = [{"json text": "5"}, "5", {"json text": [1], "b": 2}, '{"json text":"5"}', {"a": 0.1}]

    async def rows() -> AsyncIterator[dict[str, Any]]:
        for value in values:
            yield {"doc": value}

    for number, declared in enumerate(({}, {"doc": "JSON"})):
        path = tmp_path / f"{number}.ndjson"
        facts = await write_part(rows(), path, declared=declared)
        _, *found = table(tmp_path, [PartFile("docs", path, facts.columns)], "SELECT doc FROM docs")
        assert [msgspec.json.decode(row[0]) for row in found] == values


async def test_documents_that_are_declared_as_texts_or_lists_keep_their_digits(tmp_path: Path) -> None:
    """A declared type takes precedence over the source's."""
    raw = msgspec.Raw(f"[{LONG}]".encode())
    numbers = msgspec.Raw(f'["{LONG}", -{LONG}, 1.5, 1e5, null]'.encode())
    rows = SourceRows([(name, "JSON") for name in "abcd"], [[raw, msgspec.Raw(LONG.encode()), numbers, raw]])
    declared = {"a": "VARCHAR", "b": "DECIMAL(30,2)", "c": "DECIMAL(30,2)[]", "d": "VARCHAR[]"}
    facts = await write_part(rows, tmp_path / "docs.ndjson", declared=declared)
    _, row = table(tmp_path, [PartFile("docs", tmp_path / "docs.ndjson", facts.columns)], "SELECT * FROM docs")
    assert row == [f"[{LONG}]", LONG, f"[{LONG},-{LONG},1.50,100000.00,null]", f'["{LONG}"]']
    with pytest.raises(Rejected, match="declare it as JSON"):
        await write_part(rows, tmp_path / "refused.ndjson", declared={"a": "JSON[]"})


async def test_a_document_that_is_not_utf_8_is_refused_with_its_row(tmp_path: Path) -> None:
    """The error names row and column."""
    rows = SourceRows([("doc", "JSON")], [[None], [msgspec.Raw(b'["\xff"]')]])
    with pytest.raises(Rejected, match="row 2, column doc") as refused:
        await write_part(rows, tmp_path / "docs.ndjson", declared={})
    assert refused.value.code == "row_value"


@pytest.mark.parametrize("line", ["{", '{"id": 1', "[1]", "5", '{"id": 1, "id": 2}', '{"id": "\\ud800"}', "\x00"])
def test_the_error_for_a_line_that_is_no_row_names_the_listener(tmp_path: Path, line: str) -> None:
    """A file that was cut off is an error, never a shorter report."""
    broken = part(tmp_path, "users", {"id": "VARCHAR"}, [{"id": "1"}])
    broken.path.write_text(f'{{"id": "1"}}\n{line}')
    error = refused(tmp_path, [broken], "SELECT * FROM users")
    assert error.code == "part_unreadable"
    assert error.message.startswith("the part of users: ")
    assert "line" in error.message


@pytest.mark.parametrize("columns", [[("id", "NOPE")], [("id", "BIGINT"), ("ID", "BIGINT")], [("id", "BIGINT') --")]])
def test_invalid_columns_of_a_part_are_refused(tmp_path: Path, columns: list[tuple[str, str]]) -> None:
    """A type is a value in the statement, not a part of its text."""
    path = tmp_path / "part.ndjson"
    path.touch()
    broken = PartFile("users", path, tuple(Column(*one) for one in columns))
    assert (refused(tmp_path, [broken], "SELECT * FROM users")).code == "part_unreadable"


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT id FROM users", "feed_not_one_row"),
        ("SELECT id FROM users WHERE false", "feed_not_one_row"),
        ("SELECT list(r) AS a FROM range(100001) AS t(r)", "feed_too_large"),
        ("SELECT repeat('x', 1024 * 1024) AS a", "feed_too_large"),
        ("SELECT id AS a, id AS a FROM users LIMIT 1", "merge_refused"),
    ],
)
def test_a_feed_has_its_bounds(tmp_path: Path, shop: list[PartFile], sql: str, code: str) -> None:
    """One row, 100,000 values in a list, 1 MiB: queries get its values."""
    with pytest.raises(Rejected) as caught:
        feed(shop, sql, folder=tmp_path, bounds=BOUNDS)
    assert caught.value.code == code
    assert len((feed(shop, "SELECT list(r) AS a FROM range(100000) AS t(r)", folder=tmp_path))["a"]) == 100_000


def test_the_order_of_the_select_is_the_order_of_the_file(tmp_path: Path) -> None:
    """Also when several threads write it."""
    rows = part(tmp_path, "users", {"id": "BIGINT"}, [{"id": (number * 7919) % 200_003} for number in range(200_000)])
    found = table(tmp_path, [rows], "SELECT id, id % 10 AS d FROM users ORDER BY id DESC")
    assert [int(row[0]) for row in found[1:]] == sorted(((n * 7919) % 200_003 for n in range(200_000)), reverse=True)
