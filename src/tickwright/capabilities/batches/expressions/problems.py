"""Mistakes in an expression: a stable code, what to write instead, and the place in the user's own text."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tickwright.domain.errors import Rejected

PROBLEMS_MAX = 20
_SHOWN_CHARS_MAX = 100


class Problem(NamedTuple):
    """A mistake at ``offset``, in characters from 0."""

    code: str
    offset: int
    message: str


def place_of(text: str, offset: int) -> tuple[int, int]:
    """Return line and column of the character at ``offset``, both from 1."""
    start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - start + 1


def offset_of(text: str, line: int, column: int) -> int:
    """Return the offset of a place; a place outside the text gets the nearest offset in it."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1 or len(text)
    return max(0, min(start + column - 1, len(text)))


def refused(text: str, problems: Iterable[Problem]) -> Rejected:
    """Return the error for an expression; its message is the first mistake, and ``problems`` has all, 20 at most.

    Its details are ``field``, ``line`` and ``column`` from 1, ``offset`` in characters from 0, and ``problems``, each
    with ``code``, ``message`` and the same three. Permanent.
    """
    ordered = sorted(set(problems), key=lambda problem: (problem.offset, problem.code))[:PROBLEMS_MAX]
    told = [_told(text, problem) for problem in ordered]
    first = told[0]
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    message = f"line {first['line']}, column {first['column']}: {first['message']}{more}"
    place = {name: first[name] for name in ("line", "column", "offset")}
    return Rejected(first["code"], message, field="expression", **place, problems=told)


def _told(text: str, problem: Problem) -> dict[str, Any]:
    line, column = place_of(text, problem.offset)
    place = {"line": line, "column": column, "offset": problem.offset}
    return {"code": problem.code, "message": problem.message, **place}


def explain_problem(text: str, problem: Mapping[str, Any]) -> str:
    """Return a mistake as three lines for a terminal: the message, the line of the text, and a caret below its place.

    ``problem`` is one of ``problems`` of the refusal, or its details: ``message``, ``line`` and ``column``.
    """
    line, column = int(problem["line"]), int(problem["column"])
    lines = text.split("\n")
    shown = lines[line - 1] if line <= len(lines) else ""
    start = max(0, min(column - 1, len(shown)) - _SHOWN_CHARS_MAX // 2)
    cut = "".join(one if one.isprintable() else " " for one in shown[start : start + _SHOWN_CHARS_MAX])
    said = (
        f"line {line}, column {column}: {problem['message']}"
        if "message" in problem
        else f"line {line}, column {column}"
    )
    return f"{said}\n  {cut}\n  {' ' * (column - 1 - start)}^"


_ERROR = re.compile(r"^(?:INVALID_ARGUMENT: )?ERROR: <input>:(\d+):(\d+): (.*)$", re.MULTILINE)
_OVERLOAD = re.compile(r"found no matching overload for '(.*)' applied to '(.*)'")
_UNEXPECTED = re.compile(r"Syntax error: (?:mismatched|extraneous) input '(.*)' expecting .*", re.DOTALL)
_TOKEN = re.compile(r"Syntax error: (?:token recognition error at:|no viable alternative at input) '(.*)'", re.DOTALL)
_TYPES = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration", "null_type": "null"}
_INSTEAD = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "=": "==",
    "<>": "!=",
    "&": "&&",
    "|": "||",
    "is": "==",
    "like": "contains",
}
_DEEP = ("recursion limit", "recursion depth")


def is_too_deep(said: str) -> bool:
    """Return whether CEL refused a text because of its depth; such an error has no place."""
    return any(word in said for word in _DEEP)


def read_errors(said: str, text: str) -> list[Problem]:
    """Return the mistakes in CEL's error for ``text``, with messages of this package."""
    found = []
    for line, column, message in _ERROR.findall(said):
        if int(line) <= text.count("\n") + 1:
            offset = offset_of(text, int(line), int(column))
            found.append(_read(message.removesuffix(" [INVALID_ARGUMENT]"), offset, text))
    return found or [Problem("expression_syntax", 0, "this is no expression")]


def _read(message: str, offset: int, text: str) -> Problem:
    overload = _OVERLOAD.fullmatch(message)
    if overload:
        return Problem("expression_type", offset, _clash(overload[1], overload[2]))
    return Problem("expression_syntax", offset, _syntax(message, offset, text))


def _clash(function: str, types: str) -> str:
    for theirs, ours in _TYPES.items():
        types = types.replace(theirs, ours)
    sign = function.strip("_@")
    if "int" in types and "double" in types:
        return f"{sign} does not mix int and double; write double(client.FIELD), or numbers without a point"
    return f"{sign} does not take {types}"


def _syntax(message: str, offset: int, text: str) -> str:
    word = _word_at(text, offset)
    if word.lower() in _INSTEAD:
        return f"{word} is not expected here; write {_INSTEAD[word.lower()]}"
    unexpected = _UNEXPECTED.fullmatch(message) or _TOKEN.fullmatch(message)
    if offset >= len(text):
        return "something is missing at the end"
    if unexpected:
        return f"{unexpected[1][:_SHOWN_CHARS_MAX]} is not expected here"
    if message.startswith("invalid"):
        return f"{message}; whole numbers have 64 bits"
    return message.removeprefix("Syntax error: ")[:500]


def _word_at(text: str, offset: int) -> str:
    found = re.compile(r"\w+|[=<>&|]+").match(text, offset)
    return found[0] if found else ""
