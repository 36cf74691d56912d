"""A compiled expression: it judges one client at a time, or becomes a condition in SQL.

A missing field is not passed to CEL, which makes it unknown, like NULL in SQL. Two defects of the library are handled
here. It cuts a text at a NUL, so a client with such a text is not judged. It converts an instant to a double, which may
change a distant one by a second (``9999-12-31T23:59:59.999999Z`` is common in data). Clients with such instants are
judged by a second program that gets instants as texts, which CEL reads exactly.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from cel_expr_python import cel

from tickwright.capabilities.batches.expressions import library
from tickwright.capabilities.batches.expressions.library import NOW, spelled, variable
from tickwright.capabilities.batches.expressions.sql import translate
from tickwright.capabilities.batches.expressions.tree import Tree
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import FieldType, SqlFilter, Verdict
from tickwright.ports.reports import Dialect

_UNKNOWN = "UNKNOWN: No value with name"
_NEAR_FROM, _NEAR_BELOW = 1700, 2200
"""Years in which a double of seconds is exact to a microsecond."""
_QUOTED = re.compile(r'".*"', re.DOTALL)
_REASONS = {
    "divide by zero": "it divides by zero",
    "modulus by zero": "it divides by zero",
    "overflow": "a number or time is too large",
    "out of int64 range": "a number is too large",
    "too big to convert": "a number is too large",
    "String to Timestamp": "a text is no time",
    "String to Duration": "a text is no duration",
    "cannot convert string": "a text is no number",
    "basic_string": "a text cannot be encoded",
}


class Expression:
    """A condition on clients: a :class:`tickwright.ports.batches.Judge`. Immutable."""

    def __init__(self, fields: Mapping[str, FieldType], program: cel.Expression, tree: Tree, exact_text: str) -> None:
        names = {node.word for node in tree.root.walk() if node.kind == "name"}
        self._program, self._tree, self._exact_text = program, tree, exact_text
        self._reads_now = NOW in names
        self._used = {name: kind for name, kind in fields.items() if variable(name) in names}
        self._variables = tuple((name, variable(name)) for name in self._used)
        self._texts = tuple(variable(name) for name, kind in self._used.items() if kind == "string")
        self._instants = tuple(variable(name) for name, kind in self._used.items() if kind == "timestamp")
        self._instants += (NOW,) if self._reads_now else ()

    @property
    def fields(self) -> Sequence[str]:
        """The fields that it reads, without ``client.``."""
        return tuple(self._used)

    def sql(self, dialect: Dialect, column: Callable[[str], str], now: datetime) -> SqlFilter | None:
        """Return the same condition in SQL; ``None`` when it could differ in some case."""
        return translate(self._tree, dialect, column, now)

    def judge(self, values: Mapping[str, Any], now: datetime) -> Verdict:
        """Judge one client; some 300,000 per second.

        Raises:
            Rejected: ``not_judged``, with the reason and no value. Permanent for this client.
        """
        data = {}
        for name, known in self._variables:
            value = values.get(name)
            if value is not None:
                data[known] = value
        if self._reads_now:
            data[NOW] = now
        for name in self._texts:
            if "\0" in data.get(name, ""):
                raise _not_judged("a text holds a NUL")
        if self._instants and not all(_is_near(data.get(name)) for name in self._instants):
            return self._decide(self._exact, self._spelled(data))
        return self._decide(self._program, data)

    def _spelled(self, data: dict[str, Any]) -> dict[str, Any]:
        try:
            return data | {name: spelled(data[name]) for name in self._instants if name in data}
        except OverflowError:
            raise _not_judged("a time is out of range") from None

    @cached_property
    def _exact(self) -> cel.Expression:
        kinds: dict[str, FieldType] = {
            name: "string" if kind == "timestamp" else kind for name, kind in self._used.items()
        }
        return library.check(self._exact_text, kinds, now="string")[0]

    def _decide(self, program: cel.Expression, data: dict[str, Any]) -> Verdict:
        try:
            value = program.eval(data=data).value()
        except (RuntimeError, UnicodeError) as error:
            raise _not_judged(str(error)) from None
        if value is True:
            return Verdict.SELECTED
        if value is False:
            return Verdict.NOT
        if isinstance(value, str) and value.startswith(_UNKNOWN):
            return Verdict.MISSING
        raise _not_judged(str(value))


def _is_near(at: datetime | None) -> bool:
    return at is None or _NEAR_FROM <= at.year < _NEAR_BELOW


def _not_judged(said: str) -> Rejected:
    """Return the refusal of a client; quoted parts are removed, because they may be its data."""
    reason = next((ours for theirs, ours in _REASONS.items() if theirs in said), None)
    return Rejected("not_judged", reason or _QUOTED.sub("…", said.partition(": ")[2] or said)[:200])
