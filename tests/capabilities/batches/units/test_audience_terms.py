"""Definitions of an audience: every error at once, each with its path, and no SQL that leaves its parentheses."""

from typing import Any

import pytest

from tickwright.capabilities.batches.audience.schema import Field, read_audience
from tickwright.domain.errors import Rejected
from tickwright.domain.placeholders import bare

TABLE: dict[str, Any] = {"source": "crm", "table": "public.clients", "key": "id"}


def problems_of(document: Any) -> list[str]:
    """Return the errors of a definition."""
    with pytest.raises(Rejected) as refused:
        read_audience(document)
    assert refused.value.code == "invalid_audience"
    assert refused.value.message == "\n".join(refused.value.details["problems"])
    return list(refused.value.details["problems"])


def test_an_audience_is_read() -> None:
    """A field is a type, or a type and the column that it is read from."""
    fields = {"age": "int", "tel": {"type": "string", "column": "Phone No"}}
    terms = read_audience({**TABLE, "fields": fields, "columns": ["email"]})
    assert terms.fields == (Field("age", "int", "age"), Field("tel", "string", "Phone No"))
    assert terms.types == {"age": "int", "tel": "string"}
    assert (terms.source, terms.table, terms.key, terms.columns) == ("crm", "public.clients", "id", ("email",))
    file = read_audience({"file": "audiences/2026/clients.CSV", "key": "id"})
    assert (file.file, file.source) == ("audiences/2026/clients.CSV", None)


def test_every_error_is_named_at_once() -> None:
    """Each with its path and what to do."""
    found = problems_of(
        {
            "source": "",
            "file": "x.csv",
            "table": "a..b",
            "colour": 1,
            "fields": {"age": "number"},
            "columns": ["a", "a"],
        }
    )
    assert [line.partition(":")[0] for line in found] == [
        *("audience.source", "audience.table", "audience.colour", "audience.fields", "audience.columns"),
        *("audience.key", "audience"),
    ]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "audience: write an object"),
        ([], "audience: write an object"),
        ({}, "audience.key: missing"),
        ({"key": "id"}, "audience: write either source"),
        ({"key": "id", "source": "crm"}, "audience: write either table or query"),
        ({**TABLE, "query": "SELECT 1"}, "audience: write either table or query"),
        ({"key": "id", "file": "x.csv", "table": "t"}, "audience.table: goes with source"),
        ({**TABLE, "key": ""}, "audience.key: a column's name has"),
        ({**TABLE, "key": "a\nb"}, "audience.key: a column's name has"),
        ({**TABLE, "key": 7}, "audience.key: a column's name has"),
        ({**TABLE, "fields": []}, "audience.fields: write at most"),
        ({**TABLE, "fields": {f"f{number}": "int" for number in range(101)}}, "audience.fields: write at most 100"),
        ({**TABLE, "fields": {"a-b": "int"}}, "audience.fields: 'a-b': a field's name"),
        ({**TABLE, "fields": {"f" * 51: "int"}}, "a field's name has 1 to 50"),
        ({**TABLE, "fields": {"ä": "int"}}, "a field's name has 1 to 50"),
        ({**TABLE, "fields": {"a": {}}}, "audience.fields: a.type: missing"),
        ({**TABLE, "fields": {"a": {"type": "int", "colum": "b"}}}, "did you mean column?"),
        ({**TABLE, "fields": {"a": ["int"]}}, "audience.fields: a.type: one of int, double"),
        ({**TABLE, "fields": {"a": "int"}, "columns": ["a"]}, "audience.columns: a is a field already"),
        ({**TABLE, "columns": "abc"}, "audience.columns: write a list"),
        ({**TABLE, "columns": [f"c{number}" for number in range(101)]}, "audience.columns: write a list of at most"),
    ],
)
def test_an_error_says_what_to_do(document: Any, said: str) -> None:
    """With its path."""
    assert any(said in line for line in problems_of(document))


BAD_FILES = [
    "/a.csv", "../a.csv", "a/../b.csv", "a//b.csv", "a/./b.csv", ".a.csv", "a.txt", "a\0.csv", "x" * 500 + ".csv",
]  # fmt: skip


@pytest.mark.parametrize("file", BAD_FILES)
def test_a_file_is_a_key_of_the_object_store(file: str) -> None:
    """No path can leave it."""
    assert problems_of({"file": file, "key": "id"})[0].startswith("audience.file: ")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM clients;",
        "select id from clients where name = ';' -- ; :unknown )",
        "WITH c AS (SELECT 1 AS id) SELECT * FROM c /* ) ; */",
        "(SELECT 1 AS id)",
        "-- all\nSELECT id::text, $$;)$$ AS x, ';' AS \"a;b)\" FROM clients ; ",
    ],
)
def test_a_single_query_is_accepted(query: str) -> None:
    """Quoted text and comments end nothing."""
    assert read_audience({"source": "crm", "query": query, "key": "id"}).query == query.rstrip().removesuffix(";")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "write one query"),
        (" \n", "write one query"),
        (7, "write one query"),
        ("DELETE FROM clients", "begins with select"),
        ("-- SELECT\nDROP TABLE x", "begins with select"),
        ("EXPLAIN SELECT 1", "begins with select"),
        ("SELECT 1; DROP TABLE clients", "behind a semicolon"),
        ("SELECT 1;; ", "behind a semicolon"),
        ("SELECT 1) AS m; --", "behind a semicolon"),
        ("SELECT 1) AS m, (SELECT 2", "parentheses"),
        ("SELECT (1", "parentheses"),
        ("SELECT 1 /* ", "has no end"),
        ("SELECT 1 /* /* */ ", "has no end"),
        ("SELECT 1 /*/", "has no end"),
        ("SELECT 'a", "has no end"),
        ("SELECT 'it''s", "has no end"),
        ('SELECT "a', "has no end"),
        ("SELECT $a$ $b$", "has no end"),
        ("SELECT :id", ":id has no value"),
        ("SELECT $1", "not as $1"),
        ("SELECT '\0'", "\\u0000"),
        ("SELECT '\ud800'", "lone surrogates"),
        ("SELECT '" + "x" * 70_000 + "'", "65536 bytes"),
    ],
)
def test_anything_but_a_single_query_is_refused(query: Any, said: str) -> None:
    """No query can leave its parentheses, comment them out or ask for a value."""
    (problem,) = problems_of({"source": "crm", "query": query, "key": "id"})
    assert problem.startswith("audience.query: ")
    assert said in problem


def test_bare_sql_has_blanks_for_quoted_text() -> None:
    """Every character keeps its position."""
    sql = "SELECT 'a;b', \"c;d\", $x$;$x$, E'\\';', 1 /* ; /* ; */ ; */ - 2 -- ;\n/ 3;"
    text = bare(sql)
    assert len(text) == len(sql)
    assert text.count(";") == 1
    assert text.split() == ["SELECT", ",", ",", ",", ",", "1", "-", "2", "/", "3;"]
