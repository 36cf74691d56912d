"""PostgreSQL itself says whether a placeholder was found: a bound value gives what a quoted literal gives there."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.postgres import as_reader
from kit.servers import PostgresServer
from tickwright.domain.placeholders import bind, find_places, placeholders
from tickwright.sources.named import Sources, SourceSettings

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
NOISE = TEXT.map(lambda text: text.replace("*", "").replace("/", "").replace("$", "").replace("\\", ""))


def quoted(text: str) -> str:
    """Write a literal that no setting reads in another way."""
    return "'" + text.replace("'", "''") + "'"


VALUES = [
    (":one::text", "{one}::text"),
    ("(:two)", "({two})"),
    ("'<'||:one||'>'", "'<'||{one}||'>'"),
    ("/* :no */:one", "{one}"),
    (":one--:no\n", "{one}"),
    ("concat(:one::text,:two::text,:one::text)", "concat({one}::text,{two}::text,{one}::text)"),
    ("(ARRAY[:one,:two])[1:2]", "(ARRAY[{one},{two}])[1:2]"),
    (":one IS NULL", "{one}::text IS NULL"),
    ("coalesce(NULLIF(:two, ''), :one)", "coalesce(NULLIF({two}, ''), {one})"),
    ("(SELECT x FROM (VALUES (1, :one)) AS v(n, x) WHERE x=:one)", "{one}::text"),
    ("json_build_object('a:one', :two::text)::text", "json_build_object('a:one', {two}::text)::text"),
]
QUIET = st.one_of(
    NOISE.map(lambda text: quoted(f"{text} :no")),
    NOISE.map(lambda text: "E" + quoted(f"{text}\\' :no").replace("\\''", "\\'")),
    NOISE.map(lambda text: f"$$:no {text}$$"),
    NOISE.map(lambda text: f"$tag$ $$ :no {text}$tag$"),
    NOISE.map(lambda text: f"1 /* /* :no {text} */ :no */"),
    NOISE.map(lambda text: "1 -- :no " + "".join(text.split()) + "\n"),
    NOISE.map(lambda text: f'(SELECT "x:no" FROM (SELECT {quoted(text)} AS "x:no") AS q)'),
    st.sampled_from(
        [
            "(ARRAY[1,2,3])[1:2]::text",
            "(SELECT (ARRAY[1,2,3])[1:no] FROM (SELECT 2 AS no) AS q)::text",
            "'{\"a\": 1}'::jsonb ->> 'a'",
            "jsonb_path_exists('{}', '$.a ? (@ == 1)')",
            "'a'::text::varchar",
            "U&'\\0041 :no'",
            "E'a'\n  '\\' :no'",
            "make_interval(days := 1)::text",
        ]
    ),
)
PIECES = st.lists(st.sampled_from(VALUES) | QUIET.map(lambda text: (text, None)), min_size=1, max_size=8)


async def asked(url: str, sql: str, values: dict[str, str]) -> list[tuple[Any, ...]]:
    """Return what a source gives."""
    sources = Sources({"one": SourceSettings(url=as_reader(url))}, lambda _: None)
    try:
        async with sources.get("one").query(sql, values, timeout=timedelta(seconds=30)) as rows:
            return [tuple(map(str, row)) async for piece in rows for row in piece]
    finally:
        await sources.aclose()


@settings(max_examples=60, deadline=None)
@given(pieces=PIECES, one=TEXT, two=TEXT)
def test_bound_values_give_what_literals_give(
    pg_server: PostgresServer, pieces: Sequence[tuple[str, str | None]], one: str, two: str
) -> None:
    """Among quotes, comments, casts and slices of every kind; nothing else of the text is changed."""
    named = "SELECT " + ",\n".join(piece for piece, _ in pieces)
    literals = {"one": quoted(one), "two": quoted(two)}
    plain = "SELECT " + ",\n".join(
        piece if literal is None else literal.format(**literals) for piece, literal in pieces
    )
    with psycopg.connect(pg_server.url) as connection:
        expected = [tuple(map(str, row)) for row in connection.execute(plain.encode()).fetchall()]
    assert asyncio.run(asked(pg_server.url, named, {"one": one, "two": two})) == expected


@given(st.text(max_size=60) | st.text(":a1'\"-/*[]\\\n eE", max_size=40))
def test_any_text_is_read_to_its_end(sql: str) -> None:
    """What is found is a name behind a colon, and only that is changed."""
    sql = sql.replace("$", "")
    places, left = find_places(sql), list(sql)
    for place in reversed(places):
        assert sql[place.start : place.end] == f":{place.name}"
        del left[place.start : place.end]
    bound = bind(sql, dict.fromkeys(placeholders(sql)), lambda _: "")
    assert bound.sql == "".join(left)
