"""The only module that imports CEL (``cel-expr-python``): it parses, checks and evaluates, and converts CEL's errors.

Two defects of the library are avoided, both shown by tests: it cuts a text at a NUL, and it may read a ``datetime``
far from today with an error of a second, because it converts it to a double. See :mod:`.judging`.
"""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from cel_expr_python import cel

from tickwright.capabilities.batches.expressions.problems import Problem, read_errors
from tickwright.capabilities.batches.expressions.tree import Tree, read_tree
from tickwright.ports.batches import FieldType

_TYPES = {name: getattr(cel.Type, name.upper()) for name in get_args(FieldType)}
NOW = "now"
_SYSTEM_ZONES = Path("/usr/share/zoneinfo")


def lend_zones(system: Path = _SYSTEM_ZONES) -> None:
    """Point CEL to the time zones of Python's ``tzdata`` when the system has none, as in slim images.

    The variable is for C++; Python does not read it. CEL caches a zone that it did not find, so this runs before its
    first evaluation.
    """
    if not system.is_dir():
        os.environ.setdefault("TZDIR", str(resources.files("tzdata") / "zoneinfo"))


lend_zones()


class Unreadable(Exception):  # internal to this package: compile_expression converts it to Rejected
    """CEL refuses a text; ``problems`` are its reasons."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems


def variable(field: str) -> str:
    """Return the name of a field in CEL."""
    return f"client.{field}"


def parse(text: str) -> Tree:
    """Return the tree of a text, without types.

    Raises:
        Unreadable: It is not an expression.
    """
    return _compiled(_parser(), text, is_checked=False)[1]


def check(text: str, fields: Mapping[str, FieldType], *, now: FieldType = "timestamp") -> tuple[cel.Expression, Tree]:
    """Return a program that can be evaluated, and its tree with types.

    Raises:
        Unreadable: Its types do not go together.
    """
    variables = {variable(name): _TYPES[kind] for name, kind in fields.items()}
    return _compiled(cel.NewEnv(variables={**variables, NOW: _TYPES[now]}), text, is_checked=True)


def _compiled(env: cel.Env, text: str, *, is_checked: bool) -> tuple[cel.Expression, Tree]:
    try:
        program = env.compile(text, disable_check=not is_checked)
    except RuntimeError as error:
        raise Unreadable(read_errors(str(error), text)) from None
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
    """Return whether CEL knows a time zone."""
    return _constant("zone", a=text) is True


def is_pattern(text: str) -> bool:
    """Return whether RE2 accepts a regular expression."""
    return _constant("matches", a=text) is not None


def read_instant(text: str) -> tuple[bool, datetime | None]:
    """Return whether ``timestamp(text)`` is a time, and its value if that has whole microseconds."""
    value = _constant("timestamp", a=text)
    if not isinstance(value, datetime):
        return False, None
    return True, value if _constant("timestamps", a=text, b=spelled(value)) is True else None


def is_span(text: str) -> bool:
    """Return whether ``duration(text)`` is a duration."""
    return isinstance(_constant("duration", a=text), timedelta)


def moved(at: datetime, span: str, *, is_later: bool) -> datetime | None:
    """Return ``at`` plus or minus ``duration(span)``; ``None`` when CEL fails or the span has no whole microseconds."""
    value = _constant("duration", a=span)
    whole = f"{value // timedelta(microseconds=1)}us" if isinstance(value, timedelta) else None
    if whole is None or _constant("durations", a=span, b=whole) is not True:
        return None
    made = _constant("later" if is_later else "earlier", a=spelled(at), b=span)
    return made if isinstance(made, datetime) else None


def spelled(at: datetime) -> str:
    """Return an instant as a text that CEL reads without loss; one without a zone is UTC."""
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
