"""Mistakes in an expression: a stable code, what to write instead, and the place in the user's own text."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tickwright.domain.errors import Rejected

PROBLEMS_MAX = 20
DEPTH_MAX = 24
_SHOWN_CHARS_MAX = 100


class Problem(NamedTuple):
    """A mistake at ``offset``, in characters from 0."""

    code: str
    offset: int
    message: str


def _place_of(text: str, offset: int) -> dict[str, int]:
    """Return the place of the character at ``offset``; line and column are from 1."""
    start = text.rfind("\n", 0, offset) + 1
    return {"line": text.count("\n", 0, offset) + 1, "column": offset - start + 1, "offset": offset}


def _offset_of(text: str, line: int, column: int) -> int:
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
    details: list[dict[str, Any]] = [
        {"code": problem.code, "message": problem.message, **_place_of(text, problem.offset)} for problem in ordered
    ]
    first = details[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    message = f"line {first['line']}, column {first['column']}: {first['message']}{more}"
    place = {name: first[name] for name in ("line", "column", "offset")}
    return Rejected(first["code"], message, field="expression", **place, problems=details)


def explain_problem(text: str, problem: Mapping[str, Any]) -> str:
    """Return a mistake as three lines for a terminal: the message, the line of the text, and a caret below its place.

    ``problem`` is one of ``problems`` of the refusal, or its details: ``message``, ``line`` and ``column``.
    """
    line, column = int(problem["line"]), int(problem["column"])
    lines = text.split("\n")
    shown = lines[line - 1] if line <= len(lines) else ""
    start = max(0, min(column - 1, len(shown)) - _SHOWN_CHARS_MAX // 2)
    cut = "".join(char if char.isprintable() else " " for char in shown[start : start + _SHOWN_CHARS_MAX])
    message = f": {problem['message']}" if "message" in problem else ""
    return f"line {line}, column {column}{message}\n  {cut}\n  {' ' * (column - 1 - start)}^"


_ERROR = re.compile(r"^(?:INVALID_ARGUMENT: )?ERROR: <input>:(\d+):(\d+): (.*)$", re.MULTILINE)
_OVERLOAD = re.compile(r"found no matching overload for '(.*)' applied to '(.*)'")
_UNEXPECTED = re.compile(r"Syntax error: (?:mismatched|extraneous) input '(.*)' expecting .*", re.DOTALL)
_TOKEN = re.compile(r"Syntax error: (?:token recognition error at:|no viable alternative at input) '(.*)'", re.DOTALL)
_WORD = re.compile(r"\w+|[=<>&|]+")
_TYPES = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration", "null_type": "null"}
_INSTEAD = {"and": "&&", "or": "||", "not": "!", "=": "==", "<>": "!=", "&": "&&", "|": "||", "is": "=="}
_INSTEAD["like"] = "contains"
_DEEP = ("recursion limit", "recursion depth")


def read_errors(error: str, text: str) -> list[Problem]:
    """Return the mistakes in CEL's error for ``text``, with messages of this package."""
    if any(phrase in error for phrase in _DEEP):  # such an error has no place
        return [_too_deep(text)]
    found = []
    for line, column, message in _ERROR.findall(error):
        if int(line) <= text.count("\n") + 1:
            offset = _offset_of(text, int(line), int(column))
            found.append(_read(message.removesuffix(" [INVALID_ARGUMENT]"), offset, text))
    return found or [Problem("expression_syntax", 0, "this is no expression")]


def _read(message: str, offset: int, text: str) -> Problem:
    if overload := _OVERLOAD.fullmatch(message):
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
    word = _WORD.match(text, offset)
    if word and (instead := _INSTEAD.get(word[0].lower())):
        return f"{word[0]} is not expected here; write {instead}"
    if offset >= len(text):
        return "something is missing at the end"
    if unexpected := _UNEXPECTED.fullmatch(message) or _TOKEN.fullmatch(message):
        return f"{unexpected[1][:_SHOWN_CHARS_MAX]} is not expected here"
    if message.startswith("invalid"):
        return f"{message}; whole numbers have 64 bits"
    return message.removeprefix("Syntax error: ")[:500]


_PIECE = re.compile(
    r"""
      [rR]?(?:\"{3}.*?\"{3}|'{3}.*?'{3})
    | [rR](?:"[^"\n]*"|'[^'\n]*')
    | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
    | //[^\n]*
    | [(\[{] | [)\]}]
    """,
    re.VERBOSE | re.DOTALL,
)


def _too_deep(text: str) -> Problem:
    """Return the refusal of a text that is too deep for CEL, at the bracket that exceeds the bound."""
    depth = 0
    for piece in _PIECE.finditer(text):
        depth += (piece[0] in "([{") - (piece[0] in ")]}")
        if depth > DEPTH_MAX:
            return deep(piece.start())
    return deep(0)


def deep(offset: int) -> Problem:
    """Return the refusal of a depth, at this offset."""
    return Problem("expression_too_large", offset, f"more than {DEPTH_MAX} levels; write less inside of each other")
