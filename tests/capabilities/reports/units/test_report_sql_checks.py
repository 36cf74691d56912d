"""The columns that are read from the text of a SELECT, compared with those that DuckDB gives when it runs."""

import duckdb
import pytest

from tickwright.capabilities.reports.merge.sandbox import columns_of, sql_checks
from tickwright.capabilities.reports.schema import RESERVED, check_definition
from tickwright.domain.errors import Rejected

KNOWN = [
    "SELECT list(a) AS ids, b, t.c, count(*) AS n FROM t GROUP BY ALL",
    "SELECT ids: list(a), (SELECT 1) AS z, (SELECT a FROM t LIMIT 1) FROM t",
    "WITH q AS (SELECT * FROM t) SELECT max(a) AS top, min(a), 1, a::INT AS whole FROM q GROUP BY a",
    "SELECT count(*), EXISTS (SELECT * FROM t) AS some FROM t",
    'SELECT a AS "with space", a AS A1 FROM t',
    "SELECT DISTINCT ON (a) a, b FROM t ORDER BY b LIMIT 1",
]
UNKNOWN = [
    "FROM t", "SELECT * FROM t", "SELECT t.* FROM t", "SELECT unnest({'a': 1, 'b': 2}) AS z",
    "SELECT COLUMNS('[ab]') AS x FROM t",
    "SELECT max(COLUMNS(*)) AS x FROM t", "SELECT a FROM t UNION ALL SELECT b FROM t", "VALUES (1)",
]  # fmt: skip


@pytest.mark.parametrize("sql", KNOWN)
def test_columns_are_those_that_duckdb_gives(sql: str) -> None:
    """Those that a placeholder can name."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (a INT, b INT, c INT)")
        given = [column[0] for column in connection.execute(sql).description or ()]
    assert columns_of(sql) == frozenset(name for name in given if name.isidentifier())


@pytest.mark.parametrize("sql", UNKNOWN)
def test_columns_that_only_a_run_shows_are_not_guessed(sql: str) -> None:
    """Stars, what expands to several columns, and what is no plain SELECT."""
    assert columns_of(sql) is None


def test_words_that_duckdb_reserves_are_no_names_of_listeners() -> None:
    """A new release of DuckDB may reserve more."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
        ).fetchall()
    assert {row[0] for row in rows} <= RESERVED


def test_the_sql_of_a_definition_is_checked_by_duckdb() -> None:
    """Invalid SQL, a table that is no part, a value that does not exist: each with its place."""
    definition = {
        "stages": [
            {"users": {"source": "a", "sql": "SELECT :contry"}},
            {"rates": {"source": "a", "sql": "SELECT :ids"}},
        ],
        "parameters": {"country": "text"},
        "feeds": {2: "SELECT list(id) AS ids FROM users"},
        "merge": "SELECT * FROM users JOIN rates USING (id)",
    }
    with pytest.raises(Rejected) as caught:
        check_definition("t", definition, checks=sql_checks())
    assert caught.value.details["problems"] == [
        "report type.listeners.users.sql: there is no value :contry; there are :country"
    ]
    broken = {**definition, "merge": "SELECT * FROM users JOIN orders USING (id)", "feeds": {2: "SELEC 1"}}
    with pytest.raises(Rejected) as caught:
        check_definition("t", broken, checks=sql_checks())
    merge, feed = caught.value.details["problems"]
    assert merge.startswith("report type.merge: ")
    assert "orders" in merge
    assert feed.startswith("report type.feeds.2: ")
    assert "line 1, column 1" in feed
