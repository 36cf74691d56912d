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
from tickwright.capabilities.batches.expressions.library import NOW, moved, read_instant, spelled, variable
from tickwright.capabilities.batches.expressions.tree import Node, Tree
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import FieldType, SqlFilter, Verdict
from tickwright.ports.reports import Dialect
from tickwright.store.queries import load

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
        return _translate(self._tree, dialect, column, now)

    def judge(self, values: Mapping[str, Any], now: datetime) -> Verdict:
        """Judge one client; some 300,000 per second.

        Raises:
            Rejected: ``not_judged``, with the reason and no value. Permanent for this client.
        """
        data = {}
        for name, variable_name in self._variables:
            value = values.get(name)
            if value is not None:
                data[variable_name] = value
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
        texts: dict[str, FieldType] = {name: "string" for name, kind in self._used.items() if kind == "timestamp"}
        return library.check(self._exact_text, self._used | texts, now="string")[0]

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


def _not_judged(error: str) -> Rejected:
    """Return the refusal of a client; quoted parts are removed, because they may be its data."""
    reason = next((ours for theirs, ours in _REASONS.items() if theirs in error), None)
    return Rejected("not_judged", reason or _QUOTED.sub("…", error.partition(": ")[2] or error)[:200])


_SQL = load("tickwright.capabilities.batches.sql", "expressions.sql")
DIALECTS: frozenset[Dialect] = frozenset({"postgresql", "duckdb"})
"""SQLite has no lists, instants or NaN."""
_TEMPLATES = {name: text.partition("\n")[2] for name, text in _SQL.items()}
_SIGNS = {"_==_": "=", "_!=_": "<>", "_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TYPES = {
    "int": "bigint",
    "double": "double precision",
    "string": "text",
    "bool": "boolean",
    "timestamp": "timestamptz",
}
_TEXTS = {"startsWith": "starts", "endsWith": "ends", "contains": "contains"}
_PLAIN = {"_&&_": "both", "_||_": "either", "!_": "negated", "_?_:_": "chosen", "size": "size", "double": "doubled"}


def _translate(tree: Tree, dialect: Dialect, column: Callable[[str], str], now: datetime) -> SqlFilter | None:
    """Return a checked tree as SQL, or ``None`` when the SQL could differ for some client.

    Values are bound. Only nodes that cannot fail and have the same meaning are translated. Differences are corrected:
    texts compare by code points, NaN is not the greatest number, NULL is unknown on both sides. Not translated:
    arithmetic, conversions except ``double(client.INT)``, regular expressions, parts of a time, literals finer than a
    microsecond, and texts with a NUL, which PostgreSQL cannot store. ``now - client.at > duration("1h")`` is not
    translated, because CEL fails beyond 292 years; ``client.at < now - duration("1h")`` is.

    Invariants:
        EXP-3: for every client the SQL is true, false or NULL when :meth:`.Expression.judge` returns selected, not, or
            missing.
    """
    if dialect not in DIALECTS:
        return None
    writer = _Writer(tree.types, column, now)
    try:
        return SqlFilter(writer.write(tree.root), writer.values)
    except _Other:
        return None


class _Other(Exception):
    """A node without an equivalent in SQL."""


class _Writer:
    def __init__(self, types: Mapping[int, str], column: Callable[[str], str], now: datetime) -> None:
        self._types, self._column, self._now = types, column, now
        self.values: dict[str, Any] = {}

    def write(self, node: Node) -> str:
        """Return a node as SQL of its type."""
        if node.kind == "name" and node.word != NOW:
            return self._typed(f"({self._column(node.word.removeprefix('client.'))})", self._types.get(node.id))
        if node.kind == "value":
            return self._typed(self._bound(node.value, _TYPES.get(node.word)), node.word)
        if self._types.get(node.id) == "timestamp" and node.word != "_?_:_":
            return self._bound(self._instant(node), _TYPES["timestamp"])
        if node.kind != "call":
            raise _Other
        return self._write_call(node)

    def _write_call(self, node: Node) -> str:
        parts = node.parts
        if node.word in _SIGNS:
            return self._compared(node)
        if node.word in _TEXTS:
            return self._about_text(node)
        if node.word == "@in":
            return self._among(parts[0], parts[1])
        if not self._is_plain(node):
            raise _Other
        names = ("condition", "left", "right") if len(parts) == 3 else ("left", "right")
        return _TEMPLATES[_PLAIN[node.word]].format(**dict(zip(names, map(self.write, parts), strict=False)))

    def _is_plain(self, node: Node) -> bool:
        first = node.parts[0]
        if node.word == "size":
            return self._types.get(first.id) == "string"
        if node.word == "double":
            return _is_field(first) and self._types.get(first.id) == "int"
        return node.word in _PLAIN

    def _typed(self, sql: str, kind: str | None) -> str:
        return _TEMPLATES["text"].format(left=sql) if kind == "string" else sql

    def _bound(self, value: Any, kind: str | None) -> str:
        if kind is None:
            raise _Other
        return _TEMPLATES["bound"].format(value=f":{self._put(value)}", type=kind)

    def _put(self, value: Any) -> str:
        if any(isinstance(item, str) and "\0" in item for item in (value if isinstance(value, list) else [value])):
            raise _Other
        name = f"e{len(self.values)}"
        self.values[name] = value
        return name

    def _compared(self, node: Node) -> str:
        sign, (left, right) = _SIGNS[node.word], node.parts
        kind = self._types.get(left.id)
        if kind == "double":
            return self._compared_doubles(left, sign, right)
        if kind not in _TYPES or self._types.get(right.id) != kind:
            raise _Other
        return _TEMPLATES["compared"].format(left=self.write(left), sign=sign, right=self.write(right))

    def _compared_doubles(self, left: Node, sign: str, right: Node) -> str:
        """Compare doubles. Operands are repeated in the text, so only short ones are translated."""
        for side in (left, right):
            if not (side.kind in {"value", "name"} or side.word == "double"):
                raise _Other
        name, more = "compared", {"left": self.write(left), "sign": sign, "right": self.write(right)}
        if right.kind != "value" and left.kind != "value" and (_is_field(left) or _is_field(right)):
            name, more["unequal"] = "compared_doubles", "TRUE" if sign == "<>" else "FALSE"
        elif _is_field(left) or _is_field(right):
            more["number"], towards = (more["left"], sign) if _is_field(left) else (more["right"], _MIRRORED[sign])
            name = "compared_below" if towards in {">", ">="} else "compared"
        return _TEMPLATES[name].format(**more)

    def _among(self, left: Node, listed: Node) -> str:
        kind = self._types.get(left.id, "")
        if kind not in _TYPES or any(self._types.get(item.id) != kind for item in listed.parts):
            raise _Other
        if kind != "timestamp" and any(item.kind != "value" for item in listed.parts):
            raise _Other
        values = [self._instant(item) if kind == "timestamp" else item.value for item in listed.parts]
        name = self._put(values)
        return _TEMPLATES["among"].format(left=self.write(left), values=f":{name}", type=_TYPES[kind])

    def _about_text(self, node: Node) -> str:
        if len(node.parts) != 2 or node.parts[1].kind != "value":
            raise _Other
        left, right = self.write(node.parts[0]), self.write(node.parts[1])
        return _TEMPLATES[_TEXTS[node.word]].format(left=left, right=right)

    def _instant(self, node: Node) -> datetime:
        """Return an instant that is the same for every client."""
        if node.kind == "name" and node.word == NOW:
            return self._now
        parts = node.parts
        if node.word == "timestamp" and len(parts) == 1 and isinstance(parts[0].value, str):
            instant = read_instant(parts[0].value)[1]
            if instant is not None:
                return instant
        if node.word in {"_+_", "_-_"}:
            base, span = parts if parts[1].word == "duration" else parts[::-1]
            if span.word == "duration" and isinstance(span.parts[0].value, str):
                instant = moved(self._instant(base), span.parts[0].value, is_later=node.word == "_+_")
                if instant is not None:
                    return instant
        raise _Other


def _is_field(node: Node) -> bool:
    return node.kind == "name" and node.word != NOW
