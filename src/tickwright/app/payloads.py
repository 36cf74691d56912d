"""Python values as JSON text that PostgreSQL keeps exactly.

One caller's payload travels in one statement with those of others, so what PostgreSQL would refuse is
refused here, to the one who brought it.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected

_encode = msgspec.json.Encoder().encode


def to_json(payload: Any) -> str:
    """Return ``payload`` as JSON text.

    Args:
        payload: What JSON has, and dataclasses, msgspec structs, ``datetime``, ``UUID``, ``Decimal``, enums.

    Raises:
        Rejected: ``invalid_payload``, ``non_finite_number``, ``too_deep``, ``unsupported_character``. Permanent.
    """
    try:
        raw = _encode(payload)
    except RecursionError:
        raise Rejected("too_deep", "payload: too many levels of objects and arrays", field="payload") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise Rejected("invalid_payload", f"payload: {error}", field="payload") from error
    if b"null" in raw and any(not math.isfinite(number) for number in _floats(payload)):
        raise Rejected("non_finite_number", "payload: NaN and infinities are no JSON numbers", field="payload")
    if b"\\u" in raw:
        strict_json.loads(raw)
    return raw.decode()


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
        plain = msgspec.to_builtins(value)
        if not isinstance(plain, type(value)):
            yield from _floats(plain)
