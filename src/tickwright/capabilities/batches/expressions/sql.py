"""The same condition in SQL, from the tree that CEL checked: only nodes that cannot fail and have the same meaning.

Values are bound, never written into the text. Differences are corrected: texts compare by code points, NaN is not the
greatest number, NULL is unknown on both sides. Not translated: arithmetic, conversions except ``double(client.INT)``,
regular expressions, parts of a time, literals finer than a microsecond, and texts with a NUL, which PostgreSQL cannot
store. ``now - client.at > duration("1h")`` is not translated, because CEL fails beyond 292 years; ``client.at < now -
duration("1h")`` is.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from tickwright.capabilities.batches.expressions.library import NOW, moved, read_instant
from tickwright.capabilities.batches.expressions.tree import Node, Tree
from tickwright.ports.batches import SqlFilter
from tickwright.ports.reports import Dialect
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.batches.sql", "expressions.sql")
DIALECTS: frozenset[Dialect] = frozenset({"postgresql", "duckdb"})
"""SQLite has no lists, instants or NaN."""
_Q = {name: text.partition("\n")[2] for name, text in _SQL.items()}
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


def translate(tree: Tree, dialect: Dialect, column: Callable[[str], str], now: datetime) -> SqlFilter | None:
    """Return a checked tree as SQL, or ``None`` when the SQL could differ for some client.

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
        words = ("condition", "left", "right") if len(parts) == 3 else ("left", "right")
        return _Q[_PLAIN[node.word]].format(**dict(zip(words, map(self.write, parts), strict=False)))

    def _is_plain(self, node: Node) -> bool:
        first = node.parts[0]
        if node.word == "size":
            return self._types.get(first.id) == "string"
        if node.word == "double":
            return _is_field(first) and self._types.get(first.id) == "int"
        return node.word in _PLAIN

    def _typed(self, sql: str, kind: str | None) -> str:
        return _Q["text"].format(left=sql) if kind == "string" else sql

    def _bound(self, value: Any, kind: str | None) -> str:
        values = value if isinstance(value, list) else [value]
        if kind is None or any(isinstance(one, str) and "\0" in one for one in values):
            raise _Other
        name = f"e{len(self.values)}"
        self.values[name] = value
        return _Q["bound"].format(value=f":{name}", type=kind)

    def _compared(self, node: Node) -> str:
        sign, (left, right) = _SIGNS[node.word], node.parts
        kind = self._types.get(left.id)
        if kind == "double":
            return self._compared_doubles(left, sign, right)
        if kind not in _TYPES or self._types.get(right.id) != kind:
            raise _Other
        return _Q["compared"].format(left=self.write(left), sign=sign, right=self.write(right))

    def _compared_doubles(self, left: Node, sign: str, right: Node) -> str:
        """Compare doubles. Operands are repeated in the text, so only short ones are translated."""
        for side in (left, right):
            if not (side.kind in {"value", "name"} or side.word == "double"):
                raise _Other
        one, other = self.write(left), self.write(right)
        if not (_is_field(left) or _is_field(right)):
            return _Q["compared"].format(left=one, sign=sign, right=other)
        if right.kind != "value" and left.kind != "value":
            unequal = "TRUE" if sign == "<>" else "FALSE"
            return _Q["compared_doubles"].format(left=one, sign=sign, right=other, unequal=unequal)
        number, towards = (one, sign) if _is_field(left) else (other, _MIRRORED[sign])
        text = _Q["compared_below" if towards in {">", ">="} else "compared"]
        return text.format(left=one, sign=sign, right=other, number=number)

    def _among(self, left: Node, listed: Node) -> str:
        kind = self._types.get(left.id, "")
        if kind not in _TYPES or any(self._types.get(one.id) != kind for one in listed.parts):
            raise _Other
        values = [self._instant(one) if kind == "timestamp" else _literal(one) for one in listed.parts]
        name = f"e{len(self.values)}"
        self.values[name] = values
        if any(isinstance(one, str) and "\0" in one for one in values):
            raise _Other
        return _Q["among"].format(left=self.write(left), values=f":{name}", type=_TYPES[kind])

    def _about_text(self, node: Node) -> str:
        if len(node.parts) != 2 or node.parts[1].kind != "value":
            raise _Other
        left, right = self.write(node.parts[0]), self.write(node.parts[1])
        return _Q[_TEXTS[node.word]].format(left=left, right=right)

    def _instant(self, node: Node) -> datetime:
        """Return an instant that is the same for every client."""
        if node.kind == "name" and node.word == NOW:
            return self._now
        parts = node.parts
        if node.word == "timestamp" and len(parts) == 1 and isinstance(parts[0].value, str):
            known = read_instant(parts[0].value)[1]
            if known is not None:
                return known
        if node.word in {"_+_", "_-_"}:
            base, span = parts if parts[1].word == "duration" else parts[::-1]
            if span.word == "duration" and isinstance(span.parts[0].value, str):
                known = moved(self._instant(base), span.parts[0].value, is_later=node.word == "_+_")
                if known is not None:
                    return known
        raise _Other


def _is_field(node: Node) -> bool:
    return node.kind == "name" and node.word != NOW


def _literal(node: Node) -> Any:
    if node.kind != "value":
        raise _Other
    return node.value
