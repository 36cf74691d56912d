"""Python values as JSON text that PostgreSQL stores exactly.

Several callers' payloads go into one statement, so a payload that PostgreSQL would refuse is refused here, for its
caller alone.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import has_non_finite, to_json_value

_encode = msgspec.json.Encoder(enc_hook=to_json_value).encode
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_INT64_CHARS = 20
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|[\]}]', re.DOTALL)
LEVELS_MAX = 1000
"""Fewer levels than PostgreSQL accepts, more than a Python encoder produces. Encoded JSON can have more."""


def to_json(payload: Any) -> str:
    """Return ``payload`` as JSON text.

    Args:
        payload: JSON values, and dataclasses, msgspec structs, pydantic models, ``datetime``, ``UUID``, ``Decimal``,
            enums.

    Raises:
        Rejected: ``invalid_payload`` (also for a set, which has no order, and for a whole number beyond 64 bits, which
            another reader would round), ``non_finite_number``, ``too_deep``, ``unsupported_character``. Permanent.
    """
    try:
        return _checked_json(payload)
    except RecursionError:  # from the encoder or from one of the checks
        raise Rejected("too_deep", "payload: too many levels of objects and arrays", field="payload") from None


def as_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return a job's tags. Raises ``Rejected`` (``invalid_tags``) where they are no texts, or one: permanent."""
    given: object = tags
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (None,)
    if not all(isinstance(tag, str) for tag in found):
        raise Rejected("invalid_tags", "tags: give a list of texts", field="tags")
    return found


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Return a job's metadata as JSON text. Raises ``Rejected`` as :func:`to_json`, with ``invalid_metadata``."""
    if not isinstance(metadata, Mapping):
        raise Rejected("invalid_metadata", "metadata: give a mapping", field="metadata")
    try:
        return to_json(metadata)
    except Rejected as error:
        code = "invalid_metadata" if error.code == "invalid_payload" else error.code
        raise Rejected(code, f"metadata: {error.message.removeprefix('payload: ')}", field="metadata") from None


def _is_too_deep(raw: bytes) -> bool:
    levels = 0
    for found in _BRACKET.finditer(raw):
        if found[0][0] != ord('"'):
            levels += 1 if found[1] else -1
        if levels > LEVELS_MAX:
            return True
    return False


def _checked_json(payload: Any) -> str:
    try:
        raw = _encode(payload)
    except (TypeError, ValueError, OverflowError) as error:
        raise Rejected("invalid_payload", f"payload: {error}", field="payload") from error
    if b"null" in raw and has_non_finite(payload):
        raise Rejected("non_finite_number", "payload: NaN and infinities are no JSON numbers", field="payload")
    if b"[" in raw and _has_set(payload):
        raise Rejected("invalid_payload", "payload: a set has no order and JSON no sets; give a list", field="payload")
    if raw.count(b"[") + raw.count(b"{") > LEVELS_MAX and _is_too_deep(raw):
        raise RecursionError
    if _LONG_NUMBER.search(raw):
        json.loads(raw, parse_int=_int64)
    if b"\\u" in raw:
        strict_json.loads(raw)
    return raw.decode()


def _has_set(value: Any) -> bool:
    """Whether plain containers contain a set. A set in a struct's field is allowed: it is read as a set again."""
    if isinstance(value, Mapping):
        return any(map(_has_set, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_set, value))
    return isinstance(value, set | frozenset)


def _int64(text: str) -> int:
    number = int(text) if len(text) <= _INT64_CHARS else None
    if number is None or not strict_json.INT64_MIN <= number <= strict_json.INT64_MAX:
        message = f"payload: {strict_json.quoted(text)} does not fit into 64 bits; write it as a string"
        raise Rejected("invalid_payload", message, field="payload")
    return number
