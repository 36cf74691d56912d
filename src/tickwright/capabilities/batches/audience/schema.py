"""The definition of an audience: where its members are, their key, and their fields.

::

    {"source": "crm",                   # as in [sources.crm]
     "table": "public.clients",         # or "query": "SELECT …"
     "key": "id",                       # identifies a member: a whole number, a text or a UUID
     "fields": {"age": "int", "tel": {"type": "string", "column": "phone"}},
     "columns": ["email"]}              # for actions only; expressions do not read them

    {"file": "audiences/clients.csv", "key": "id", "fields": {"age": "int"}}     # or .parquet, in the object store

A field is ``int``, ``double``, ``string``, ``bool`` or ``timestamp``. A query is one SELECT without placeholders. It
runs once to cut the audience and once for each chunk, so a query that the database cannot narrow by its key is read as
often as there are chunks. All mistakes are reported at once.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import Reader, bad, one_of, read_fields
from tickwright.domain.placeholders import one_query, placeholders
from tickwright.ports.batches import FieldType

FIELDS_MAX = 100
COLUMNS_MAX = 100
COLUMN_CHARS_MAX, PATH_CHARS_MAX = 200, 500
QUERY_BYTES_MAX = 65_536
FILE_KINDS = (".csv", ".parquet")
ROW_NUMBER = "tickwright row number"
"""A column that a file gets when it is read; no file may have a column of this name."""
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}", re.ASCII)


class Field(NamedTuple):
    """A declared field: ``client.NAME`` in expressions, and the column that it is read from."""

    name: str
    type: FieldType
    column: str


class AudienceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An audience: either ``file``, or ``source`` with ``table`` or ``query``."""

    source: str | None = None
    table: str | None = None
    query: str | None = None
    file: str | None = None
    key: str
    fields: tuple[Field, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def types(self) -> dict[str, FieldType]:
        """The declared type of each field, for expressions."""
        return {field.name: field.type for field in self.fields}


def read_audience(document: Any, *, where: str = "audience") -> AudienceSettings:
    """Return the definition of an audience; its source is not queried.

    Raises:
        Rejected: ``invalid_audience`` with every mistake in ``problems``, each after its path. Permanent.
    """
    problems: list[str] = []
    if isinstance(document, Mapping):
        values = read_fields(document, _READERS, problems, where=where)
        _check_whole(document, values, problems, where=where)
    else:
        problems.append(f'{where}: write an object, such as {{"source": "crm", "table": "clients", "key": "id"}}')
    refuse(problems)
    return AudienceSettings(**values)


def refuse(problems: list[str]) -> None:
    """Refuse an audience that has mistakes: ``invalid_audience``."""
    if problems:
        raise Rejected("invalid_audience", "\n".join(problems), problems=problems)


def _check_whole(document: Mapping[str, Any], values: Mapping[str, Any], problems: list[str], *, where: str) -> None:
    if "key" not in document:
        problems.append(f"{where}.key: missing; write the column that identifies a member")
    given = [name for name in ("source", "file") if name in document]
    if len(given) != 1:
        problems.append(f"{where}: write either source, with table or query, or file")
    tables = [name for name in ("table", "query") if name in document]
    if given == ["source"] and len(tables) != 1:
        problems.append(f"{where}: write either table or query beside source")
    if given == ["file"]:
        problems.extend(f"{where}.{name}: goes with source, not with file" for name in tables)
    fields, columns = {field.name for field in values.get("fields", ())}, values.get("columns", ())
    problems.extend(f"{where}.columns: {name} is a field already" for name in columns if name in fields)


def _text(most: int, what: str) -> Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
            raise bad(f"{what} has 1 to {most} characters, none of which is a control character")
        return value

    return read


_column = _text(COLUMN_CHARS_MAX, "a column's name")


def _table(value: Any) -> str:
    table = _text(COLUMN_CHARS_MAX, "a table's name")(value)
    if not all(table.split(".")):
        raise bad("write table or schema.table; a name with a dot in it needs a query")
    return str(table)


def _query(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise bad("write one query in SQL")
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > QUERY_BYTES_MAX or any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value):
        raise bad(f"a query is a text of at most {QUERY_BYTES_MAX} bytes without \\u0000 and lone surrogates")
    if names := placeholders(value):
        raise bad(f":{min(names)} has no value; write the value into the query")
    try:
        return one_query(value)
    except Rejected as error:
        raise bad(error.message) from None


def _file(value: Any) -> str:
    path = str(_text(PATH_CHARS_MAX, "a file's key")(value))
    if not path.lower().endswith(FILE_KINDS):
        raise bad(f"a file ends with {' or '.join(FILE_KINDS)}")
    if any(part in {"", ".", ".."} for part in path.split("/")) or path.startswith("."):
        raise bad("write a key of the object store, such as audiences/clients.csv, without .. and a leading slash")
    return path


def _fields(value: Any) -> tuple[Field, ...]:
    if not isinstance(value, Mapping) or len(value) > FIELDS_MAX:
        raise bad(f'write at most {FIELDS_MAX} types by name, such as {{"age": "int"}}')
    return tuple(_field(name, kind) for name, kind in value.items())


def _field(name: Any, kind: Any) -> Field:
    if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
        raise bad(f"{str(name)[:60]!r}: a field's name has 1 to 50 letters, digits or '_', no digit first")
    problems: list[str] = []
    table = kind if isinstance(kind, Mapping) else {"type": kind}
    values = read_fields(table, {"type": _type, "column": _column}, problems, where=name)
    if "type" not in table:
        problems.append(f"{name}.type: missing; one of {', '.join(get_args(FieldType))}")
    if problems:
        raise bad("; ".join(problems))
    return Field(name, values["type"], values.get("column", name))


def _type(value: Any) -> Any:
    return one_of(*get_args(FieldType))(value if isinstance(value, str) else "")


def _columns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > COLUMNS_MAX:
        raise bad(f"write a list of at most {COLUMNS_MAX} columns")
    names = tuple(_column(name) for name in value)
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise bad(f"{repeated[0]} is there twice")
    return names


_READERS: Mapping[str, Reader] = {
    "source": _text(50, "a source's name"),
    "table": _table,
    "query": _query,
    "file": _file,
    "key": _column,
    "fields": _fields,
    "columns": _columns,
}
