"""What an expression may contain: declared names, listed functions, valid literals; everything else is refused.

The text is checked before CEL parses it, and the tree before CEL types it. A literal that would fail for every client
(``timestamp("x")``, an invalid pattern) is refused once, here: CEL evaluates it. A regular expression runs in RE2, in
time linear in the text, but is compiled for each client, so the product of its repetitions is bounded.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from math import prod

from tickwright.capabilities.batches.expressions.library import NOW, is_pattern, is_span, is_zone, read_instant
from tickwright.capabilities.batches.expressions.problems import DEPTH_MAX, Problem, deep
from tickwright.capabilities.batches.expressions.tree import Node, Tree
from tickwright.domain.strict_json import quoted
from tickwright.ports.batches import FieldType

TEXT_CHARS_MAX = 4096
NODES_MAX = 500
"""Without the elements of lists."""
ITEMS_MAX = 1000
"""In all lists together."""
PATTERN_CHARS_MAX = 200
PATTERNS_COST_MAX = 2500
"""Of all patterns: characters, and 1,000 per Unicode class, times the product of the counted repetitions."""
_CLASS_COST = 1000
JOINS_MAX = 8
"""Concatenations: each copies its left side."""
_STEERING = frozenset("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
_REPEAT = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")
_CLASS = re.compile(r"\\[pP]")


def check_text(text: str) -> list[Problem]:
    """Return the mistakes in a text before it is parsed."""
    if len(text) > TEXT_CHARS_MAX:
        message = f"{len(text)} characters; an expression has at most {TEXT_CHARS_MAX}"
        return [Problem("expression_too_large", TEXT_CHARS_MAX, message)]
    if not text.strip():
        return [Problem("expression_syntax", 0, "it is empty; write true to select every client")]
    for offset, char in enumerate(text):
        if (unicodedata.category(char) in {"Cc", "Cs"} and char not in "\t\n\r") or char in _STEERING:
            message = f"character U+{ord(char):04X} cannot be seen; in a text write it as \\u{ord(char):04x}"
            return [Problem("expression_syntax", offset, message)]
    return []


def check_size(tree: Tree) -> Iterator[Problem]:
    """Yield what is too large in a parsed tree; only the first place for nodes and depth."""
    stack, count, items = [(tree.root, 1)], 0, 0
    while stack:
        node, depth = stack.pop()
        count += 1
        at = tree.at(node)
        if depth > DEPTH_MAX:
            yield deep(at)
            return
        if count > NODES_MAX:
            message = f"more than {NODES_MAX} pieces; write what is listed as client.x in [...]"
            yield Problem("expression_too_large", at, message)
            return
        if node.kind == "list":
            items += len(node.parts)
            if items > ITEMS_MAX:
                yield Problem("expression_too_large", at, f"lists of more than {ITEMS_MAX} elements, all counted")
                return
            count -= len([part for part in node.parts if not part.parts])
        stack += [(part, depth + 1) for part in reversed(node.parts)]


def pattern_cost(pattern: str) -> int:
    """Return an upper bound of the cost of compiling a regular expression: 2,500 is about a millisecond."""
    repeated = prod(max(int(most or 0), int(least), 1) for least, most in _REPEAT.findall(pattern))
    return (len(pattern) + _CLASS_COST * len(_CLASS.findall(pattern))) * repeated


def is_field(node: Node) -> bool:
    """Return whether a node reads a field of the client."""
    return node.kind == "field" and not node.is_test and node.parts[0].kind == "name" and node.parts[0].word == "client"


_NAMES_CHARS_MAX = 500
COMPARED = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_OPERATORS = COMPARED | {"_&&_", "_||_", "!_", "_?_:_", "_+_", "_-_", "_*_", "_/_", "_%_", "-_", "@in"}
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
            message = "patterns that cost too much; repeat less often, and leave out classes such as \\pL"
            yield Problem("expression_too_large", tree.at(node.parts[-1]), message)
            return
        found = _check(node, tree, fields, is_list_due=is_list_due)
        if found:
            yield found
        if node.kind == "call" or (node.kind == "list" and not found):
            is_in = node.word == "@in"
            stack += reversed([(part, is_in and number == 1) for number, part in enumerate(node.parts)])


def _check(node: Node, tree: Tree, fields: Mapping[str, FieldType], *, is_list_due: bool) -> Problem | None:
    code, message = "expression_not_allowed", ""
    if is_list_due and node.kind != "list":
        return Problem(code, tree.at(node), "in is followed by a list, such as [1, 2]")
    match node.kind:
        case "field":
            return _check_field(node, tree, fields)
        case "call":
            return _check_call(node, tree)
        case "loop":
            return _loop(tree.at(node))
        case "value" if node.word not in _CONSTANTS:
            message = _WRITE.get(node.word, f"{node.word} are not known here")
        case "name" if node.word != NOW:
            code, message = "unknown_field", _unknown(node.word, fields)
        case "list" if not is_list_due:
            message = "a list is allowed only on the right of in"
        case "list" if not node.parts:
            code, message = "expression_type", "the list is empty: nothing is in it"
        case "object":
            message = "maps and messages are not allowed"
    return Problem(code, tree.at(node), message) if message else None


def _loop(at: int) -> Problem:
    return Problem("expression_loops", at, "all, exists, exists_one, map and filter are not allowed")


def _check_field(node: Node, tree: Tree, fields: Mapping[str, FieldType]) -> Problem | None:
    at = tree.at(node)
    if node.is_test:
        return Problem("expression_not_allowed", at, "has is not allowed: who has no such field is never selected")
    if is_field(node):
        is_declared = node.word in fields
        return None if is_declared else Problem("unknown_field", at, _unknown(f"client.{node.word}", fields))
    inner = next(part for part in node.walk() if part.kind != "field")
    if inner.kind == "loop":
        return _loop(tree.at(inner))
    return Problem("unknown_field", tree.at(inner), f"{quoted('.' + node.word)} is no field; fields are client.NAME")


def _unknown(name: str, fields: Mapping[str, FieldType]) -> str:
    if name in fields:
        return f"{name} is unknown; write client.{name}"
    near = [f"client.{field}" for field in get_close_matches(name.removeprefix("client.")[:60], fields, n=3)]
    names = ", ".join([*(f"client.{field}" for field in sorted(fields)), NOW])
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {names[:_NAMES_CHARS_MAX]}"
    return f"{quoted(name)[1:-1]} is unknown; {hint}"


def _check_call(node: Node, tree: Tree) -> Problem | None:
    if node.word == "_[_]":
        return Problem("expression_not_allowed", tree.at(node), "indexes are not allowed; fields are client.NAME")
    if node.word not in (_MEMBERS if node.is_member else _GLOBALS | _OPERATORS):
        functions = ", ".join(sorted(_GLOBALS | _MEMBERS - GETTERS))
        message = f"{quoted(node.word)[1:-1]} is not allowed; there are {functions}, and get… of times"
        return Problem("expression_not_allowed", tree.at(node), message)
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
        message = f"a pattern of {len(pattern.value)} characters; at most {PATTERN_CHARS_MAX}"
        return Problem("expression_too_large", at, message)
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
