"""Evaluation of an expression: missing fields, clients that cannot be judged, and two defects of the library."""

import math
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from cel_expr_python import cel

from tickwright.capabilities.batches.expressions import TEXT_CHARS_MAX, compile_expression
from tickwright.capabilities.batches.expressions.library import lend_zones
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import FieldType, Verdict
from tickwright.ports.reports import Dialect

NOW = datetime(2026, 3, 1, 9, 0, 0, 7, tzinfo=UTC)
FAR = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
EASTERN = timezone(timedelta(hours=2))
FIELDS: dict[str, FieldType] = {
    "age": "int", "income": "double", "debt": "double", "country": "string", "active": "bool", "vip": "bool",
    "since": "timestamp", "seen": "timestamp",
}  # fmt: skip
YES, NO, MISSING = Verdict.SELECTED, Verdict.NOT, Verdict.MISSING
DIALECTS: list[Dialect] = ["postgresql", "duckdb"]


def judged(text: str, **client: Any) -> Verdict:
    """Judge one client."""
    return compile_expression(text, FIELDS).judge(client, NOW)


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("client.active && client.vip", [YES, NO, MISSING, NO, NO, NO, MISSING, NO, MISSING]),
        ("client.active || client.vip", [YES, YES, YES, YES, NO, MISSING, YES, MISSING, MISSING]),
        ("!client.active", [NO, NO, NO, YES, YES, YES, MISSING, MISSING, MISSING]),
        ("client.active == client.vip", [YES, NO, MISSING, NO, YES, MISSING, MISSING, MISSING, MISSING]),
        ("client.active ? client.vip : true", [YES, NO, MISSING, YES, YES, YES, MISSING, MISSING, MISSING]),
    ],
)
def test_a_missing_field_is_unknown(text: str, verdicts: list[Verdict]) -> None:
    """The three-valued tables of SQL; an absent field and one that is None are the same."""
    made = compile_expression(text, FIELDS)
    clients = [{"active": active, "vip": vip} for active in (True, False, None) for vip in (True, False, None)]
    assert [made.judge(client, NOW) for client in clients] == verdicts
    assert made.judge({}, NOW) is MISSING


def test_a_field_that_does_not_decide_may_be_missing() -> None:
    """A client is missing only if the answer depends on it."""
    assert judged("client.age > 25 || client.income > 1", age=30) is YES
    assert judged("client.age > 25 && client.income > 1", age=20) is NO
    assert judged("client.age > 25 && client.income > 1", age=30) is MISSING
    assert judged("client.age in [1, 2]") is MISSING
    assert judged("client.country.startsWith('')") is MISSING
    assert judged("true") is YES


def test_nan_is_not_equal_to_less_or_greater_than_anything() -> None:
    """As in IEEE 754, and unlike databases."""
    made = {sign: compile_expression(f"client.income {sign} client.debt", FIELDS) for sign in ("==", "!=", "<", ">=")}
    client = {"income": math.nan, "debt": math.nan}
    assert {sign: one.judge(client, NOW) for sign, one in made.items()} == {"==": NO, "!=": YES, "<": NO, ">=": NO}
    assert judged("client.income > 3", income=math.nan) is NO
    assert judged("!(client.income > 3)", income=math.nan) is YES


@pytest.mark.parametrize(
    ("text", "client", "reason"),
    [
        ("100 / client.age > 1", {"age": 0}, "it divides by zero"),
        ("100 % client.age > 1", {"age": 0}, "it divides by zero"),
        ("client.age + 1 > 1", {"age": 2**63 - 1}, "a number or time is too large"),
        ("-client.age > 1", {"age": -(2**63)}, "a number or time is too large"),
        ("client.age > 1", {"age": 2**63}, "a number is too large"),
        ("int(client.income) > 1", {"income": 1e30}, "a number is too large"),
        ("int(client.country) > 1", {"country": "sécret"}, "a text is no number"),
        ("timestamp(client.country) > now", {"country": "sécret"}, "a text is no time"),
        ("duration(client.country) > duration('1h')", {"country": "sécret"}, "a text is no duration"),
        ("duration(client.country) > duration('1h')", {"country": "1234567890123456h"}, ""),
        ("client.since + duration('1h') > now", {"since": FAR}, "a number or time is too large"),
        ("now - client.since > duration('1h')", {"since": FAR}, "a number or time is too large"),
        ("client.country == 'UK'", {"country": "UK\0sécret"}, "a text holds a NUL"),
        ("client.country == 'UK'", {"country": "sécret\ud800"}, "a text cannot be encoded"),
        ("client.since > now", {"since": datetime(1, 1, 1, tzinfo=EASTERN)}, "a time is out of range"),
        ("client.age > 1", {"age": "sécret"}, ""),
        ("client.income > 1", {"income": "sécret"}, ""),
    ],
)  # fmt: skip
def test_the_error_of_a_client_that_cannot_be_judged_has_no_value(
    text: str, client: dict[str, Any], reason: str
) -> None:
    """It is permanent for this client, and shows none of its data."""
    with pytest.raises(Rejected) as caught:
        judged(text, **client)
    assert caught.value.code == "not_judged"
    assert not caught.value.retriable
    assert caught.value.message.startswith(reason)
    assert "cret" not in caught.value.message
    assert "1234567890123456h" not in caught.value.message
    assert len(caught.value.message) <= 200


def test_the_library_cuts_a_text_at_a_nul() -> None:
    """The defect is still there; when this test fails, the guard can be removed."""
    cut = cel.NewEnv(variables={"s": cel.Type.STRING}).compile('s == "UK"').eval(data={"s": "UK\0x"})
    assert cut.value() is True


def test_the_library_reads_a_far_instant_a_second_off() -> None:
    """The defect is still there; when this test fails, the second program can be removed."""
    program = cel.NewEnv(variables={"t": cel.Type.TIMESTAMP}).compile("t")
    assert program.eval(data={"t": FAR}).value() != FAR


INSTANTS = [
    FAR,
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(2600, 1, 1, 0, 0, 0, 999999, tzinfo=UTC),
    datetime(1200, 1, 1, 0, 0, 0, 999999, tzinfo=UTC),
    datetime(2199, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2200, 1, 1, tzinfo=UTC),
    datetime(1700, 1, 1, 0, 0, 0, 999999, tzinfo=UTC),
    datetime(1699, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    NOW.astimezone(timezone(timedelta(hours=-5))),
]


@pytest.mark.parametrize("at", INSTANTS, ids=str)
def test_every_instant_is_judged_to_the_microsecond(at: datetime) -> None:
    """From the year 1 to 9999, whatever its offset, and also where other fields are missing."""
    written = at.astimezone(UTC).isoformat()
    assert judged(f"client.since == timestamp('{written}')", since=at) is YES
    assert judged(f"client .\n since <= timestamp('{written}') && client.seen > now", since=at) is MISSING
    text = f"client.since == timestamp('{written}') && now > timestamp('2026-03-01T09:00:00Z') && client.income > 3"
    assert judged(text, since=at, income=5) is YES


def test_an_instant_without_a_zone_is_utc() -> None:
    """In any year."""
    assert judged("client.since == now", since=NOW.replace(tzinfo=None)) is YES
    assert judged("client.since == timestamp('9999-12-31T23:59:59.999999Z')", since=FAR.replace(tzinfo=None)) is YES


TRANSLATED = [
    "true",
    "client.age > 25 && client.income > 3000 && client.country == 'UK'",
    "!(client.active ? client.vip : client.age > 3) || client.country in ['a', 'b']",
    "client.income == client.debt || double(client.age) < client.debt || 1.5 < client.income",
    "client.country.startsWith('a') || client.country.endsWith('b') || client.country.contains('c')",
    "size(client.country) > 3",
    "client.since < now - duration('24h') || client.since in [now, timestamp('2026-01-01T00:00:00Z')]",
    "client.since >= duration('1.5s') + timestamp('2026-01-01T00:00:00.123456+02:00')",
    "(client.active ? client.age : 3) > 2 || (client.active == client.vip) != false",
]
ONE_BY_ONE = [
    "client.age + 1 > 3",
    "-client.age > 3",
    "client.age / 2 > 3",
    "client.income * 2 > 3",
    "double(client.age + 1) > 2.5",
    "double(client.country) > 2.5",
    "int(client.income) > 2",
    "string(client.age) == '3'",
    "client.country.matches('^a')",
    "client.country + 'x' == 'ax'",
    "client.country == 'a\\x00b'",
    "client.country in ['a\\x00b']",
    "client.country.startsWith('\\x00')",
    "client.country.startsWith(client.country)",
    "client.age in [client.age]",
    "(client.active ? client.income : 1.0) > 2.0",
    "client.since.getFullYear() > 2020",
    "now - client.since > duration('1h')",
    "client.since + duration('1h') > now",
    "client.since > timestamp('2026-01-01T00:00:00.1234567Z')",
    "client.since > now + duration('1ns')",
    "client.since > now + duration('80000000h')",
    "client.since > timestamp(client.country)",
    "client.since > timestamp(3)",
    "duration('1h') > duration('2h')",
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("text", TRANSLATED)
def test_an_expression_with_the_same_meaning_in_sql_becomes_sql(text: str, dialect: Dialect) -> None:
    """Its values are bound, and each of them is used."""
    made = compile_expression(text, FIELDS).sql(dialect, '"{}"'.format, NOW)
    assert made is not None
    assert all(f":{name}" in made.sql for name in made.values)
    assert made.sql.count(":") >= len(made.values)


@pytest.mark.parametrize("text", ONE_BY_ONE)
def test_an_expression_that_could_fail_or_differ_in_sql_does_not_become_sql(text: str) -> None:
    """Nor does a part of it: clients are judged one by one."""
    for whole in (text, f"client.age > 3 && ({text})"):
        made = compile_expression(whole, FIELDS)
        assert [made.sql(dialect, '"{}"'.format, NOW) for dialect in (*DIALECTS, "sqlite")] == [None, None, None]


def test_no_part_of_a_literal_is_in_the_sql() -> None:
    """Whatever quotes it has; only columns that the caller named are in the SQL."""
    evil = "x' OR 1=1; DROP TABLE clients --"
    text = f'client.country == "{evil}" || client.country in ["{evil}"] || client.country.contains("{evil}")'
    made = compile_expression(text, FIELDS).sql("postgresql", "c_{}".format, NOW)
    assert made is not None
    assert list(made.values.values()) == [evil, [evil], evil]
    assert "DROP" not in made.sql
    assert "'" not in made.sql


def test_clients_of_sqlite_are_judged_one_by_one() -> None:
    """It has no lists, no instants and no NaN."""
    assert compile_expression("client.age > 3", FIELDS).sql("sqlite", str, NOW) is None


def test_zones_are_known_where_the_system_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of Python's package are used; a variable that is set already stays."""
    monkeypatch.setenv("TZDIR", "")  # so that it is restored afterwards
    monkeypatch.delenv("TZDIR")
    lend_zones(tmp_path)
    assert "TZDIR" not in os.environ
    lend_zones(tmp_path / "none")
    assert (Path(os.environ["TZDIR"]) / "Europe/Kyiv").is_file()
    monkeypatch.setenv("TZDIR", "/elsewhere")
    lend_zones(tmp_path / "none")
    assert os.environ["TZDIR"] == "/elsewhere"


def test_cel_reads_the_zones_that_are_lent() -> None:
    """In a process of its own, because the library caches its answers."""
    module = "tickwright.capabilities.batches.expressions.library"
    asked = f"from {module} import is_zone; print(is_zone('Europe/Kyiv'))"
    for folder, known in ((str(resources.files("tzdata") / "zoneinfo"), "True"), ("/nowhere", "False")):
        finished = subprocess.run(
            [sys.executable, "-c", asked],
            env={**os.environ, "TZDIR": folder},
            capture_output=True,
            text=True,
            check=True,
        )
        assert finished.stdout.strip() == known


HOSTILE = {
    "amps": "&&".join(["client.active"] * 240),
    "list": f"client.income in [{','.join('1' * 1000)}]",
    "pieces": "||".join(["client.x"] * 400),
    "at signs": "@" * TEXT_CHARS_MAX,
    "brackets": "[" * TEXT_CHARS_MAX,
    "macros": "[1].exists(x," * 20 + "true" + ")" * 20,
    "maps": "[1]" + ".map(x,[x])" * 300,
    "minuses": "-" * 4000 + "1 > 1",
    "times": "||".join(["client.since > timestamp('2026-01-01T00:00:00Z')"] * 80),
    "digits": "client.income > " + "9" * 4000,
    "quotes": "'" * TEXT_CHARS_MAX,
    "patterns": "||".join(["client.country.matches('(a|b)*c{9}')"] * 30),
    "texts": "client.country == '" + "\\x41" * 1000 + "'",
    "lines": "\n" * 4000 + "x",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_text_costs_little(text: str) -> None:
    """Accepted or refused, it takes processor time below 100 ms on a quiet machine."""
    began = time.thread_time()
    try:
        compile_expression(text, FIELDS)
    except Rejected as error:
        assert error.details["offset"] <= len(text)  # noqa: PT017
    assert time.thread_time() - began < 0.5
