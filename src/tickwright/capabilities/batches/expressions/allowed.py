"""What an expression may contain: declared names, listed functions, valid literals; everything else is refused.

The tree is parsed and not typed yet. A literal that would fail for every client (``timestamp("x")``, an invalid
pattern) is refused once, here: CEL evaluates it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from tickwright.capabilities.batches.expressions.bounds import (
    PATTERN_CHARS_MAX,
    PATTERNS_COST_MAX,
    is_field,
    pattern_cost,
)
from tickwright.capabilities.batches.expressions.library import NOW, is_pattern, is_span, is_zone, read_instant
from tickwright.capabilities.batches.expressions.problems import Problem
from tickwright.capabilities.batches.expressions.tree import Kind, Node, Tree
from tickwright.domain.strict_json import shown
from tickwright.ports.batches import FieldType

_NAMES_CHARS_MAX = 500
_COMPARED = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_OPERATORS = _COMPARED | {"_&&_", "_||_", "!_", "_?_:_", "_+_", "_-_", "_*_", "_/_", "_%_", "-_", "@in"}
_OF_DAYS = {"getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getMonth"}
GETTERS = frozenset({"getHours", "getMinutes", "getSeconds", "getMilliseconds"} | _OF_DAYS)
_MEMBERS = frozenset({"size", "startsWith", "endsWith", "contains", "matches"}) | GETTERS
_GLOBALS = frozenset({"size", "matches", "timestamp", "duration", "int", "double", "string"})
_ZONE = re.compile(r"[+-][0-9]{2}:[0-9]{2}|(?!localtime)[A-Za-z][A-Za-z0-9_+/-]{0,59}")
_CONSTANTS = frozenset({"bool", "int", "double", "string"})
_WRITE = {
    "null": "there is no null: a client whose field is missing is never selected",
    "uint": "write whole numbers without u",
}


def check_allowed(tree: Tree, fields: Mapping[str, FieldType]) -> Iterator[Problem]:
    """Yield everything that is not allowed."""
    cost = 0
    stack: list[tuple[Node, bool]] = [(tree.root, False)]
    while stack:
        node, is_list_due = stack.pop()
        cost += _cost(node)
        if cost > PATTERNS_COST_MAX:
            said = "patterns that cost too much; repeat less often, and leave out classes such as \\pL"
            yield Problem("expression_too_large", tree.at(node.parts[-1]), said)
            return
        found = _check(_Place(node, tree, fields, is_list_due))
        if found:
            yield found
        if node.kind == "call" or (node.kind == "list" and not found):
            is_in = node.word == "@in"
            stack += reversed([(part, is_in and place == 1) for place, part in enumerate(node.parts)])


class _Place(NamedTuple):
    """A node, and the facts that decide whether it is allowed."""

    node: Node
    tree: Tree
    fields: Mapping[str, FieldType]
    is_list_due: bool

    @property
    def at(self) -> int:
        return self.tree.at(self.node)


def _check(place: _Place) -> Problem | None:
    if place.is_list_due and place.node.kind != "list":
        return Problem("expression_not_allowed", place.at, "in is followed by a list, such as [1, 2]")
    return _CHECKS[place.node.kind](place)


def _check_value(place: _Place) -> Problem | None:
    word = place.node.word
    if word in _CONSTANTS:
        return None
    return Problem("expression_not_allowed", place.at, _WRITE.get(word, f"{word} are not known here"))


def _check_name(place: _Place) -> Problem | None:
    word = place.node.word
    return None if word == NOW else Problem("unknown_field", place.at, _unknown(word, place.fields))


def _check_list(place: _Place) -> Problem | None:
    if not place.is_list_due:
        return Problem("expression_not_allowed", place.at, "a list is allowed only on the right of in")
    return None if place.node.parts else Problem("expression_type", place.at, "the list is empty: nothing is in it")


def _check_loop(place: _Place) -> Problem | None:
    return Problem("expression_loops", place.at, "all, exists, exists_one, map and filter are not allowed")


def _check_object(place: _Place) -> Problem | None:
    return Problem("expression_not_allowed", place.at, "maps and messages are not allowed")


def _check_field(place: _Place) -> Problem | None:
    node, tree, fields, _ = place
    at = tree.at(node)
    if node.is_test:
        return Problem("expression_not_allowed", at, "has is not allowed: who has no such field is never selected")
    if is_field(node):
        known = node.word in fields
        return None if known else Problem("unknown_field", at, _unknown(f"client.{node.word}", fields))
    inner = next(one for one in node.walk() if one.kind != "field")
    if inner.kind == "loop":
        return _check_loop(place._replace(node=inner))
    at = tree.at(inner)
    return Problem("unknown_field", at, f"{shown('.' + node.word)} is no field; fields are client.NAME")


def _unknown(name: str, fields: Mapping[str, FieldType]) -> str:
    if name in fields:
        return f"{name} is unknown; write client.{name}"
    near = [f"client.{field}" for field in get_close_matches(name.removeprefix("client.")[:60], fields, n=3)]
    known = ", ".join([*(f"client.{field}" for field in sorted(fields)), NOW])
    told = f"did you mean {' or '.join(near)}?" if near else f"there are {known[:_NAMES_CHARS_MAX]}"
    return f"{shown(name)[1:-1]} is unknown; {told}"


def _check_call(place: _Place) -> Problem | None:
    node, tree = place.node, place.tree
    if node.word == "_[_]":
        return Problem("expression_not_allowed", place.at, "indexes are not allowed; fields are client.NAME")
    if node.word not in (_MEMBERS if node.is_member else _GLOBALS | _OPERATORS):
        there = ", ".join(sorted(_GLOBALS | _MEMBERS - GETTERS))
        said = f"{shown(node.word)[1:-1]} is not allowed; there are {there}, and get… of times"
        return Problem("expression_not_allowed", place.at, said)
    if node.word == "matches" and len(node.parts) == 2:
        return _check_matches(node, tree)
    if node.word in GETTERS and len(node.parts) == 2:
        return _check_zone(node.parts[1], tree)
    return _check_time(node, tree) if node.word in {"timestamp", "duration"} and len(node.parts) == 1 else None


def _cost(node: Node) -> int:
    pattern = node.parts[-1].value if node.word == "matches" and node.parts else None
    return pattern_cost(pattern) if isinstance(pattern, str) and len(pattern) <= PATTERN_CHARS_MAX else 0


def _check_matches(node: Node, tree: Tree) -> Problem | None:
    pattern = node.parts[-1]
    at = tree.at(pattern)
    if pattern.kind != "value" or pattern.word != "string":
        return Problem("expression_not_allowed", at, 'matches takes a pattern that is written out, such as "^[A-Z]+$"')
    if len(pattern.value) > PATTERN_CHARS_MAX:
        said = f"a pattern of {len(pattern.value)} characters; at most {PATTERN_CHARS_MAX}"
        return Problem("expression_too_large", at, said)
    if not is_pattern(pattern.value):
        return Problem("invalid_literal", at, "this is no regular expression of RE2")
    return None


def _check_zone(zone: Node, tree: Tree) -> Problem | None:
    at = tree.at(zone)
    if zone.kind != "value" or zone.word != "string":
        return Problem("expression_not_allowed", at, 'write the time zone out, such as "Europe/Kyiv"')
    if not _ZONE.fullmatch(zone.value) or not is_zone(zone.value):
        return Problem("invalid_literal", at, 'there is no such time zone; write one such as "Europe/Kyiv" or "+02:00"')
    return None


def _check_time(node: Node, tree: Tree) -> Problem | None:
    given = node.parts[0]
    at = tree.at(given)
    if given.kind != "value" or given.word != "string":
        return None
    if node.word == "timestamp" and ("\0" in given.value or not read_instant(given.value)[0]):
        return Problem("invalid_literal", at, 'this is no time; write one such as "2026-01-31T09:00:00Z"')
    if node.word == "duration" and ("\0" in given.value or not is_span(given.value)):
        return Problem("invalid_literal", at, 'this is no duration; write one such as "36h", "90m" or "1.5s"')
    return None


_CHECKS: Mapping[Kind, Callable[[_Place], Problem | None]] = {
    "value": _check_value,
    "name": _check_name,
    "field": _check_field,
    "call": _check_call,
    "list": _check_list,
    "loop": _check_loop,
    "object": _check_object,
}
