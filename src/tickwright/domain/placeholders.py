"""Named values in a user's SQL: ``:country`` becomes a bound parameter; no value is written into the text.

Similar texts stay unchanged: ``::casts``, ``:=``, slices such as ``[1:2]`` and ``[1:n]``, quoted texts and names,
dollar quotes, nested comments. The rule is PostgreSQL's lexer; other databases differ in comments only. A colon
directly after a word, a digit, a quote or a closing bracket begins no name: write a blank before it.
"""

import re
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from tickwright.domain.errors import Rejected

_TOKEN = re.compile(
    r"""
      --[^\n\r]*+
    | (?P<comment>/\*)
    | [eE]'(?:[^'\\]|''|\\.)*+'?
      (?:(?:[ \t\f\v]|--[^\n\r]*)*+[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*+[\n\r])*+'(?:[^'\\]|''|\\.)*+'?)*+
    | '[^']*+'?
    | "[^"]*+"?
    | \$(?P<tag>(?:[^\W\d][^\W]*)?)\$(?s:.*?)(?:\$(?P=tag)\$|\Z)
    | \$(?P<number>[0-9]++)
    | [^\W\d][\w$]*+
    | [0-9][\w.]*+
    | (?<![\w'")\]:$]):(?P<name>[^\W\d]\w*+)
    """,
    re.VERBOSE | re.DOTALL,
)
_TESTED = re.compile(r"\s+(?:IS\s+(?:NOT\s+)?NULL|ISNULL|NOTNULL)\b", re.IGNORECASE)
_COMMENT = re.compile(r"/\*|\*/")
_BEGINS = frozenset({"select", "with", "values", "table", "from"})


class Place(NamedTuple):
    """A ``:name`` from ``start`` to before ``end``, in characters; ``tested``: ``IS NULL`` follows it."""

    name: str
    start: int
    end: int
    tested: bool


class Bound(NamedTuple):
    """SQL for a driver, and the values in the order of their numbers."""

    sql: str
    values: tuple[Any, ...]
    tested: frozenset[int]
    """Numbers that are only tested for null. That implies no type, so for PostgreSQL it must be given."""
    moved: tuple[tuple[int, int], ...]
    """Where unchanged text begins: pairs of its offset in ``sql`` and in the original."""

    def original(self, offset: int) -> int:
        """Return the offset in the original text of the character at ``offset`` in ``sql``."""
        begin, original_begin = max((pair for pair in self.moved if pair[0] <= offset), default=(0, 0))
        return original_begin + offset - begin


def find_places(sql: str) -> list[Place]:
    """Return every ``:name`` of ``sql`` in order.

    Raises:
        Rejected: ``invalid_sql``: a value is written as ``$1``. Permanent.
    """
    places, at = [], 0
    while (token := _TOKEN.search(sql, at)) is not None:
        at = token.end()
        if token["comment"]:
            at = _behind_comment(sql, at)
        elif token["name"]:
            places.append(Place(token["name"], token.start(), at, _TESTED.match(sql, at) is not None))
        _refuse_number(token)
    return places


def _refuse_number(token: re.Match[str]) -> None:
    if token["number"]:
        raise Rejected("invalid_sql", f"write a value as :name, not as ${token['number']}")


def _behind_comment(sql: str, at: int) -> int:
    depth = 1
    while depth and (mark := _COMMENT.search(sql, at)) is not None:
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return at if depth == 0 else len(sql)


def bare(sql: str) -> str:
    """Return ``sql`` with blanks for quoted texts, quoted names and comments; the rest is syntax.

    Raises:
        Rejected: ``invalid_sql``: a quote or a comment has no end, or a value is written as ``$1``. Permanent.
    """
    pieces, at = [], 0
    while (token := _TOKEN.search(sql, at)) is not None:
        text = token[0]
        end = _behind_comment(sql, token.end()) if token["comment"] else token.end()
        _refuse_number(token)
        quoted = text[0] in "'\"-/$" or text[:2] in {"e'", "E'"}
        if quoted and not _is_closed(sql[token.start() : end]):
            raise Rejected("invalid_sql", "a quote or a comment has no end")
        pieces += [sql[at : token.start()], " " * (end - token.start()) if quoted else text]
        at = end
    return "".join([*pieces, sql[at:]])


def one_query(sql: str) -> str:
    """Return ``sql`` without its last semicolon, if it may be one query; the database decides what it does.

    Raises:
        Rejected: ``invalid_sql``: it begins as another statement, continues after a semicolon, or its parentheses,
            quotes or comments do not match. Permanent.
    """
    query = sql.rstrip().removesuffix(";")
    text = bare(query)
    if not _BEGINS.intersection(text.replace("(", " ").casefold().split(maxsplit=1)[:1]):
        raise Rejected("invalid_sql", "write one query, which begins with select or with")
    if ";" in text:
        raise Rejected("invalid_sql", "write one query; there is something behind a semicolon")
    depths = [*accumulate((character == "(") - (character == ")") for character in text)]
    if min(depths) < 0 or depths[-1]:
        raise Rejected("invalid_sql", "its parentheses do not match")
    return query


def _is_closed(token: str) -> bool:
    if token.startswith("--"):
        return True
    if token.startswith("/*"):
        return token.endswith("*/") and token.count("/*") == token.count("*/") and len(token) > len("/*/")
    if token.startswith("$"):
        tag = token[: token.index("$", 1) + 1]
        return token.endswith(tag) and token.count(tag) > 1
    return len(token.lstrip("eE")) > 1 and token.endswith(token.lstrip("eE")[0])


def placeholders(sql: str) -> frozenset[str]:
    """Return the names of the values that ``sql`` needs.

    Raises:
        Rejected: ``invalid_sql``. Permanent.
    """
    return frozenset(place.name for place in find_places(sql))


def bind(sql: str, values: Mapping[str, Any], mark: Callable[[int], str]) -> Bound:
    """Return ``sql`` with ``mark(n)`` for each name, from 1 on.

    A name has one number everywhere, so that equal expressions stay equal, and another one before ``IS NULL``.

    Raises:
        Rejected: ``missing_value``, naming the missing one; ``invalid_sql``. Permanent.

    Invariants:
        PLH-1: no value is written into the text; everything except placeholders is unchanged.
    """
    numbers: dict[tuple[str, bool], int] = {}
    pieces: list[str] = []
    moved: list[tuple[int, int]] = []
    length = at = 0
    for name, start, end, tested in find_places(sql):
        if name not in values:
            raise Rejected("missing_value", f"the query asks for :{name}, and there is no such value", name=name)
        put = mark(numbers.setdefault((name, tested), len(numbers) + 1))
        length += start - at
        moved.append((length, start))
        pieces += [sql[at:start], put]
        length, at = length + len(put), end
        moved.append((length, end))
    only = frozenset(number for (_, tested), number in numbers.items() if tested)
    return Bound("".join([*pieces, sql[at:]]), tuple(values[name] for name, _ in numbers), only, tuple(moved))
