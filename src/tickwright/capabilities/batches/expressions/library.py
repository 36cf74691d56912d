"""The only module that imports CEL (``cel-expr-python``): parse, check, evaluate; its errors become ours here.

Two things of this library are worked around, both shown by tests: a text with a NUL reaches it cut there, and a
``datetime`` far from today can reach it a second off (it passes through a double). See :mod:`.judging`.
"""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from cel_expr_python import cel

from tickwright.capabilities.batches.expressions.bounds import too_deep
from tickwright.capabilities.batches.expressions.problems import Problem, is_too_deep, read_errors
from tickwright.capabilities.batches.expressions.tree import Tree, read_tree
from tickwright.ports.batches import FieldType

_TYPES = {
    "int": cel.Type.INT,
    "double": cel.Type.DOUBLE,
    "string": cel.Type.STRING,
    "bool": cel.Type.BOOL,
    "timestamp": cel.Type.TIMESTAMP,
}
NOW = "now"
_SYSTEM_ZONES = Path("/usr/share/zoneinfo")


def lend_zones(system: Path = _SYSTEM_ZONES) -> None:
    """Let CEL find the time zones that came with Python's ``tzdata`` where the system has none, as slim images do.

    The variable is for C++; Python does not read it. CEL remembers what it did not find, so this comes before its first
    question.
    """
    if not system.is_dir():
        os.environ.setdefault("TZDIR", str(resources.files("tzdata") / "zoneinfo"))


lend_zones()


class Unreadable(Exception):  # never leaves this package: compile_expression makes a Rejected of it
    """CEL refuses a text; ``problems`` say why."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems


def variable(field: str) -> str:
    """Return what a field is called in CEL."""
    return f"client.{field}"


def parse(text: str) -> Tree:
    """Return the tree of a text, without types.

    Raises:
        Unreadable: It is no expression.
    """
    return _compiled(_parser(), text, is_checked=False)[1]


def check(text: str, fields: Mapping[str, FieldType], *, now: FieldType = "timestamp") -> tuple[cel.Expression, Tree]:
    """Return a text ready to run, and its tree with types.

    Raises:
        Unreadable: Its types do not go together.
    """
    variables = {variable(name): _TYPES[kind] for name, kind in fields.items()}
    return _compiled(cel.NewEnv(variables={**variables, NOW: _TYPES[now]}), text, is_checked=True)


def _compiled(env: cel.Env, text: str, *, is_checked: bool) -> tuple[cel.Expression, Tree]:
    try:
        program = env.compile(text, disable_check=not is_checked)
    except RuntimeError as error:
        said = str(error)
        raise Unreadable([too_deep(text)] if is_too_deep(said) else read_errors(said, text)) from None
    return program, read_tree(program.serialize())


@lru_cache(maxsize=1)
def _parser() -> cel.Env:
    return cel.NewEnv(variables={})


@lru_cache(maxsize=1)
def _constants() -> Mapping[str, cel.Expression]:
    env = cel.NewEnv(variables={"a": cel.Type.STRING, "b": cel.Type.STRING, NOW: cel.Type.TIMESTAMP})
    texts = {
        "timestamp": "timestamp(a)",
        "timestamps": "timestamp(a) == timestamp(b)",
        "duration": "duration(a)",
        "durations": "duration(a) == duration(b)",
        "later": "timestamp(a) + duration(b)",
        "earlier": "timestamp(a) - duration(b)",
        "zone": 'timestamp("2026-01-01T00:00:00Z").getHours(a) >= 0',
        "matches": '"".matches(a)',
    }
    return {name: env.compile(text) for name, text in texts.items()}


def _constant(name: str, **texts: str) -> Any:
    value = _constants()[name].eval(data=texts)
    return None if value.type().name() == "ERROR" else value.value()


def is_zone(text: str) -> bool:
    """Whether CEL knows a time zone."""
    return _constant("zone", a=text) is True


def is_pattern(text: str) -> bool:
    """Whether RE2 takes a regular expression."""
    return _constant("matches", a=text) is not None


def read_instant(text: str) -> tuple[bool, datetime | None]:
    """Return whether ``timestamp(text)`` is a time, and the value where whole microseconds are all of it."""
    value = _constant("timestamp", a=text)
    if not isinstance(value, datetime):
        return False, None
    return True, value if _constant("timestamps", a=text, b=spelled(value)) is True else None


def is_span(text: str) -> bool:
    """Whether ``duration(text)`` is one."""
    return isinstance(_constant("duration", a=text), timedelta)


def moved(at: datetime, span: str, *, is_later: bool) -> datetime | None:
    """Return ``at`` plus or less ``duration(span)`` where CEL has an answer and whole microseconds are all of it."""
    value = _constant("duration", a=span)
    if (
        not isinstance(value, timedelta)
        or _constant("durations", a=span, b=f"{value // timedelta(microseconds=1)}us") is not True
    ):
        return None
    made = _constant("later" if is_later else "earlier", a=spelled(at), b=span)
    return made if isinstance(made, datetime) else None


def spelled(at: datetime) -> str:
    """Return an instant as CEL reads it without loss; one without a zone is UTC."""
    known = at if at.tzinfo else at.replace(tzinfo=UTC)
    return known.astimezone(UTC).isoformat()
