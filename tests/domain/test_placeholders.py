"""Named values in SQL: what is one, what only looks like one, and the position of an error in the original text."""

import pytest

from tickwright.domain.errors import Rejected
from tickwright.domain.placeholders import bind, placeholders

NONE = [
    "SELECT a::text, b :: int, 1::int",
    "SELECT ':a', 'it''s :a', '\\', ':a'",
    "SELECT E'\\' :a', e'\\\\\\' :a'",
    "SELECT E'a'\n'\\' :b'",
    "SELECT E'a' -- :c\n  '\\' :b'",
    'SELECT "x:a :b", ":c""d :e"',
    "SELECT $$ :a $$, $x$ :a $$ $y$ :b $x$",
    "SELECT 1 -- :a",
    "SELECT /* :a /* :b */ :c */ 1",
    "SELECT arr[1:2], arr[1:n], arr[(1):n], arr[f(x):n], arr[a[1]:n]",
    "SELECT j -> 'a' ->> ':b', j @? '$.x ? (@ == :y)', j #> '{:a}'",
    "SELECT f(a := 1)",
    "SELECT 'open :a",
    "SELECT /* open :a",
    "SELECT $a$ open :b",
    "SELECT foo$1, foo$bar$ FROM x$y",
    "SELECT : a, :1",
]


@pytest.mark.parametrize("sql", NONE)
def test_what_only_looks_like_a_placeholder_stays_as_it_is(sql: str) -> None:
    """Casts, slices, quotes of every kind, comments and operators are not touched."""
    assert placeholders(sql) == frozenset()
    assert bind(sql, {}, "${}".format).sql == sql


@pytest.mark.parametrize(
    ("sql", "names", "bound"),
    [
        ("SELECT :a", "a", "SELECT $1"),
        ("SELECT :a::text, (:b)", "a b", "SELECT $1::text, ($2)"),
        ("x=:a AND y IN (:b,:a)", "a b", "x=$1 AND y IN ($2,$1)"),
        ("arr[:a]", "a", "arr[$1]"),
        ("'x' || :a || 'y'", "a", "'x' || $1 || 'y'"),
        ("/* c */:a--:b\n:c", "a c", "/* c */$1--:b\n$2"),
        ("E'\\\\' :a", "a", "E'\\\\' $1"),
        ("'\\' :a", "a", "'\\' $1"),
        ("$$x$$ :a", "a", "$$x$$ $1"),
        (":größe", "größe", "$1"),
        ("/**/:a", "a", "/**/$1"),
    ],
)
def test_a_placeholder_is_found(sql: str, names: str, bound: str) -> None:
    """Behind a blank, an operator, an opening bracket or a comment; a name has one number wherever it occurs."""
    assert placeholders(sql) == frozenset(names.split())
    assert bind(sql, dict.fromkeys(names.split()), "${}".format).sql == bound


def test_values_come_in_the_order_of_their_numbers() -> None:
    """Values that the query does not name are left out."""
    assert bind(":b :a :b", {"a": 1, "b": 2, "c": 3}, "?{}".format).values == (2, 1)


def test_a_test_for_null_has_a_number_of_its_own() -> None:
    """It says nothing of the value's type; all other places of a name share one."""
    bound = bind("(:a IS NULL OR a = :a OR :a is\nnot null) = :a", {"a": 1}, "${}".format)
    assert bound.sql == "($1 IS NULL OR a = $2 OR $1 is\nnot null) = $2"
    assert (bound.values, bound.tested) == ((1, 1), frozenset({1}))
    assert bind(":a ISNULLABLE", {"a": 1}, "${}".format).tested == frozenset()


def test_a_missing_value_is_named() -> None:
    """One that is there and null is not missing."""
    assert bind(":a", {"a": None}, "${}".format).values == (None,)
    with pytest.raises(Rejected) as refused:
        bind("SELECT :a, :b", {"a": 1}, "${}".format)
    assert (refused.value.code, refused.value.details["name"]) == ("missing_value", "b")


def test_a_number_is_no_name() -> None:
    """``$1`` would be the value of another name."""
    with pytest.raises(Rejected, match="write a value as :name") as refused:
        placeholders("SELECT $1")
    assert refused.value.code == "invalid_sql"


def test_a_place_in_the_bound_text_is_found_in_the_original() -> None:
    """The position of an error is one in the text that the operator wrote."""
    sql = "SELECT :country, foo, :country, bar"
    bound = bind(sql, {"country": 1}, "${}".format)
    for word in ("SELECT", "foo", "bar"):
        assert bound.original(bound.sql.index(word)) == sql.index(word)
