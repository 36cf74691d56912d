"""SQLite, DuckDB and folders of files as sources: read in pieces, bounded, and with no way out."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from kit.merges import status_bytes
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import Source
from tickwright.sources.named import Sources, SourceSettings

MINUTE = timedelta(minutes=1)
ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
    "duckdb": "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b",
    "files": "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b",
}
KINDS = list(ENDLESS)


FIELDS = ", ".join(f"'f{number}': {number}.5::DOUBLE" for number in range(10))
DEEP = {"orders": "1.5::DOUBLE", "lists": f"{'[' * 30}1.5::DOUBLE{']' * 30}"}
for _ in range(4):
    DEEP["orders"] = f"[{{{FIELDS}, 'child': {DEEP['orders']}}}]"


def no_secrets(_name: str) -> str | None:
    """Return no secret."""
    return None


def fill(folder: Path) -> None:
    """Make one database of each kind and a folder with files, all with the users 1 and 2."""
    with sqlite3.connect(folder / "shop.db") as connection:
        connection.execute("CREATE TABLE users (id INTEGER, name TEXT, amount REAL)")
        connection.execute("INSERT INTO users VALUES (1, 'ann', 1.5), (2, NULL, 2)")
    connection.close()
    made = duckdb.connect(str(folder / "shop.duckdb"))
    made.execute("CREATE TABLE users (id BIGINT, name VARCHAR, amount DOUBLE)")
    made.execute("INSERT INTO users VALUES (1, 'ann', 1.5), (2, NULL, 2)")
    made.close()
    files = folder / "files"
    files.mkdir()
    (files / "users.csv").write_text("id,name,amount\n1,ann,1.5\n2,,2\n")
    (files / "it's odd.ndjson").write_text('{"id": 1, "tags": ["x"]}\n')
    (folder / "outside.csv").write_text("secret\nhidden-word\n")
    (files / "link.csv").symlink_to(folder / "outside.csv")


@pytest.fixture
async def sources(tmp_path: Path) -> AsyncIterator[Sources]:
    """One source of each kind."""
    fill(tmp_path)
    urls = {"sqlite": "sqlite://{}/shop.db", "duckdb": "duckdb://{}/shop.duckdb", "files": "files://{}/files"}
    gone = {f"no_{kind}": url.replace("shop", "none").replace("/files", "/none") for kind, url in urls.items()}
    terms = {kind: SourceSettings(url=url.format(tmp_path)) for kind, url in {**urls, **gone}.items()}
    made = Sources(terms, no_secrets)
    yield made
    await made.aclose()


def contents(folder: Path) -> dict[Path, bytes]:
    """Return every file with what is in it."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def rows_of(source: Source, sql: str, /, timeout: timedelta = MINUTE, **values: Any) -> list[tuple[Any, ...]]:
    """Return all rows of a query."""
    async with source.query(sql, values, timeout=timeout) as rows:
        return [tuple(row) async for piece in rows for row in piece]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_is_read_with_bound_values(sources: Sources, kind: str) -> None:
    """The same query on each kind; a trailing semicolon and a comment do no harm."""
    sql = "SELECT id, name, amount FROM users WHERE id = :id AND (:name IS NULL OR name = :name) -- :id\n;"
    ann, two = (("1", "ann", "1.5"), ("2", None, "2")) if kind == "files" else ((1, "ann", 1.5), (2, None, 2.0))
    assert await rows_of(sources.get(kind), sql, id=1, name="ann") == [ann]
    assert await rows_of(sources.get(kind), sql, id=2, name=None) == [two]
    assert await rows_of(sources.get(kind), sql, id=1, name="x' OR 1=1 --") == []


async def test_a_list_of_values(sources: Sources) -> None:
    """DuckDB has lists, SQLite reads them from JSON."""
    listed = "SELECT id FROM users WHERE id IN (SELECT value FROM json_each(:ids))"
    assert await rows_of(sources.get("sqlite"), listed, ids=[2, 3]) == [(2,)]
    listed = "SELECT id FROM users WHERE id = ANY(:ids)"
    assert await rows_of(sources.get("duckdb"), listed, ids=[2, 3]) == [(2,)]
    assert await rows_of(sources.get("files"), listed, ids=["2", "3"]) == [("2",)]


@pytest.mark.parametrize("kind", KINDS)
async def test_many_rows_come_in_pieces(sources: Sources, kind: str) -> None:
    """None is lost, none comes twice."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n"
    sql = numbers if kind == "sqlite" else "SELECT i FROM range(1, 5001) AS n(i)"
    async with sources.get(kind).query(sql, {}, timeout=MINUTE) as rows:
        pieces = [list(piece) async for piece in rows]
    assert [row[0] for piece in pieces for row in piece] == list(range(1, 5001))
    assert max(map(len, pieces)) <= 1000


@pytest.mark.parametrize("kind", KINDS)
async def test_wide_rows_come_in_small_pieces(sources: Sources, kind: str) -> None:
    """Twenty thousand booleans in a row take as much memory as texts do."""
    columns = ", ".join(f"i = {number} AS c{number}" for number in range(1_000))
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)"
    async with sources.get(kind).query(f"{numbers} SELECT {columns} FROM n", {}, timeout=MINUTE) as rows:
        assert [len(piece) async for piece in rows] == [50, 50]


async def test_duckdb_s_types_come_exactly(sources: Sources) -> None:
    """What Python would lose or cannot read without a library comes as text."""
    sql = (
        "SELECT 1.50::DECIMAL(4,2) AS a, DATE '2026-01-01' AS b, TIMESTAMPTZ '2026-01-01 12:00:00+02' AS c, "
        "INTERVAL '1 month 2 days' AS d, [1, 2] AS e, {'x': 1.5} AS f, 'ab'::BLOB AS g, 'x'::JSON AS h FROM users"
    ).replace("'x'::JSON", "'{}'::JSON")
    async with sources.get("duckdb").query(sql, {}, timeout=MINUTE) as rows:
        assert [column.type for column in rows.columns] == (
            ["DECIMAL(4,2)", "DATE", "TIMESTAMPTZ", "INTERVAL", "JSON", "JSON", "VARCHAR", "JSON"]
        )
        first = (await anext(aiter(rows)))[0]
    shown = [bytes(value).decode() if isinstance(value, msgspec.Raw) else value for value in first]
    assert shown[:4] == ["1.50", "2026-01-01", "2026-01-01 10:00:00+00", "1 month 2 days"]
    assert shown[4:] == ["[1,2]", '{"x":1.5}', "6162", "{}"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("[170141183460469231731687303715884105727::HUGEINT]", "[170141183460469231731687303715884105727]"),
        ("{'a': 12345678901234567.89::DECIMAL(30,2)}", '{"a":12345678901234567.89}'),
        ("MAP {1.50::DECIMAL(4,2): [12345678901234567.89::DECIMAL(30,2)]}", '{"1.50":[12345678901234567.89]}'),
        ("[DOC, NULL]::JSON[2]", '[{"a": 12345678901234567.89},null]'),
        ("{'it''s \"': DOC, 'n': NULL::JSON}", '{"it\'s \\"":{"a": 12345678901234567.89},"n":null}'),
        ("[MAP {'k': [{'d': DOC}]}, MAP {}]", '[{"k":[{"d":{"a": 12345678901234567.89}}]},{}]'),
        ("NULL::STRUCT(a JSON)", None),
    ],
)
async def test_numbers_in_nested_values_keep_their_digits(sources: Sources, value: str, text: str | None) -> None:
    """Of documents in lists, structs and maps too, which DuckDB itself would make doubles."""
    value = value.replace("DOC", """'{"a": 12345678901234567.89}'::JSON""")
    ((found,),) = await rows_of(sources.get("duckdb"), f"SELECT {value}")
    assert (found if found is None else bytes(found).decode()) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("[1.5, 'nan'::DOUBLE, NULL, 'inf'::DOUBLE]", '[1.5,"nan",null,"inf"]'),
        ("['-inf'::FLOAT, 0.25::FLOAT]::FLOAT[2]", '["-inf",0.25]'),
        (
            "{'it''s \"': 'nan'::DOUBLE, 's': 'NaN \"x\"', 'n': NULL::DOUBLE}",
            '{"it\'s \\"":"nan","s":"NaN \\"x\\"","n":null}',
        ),
        (
            "MAP {1.5: [{'d': 'inf'::DOUBLE, 'e': 170141183460469231731687303715884105727::HUGEINT}]}",
            '{"1.5":[{"d":"inf","e":170141183460469231731687303715884105727}]}',
        ),
        ("{'doc': '[1e30]'::JSON, 'f': '-inf'::DOUBLE}", '{"doc":[1e30],"f":"-inf"}'),
        ("{'s': 'Infinity', 'f': 1.5::DOUBLE, 'l': []::DOUBLE[]}", '{"s":"Infinity","f":1.5,"l":[]}'),
        ("{'t': row('nan'::DOUBLE, 1, '-inf'::FLOAT)}", '{"t":["nan",1,"-inf"]}'),
        ("[union_value(a := 'nan'::DOUBLE)]", '[{"a":"nan"}]'),
        (
            r"""{'s': ['\",NaN,[-Infinity', '\', '-N' || chr(10) || 'Iü'], 'f': ['nan'::DOUBLE, -1.5e-7]}""",
            r"""{"s":["\\\",NaN,[-Infinity","\\","-N\nIü"],"f":["nan",-1.5e-7]}""",
        ),
        ("NULL::STRUCT(a DOUBLE)", None),
    ],
)
async def test_numbers_in_nested_values_that_are_not_finite_are_texts(
    sources: Sources, value: str, text: str | None
) -> None:
    """JSON has no number for them; each other value is what it is without them."""
    ((found,),) = await rows_of(sources.get("duckdb"), f"SELECT {value}")
    assert (found if found is None else bytes(found).decode()) == text
    assert text is None or msgspec.json.decode(text)


@pytest.mark.parametrize("value", DEEP.values(), ids=DEEP)
async def test_a_deeply_nested_value_with_doubles_is_read(sources: Sources, value: str) -> None:
    """Planning takes no more memory or time with each level; with doubles, it took several times as much."""
    ((found,),) = await rows_of(sources.get("duckdb"), f"SELECT {value}")
    assert msgspec.json.decode(bytes(found)) is not None


@pytest.mark.parametrize("value", ["'[1]'::JSON::VARIANT", "'[1]'::JSON::UNION(j JSON)", "[1::VARIANT]"])
async def test_a_nested_value_whose_numbers_could_change_is_refused(sources: Sources, value: str) -> None:
    """The error says what to cast it to."""
    with pytest.raises(Rejected, match=r"cast it, such as to STRUCT\(amount DECIMAL") as refused:
        await rows_of(sources.get("duckdb"), f"SELECT {value}")
    assert refused.value.code == "source_refused"


async def test_a_file_is_a_view_under_its_name(sources: Sources) -> None:
    """However it is called."""
    ((number, tags),) = await rows_of(
        sources.get("files"), 'SELECT u.id, o.tags FROM users u JOIN "it\'s odd" o USING (id)'
    )
    assert (number, bytes(tags)) == ("1", b'["x"]')


CSV_FILES = {
    "hashes": ("ticket,amount\n#1001,5\n1002,9007199254740993.01\n#1003,7\n1004,8\n", None),
    "exponents": ("client,age\n1E3,30\n1000,40\n1e03,50\n", None),
    "money": ("id,amount\n1,1234567890123456.78\n2,0.10\n", None),
    "years": ("2024,2025\n1,2\n", None),
    "dates": ("id,day\n007,01/02/2026\n7,03/04/2026\n", None),
    "bars": ("id|a,b|c\n1|x,y|z\n", [["id", "a,b", "c"], ["1", "x,y", "z"]]),
    "quotes": ('"a\nb";c\n"x;""y"" ";5" disk\n', [["a\nb", "c"], ['x;"y" ', '5" disk']]),
    "empty": ('id,name\n1,\n2,""\n', [["id", "name"], ["1", None], ["2", ""]]),
    "doubled": ("a,A,\n1,2,3\n", [["a", "A_1", "column2"], ["1", "2", "3"]]),
    "tripled": ("a,a_1,A,a\n1,2,3,4\n", [["a", "a_1", "A_2", "a_3"], ["1", "2", "3", "4"]]),
    "bom": ("\ufeffid,name\r\n1,ann\r\n", [["id", "name"], ["1", "ann"]]),
    "odd [x]*": ("id\nmine\n", None),
    "odd x": ("id\nanother\n", None),
}


@pytest.mark.parametrize("name", CSV_FILES)
async def test_every_line_of_a_csv_file_is_a_row_of_texts(sources: Sources, tmp_path: Path, name: str) -> None:
    """Nothing is guessed: no line is dropped, no text becomes a number, a date or a comment."""
    for file, (text, _) in CSV_FILES.items():
        (tmp_path / "files" / f"{file}.csv").write_bytes(text.encode())
    text, shown = CSV_FILES[name]
    async with sources.get("files").query(f'SELECT * FROM "{name}"', {}, timeout=MINUTE) as rows:
        assert {column.type for column in rows.columns} == {"VARCHAR"}
        found: list[list[Any]] = [[column.name for column in rows.columns]]
        found += [list(row) async for piece in rows for row in piece]
    assert found == (shown or [line.split(",") for line in text.splitlines()])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,name\n" + "".join(f"{n},n{n}\n" for n in range(1, 100)) + "100\n", "Line: 101"),
        ("id,name,city\n1\n2\n3,ann,ulm\n", "Line: 2"),
        ("1,ann\n2,ben\nid,name,city\n", "Line: 3"),
        ("name\na,b\n", "Line: 2"),
        ('id,name\n1,"ann\n', "Line: 2"),
        ("id,name\r\n1,ann\n2,ben\r\n", "invalid state"),
        ("\nid,name\n1,ann\n", "line 1"),
        ("", "line 1"),
    ],
)
async def test_a_csv_file_that_does_not_fit_its_header_is_refused_with_its_name_and_line(
    sources: Sources, tmp_path: Path, text: str, says: str
) -> None:
    """Every row is read, or none counts."""
    (tmp_path / "files" / "broken.csv").write_bytes(text.encode())
    with pytest.raises(Rejected, match=r"broken\.csv") as refused:
        await rows_of(sources.get("files"), "SELECT * FROM broken")
    assert says in refused.value.message
    assert "strict_mode" not in refused.value.message


MANY = "".join(f'{{"v": {n}}}\n' for n in range(40_000))
JSON_FILES = [
    (MANY + '{"v": 7.9}', "DOUBLE", 7.9),
    (MANY + '{"v": true}', "JSON", b"true"),
    (MANY + '{"v": "7"}', "JSON", b'"7"'),
    ('{"v": 1}\n{"v": 12345678901234567890123}', "HUGEINT", 12345678901234567890123),
    ('{"v": 1.5}\n{"v": 12345678901234567890123}', "VARCHAR", "12345678901234567890123"),
    ('{"v": 1.5}\n{"v": 9007199254740993}', "VARCHAR", "9007199254740993"),
    ('{"v": 9223372036854775807}', "BIGINT", 9223372036854775807),
    ('{"v": 0.30000000000000004}', "DOUBLE", 0.1 + 0.2),
    ('{"v": "0.12345678901234567890123"}', "VARCHAR", "0.12345678901234567890123"),
    ('{"v": "01/02/2026"}', "VARCHAR", "01/02/2026"),
    ('{"v": "550E8400-E29B-41D4-A716-446655440000"}', "VARCHAR", "550E8400-E29B-41D4-A716-446655440000"),
    ('{"v": {"a": 1}}', "JSON", b'{"a":1}'),
    ('{"v": null}\n{"v": false}', "BOOLEAN", False),
]


@pytest.mark.parametrize(("text", "kind", "last"), JSON_FILES)
async def test_a_json_column_has_the_type_that_holds_every_value(
    sources: Sources, tmp_path: Path, text: str, kind: str, last: Any
) -> None:
    """The whole file decides, and no value is rounded or read as another kind."""
    (tmp_path / "files" / "given.ndjson").write_text(text + "\n")
    async with sources.get("files").query("SELECT v FROM given", {}, timeout=MINUTE) as rows:
        assert [column.type for column in rows.columns] == [kind]
        values = [row[0] async for piece in rows for row in piece]
    assert len(values) == text.count("\n") + 1
    assert (bytes(values[-1]) if kind == "JSON" else values[-1]) == last


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"v": 1}\n{"v": 9007199254740993.01}', "object 2: the number 9007199254740993.01 would not keep"),
        ('{"v": [{"deep": 0.12345678901234567890123}]}', "object 1: the number 0.123"),
        ('{"v": 1e400}', "object 1: the number 1e400"),
        ('{"v": 1e-400}', "object 1: the number 1e-400"),
        ('{"v": NaN}', "object 1: the number NaN"),
        ('{"v": 1}\n7', "value 2 is no object"),
        ('{"v": 1, "V": 2}', "differ in case only"),
        ('{"v": 1, "v": 2}', "duplicate key"),
        ('{"v": 1}\n{"v": 2', "in line 3"),
    ],
)
async def test_a_json_file_whose_values_cannot_be_kept_is_refused(
    sources: Sources, tmp_path: Path, text: str, says: str
) -> None:
    """It is refused with its name and the object, and not rounded."""
    (tmp_path / "files" / "given.ndjson").write_text(text)
    with pytest.raises(Rejected, match=r"given\.ndjson") as refused:
        await rows_of(sources.get("files"), "SELECT v FROM given")
    assert says in refused.value.message


async def test_a_file_that_changes_while_it_is_read_is_read_again(sources: Sources, tmp_path: Path) -> None:
    """Its types are those of the file as it was: the query may be right the next time."""
    given = tmp_path / "files" / "given.ndjson"
    given.write_text(MANY)
    async with sources.get("files").query("SELECT v FROM given", {}, timeout=MINUTE) as rows:
        with given.open("a") as opened:
            opened.write('{"v": 7.9}\n')
        with pytest.raises(Unavailable, match=r"given\.ndjson changed") as changed:
            [row async for piece in rows for row in piece]
    assert changed.value.code == "source_unavailable"
    assert (await rows_of(sources.get("files"), "SELECT v FROM given"))[-1] == (7.9,)


async def test_parentheses_do_not_stop_the_process(sources: Sources) -> None:
    """DuckDB's parser would hold the interpreter for an hour; what people nest is read."""
    nested = "SELECT count(*) FROM {}users{}"
    with pytest.raises(Rejected, match="nested parentheses") as refused:
        await rows_of(sources.get("files"), nested.format("(" * 30_000, ")" * 30_000))
    assert refused.value.code == "source_refused"
    ((count,),) = await rows_of(sources.get("files"), nested.format("(" * 60, ")" * 60) + " WHERE ')(((' <> '('")
    assert count > 0


async def test_a_row_of_many_large_values_takes_no_memory_of_the_process(sources: Sources) -> None:
    """SQLite makes a row whole before its size can be checked; its memory has a bound, and other queries go on."""
    before = status_bytes(os.getpid(), "VmHWM")
    columns = ", ".join(f"hex(zeroblob({20_000_000 + number}))" for number in range(30))
    with pytest.raises(Rejected, match=r"takes more memory than its limit \(1024 MiB\)") as caught:
        await rows_of(sources.get("sqlite"), f"SELECT {columns}")
    assert caught.value.code == "source_refused"
    assert status_bytes(os.getpid(), "VmHWM") - before < 400 * 1024 * 1024
    assert await rows_of(sources.get("sqlite"), "SELECT 1") == [(1,)]


async def test_two_files_of_one_name_are_refused(sources: Sources, tmp_path: Path) -> None:
    """The query does not say which one it means."""
    (tmp_path / "files" / "Users.ndjson").write_text("{}\n")
    with pytest.raises(Rejected, match="two files called") as refused:
        await rows_of(sources.get("files"), "SELECT * FROM users")
    assert refused.value.code == "source_refused"


async def test_a_file_that_a_query_does_not_read_stops_nothing(sources: Sources, tmp_path: Path) -> None:
    """Whatever it is and however short its name: names of columns and parts of words are not its own."""
    files = tmp_path / "files"
    (files / "country.csv").write_bytes("land\nÖsterreich\n".encode("latin-1"))
    (files / "name.json").write_text('[{"a": 1}, {"a"')
    (files / "e.csv").write_text("a," * 500_000 + "a\n1\n")
    (files / "u.csv").write_text("id\n1\n")
    (files / "u.json").write_text("[]")
    (files / "us.parquet").mkdir()
    os.mkfifo(files / "user.csv")
    (files / "ann.csv").symlink_to(files / "ann.csv")
    sql = "WITH u AS (FROM users), e AS (FROM u) SELECT name, 'XY' AS country FROM e WHERE name = 'ann'"
    assert await rows_of(sources.get("files"), sql) == [("ann", "XY")]
    for name in ("us", "user", "ann"):
        with pytest.raises(Rejected, match="does not exist"):
            await rows_of(sources.get("files"), f"SELECT * FROM {name}")
    with pytest.raises(Rejected, match=r"e\.csv has 500001 columns; 10000 are read"):
        await rows_of(sources.get("files"), "SELECT * FROM e")


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT id FROM "USERS" AS u WHERE id = :id',
        "WITH users AS (SELECT * FROM users) SELECT id FROM users WHERE id = :id",
        "SELECT :id WHERE :id IN (SELECT id FROM temp.users)",
        "SELECT id FROM query_table('users') WHERE id = :id",
        "SELECT id FROM query('FROM users') WHERE id = :id",
        "SELECT id FROM (PIVOT users ON name IN ('ann') USING count(*) GROUP BY id) WHERE id = :id",
        "SELECT * REPLACE ((SELECT max(id) FROM users WHERE id = :id) AS one) FROM (SELECT 0 AS one)",
        "SELECT " + "0 + " * 900 + ":id::BIGINT FROM users WHERE id = :id",
    ],
)
async def test_a_file_is_found_wherever_a_query_names_its_table(sources: Sources, sql: str) -> None:
    """In quotes, hidden by a name of the query, in a function that takes names, or too deep for the syntax tree."""
    ((found,),) = await rows_of(sources.get("files"), sql, id="1")
    assert str(found) == "1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO users VALUES (3, 'eve', 1)",
        "DELETE FROM users",
        "DROP TABLE users",
        "CREATE TEMP TABLE mine AS SELECT 1",
        "ATTACH '{folder}/mine.db' AS mine",
        "COPY (SELECT 1) TO '{folder}/files/mine.csv'",
        "VACUUM INTO '{folder}/mine.db'",
        "PRAGMA user_version = 7",
        "BEGIN",
        "SELECT 1; SELECT 2",
        "SELECT 1) AS q; COPY (SELECT 1) TO '{folder}/files/mine.csv'; SELECT * FROM (SELECT 1",
        "SELEKT",
        "SELECT nothing FROM users",
        "SELECT ?",
        "",
    ],
)
async def test_nothing_but_one_query_is_done(sources: Sources, tmp_path: Path, kind: str, sql: str) -> None:
    """It is refused for good, and nothing is written."""
    before = contents(tmp_path)
    with pytest.raises(Rejected) as refused:
        await rows_of(sources.get(kind), sql.format(folder=tmp_path))
    assert refused.value.code == "source_refused"
    assert str(tmp_path) not in refused.value.message.replace(sql.format(folder=tmp_path), "")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["duckdb", "files"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_csv('{folder}/outside.csv')",
        "SELECT * FROM read_csv('{folder}/files/../outside.csv')",
        "SELECT * FROM read_csv('https://127.0.0.1/x.csv')",
        "SELECT * FROM link",
        "SELECT getenv('HOME')",
        "SELECT * FROM sources",
        "SELECT * FROM duckdb_secrets()",
    ],
)
async def test_nothing_else_is_seen(sources: Sources, tmp_path: Path, kind: str, sql: str) -> None:
    """No other file, no network, no variable of the program, no link that leads out of the folder."""
    with pytest.raises((Rejected, Unavailable)) as refused:
        await rows_of(sources.get(kind), sql.format(folder=tmp_path))
    assert "hidden-word" not in refused.value.message


ESCAPES = [
    "SELECT 1 AS id) AS m JOIN (SELECT 2 AS b",
    "SELECT 1 AS id) AS m --",
    "SELECT 1 AS id /* /* */) AS m JOIN (SELECT 2 AS b -- */ */",
    "SELECT ')' AS id, 1 AS [)]) AS m JOIN (SELECT 2 AS b",
    "SELECT 1 AS id; SELECT 2",
    "SELECT 1 AS id)",
    "",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sql", ESCAPES)
async def test_a_query_within_ours_cannot_leave_its_parentheses(sources: Sources, kind: str, sql: str) -> None:
    """The database itself takes it as one query before it is put into another one: databases differ in comments."""
    if "/* /*" in sql and kind != "sqlite":
        sql = sql.replace("/* /* */", "/* */")
    ours = f"SELECT count(*) FROM (\n{sql}\n) AS m"
    with pytest.raises(Rejected):
        async with sources.get(kind).query(ours, {}, timeout=MINUTE, within=sql):
            pass
    fine = "SELECT id FROM users -- )"
    ours = f"SELECT count(*) FROM (\n{fine}\n) AS m"
    async with sources.get(kind).query(ours, {}, timeout=MINUTE, within=fine) as rows:
        assert [tuple(row) async for piece in rows for row in piece] == [(2,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT load_extension('{folder}/x.so')",
        "SELECT writefile('{folder}/mine', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM pragma_table_info('users')",
        "DETACH main",
        "ANALYZE",
        "REINDEX",
        "SAVEPOINT mine",
        "CREATE VIRTUAL TABLE mine USING fts5(x)",
        "EXPLAIN DELETE FROM users",
        "WITH a AS (SELECT 1) DELETE FROM users RETURNING id",
        "REPLACE INTO users VALUES (1, 'x', 1) RETURNING id",
    ],
)
async def test_sqlite_gives_rows_of_its_own_file_only(sources: Sources, tmp_path: Path, sql: str) -> None:
    """No other file, no code, no setting; nothing is written."""
    before = contents(tmp_path)
    with pytest.raises(Rejected) as refused:
        await rows_of(sources.get("sqlite"), sql.format(folder=tmp_path))
    assert refused.value.code == "source_refused"
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["duckdb", "files"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM enable_logging()",
        "SELECT * FROM enable_profiling(save_location := '{folder}/mine')",
        "SELECT * FROM query('ATTACH ''{folder}/mine.db''')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''/etc/passwd'')'))",
        "SELECT * FROM read_duckdb('{folder}/other.duckdb')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM parquet_metadata('/etc/passwd')",
        "SELECT * FROM which_secret('s3://x', 's3')",
        "WITH a AS (INSERT INTO users VALUES (3, 'x', 1) RETURNING id) SELECT * FROM a",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL pragma_version()",
        "EXPORT DATABASE '{folder}/mine'",
        "CREATE PERSISTENT SECRET s (TYPE s3)",
    ],
)
async def test_duckdb_gives_rows_of_what_is_declared_only(
    sources: Sources, tmp_path: Path, kind: str, sql: str
) -> None:
    """No other file, no extension, no setting; nothing is written."""
    before = contents(tmp_path)
    with pytest.raises((Rejected, Unavailable)):
        await rows_of(sources.get(kind), sql.format(folder=tmp_path))
    assert contents(tmp_path) == before


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
async def test_a_slow_query_is_ended_by_its_timeout(sources: Sources, kind: str) -> None:
    """The place and the thread are free afterwards."""
    for _ in range(5):
        with pytest.raises(Unavailable) as late:
            await rows_of(sources.get(kind), ENDLESS[kind], timeout=timedelta(milliseconds=300))
        assert late.value.code == "source_timeout"
    assert await rows_of(sources.get(kind), "SELECT 1") == [(1,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_query_has_ended_when_its_task_has(sources: Sources, kind: str) -> None:
    """However early the cancel comes, and twice as well."""
    for turns in (0, 1, 2, 50):
        task = asyncio.create_task(rows_of(sources.get(kind), ENDLESS[kind]))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await rows_of(sources.get(kind), "SELECT 1") == [(1,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_missing_file_is_tried_again(sources: Sources, kind: str) -> None:
    """It may be written later; the source does not make it."""
    with pytest.raises(Unavailable) as away:
        await rows_of(sources.get(f"no_{kind}"), "SELECT 1")
    assert away.value.code == "source_unavailable"


@pytest.mark.parametrize("url", ["sqlite://shop.db", "duckdb://", "files:///a%00b", "sqlite:///"])
def test_a_path_is_absolute(url: str) -> None:
    """Whatever folder a process was started in."""
    sources = Sources({"shop": SourceSettings(url=url)}, no_secrets)
    if url == "sqlite:///":
        sources.get("shop")
        return
    with pytest.raises(Rejected) as refused:
        sources.get("shop")
    assert refused.value.code == "invalid_source"
