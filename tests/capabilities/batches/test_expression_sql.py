"""One expression in CEL, PostgreSQL and DuckDB: the same verdict on every client, whatever its values."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.postgres import as_reader
from kit.servers import PostgresServer
from tickwright.capabilities.batches.expressions import Expression, compile_expression
from tickwright.ports.batches import FieldType, Verdict
from tickwright.ports.reports import Dialect
from tickwright.sources.named import Sources, SourceSettings

NOW = datetime(2026, 3, 1, 9, 30, 0, 1, tzinfo=UTC)
FIELDS: dict[str, FieldType] = {
    "age": "int", "visits": "int", "income": "double", "debt": "double", "country": "string", "city": "string",
    "active": "bool", "vip": "bool", "since": "timestamp", "seen": "timestamp",
}  # fmt: skip
SQL_TYPES = {
    "int": "bigint",
    "double": "double precision",
    "string": "text",
    "bool": "boolean",
    "timestamp": "timestamptz",
}
TRUTHS = {True: Verdict.SELECTED, False: Verdict.NOT, None: Verdict.MISSING}

Made = Sequence[Expression]
Clients = Sequence[Mapping[str, Any]]

WHOLE = st.sampled_from([-(2**63), -(2**53) - 1, -1, 0, 1, 2, 25, 2**53, 2**53 + 1, 2**63 - 1]) | st.integers(-9, 9)
BROKEN = st.sampled_from([0.0, -0.0, 1.0, 2.0, 25.0, 2.5, -1.5, 5e-324, 1.7976931348623157e308, 2.0**53, 2.0**63])
FLOATS = BROKEN | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.sampled_from(
    ["", "a", "A", "b", "B", "ab", "abab", "é", "e\u0301", "UK", "uk", "U", "ß", "ss", "\uffff", "😀", "%", "_", "'",
     "\\", '"', "É", "a b", " a", "Z", "z", "\u00e9", "\u1e9e", "' OR true --", ":e0", "$1", "\t", "İ", "i", "I"]
) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)  # fmt: skip
INSTANTS = st.sampled_from(
    [NOW, NOW - timedelta(hours=1), NOW + timedelta(microseconds=1), datetime(1, 1, 1, tzinfo=UTC),
     datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
     datetime(2600, 1, 1, 0, 0, 0, 999999, tzinfo=UTC), datetime(2600, 1, 1, 0, 0, 1, 999999, tzinfo=UTC),
     datetime(1582, 10, 10, tzinfo=UTC)]
) | st.datetimes(timezones=st.just(UTC))  # fmt: skip
VALUES: dict[FieldType, st.SearchStrategy[Any]] = {
    "int": WHOLE,
    "double": FLOATS | st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    "string": TEXTS,
    "bool": st.booleans(),
    "timestamp": INSTANTS,
}
CLIENTS = st.fixed_dictionaries({name: st.none() | VALUES[kind] for name, kind in FIELDS.items()})


def cel_text(text: str) -> str:
    """Write a literal of CEL."""
    return '"' + re.sub(r"[^ !#-\[\]-~é😀]", lambda found: f"\\U{ord(found[0]):08x}", text) + '"'


def field(kind: FieldType) -> st.SearchStrategy[str]:
    """Return fields of one type."""
    return st.sampled_from([f"client.{name}" for name, known in FIELDS.items() if known == kind])


def cel_instant(at: datetime) -> str:
    """Write a time; CEL has no offset that leads outside its years."""
    return f'timestamp("{at.isoformat().replace("+00:00", "Z")}")'


SPANS = st.sampled_from(["1h", "90m", "-36h", "1.5s", "1us", "720h", "0s"])
NOWS = st.just("now") | st.builds('(now {} duration("{}"))'.format, st.sampled_from("+-"), SPANS)
INSTANT = field("timestamp") | INSTANTS.map(cel_instant) | NOWS
LITERAL = TEXTS.map(cel_text)
PIECES: dict[FieldType, st.SearchStrategy[str]] = {
    "int": field("int") | WHOLE.map(str) | field("string").map("size({})".format) | LITERAL.map("size({})".format),
    "double": field("double")
    | FLOATS.map(repr)
    | st.sampled_from(["3", "-2", "0x19", "9007199254740992", "1e999", "-1e999"])
    | field("int").map("double({})".format),
    "string": field("string") | LITERAL,
    "bool": field("bool") | st.sampled_from(["true", "false"]),
    "timestamp": INSTANT,
}
LITERALS: dict[FieldType, st.SearchStrategy[str]] = {
    "int": WHOLE.map(str),
    "double": FLOATS.map(repr) | st.integers(-9, 9).map(str),
    "string": LITERAL,
    "bool": st.sampled_from(["true", "false"]),
    "timestamp": INSTANTS.map(cel_instant) | NOWS,
}
SIGNS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


def compared(kind: FieldType) -> st.SearchStrategy[str]:
    """Return comparisons within one type, at least one side a field where the type is double."""
    pair = st.tuples(PIECES[kind], SIGNS, PIECES[kind])
    turned = st.tuples(field(kind), SIGNS, PIECES[kind])
    return (turned if kind == "double" else pair | turned).map("{0[0]} {0[1]} {0[2]}".format)


def listed(kind: FieldType) -> st.SearchStrategy[str]:
    """Return tests of a field against a list."""
    several = st.lists(LITERALS[kind], min_size=1, max_size=4).map(", ".join)
    return st.builds("{} in [{}]".format, field(kind), several)


ABOUT_TEXT = st.builds(
    "{}.{}({})".format, PIECES["string"], st.sampled_from(["startsWith", "endsWith", "contains"]), LITERAL
)
TRUTH = st.one_of(PIECES["bool"], ABOUT_TEXT, *map(compared, FIELDS.values()), *map(listed, FIELDS.values()))


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return combinations of conditions, and comparisons that depend on one."""
    kinds: list[FieldType] = ["int", "string", "timestamp"]
    chosen = st.sampled_from(kinds).flatmap(
        lambda kind: st.builds("({} ? {} : {}) {} {}".format, inner, PIECES[kind], PIECES[kind], SIGNS, PIECES[kind])
    )
    return st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        inner.map("!({})".format),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds("(({}) {} ({}))".format, inner, SIGNS, inner),
        chosen,
    )


EXPRESSIONS = st.recursive(TRUTH, joined, max_leaves=6)


@pytest.fixture(scope="module")
def places(pg_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[Dialect, str]]:
    """A database whose texts compare without regard to case and accents, and an empty file of DuckDB."""
    url = pg_server.create_database("expressions")
    with psycopg.connect(url, autocommit=True) as connection:
        terms = "provider = icu, locale = 'und-u-ks-level1', deterministic = false"
        connection.execute(f"CREATE COLLATION loose ({terms})".encode())
    path = Path(tmp_path_factory.mktemp("expressions")) / "empty.duckdb"
    duckdb.connect(path).close()
    yield {"postgresql": url, "duckdb": f"duckdb://{path}"}
    pg_server.drop_database("expressions")


def query_of(made: Made, clients: Clients, dialect: Dialect) -> tuple[str, dict[str, Any]]:
    """Return one query that evaluates every expression for every client, in their order."""
    values: dict[str, Any] = {}
    loose = "loose" if dialect == "postgresql" else "NOCASE"
    rows = []
    for number, client in enumerate(clients):
        row = [str(number)]
        for name, kind in FIELDS.items():
            values[f"v{number}_{name}"] = client[name]
            row.append(
                f"CAST(:v{number}_{name} AS {SQL_TYPES[kind]})" + (f" COLLATE {loose}" if kind == "string" else "")
            )
        rows.append(f"({', '.join(row)})")
    asked = []
    for number, one in enumerate(made):
        found = one.sql(dialect, "m.{}".format, NOW)
        assert found is not None
        asked.append(re.sub(r":e(\d+)", rf":x{number}_\1", found.sql))
        values |= {f"x{number}_{name[1:]}": value for name, value in found.values.items()}
    table = f"(VALUES {', '.join(rows)}) AS m(n, {', '.join(FIELDS)})"
    return f"SELECT {', '.join(asked)} FROM {table} ORDER BY n", values


async def answers(places: Mapping[Dialect, str], made: Made, clients: Clients) -> dict[Dialect, list[tuple[Any, ...]]]:
    """Return the answers of each database."""
    sources = Sources({name: SourceSettings(url=as_reader(url)) for name, url in places.items()}, lambda _: None)
    verdicts_by_dialect: dict[Dialect, list[tuple[Any, ...]]] = {}
    try:
        for dialect in places:
            sql, values = query_of(made, clients, dialect)
            async with sources.get(dialect).query(sql, values, timeout=timedelta(seconds=30)) as rows:
                verdicts_by_dialect[dialect] = [
                    tuple(TRUTHS[one] for one in row) async for piece in rows for row in piece
                ]
    finally:
        await sources.aclose()
    return verdicts_by_dialect


FAR = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
ODD: dict[FieldType, list[Any]] = {
    "int": [None, -(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1],
    "double": [None, float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, 2.0**53],
    "string": [None, "", "a", "B", "b", "é", "e\u0301", "ß", "ss", "ssa", "\uffff", "😀"],
    "bool": [None, True, False],
    "timestamp": [None, NOW, datetime(1, 1, 1, tzinfo=UTC), FAR, FAR.replace(second=58)],
}
PAIRS: dict[FieldType, tuple[str, str]] = {
    "int": ("age", "visits"),
    "double": ("income", "debt"),
    "string": ("country", "city"),
    "bool": ("active", "vip"),
    "timestamp": ("since", "seen"),
}
LITERAL_OF: dict[FieldType, list[str]] = {
    "int": ["0", "-9223372036854775808"],
    "double": ["0", "1.0", "1e999", "-1e999"],
    "string": ['""', '"b"', '"é"', '"ss"'],
    "bool": ["true"],
    "timestamp": ["now", "now - duration('1h')", "timestamp('9999-12-31T23:59:59.999999Z')"],
}
MORE: dict[FieldType, list[str]] = {
    "int": ["double(client.age) == double(client.visits)", "double(client.age) > 0.5", "(client.age > 0 ? 1 : 2) == 2"],
    "double": ["client.income > double(client.age)", "double(client.age) <= client.income", "!(client.income > 0)"],
    "string": [
        *(
            f'client.country.{word}("{text}")'
            for word in ("startsWith", "endsWith", "contains")
            for text in ("", "s", "é")
        ),
        "size(client.country) == 2",
        '(client.country < "b" ? client.city : "b") == "b"',
        '"B" < "a" && "é" != "e"',
    ],
    "bool": [
        "client.active && client.vip",
        "client.active || client.vip",
        "!client.active",
        "client.active ? client.vip : !client.vip",
        "(client.active ? 1 : 2) == 2",
    ],
    "timestamp": ["client.since == client.seen && client.since < now"],
}


@pytest.mark.matrix
@pytest.mark.parametrize("kind", PAIRS)
def test_every_form_has_the_same_verdict_on_every_odd_value(places: Mapping[Dialect, str], kind: FieldType) -> None:
    """Each sign between two fields, and a field and a literal, over all pairs of values that fail somewhere."""
    one, other = PAIRS[kind]
    sides = [(f"client.{one}", f"client.{other}")]
    sides += [pair for word in LITERAL_OF[kind] for pair in ((f"client.{one}", word), (word, f"client.{one}"))]
    texts = [f"{left} {sign} {right}" for left, right in sides for sign in ("==", "!=", "<", "<=", ">", ">=")]
    texts += [
        f"client.{one} in [{', '.join(LITERAL_OF[kind])}]",
        f"!(client.{one} in [{LITERAL_OF[kind][0]}])",
        *MORE[kind],
    ]
    made = [compile_expression(text, FIELDS) for text in texts]
    no_values = dict.fromkeys(FIELDS)
    ages = [None, 1] if kind == "double" else [None]
    clients = [
        {**no_values, "age": age, one: left, other: right} for age in ages for left in ODD[kind] for right in ODD[kind]
    ]
    judged = [tuple(each.judge(client, NOW) for each in made) for client in clients]
    verdicts_by_dialect = asyncio.run(answers(places, made, clients))
    for dialect, rows in verdicts_by_dialect.items():
        wrong = [
            (dialect, text, client[one], client[other], said, right)
            for client, row, verdicts in zip(clients, rows, judged, strict=True)
            for text, said, right in zip(texts, row, verdicts, strict=True)
            if said is not right
        ]
        assert wrong == []


@pytest.mark.storm
@settings(max_examples=200, deadline=None)
@given(texts=st.lists(EXPRESSIONS, min_size=1, max_size=3), clients=st.lists(CLIENTS, min_size=1, max_size=6))
def test_sql_and_the_evaluator_agree(
    places: Mapping[Dialect, str], texts: Sequence[str], clients: Sequence[Mapping[str, Any]]
) -> None:
    """EXP-3, over every type: NULL, NaN, infinities, far instants, the limits of integers, strange collations."""
    made = [compile_expression(text, FIELDS) for text in texts]
    judged = [tuple(one.judge(client, NOW) for one in made) for client in clients]
    verdicts_by_dialect = asyncio.run(answers(places, made, clients))
    assert verdicts_by_dialect["postgresql"] == judged
    assert verdicts_by_dialect["duckdb"] == judged
