"""The SQL of a report reaches its own parts only: a check of its text and a locked connection, each tested alone."""

from pathlib import Path

import duckdb
import pytest

from tickwright.capabilities.reports.merge import sandbox as select_check
from tickwright.capabilities.reports.merge.merge import PartFile, feed, merge
from tickwright.capabilities.reports.merge.sandbox import MergeBounds, check_select, open_duck
from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Column

LISTENERS = ["users", "orders"]

ACCEPTED = [
    "SELECT * FROM users",
    "SELECT * FROM Users; -- the end ; of it",
    "SELECT ';' AS a /* ; */ FROM users; /* ; */ ;",
    "SELECT 'é;', $$;$$, e'\\';' AS \";\" FROM users /* /* ; */ ; */" + "; " * 40 + "--" + ";" * 40,
    "FROM users SELECT id",
    "VALUES (1), (2)",
    "WITH big AS (SELECT * FROM users) SELECT count(*) FROM big JOIN orders USING (id)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT * FROM n",
    "SELECT unnest([1, 2]) AS a UNION ALL SELECT range FROM range(3) ORDER BY 1 LIMIT 1",
    "SELECT u.id, row_number() OVER (PARTITION BY u.id ORDER BY o.at) FROM users u ASOF JOIN orders o ON u.id > o.id",
    "SELECT * FROM users PIVOT (count(*) FOR id IN (1, 2)) AS t",
]
REFUSED = [
    "",
    "-- nothing",
    "SELECT 1; SELECT 2",
    "; SELECT 1",
    "SELECT FROM WHERE",
    "SELECT 1 /* without an end",
    "COPY (SELECT 1) TO 'x'",
    "INSERT INTO users VALUES (1)",
    "WITH gone AS (DELETE FROM users RETURNING 1) SELECT * FROM gone",
    "WITH more AS (INSERT INTO users VALUES (1) RETURNING id) SELECT * FROM more",
    "CREATE TABLE x AS SELECT 1",
    "ATTACH 'x.db'",
    "SET memory_limit = '10GB'",
    "PRAGMA database_list",
    "LOAD httpfs",
    "INSTALL httpfs",
    "CALL pragma_version()",
    "EXPLAIN SELECT 1",
    "DESCRIBE users",
    "SELECT * FROM (SHOW TABLES)",
    "PIVOT users ON id USING count(*)",
    "SELECT * FROM others",
    "SELECT * FROM '/etc/passwd'",
    'SELECT * FROM "/etc/passwd"',
    "SELECT * FROM memory.main.users",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "SELECT * FROM users, LATERAL (SELECT * FROM read_csv('/etc/passwd'))",
    "SELECT * FROM users WHERE id IN (SELECT 1 FROM glob('/*'))",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('users')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT current_setting('temp_directory')",
    "SELECT getenv('HOME')",
    "SELECT sum(1) OVER (ORDER BY sleep_ms(1000))",
    "SELECT list_transform([1], lambda x: sleep_ms(x))",
    "SELECT current_query()",
    "SELECT $1",
    "SELECT 1) TO 'x' --",
    "SELECT 1\0",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT * FROM (" * 3000 + "SELECT 1" + ")" * 3000,
    "SELECT * FROM " + "(" * 30_000 + "users" + ")" * 30_000,  # the parser takes an hour for it
    "SELECT * FROM " + "('')') /* ) */" * 65 + "users",
    "SELECT " + "1, " * 40_000 + "1",
]


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("sql", ACCEPTED)
def test_one_select_over_parts_is_accepted(sql: str) -> None:
    """With everything that DuckDB's SQL offers to join, count and shape them."""
    check_select(sql, LISTENERS)


def test_semicolons_cost_no_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement is parsed twice, however many semicolons end it or are in its comments."""
    parsed: list[str] = []
    tree = select_check._tree

    def counted(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
        parsed.append(sql)
        return tree(connection, sql)

    monkeypatch.setattr(select_check, "_tree", counted)
    for end in ("", ";" * 15, ";--" + ";" * 15):
        check_select("SELECT 1 FROM users" + end, LISTENERS)
        assert parsed == ["SELECT 1 FROM users", "(SELECT 1 FROM users\n)"]
        parsed.clear()


@pytest.mark.parametrize("sql", REFUSED, ids=lambda sql: sql[:60])
def test_all_other_sql_is_refused_when_a_type_is_defined(sql: str) -> None:
    """Other statements and tables, functions that read files or settings, and texts made to break the parser."""
    with pytest.raises(Rejected) as caught:
        check_select(sql, LISTENERS)
    assert caught.value.code == "invalid_sql"
    assert 0 < len(caught.value.message) <= 1000


@pytest.mark.parametrize(
    ("sql", "position"),
    [
        ("SELECT 1\nFROM FROM users", "(line 2, column 6)"),
        ("SELECT 1\nFROM users\nJOIN others USING (id)", "(line 3, column 6)"),
        ("SELECT 'é',\n  read_text('x') FROM read_text('y')", "(line 2, column 23)"),
    ],
)
def test_an_error_names_line_and_column(sql: str, position: str) -> None:
    """Columns count characters, not bytes."""
    with pytest.raises(Rejected) as caught:
        check_select(sql, LISTENERS)
    assert position in caught.value.message


INSIDE = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_json('{other}')",
    "SELECT * FROM '{other}'",
    "COPY (SELECT 1) TO '{folder}/evil.csv'",
    "COPY (SELECT 1) TO 'evil.csv'",
    "SELECT * FROM glob('/*')",
    "ATTACH '{folder}/x.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT * FROM read_csv('https://example.com/x.csv')",
    "SET enable_external_access = true",
    "SET allowed_directories = ['/']",
    "SET memory_limit = '10GB'",
    "RESET lock_configuration",
    "SELECT getenv('HOME')",
    "SELECT * FROM secret_of_the_program",
    "CREATE PERSISTENT SECRET s (TYPE s3)",
    "EXPORT DATABASE '{folder}/x'",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM enable_profiling(save_location := '{folder}/x')",
    "SELECT * FROM read_duckdb('{other}')",
]


@pytest.mark.parametrize("sql", INSIDE)
def test_the_connection_refuses_sql_that_the_check_of_its_text_misses(tmp_path: Path, sql: str) -> None:
    """The connection has no files but its own, no network, no extensions, no variables and no settings."""
    other = tmp_path / "other.ndjson"
    other.write_text('{"id": 1}\n')
    own = tmp_path / "own" / "part.ndjson"
    own.parent.mkdir()
    own.write_text('{"id": 2}\n')

    secret_of_the_program = [{"id": 1}]  # what a replacement scan would find
    assert secret_of_the_program
    with open_duck(own.parent, MergeBounds(), [own], own.parent / "out.csv") as connection:
        assert connection.execute(f"SELECT * FROM '{own}'").fetchall() == [(2,)]
        with pytest.raises(duckdb.Error):
            connection.execute(sql.format(other=other, folder=tmp_path)).fetchall()
    assert names_in(tmp_path) == ["other.ndjson", "own"]


@pytest.mark.parametrize("sql", REFUSED, ids=lambda sql: sql[:60])
def test_the_sql_of_a_feed_is_checked_when_it_runs(tmp_path: Path, sql: str) -> None:
    """Its text is checked again when it runs."""
    part = PartFile("users", tmp_path / "part.ndjson", (Column("id", "BIGINT"),))
    part.path.touch()
    with pytest.raises(Rejected) as caught:
        feed([part], sql, folder=tmp_path)
    assert caught.value.code == "invalid_sql"
    assert names_in(tmp_path) == ["part.ndjson"]


def test_a_merge_checks_its_sql_again(tmp_path: Path) -> None:
    """A stored definition may be older than a rule of the check."""
    part = PartFile("users", tmp_path / "part.ndjson", (Column("id", "BIGINT"),))
    part.path.touch()
    with pytest.raises(Rejected) as caught:
        merge(
            [part], "SELECT * FROM read_text('/etc/passwd')", tmp_path / "out", form="csv", bom=False, folder=tmp_path
        )
    assert caught.value.code == "invalid_sql"
    assert names_in(tmp_path) == ["part.ndjson"]
