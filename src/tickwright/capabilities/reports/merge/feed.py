"""A feed: the one row that a stage's parts give to the queries of the next stage, as JSON values.

::

    integer within 64 bits, floating point, boolean, text     as JSON has them
    DECIMAL, integers beyond 64 bits, nan, inf                 text with all digits
    timestamps, dates, times, UUID, BLOB, intervals            text as in a report's CSV
    list                                                       a list of these; struct, map, JSON as they are, and
                                                               text for a number in them that no double holds

NUL is left out of texts: no database takes one.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from tickwright.capabilities.reports.merge.csv_text import Kind, kind_of, plain_text
from tickwright.capabilities.reports.merge.duck import STATEMENTS
from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Column
from tickwright.sources.duckdb_json import json_text

VALUES_MAX = 100_000
JSON_BYTES_MAX = 1024 * 1024
INT64_MAX = 2**63 - 1


def feed_table(select: str, columns: Sequence[Column]) -> str:
    """Return the statement that carries ``select`` out once and keeps its first two rows, each value as JSON."""
    places = [f"c{number}" for number in range(len(columns))]
    values = [f"{json_value(place, column.type)} AS {place}" for place, column in zip(places, columns, strict=True)]
    return STATEMENTS["feed_table"].format(values=", ".join(values), select=select, places=", ".join(places))


def feed_sizes(columns: Sequence[Column]) -> str:
    """Return the SELECT that gives, per row that was kept, how many bytes of JSON it has."""
    sizes = " + ".join(f"coalesce(strlen(CAST(c{number} AS VARCHAR)), 4)" for number in range(len(columns)))
    return STATEMENTS["feed_sizes"].format(sizes=sizes)


def feed_texts(columns: Sequence[Column]) -> str:
    """Return the SELECT that gives the row, a JSON text for each column."""
    texts = ", ".join(f"CAST(c{number} AS VARCHAR)" for number in range(len(columns)))
    return STATEMENTS["feed_texts"].format(texts=texts)


def json_value(value: str, type_name: str, depth: int = 0) -> str:
    """Return SQL for ``value`` as JSON."""
    element = _element(type_name)
    if element == "JSON" or kind_of(element) is Kind.NESTED:
        return f"CAST({json_text(value, type_name, 'merge_refused')} AS JSON)"
    if type_name.endswith("]"):
        one = f"v{depth}"
        inner = json_value(one, type_name[: type_name.rindex("[")], depth + 1)
        return f"to_json(list_transform({value}, lambda {one}: {inner}))"
    kind = kind_of(type_name)
    text = f"to_json({plain_text(value, type_name)})"
    if type_name == "BOOLEAN":
        return f"to_json({value})"
    if kind is not Kind.NUMBER or type_name.startswith("DECIMAL") or type_name == "BIGNUM":
        return text
    fits = f"{value} BETWEEN {-INT64_MAX - 1} AND {INT64_MAX}"
    if type_name in {"FLOAT", "DOUBLE"}:
        fits = f"isfinite({value})"
    return f"CASE WHEN {fits} THEN to_json({value}) ELSE {text} END"


def _element(type_name: str) -> str:
    """Return what a list has in it, at any depth; another type is its own."""
    while type_name.endswith("]"):
        type_name = type_name[: type_name.rindex("[")]
    return type_name


def check_sizes(sizes: Sequence[int]) -> None:
    """Refuse what is not one row, or too large.

    Raises:
        Rejected: ``feed_not_one_row``, ``feed_too_large``. Permanent.
    """
    if len(sizes) != 1:
        raise Rejected("feed_not_one_row", f"a feed gives one row; this one gave {'none' if not sizes else 'several'}")
    if sizes[0] > JSON_BYTES_MAX:
        raise Rejected("feed_too_large", f"a feed has at most {JSON_BYTES_MAX} bytes of JSON; this one has {sizes[0]}")


def feed_values(columns: Sequence[Column], texts: Sequence[str | None]) -> dict[str, Any]:
    """Return the values by their columns' names.

    Raises:
        Rejected: ``feed_too_large``: more than 100,000 values. Permanent.
    """
    values = {
        column.name: None if text is None else _decoded(column, text)
        for column, text in zip(columns, texts, strict=True)
    }
    count = sum(len(value) if isinstance(value, list) else 1 for value in values.values())
    if count > VALUES_MAX:
        raise Rejected("feed_too_large", f"a feed has at most {VALUES_MAX} values; this one has {count}")
    return values


def _decoded(column: Column, text: str) -> Any:
    try:
        value = _DECODER.decode(text)
        return _without_nul(value) if "\\u0000" in text else value
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Rejected("merge_refused", f"column {column.name} of the feed is no JSON: {error}") from None


def _number(text: str) -> float | str:
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else text


_DECODER = msgspec.json.Decoder(float_hook=_number)


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, list):
        return [_without_nul(one) for one in value]
    if isinstance(value, dict):
        return {_without_nul(name): _without_nul(one) for name, one in value.items()}
    return value
