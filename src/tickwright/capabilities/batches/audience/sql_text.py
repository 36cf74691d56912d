"""The SQL for an audience's source, made from its definition and the types of its columns; and the types of keys.

Text of an operator becomes a quoted identifier or, as one query, lines of its own; values are bound. The range
conditions and the order in which an audience is cut are the same comparison of the same database: in PostgreSQL the
column's own order, so that an index on the key is used whatever its collation; elsewhere the order of the bytes,
because a column that ignores case has a greatest value that its order does not have.

A key is a whole number of 64 bits, a text or a UUID.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tickwright.capabilities.batches.audience.schema import AudienceSettings
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import FieldType, SqlFilter
from tickwright.ports.reports import NOT_UTF8, Column, Dialect
from tickwright.store.queries import load

KeyKind = Literal["int", "text", "uuid"]
_SQL = load("tickwright.capabilities.batches.sql", "audience.sql")
_CASTS = load("tickwright.capabilities.batches.sql", "audience_casts.sql")
_GAP = re.compile(r"\{([a-z_]+)\}")
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_KEYS: Mapping[str, KeyKind] = {**dict.fromkeys(_INTEGERS, "int"), "VARCHAR": "text", "UUID": "uuid"}
_FAMILIES: Mapping[str, str] = {
    **dict.fromkeys((*_INTEGERS, "HUGEINT", "UBIGINT", "UHUGEINT"), "integer"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "float"),
    **dict.fromkeys(("TIMESTAMP", "DATE"), "local"),
    "DECIMAL": "decimal",
    "BOOLEAN": "boolean",
    "TIMESTAMPTZ": "zoned",
    "VARCHAR": "text",
}
_SAFE = ("string", "double_integer", "double_float", "bool_boolean", "postgresql_int_integer")
"""Casts that cannot fail."""


def key_kind(column: Column) -> KeyKind | None:
    """Return the kind of a key column; ``None`` for one that cannot be a key, or whose type only its values tell."""
    return _KEYS.get(column.type)


def cast_of(dialect: Dialect, wanted: FieldType, column: Column) -> str | None:
    """Return the name of the cast of a column to a field's type; ``None`` where there is none."""
    if dialect == "sqlite":
        return "sqlite"
    if wanted == "string":
        return f"{dialect}_string"
    family = "" if column.type.endswith("]") else _FAMILIES.get(column.type.partition("(")[0], "")
    if wanted == "int" and family in {"float", "decimal"}:
        family = "number"
    name = f"{dialect}_{wanted}_{family}"
    return name if name in _CASTS else None


class Statement(NamedTuple):
    """SQL with its values by name."""

    sql: str
    values: Mapping[str, Any] = {}


class AudienceSql:
    """The statements of one audience.

    Args:
        table: The table of a file; ``None``: the table or the query of the definition.
        place: A column of whole numbers in the order of the key, of a file; ranges are ranges of it.
    """

    def __init__(
        self, settings: AudienceSettings, dialect: Dialect, *, table: str | None = None, place: str | None = None
    ) -> None:
        self._settings, self._dialect = settings, dialect
        name = table or settings.table
        query = _fill("query", query=settings.query or "")
        self._members = ".".join(map(_identifier, name.split("."))) if name else query
        self._key = f"m.{_identifier(settings.key)}"
        self._place = f"m.{_identifier(place)}" if place is not None else self._key

    def columns(self) -> Statement:
        """Return the statement for the columns, without a row."""
        return Statement(_fill("columns", members=self._members))

    def cut(self, kind: KeyKind | None, rows: int) -> Statement:
        """Return the statement for the last key of each range of ``rows``, its members, and the types of its keys."""
        return Statement(_fill("cut", **self._cutting(kind)), {"rows": rows})

    def try_key(self, kind: KeyKind | None) -> Statement:
        """Return the same statement over no members, to check that it can run."""
        return Statement(_fill("try_key", **self._cutting(kind)))

    def count_keyless(self) -> Statement:
        """Return the statement for the number of members without a key."""
        return Statement(_fill("count_keyless", members=self._members, key=self._key))

    def _cutting(self, kind: KeyKind | None) -> dict[str, str]:
        order, types, until = "k", "NULL, NULL", "max(k)"
        if self._dialect == "sqlite":
            order, until, types = "k COLLATE BINARY", "max(k COLLATE BINARY)", "min(typeof(k)), max(typeof(k))"
        elif kind == "uuid":
            text = "k::text" if self._dialect == "postgresql" else "CAST(k AS VARCHAR)"
            until = f'max({text} COLLATE "C")'
        elif kind == "text" and self._dialect == "duckdb":
            order, until = 'k COLLATE "C"', 'max(k COLLATE "C")'
        return {"order": order, "until": until, "types": types, "place": self._place, "members": self._members}

    def range(self, kind: KeyKind, after: Any, until: Any) -> Statement:
        """Return the condition of a range, ``after`` excluded where it is not ``None`` and ``until`` included."""
        place, mark = self._place, "{}"
        if self._dialect == "sqlite":
            place = f"{place} COLLATE BINARY"
        elif self._dialect == "duckdb" and kind == "text":
            place = f'{place} COLLATE "C"'
        elif self._dialect == "duckdb":
            mark = "CAST({} AS UUID)" if kind == "uuid" else "CAST({} AS BIGINT)"
        marks = {"after_value": mark.format(":after"), "until_value": mark.format(":until")}
        if after is None:
            return Statement(_fill("first_range", place=place, **marks), {"until": until})
        return Statement(_fill("range", place=place, **marks), {"after": after, "until": until})

    def with_key(self) -> Statement:
        """Return the condition of all members that have a key."""
        return Statement(_fill("with_key", key=self._key))

    def no_member(self) -> Statement:
        """Return the condition of no member."""
        return Statement(_fill("no_member"))

    def read(self, members: Statement, types: Sequence[Column], *, in_order: bool = False) -> Statement:
        """Return the statement for members with their fields; with ``in_order`` in the order of their keys as text."""
        fields = self._fields("fields", members, types)
        order = "k COLLATE BINARY" if self._dialect == "sqlite" else 'k COLLATE "C"'
        name = "read_in_order" if in_order else "read"
        sql = _fill(name, outputs=self._outputs(), fields=fields, order=order)
        return Statement(sql, members.values)

    def select(self, members: Statement, types: Sequence[Column], condition: SqlFilter) -> Statement:
        """Return the statement for the selected ones of these members, with their fields, and a row of counts."""
        judged = self._fields("judged", members, types, condition)
        nulls = ", NULL" * (len(self._settings.fields) + len(self._settings.columns))
        return Statement(
            _fill("select", judged=judged, outputs=self._outputs(), nulls=nulls), {**members.values, **condition.values}
        )

    def counting(self, types: Sequence[Column], condition: SqlFilter, name: str, limit: int = 0) -> Statement:
        """Return the statement ``count``, ``examples`` or ``bad_examples`` over all members."""
        judged = self._fields("judged", Statement(_fill("all")), types, condition)
        return Statement(_fill(name, judged=judged, outputs=self._outputs(), limit=str(limit)), condition.values)

    def column(self, name: str) -> str:
        """Return the SQL of a field, of its declared type, for a condition."""
        return f"c.f{list(self._settings.types).index(name)}"

    def _outputs(self) -> str:
        fields, columns = len(self._settings.fields), len(self._settings.columns)
        return "".join([*(f", f{at}" for at in range(fields)), *(f", c{at}" for at in range(columns))])

    def _fields(
        self, name: str, members: Statement, types: Sequence[Column], condition: SqlFilter | None = None
    ) -> str:
        by_name = {column.name: column for column in types}
        columns, tested = [], []
        for at, field in enumerate(self._settings.fields):
            cast = cast_of(self._dialect, field.type, by_name[field.column]) or ""
            source = f"m.{_identifier(field.column)}"
            columns.append(f"{_fill(cast, c=source)} AS f{at}")
            if self._dialect != "sqlite" and not cast.endswith(_SAFE):
                columns.append(f"{source} AS r{at}")
                tested.append(_fill("bad_when", at=str(at), field=field.name))
        columns += [f"m.{_identifier(name)} AS c{at}" for at, name in enumerate(self._settings.columns)]
        return _fill(
            name,
            bad=_fill("bad", whens=" ".join(tested)) if tested else _fill("never_bad"),
            text=_fill(f"{self._dialect}_text", key=self._key),
            columns="".join(f", {column}" for column in columns),
            members=self._members,
            range=members.sql,
            filter=condition.sql if condition else "",
        )


def _fill(name: str, /, **gaps: str) -> str:
    """Fill the gaps of a template; gaps in the texts that are put in are left."""
    body = (_SQL if name in _SQL else _CASTS)[name].partition("\n")[2]
    return _GAP.sub(lambda gap: gaps[gap[1]], body)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


BOUND_CHARS_MAX = 8_192
_KINDS: Mapping[str, KeyKind] = {"integer": "int", "text": "text"}


def invalid_key(settings: AudienceSettings, kind: str) -> Rejected:
    """Return the error of a key whose type cannot be cut."""
    why = f"{settings.key} is {kind.lower()}; a key is a whole number of 64 bits, a text or a UUID"
    return _invalid(f"audience.key: {why}; write a query that casts it")


def _invalid(problem: str) -> Rejected:
    return Rejected("invalid_audience", problem, problems=[problem])


def same_kind(kind: KeyKind | None, types: Sequence[Any], settings: AudienceSettings) -> KeyKind:
    """Return the kind of the keys; where the source has types per value, all keys must have one.

    ``kind`` is of the ranges before, ``None`` for the first range of SQLite; ``types`` are the least and the greatest
    one of the keys of a range, in SQLite.

    Raises:
        Rejected: ``invalid_audience``. Permanent.
    """
    least, greatest = types
    if least is None:
        assert kind is not None  # noqa: S101  # only SQLite has types per value
        return kind
    if least != greatest or kind not in {None, _KINDS.get(least)} or least not in _KINDS:
        raise invalid_key(settings, least if least == greatest else f"{least} and {greatest}")
    return _KINDS[least]


def as_bound(key: Any) -> Any:
    """Return a key as the end of a range, which PostgreSQL keeps as JSON.

    Raises:
        Rejected: ``invalid_audience``: PostgreSQL cannot keep it. Permanent.
    """
    if key is NOT_UTF8:
        raise _invalid("audience.key: a key at the end of a chunk is not UTF-8")
    if isinstance(key, str) and ("\0" in key or len(key) > BOUND_CHARS_MAX):
        shown = key[:100].replace("\0", "\\u0000")
        raise _invalid(f"audience.key: the key {shown} has a NUL character or more than {BOUND_CHARS_MAX} characters")
    return key
