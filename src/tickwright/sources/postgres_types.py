"""PostgreSQL's types: their names in DuckDB, how their values arrive, and how parameters are written.

Machine numbers, booleans and bytes become Python's own. Every other value arrives as PostgreSQL's text, which DuckDB
reads exactly. Parameters are sent as untyped texts, so PostgreSQL reads each like a quoted literal in its place.
"""

from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import psycopg
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq.abc import PGresult
from psycopg.types.array import register_array
from psycopg.types.bool import BoolLoader
from psycopg.types.numeric import FloatLoader, IntLoader
from psycopg.types.string import ByteaLoader, TextLoader

from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Column

DECIMAL_DIGITS_MAX = 38
_INTEGERS = {"int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT", "oid": "BIGINT"}
_FLOATS = {"float4": "FLOAT", "float8": "DOUBLE"}
_JSON = {"json": "JSON", "jsonb": "JSON"}
_INSTANTS = {"date": "DATE", "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ"}
_TEXTS = {"text": "VARCHAR", "varchar": "VARCHAR", "bpchar": "VARCHAR", "uuid": "UUID", "time": "TIME"}
_OTHERS = {"bool": "BOOLEAN", "bytea": "VARCHAR", "interval": "INTERVAL", "numeric": "DECIMAL"}
_TYPES = {**_INTEGERS, **_FLOATS, **_JSON, **_INSTANTS, **_TEXTS, **_OTHERS}
_known = psycopg.adapters.types


def _oid(name: str) -> int:
    return _known[name].oid


TEXT_OID = _oid("text")
_NAMES = {_oid(name): kind for name, kind in _TYPES.items()}
_ARRAYS = {
    _known[name].array_oid: "JSON" if kind == "JSON" else f"{'VARCHAR' if kind == 'DECIMAL' else kind}[]"
    for name, kind in _TYPES.items()
    if kind != "INTERVAL"
}
_INSTANT_OIDS = frozenset(_oid(name) for name in _INSTANTS)


class JsonLoader(Loader):
    """Keeps a document as text. Replaces line feeds, which are only between tokens and would end a line of NDJSON."""

    def load(self, data: Any) -> msgspec.Raw:
        """Return the document, ready to be embedded in another."""
        return msgspec.Raw(bytes(data).replace(b"\n", b" ").replace(b"\r", b" "))


class IntervalLoader(Loader):
    """Keeps an interval as text without ``+``: PostgreSQL writes it after a minus, and DuckDB does not read it."""

    def load(self, data: Any) -> str:
        """Return the text without ``+``."""
        return bytes(data).replace(b"+", b"").decode()


class Spelling(NamedTuple):
    """The context of the driver's value loaders; ``connection`` is always ``None``."""

    adapters: AdaptersMap
    connection: None = None


def _spelling() -> Spelling:
    adapters = AdaptersMap(types=_known)
    adapters.register_loader(0, TextLoader)
    for names, loader in ((_INTEGERS, IntLoader), (_FLOATS, FloatLoader), (_JSON, JsonLoader)):
        for name in names:
            adapters.register_loader(name, loader)
    adapters.register_loader("bool", BoolLoader)
    adapters.register_loader("bytea", ByteaLoader)
    adapters.register_loader("interval", IntervalLoader)
    for oid in (*_INSTANT_OIDS, *map(_oid, _TEXTS), _oid("numeric")):
        adapters.register_loader(oid, TextLoader)
    made = Spelling(adapters)
    for name, kind in _TYPES.items():
        if kind != "INTERVAL":
            register_array(_known[name], made)
    return made


SPELLING = _spelling()


def columns_of(result: PGresult) -> tuple[Column, ...]:
    """Return the columns of a result; a type without a counterpart becomes ``VARCHAR``."""
    return tuple(
        Column((result.fname(place) or b"").decode(), _type_of(result.ftype(place), result.fmod(place)))
        for place in range(result.nfields)
    )


def _type_of(oid: int, modifier: int) -> str:
    if oid == _oid("numeric"):
        return _decimal(modifier)
    return _NAMES.get(oid) or _ARRAYS.get(oid) or "VARCHAR"


def _decimal(modifier: int) -> str:
    if modifier < 4:
        return "DECIMAL"
    digits, scale = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    return f"DECIMAL({digits},{scale})" if 0 <= scale <= digits <= DECIMAL_DIGITS_MAX else "DECIMAL"


def instants_of(result: PGresult) -> tuple[int, ...]:
    """Return the positions of dates and timestamps: DuckDB writes their years before Christ differently."""
    return tuple(place for place in range(result.nfields) if result.ftype(place) in _INSTANT_OIDS)


def as_parameter(name: int, value: Any) -> bytes | None:
    """Return the text of a placeholder's value for PostgreSQL; ``None`` is null.

    Raises:
        Rejected: ``invalid_value``. Permanent.
    """
    if value is None:
        return None
    text = _array(value) if isinstance(value, list | tuple) else _text(value)
    try:
        made = text.encode()
    except UnicodeEncodeError:
        made = b"\0"
    if b"\0" in made:
        raise Rejected("invalid_value", f"value {name}: \\u0000 and lone surrogates are no text to PostgreSQL")
    return made


def _text(value: Any) -> str:
    for kind, spelled in _SPELL.items():
        if isinstance(value, kind):
            return spelled(value)
    raise Rejected("invalid_value", f"a {type(value).__name__} cannot be given to a query")


def _duration(value: timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


_SPELL: Mapping[type, Callable[[Any], str]] = {
    str: str.__str__,
    bool: lambda value: "true" if value else "false",
    int: int.__str__,
    float: float.__repr__,
    Decimal: str,
    UUID: str,
    date: lambda value: value.isoformat(),
    time: time.isoformat,
    timedelta: _duration,
    bytes: lambda value: f"\\x{value.hex()}",
    Mapping: lambda value: msgspec.json.encode(value).decode(),
}


def _array(items: list[Any] | tuple[Any, ...]) -> str:
    return "{" + ",".join(map(_element, items)) + "}"


def _element(item: Any) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list | tuple):
        return _array(item)
    return '"' + _text(item).replace("\\", "\\\\").replace('"', '\\"') + '"'
