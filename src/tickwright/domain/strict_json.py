r"""Untrusted JSON: texts that two parsers could read differently, or that PostgreSQL would not store, are refused.

Python's own parser accepts ``NaN``, keeps the last of two equal keys, turns ``1e400`` into infinity and keeps a lone
surrogate that ``jsonb`` then refuses. Here every such text has an error with a stable code and its place. An ordinary
body costs one pass of the C scanner with one hook per object; numbers, escapes and depth are checked only when a cheap
search has found one.

Codes: ``invalid_json`` (with line and column), ``duplicate_key``, ``non_finite_number``,
``number_out_of_range``, ``too_deep``, ``unsupported_character`` (with a JSON pointer), all 400.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from tickwright.domain.errors import Rejected

DEPTH_MAX = 32
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_INT64_DIGITS = 19
NUMBER_CHARS_MAX = 400
EXPONENT_MAX = 400
SHOWN_CHARS_MAX = 60
T = TypeVar("T")

_LARGE_NUMBER = re.compile(r"[0-9]{19}|[eE][+-]?[0-9]{3}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>.*)`", re.DOTALL)
_AT_PATH = re.compile(r" - at `\$(?P<path>.*)`$", re.DOTALL)


def _bad(code: str, message: str, **details: Any) -> Rejected:
    return Rejected(code, message, status=400, **details)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _bad(
                    "duplicate_key", f"the key {quoted(name)} occurs twice in one object", key=quoted(name)[1:-1]
                )
            seen.add(name)
    return made


def _no_constant(name: str) -> NoReturn:
    raise _bad("non_finite_number", f"{name} is not a JSON number; leave the field out or write null")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _bad("non_finite_number", f"{quoted(text)} is too large for any number that can be kept")
    digits, _, exponent = text.lower().partition("e")
    is_lost = number == 0.0 and digits.strip("-0.")
    if is_lost or len(text) > NUMBER_CHARS_MAX or abs(int(exponent or 0)) > EXPONENT_MAX:
        raise _bad("number_out_of_range", f"{quoted(text)} is finer than any number that can be kept")
    return number


def _int64(text: str) -> int:
    number = int(text) if len(text) <= _INT64_DIGITS + 1 else INT64_MAX + 1
    if not INT64_MIN <= number <= INT64_MAX:
        raise _bad("number_out_of_range", f"{quoted(text)} does not fit into 64 bits; write it as a string")
    return number


_usual = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
_careful = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_int64
)


def loads(body: bytes) -> Any:
    """Return ``body``, UTF-8 without a byte order mark, as plain Python values; the caller limits its length.

    Raises:
        Rejected: One of the codes above. Permanent.

    Invariants:
        SJ-1: PostgreSQL stores every accepted body as ``jsonb``.
        SJ-2: every accepted body has one meaning for every JSON parser.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        line, column = body.count(b"\n", 0, error.start) + 1, error.start - body.rfind(b"\n", 0, error.start)
        raise _bad("invalid_json", f"not UTF-8 at {line}:{column}", line=line, column=column) from None
    if text.count("{") + text.count("[") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise _bad("too_deep", f"more than {DEPTH_MAX} levels of objects and arrays")
    try:
        value = (_careful if _LARGE_NUMBER.search(text) else _usual).decode(text)
    except json.JSONDecodeError as error:
        text = f"not JSON at {error.lineno}:{error.colno}: {error.msg}"
        raise _bad("invalid_json", text, line=error.lineno, column=error.colno) from None
    if "\\u" in text:
        _refuse_characters(value)
    return value


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in _STRING.sub("", text):
        if character in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}]":
            depth -= 1
    return deepest


def _refuse_characters(value: Any) -> None:
    for path, text in _strings(value, None):
        if "\0" in text or (not text.isascii() and _SURROGATE.search(text)):
            pointer = _shown_path(path)
            message = f"\\u0000 and lone surrogates cannot be kept; found at {pointer or 'the top'}"
            raise _bad("unsupported_character", message, pointer=pointer)


_Path = tuple["_Path | None", str | int] | None
"""The path of a text: that of its object or array, and its name or number there."""


def _strings(value: Any, path: _Path) -> Iterator[tuple[_Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield (path, name), name
            yield from _strings(item, (path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _strings(item, (path, number))


def _shown_path(path: _Path) -> str:
    """Return the JSON pointer; characters that cannot be stored are shown as escapes."""
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(str(part).replace("~", "~0").replace("/", "~1"))
    pointer = "".join(f"/{part}" for part in reversed(parts))
    return pointer.encode(errors="backslashreplace").decode().replace("\0", "\\u0000")


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Return ``body`` as the type of ``decoder``, after the checks of :func:`loads`.

    Raises:
        Rejected: The codes of :func:`loads`; ``unknown_field`` (400); ``invalid_value`` (422), a field is
            missing or has the wrong type. Permanent.
    """
    loads(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except msgspec.DecodeError as error:  # the two parsers differ, so the body is refused
        raise _bad("invalid_json", f"not JSON: {error}", line=1, column=1) from None


def _invalid(text: str) -> Rejected:
    where = _AT_PATH.search(text)
    pointer = _pointer(where["path"]) if where else ""
    problem = text[: where.start()] if where else text
    if unknown := _UNKNOWN_FIELD.search(problem):
        name = quoted(unknown["name"])
        return _bad("unknown_field", f"there is no field {name} here", field=name[1:-1], pointer=pointer)
    return Rejected("invalid_value", f"{problem[:1].lower()}{problem[1:]} at {pointer or 'the top'}", pointer=pointer)


def _pointer(path: str) -> str:
    """Convert msgspec's ``.a[0].b`` to ``/a/0/b``."""
    return re.sub(r"\.|\[([0-9.]+)\]", lambda found: f"/{found[1]}" if found[1] else "/", path)


def quoted(text: str) -> str:
    """Return untrusted text for a message: printable, quoted, at most 60 characters."""
    cut = text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"
    return json.dumps(cut)


# Users' types. msgspec handles dataclasses, its own structs, TypedDict, NamedTuple, UUID, Decimal, dates and times,
# enums, and containers of them. A pydantic model validates and dumps itself; it is recognised without an import.


def is_model(kind: type) -> bool:
    """Return whether a class is a pydantic model."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate")


def to_json_value(value: Any) -> Any:
    """Return a model as JSON values: the ``enc_hook`` of every encoder of users' values."""
    if is_model(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"an object of type {type(value).__name__} has no JSON form")


_encode = msgspec.json.Encoder(enc_hook=to_json_value).encode


def encode_value(value: Any) -> str:
    """Return what a handler returns or reports as JSON text.

    Raises:
        ValueError: It has a NaN or an infinity, which JSON would have as null.
        Exception: It has no JSON form, or its own code raises.
    """
    raw = _encode(value)
    if b"null" in raw and has_non_finite(value):
        raise ValueError("NaN and infinities are no JSON numbers")
    return raw.decode()


def has_non_finite(value: Any) -> bool:
    """Return whether a value that has a JSON form contains a NaN or an infinity."""
    return any(not math.isfinite(number) for number in _floats(value))


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _floats(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _floats(item)
    elif not isinstance(value, str | bytes | int | None):
        plain = msgspec.to_builtins(value, enc_hook=to_json_value)
        if not isinstance(plain, type(value)):
            yield from _floats(plain)


def from_json_value(kind: type, value: Any) -> Any:
    """Return the model of JSON values: the ``dec_hook``; its ``ValidationError`` is a ``ValueError``."""
    if is_model(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined]
    if isinstance(value, kind):  # object, or a protocol
        return value
    raise TypeError(f"{kind.__name__} cannot be read from JSON")


_INT_DIGITS_MAX = 4300
"""Python refuses to read longer integers."""


def decode_stored(text: str | bytes) -> Any:
    """Return the value of JSON from PostgreSQL, which is valid; a number beyond what Python reads is infinite."""
    return json.loads(text, parse_int=_whole)


def _whole(digits: str) -> float:
    return int(digits) if len(digits) <= _INT_DIGITS_MAX else float(digits)
