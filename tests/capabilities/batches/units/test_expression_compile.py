"""Compilation of expressions: good ones decide, bad ones are refused with a code and a position in the user's text."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tickwright.capabilities.batches.expressions import compile_expression, explain_problem
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import FieldType, Verdict

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)
FIELDS: dict[str, FieldType] = {
    "age": "int", "income": "double", "debt": "double", "country": "string", "active": "bool", "since": "timestamp",
}  # fmt: skip
CLIENT: dict[str, Any] = {
    "age": 30, "income": 5000.0, "debt": 12.5, "country": "UK", "active": True, "since": NOW - timedelta(days=400),
}  # fmt: skip
LOAN = 'client.age > 25 && client.income > 3000 && client.country == "UK"'

SELECTED = [
    LOAN,
    "true",
    "client.active",
    "client.income > 0x10 && client.income in [1, 5000, -2.5]",
    "3000 < client.income && -3 < client.income && - 3 < client.income",
    "client.income > 2 * 1000 + 500 - 1",
    "client.income > (client.active ? 3000 : -1)",
    "(client.active ? 1 : 2) < client.debt",
    "double(client.age) > 2.5 && client.age * 2 == 60 && client.age % 7 == 2 && client.age / 7 == 4",
    "client.income * 2 > client.debt + 1",
    "client.country in ['DE', \"UK\", r'x']",
    'client.country.startsWith("U") && client.country.endsWith("K") && client.country.contains("")',
    'client.country.matches("^[A-Z]{2}$") && matches(client.country, "K")',
    "size(client.country) == 2 && client.country.size() == 2",
    'now - client.since > duration("24h") && client.since < now - duration("720h")',
    'client.since < timestamp("2026-01-01T00:00:00Z") && client.since.getFullYear() == 2025',
    'now.getHours("Europe/Kyiv") == 11 && now.getHours("+02:00") == 11',
    '"" + client.country + "!" == "UK!" && string(client.age) == "30" && int(client.debt) == 12',
    "client.age // the years\n > 25 &&\r\n\tclient . income > 1",
    "client.`age` > 25 ? client.active : false",
    '"\\u202e" != client.country',
    "!!!!client.active",
]


@pytest.mark.parametrize("text", SELECTED)
def test_a_good_expression_decides(text: str) -> None:
    """Whole numbers beside doubles, texts, lists, times, and computed values."""
    assert compile_expression(text, FIELDS).judge(CLIENT, NOW) is Verdict.SELECTED


REFUSED = [
    ("", "expression_syntax", 1, 1),
    (" \n ", "expression_syntax", 1, 1),
    ("client.age >", "expression_syntax", 1, 13),
    ("client.age = 3", "expression_syntax", 1, 12),
    ("client.age > 3 and true", "expression_syntax", 1, 16),
    ("client.active\n  or true", "expression_syntax", 2, 3),
    ("client.age > 'a", "expression_syntax", 1, 14),
    ("client.age > @", "expression_syntax", 1, 14),
    ("true true", "expression_syntax", 1, 6),
    ("client.age > 9223372036854775808", "expression_syntax", 1, 14),
    ('client.country == "\\ud800"', "expression_syntax", 1, 19),
    ("true\0", "expression_syntax", 1, 5),
    ("client.country == 'a\ud800'", "expression_syntax", 1, 21),
    ("client.active /*\u202e*/", "expression_syntax", 1, 17),
    ("client.country == 'é😀' && client.agee > 3", "unknown_field", 1, 27),
    ("client.active &&\n  client.agee > 3", "unknown_field", 2, 3),
    ("age > 25", "unknown_field", 1, 1),
    ("client > 3", "unknown_field", 1, 1),
    (".client.age > 3", "unknown_field", 1, 2),
    ("client.age.years > 3", "unknown_field", 1, 1),
    ("__import__('os').system('id')", "expression_not_allowed", 1, 11),
    ("client.country > 3", "expression_type", 1, 16),
    ("client.income > 3000 && client.country > 3", "expression_type", 1, 40),
    ("client.age > 2.5", "expression_type", 1, 12),
    ("client.age > client.income", "expression_type", 1, 12),
    ("client.age in [2.5, 3]", "expression_type", 1, 12),
    ("client.income > 7 / 2", "expression_type", 1, 15),
    ("client.age in [1, 'a']", "expression_type", 1, 15),
    ("client.income in [1, client.age]", "expression_type", 1, 18),
    ("client.age in []", "expression_type", 1, 15),
    ("client.active ? 1 : 'a'", "expression_type", 1, 15),
    ("client.age + 1", "expression_not_boolean", 1, 12),
    ("client.country", "expression_not_boolean", 1, 1),
    ("now", "expression_not_boolean", 1, 1),
    ("[1].all(x, x > 1)", "expression_loops", 1, 8),
    ("[1].exists(x, x > 1)", "expression_loops", 1, 11),
    ("[1].exists_one(x, x > 1)", "expression_loops", 1, 15),
    ("1 in [1].map(x, x)", "expression_not_allowed", 1, 13),
    ("[1].map(x, x)[0] > 0", "expression_loops", 1, 8),
    ("[[1].filter(x, true)] == [[1]]", "expression_not_allowed", 1, 1),
    ("client.age > 3u", "expression_not_allowed", 1, 14),
    ("client.age == null", "expression_not_allowed", 1, 15),
    ("b'a' == b'a'", "expression_not_allowed", 1, 1),
    ("has(client.age)", "expression_not_allowed", 1, 5),
    ("dyn(client.age) == 3", "expression_not_allowed", 1, 4),
    ("type(client.age) == int", "expression_not_allowed", 1, 5),
    ("{'a': 1}.a == 1", "unknown_field", 1, 1),
    ("{'a': 1} == {'a': 1}", "expression_not_allowed", 1, 1),
    ("Client{age: 1} == Client{age: 1}", "expression_not_allowed", 1, 1),
    ("client['age'] > 3", "unknown_field", 1, 1),
    ("size([1, 2]) > 1", "expression_not_allowed", 1, 6),
    ("client.country in client.country", "expression_not_allowed", 1, 19),
    ("client.country.matches(client.country)", "expression_not_allowed", 1, 24),
    ("client.country.lowerAscii() == 'uk'", "expression_not_allowed", 1, 26),
    ("now.getHours(client.country) > 3", "expression_not_allowed", 1, 14),
    ("client.country.matches('(')", "invalid_literal", 1, 24),
    ("client.since > timestamp('x')", "invalid_literal", 1, 26),
    ("client.since > timestamp('2026-02-30T00:00:00Z')", "invalid_literal", 1, 26),
    ("now + duration('x') > now", "invalid_literal", 1, 16),
    ("now + duration('99999999h') > now", "invalid_literal", 1, 16),
    ("now.getHours('Nowhere') > 3", "invalid_literal", 1, 14),
    ("now.getHours('file:/etc/localtime') > 3", "invalid_literal", 1, 14),
    ("now.getHours('../../etc/localtime') > 3", "invalid_literal", 1, 14),
    ("now.getHours('localtime') > 3", "invalid_literal", 1, 14),
    ("client.income > 9007199254740993", "invalid_literal", 1, 17),
    ("client.income > -9007199254740993", "invalid_literal", 1, 17),
    ("true" + " " * 4093, "expression_too_large", 1, 4097),
    ("(" * 100_000, "expression_too_large", 1, 4097),
    ("-" * 50_000 + "1", "expression_too_large", 1, 4097),
    ("'(((' == client.country || " + "(" * 60 + "true" + ")" * 60, "expression_too_large", 1, 52),
    ("1 > " + "+".join("1" * 60), "expression_too_large", 1, 1),
    ("client" + ".a" * 30 + " == 1", "expression_too_large", 1, 1),
    ("&&".join(["client.age>1"] * 290), "expression_too_large", 1, 1387),
    (f"client.age in [{','.join('1' * 1001)}]", "expression_too_large", 1, 15),
    (f"client.country.matches('{'a' * 201}')", "expression_too_large", 1, 24),
    ("client.country.matches('((a{10}){10}){10}')", "expression_too_large", 1, 24),
    ("client.country.matches('a{3,1000}')", "expression_too_large", 1, 24),
    ("client.country.matches('a{999,}')", "expression_too_large", 1, 24),
    ("client.country.matches(r'" + r"\pL" * 3 + "')", "expression_too_large", 1, 24),
    (" || ".join([f"client.country.matches('{'a' * 190}')"] * 14), "expression_too_large", 1, 24 + 13 * 220),
    ("+".join(["client.country"] * 10) + " == ''", "expression_too_large", 1, 15 * 8 + 14 + 1),
]


@pytest.mark.parametrize(("text", "code", "line", "column"), REFUSED, ids=range(len(REFUSED)))
def test_a_bad_expression_is_refused_with_code_and_position(text: str, code: str, line: int, column: int) -> None:
    """Line and column from 1, the offset in characters from 0, and a sentence that says what to do."""
    with pytest.raises(Rejected) as caught:
        compile_expression(text, FIELDS)
    error = caught.value
    details = error.details
    assert (error.code, details["line"], details["column"]) == (code, line, column), error.message
    assert details["offset"] == sum(len(one) + 1 for one in text.split("\n")[: line - 1]) + column - 1
    assert error.message.startswith(f"line {line}, column {column}: ")
    assert not error.retriable
    assert len(error.message) < 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client.agee > 3", "client.agee is unknown; did you mean client.age?"),
        ("age > 3", "age is unknown; write client.age"),
        ("client.zzz > 3", "there are client.active, client.age,"),
        ("client.age = 3", "write =="),
        ("client.active and true", "write &&"),
        ("client.age > 2.5", "write double(client.FIELD)"),
        ("client.age == null", "is never selected"),
        ("client.income > 9007199254740993", "the nearest is 9007199254740992"),
        ("true \u202e", "write it as \\u202e"),
        ("client.country > 3", "> does not take (string, int)"),
        ("client.since > 3", "> does not take (timestamp, int)"),
        ("client.age in []", "nothing is in it"),
    ],
)
def test_a_refusal_says_what_to_write(text: str, said: str) -> None:
    """And not only what is wrong."""
    with pytest.raises(Rejected) as caught:
        compile_expression(text, FIELDS)
    assert said in caught.value.message


def test_every_error_is_reported_at_once() -> None:
    """In their order, each with code and position in the user's own text, also after promoted literals."""
    text = "client.income > 3000 && client.x > 1 || client.y.startsWith('a')\n&& zzz"
    with pytest.raises(Rejected) as caught:
        compile_expression(text, FIELDS)
    problems = caught.value.details["problems"]
    assert [(one["code"], one["line"], one["column"]) for one in problems] == [
        ("unknown_field", 1, 25),
        ("unknown_field", 1, 41),
        ("unknown_field", 2, 4),
    ]
    text = "client.income > 0x7 && client.income in [-0x3, 10] && client.country > 1 || client.age > 2.5"
    with pytest.raises(Rejected) as caught:
        compile_expression(text, FIELDS)
    assert [text[one["offset"]] for one in caught.value.details["problems"]] == [">", ">"]
    assert [one["column"] for one in caught.value.details["problems"]] == [70, 88]


def test_many_errors_are_bounded() -> None:
    """Twenty are reported, and none of them is long."""
    with pytest.raises(Rejected) as caught:
        compile_expression("||".join(f"client.{'x' * 30}{number} > 1" for number in range(80)), FIELDS)
    assert len(caught.value.details["problems"]) == 20
    assert all(len(one["message"]) < 700 for one in caught.value.details["problems"])


def test_a_problem_is_shown_with_a_caret() -> None:
    """Below its position, also in a long line and after letters of two bytes."""
    text = "client.active &&\n'é' == client.country && client.agee > 3"
    with pytest.raises(Rejected) as caught:
        compile_expression(text, FIELDS)
    problem: Mapping[str, Any] = caught.value.details["problems"][0]
    assert explain_problem(text, problem) == (
        "line 2, column 26: client.agee is unknown; did you mean client.age?\n"
        "  'é' == client.country && client.agee > 3\n"
        "                           ^"
    )
    long = " " * 1000 + "@" + " " * 1000
    _, shown, caret = explain_problem(long, {"line": 1, "column": 1001, "message": "x"}).split("\n")
    assert shown[caret.index("^")] == "@"
    assert len(shown) <= 102
    assert explain_problem("a\tb", {"line": 9, "column": 9}).endswith("^")


def test_fields_are_those_that_are_read() -> None:
    """In the order of their declaration, each once, without now and without text that only looks like a field."""
    made = compile_expression('client.income > 1 && client.age > 1 && client.age < 9 && "client.debt" != ""', FIELDS)
    assert made.fields == ("age", "income")
    assert compile_expression("now == now", FIELDS).fields == ()


@pytest.mark.parametrize(
    "literal", ["9007199254740992", "0x20000000000000", "-9223372036854775808", "18014398509481984"]
)
def test_a_literal_that_a_double_holds_is_promoted(literal: str) -> None:
    """Also above 2^53, and in any notation."""
    made = compile_expression(f"client.income == {literal}", FIELDS)
    assert made.judge({"income": float(int(literal, 0))}, NOW) is Verdict.SELECTED
    assert made.judge({"income": float(int(literal, 0)) * 1.5}, NOW) is Verdict.NOT
