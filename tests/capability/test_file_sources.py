"""SQLite, DuckDB and folders of files as sources: read in pieces, bounded, and with no way out."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import Source
from tickwright.sources import Sources, SourceTerms

MINUTE = timedelta(minutes=1)
ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
    "duckdb": "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b",
    "files": "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b",
}
KINDS = list(ENDLESS)


def no_secrets(_name: str) -> str | None:
    """Know none."""
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
    terms = {kind: SourceTerms(url=url.format(tmp_path)) for kind, url in {**urls, **gone}.items()}
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
    assert await rows_of(sources.get(kind), sql, id=1, name="ann") == [(1, "ann", 1.5)]
    assert await rows_of(sources.get(kind), sql, id=2, name=None) == [(2, None, 2.0)]
    assert await rows_of(sources.get(kind), sql, id=1, name="x' OR 1=1 --") == []


async def test_a_list_of_values(sources: Sources) -> None:
    """DuckDB has lists, SQLite reads them from JSON."""
    listed = "SELECT id FROM users WHERE id IN (SELECT value FROM json_each(:ids))"
    assert await rows_of(sources.get("sqlite"), listed, ids=[2, 3]) == [(2,)]
    for kind in ("duckdb", "files"):
        assert await rows_of(sources.get(kind), "SELECT id FROM users WHERE id = ANY(:ids)", ids=[2, 3]) == [(2,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_many_rows_come_in_pieces(sources: Sources, kind: str) -> None:
    """None is lost, none comes twice."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n"
    sql = numbers if kind == "sqlite" else "SELECT i FROM range(1, 5001) AS n(i)"
    async with sources.get(kind).query(sql, {}, timeout=MINUTE) as rows:
        pieces = [list(piece) async for piece in rows]
    assert [row[0] for piece in pieces for row in piece] == list(range(1, 5001))
    assert max(map(len, pieces)) <= 1000


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


async def test_a_file_is_a_view_under_its_name(sources: Sources) -> None:
    """However it is called."""
    ((number, tags),) = await rows_of(
        sources.get("files"), 'SELECT u.id, o.tags FROM users u JOIN "it\'s odd" o USING (id)'
    )
    assert (number, bytes(tags)) == (1, b'["x"]')


async def test_two_files_of_one_name_are_refused(sources: Sources, tmp_path: Path) -> None:
    """Nobody could say which one was meant."""
    (tmp_path / "files" / "Users.ndjson").write_text("{}\n")
    with pytest.raises(Rejected, match="two files called") as refused:
        await rows_of(sources.get("files"), "SELECT * FROM users")
    assert refused.value.code == "source_refused"


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
async def test_what_is_not_there_may_come(sources: Sources, kind: str) -> None:
    """A missing file is tried again; it is not made."""
    with pytest.raises(Unavailable) as away:
        await rows_of(sources.get(f"no_{kind}"), "SELECT 1")
    assert away.value.code == "source_unavailable"


@pytest.mark.parametrize("url", ["sqlite://shop.db", "duckdb://", "files:///a%00b", "sqlite:///"])
def test_a_path_is_absolute(url: str) -> None:
    """Whatever folder a process was started in."""
    sources = Sources({"shop": SourceTerms(url=url)}, no_secrets)
    if url == "sqlite:///":
        sources.get("shop")
        return
    with pytest.raises(Rejected) as refused:
        sources.get("shop")
    assert refused.value.code == "invalid_source"
