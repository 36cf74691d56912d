"""Conditions of a report: normalised, checked against the type's parameters, and hashed.

Two requests with the same meaning have the same *query key*, whatever the order of their names, the form of their
numbers or the Unicode form of their texts. A null condition counts as not given.
"""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from difflib import get_close_matches
from typing import Any

from tickwright.capabilities.reports.plan import Format, Parameter
from tickwright.domain.errors import Rejected, storable
from tickwright.domain.strict_json import DEPTH_MAX, INT64_MAX, INT64_MIN, quoted

CONDITIONS_BYTES_MAX = 16_384
PROBLEMS_MAX = 100
NAME_CHARS_MAX = 60
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
Read = Callable[[Any], Any]


def normalise(conditions: Mapping[str, Any], parameters: Mapping[str, Parameter] | None) -> dict[str, Any]:
    """Return conditions in the normal form in which they are stored, bound and compared.

    Names are sorted, texts are in NFC, and an integral number is an integer (``1.0`` is ``1``, ``-0`` is ``0``). With
    ``parameters``, the result has every parameter: as given, with its default, or null. ``None`` allows any condition,
    and drops nulls.

    Raises:
        Rejected: ``invalid_conditions`` with every mistake, 100 at most; ``conditions_too_large``. Permanent.

    Invariants:
        CND-1: ``normalise(normalise(c, p), p) == normalise(c, p)``.
    """
    problems: list[str] = []
    given = _plain(conditions, problems)
    _check_size(given)
    made = given if parameters is None else _against(parameters, given, problems)
    if problems:
        problems = problems[:PROBLEMS_MAX]
        raise Rejected("invalid_conditions", "\n".join(problems), problems=problems, field="conditions")
    _check_size(made)
    return made


def _check_size(conditions: Mapping[str, Any]) -> None:
    size_bytes = len(canonical(conditions))
    if size_bytes > CONDITIONS_BYTES_MAX:
        raise Rejected(
            "conditions_too_large",
            f"conditions: {size_bytes} bytes; at most {CONDITIONS_BYTES_MAX}",
            status=413,
            field="conditions",
        )


def query_key(kind: str, form: Format, conditions: Mapping[str, Any]) -> str:
    """Return the SHA-256 of report type, format and normalised conditions, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical([kind, form, conditions])).hexdigest()


def canonical(value: Any) -> bytes:
    """Return normalised values as JSON with sorted names and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_condition(parameter: Parameter, value: Any) -> Any:
    """Return one value in normal form.

    Raises:
        Rejected: ``invalid_value`` with the remedy. Permanent.
    """
    return _READ[parameter.type](_value(value, 0))


def _plain(conditions: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the values that are not null, by name."""
    given: dict[str, Any] = {}
    for name, value in conditions.items():
        try:
            spelled = _text(name)
            if spelled in given:
                problems.append(f"{quoted(spelled)}: given twice, in two forms of Unicode")
            given[spelled] = _value(value, 0)
        except Rejected as error:
            problems.append(f"{_name(name)}: {error.message}")
    return {name: given[name] for name in sorted(given) if given[name] is not None}


def _against(parameters: Mapping[str, Parameter], given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    unknown = [name for name in given if name not in parameters]
    problems += [f"{_name(name)}: {_remedy(name, parameters)}" for name in unknown[:PROBLEMS_MAX]]
    made = {}
    for name in sorted(parameters):
        parameter = parameters[name]
        value = given.get(name, parameter.default)
        if value is None and parameter.required:
            problems.append(f"{name}: missing; give {_MEANS[parameter.type]}")
            continue
        try:
            made[name] = None if value is None else read_condition(parameter, value)
        except Rejected as error:
            problems.append(f"{name}: {error.message}")
    return made


def _remedy(name: str, parameters: Mapping[str, Parameter]) -> str:
    if not parameters:
        return "unknown; this type takes no conditions"
    near = get_close_matches(name[:NAME_CHARS_MAX], parameters, n=1)
    return f"unknown; did you mean {near[0]}?" if near else f"unknown; there are {', '.join(sorted(parameters))[:500]}"


def _name(name: Any) -> str:
    return name if isinstance(name, str) and name.isidentifier() and len(name) <= NAME_CHARS_MAX else quoted(str(name))


def _bad(remedy: str) -> Rejected:
    return Rejected("invalid_value", remedy)


def _value(value: Any, depth: int) -> Any:
    """Return a JSON value in normal form."""
    if depth > DEPTH_MAX:
        raise _bad(f"more than {DEPTH_MAX} levels of objects and arrays")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, list | tuple):
        return [_value(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return _object(value, depth)
    raise _bad(f"a {type(value).__name__} is no JSON value")


def _object(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    made = {_text(name): _value(item, depth + 1) for name, item in value.items()}
    if len(made) != len(value):
        raise _bad("a name is repeated in one object, in two forms of Unicode")
    return dict(sorted(made.items()))


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise _bad("a name is a text")
    if storable(text) != text:
        raise _bad("\\u0000 and lone surrogates cannot be kept")
    return unicodedata.normalize("NFC", text)


def _number(number: float) -> int | float:
    if not math.isfinite(number):
        raise _bad("NaN and infinities are no JSON numbers")
    if not INT64_MIN <= number <= INT64_MAX:  # PostgreSQL writes 1e300 with all digits, and readers get another number
        raise _bad("a number beyond 64 bits; write it as a text")
    return int(number) if isinstance(number, int) or number.is_integer() else float(number)


def _kind_of(kinds: tuple[type, ...], remedy: str) -> Read:
    """Return a reader of values of these types: a boolean is no number, although Python has it as one."""

    def read(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _bad(remedy)
        return value

    return read


def _read_date(value: Any) -> str:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise _bad('write a date, such as "2026-01-31"')
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError:
        raise _bad("there is no such day") from None


def _read_timestamp(value: Any) -> str:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise _bad('write a time with its offset, such as "2026-01-31T09:00:00Z"')
    try:
        at = datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _bad("there is no such day or time") from None
    return at.isoformat().replace("+00:00", "Z")


def _read_list(value: Any) -> list[Any]:
    if not isinstance(value, list) or any(item is None or isinstance(item, list | dict) for item in value):
        raise _bad("write a list of texts, numbers or booleans")
    return value


_READ: Mapping[str, Read] = {
    "text": _kind_of((str,), "write a text, in quotes"),
    "integer": _kind_of((int,), "write a whole number, without quotes"),
    "number": _kind_of((int, float), "write a number, without quotes"),
    "boolean": _kind_of((bool,), "write true or false, without quotes"),
    "date": _read_date,
    "timestamp": _read_timestamp,
    "list": _read_list,
}
_MEANS = {
    "text": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "date": 'a date, such as "2026-01-31"',
    "timestamp": 'a time with its offset, such as "2026-01-31T09:00:00Z"',
    "list": "a list",
}
