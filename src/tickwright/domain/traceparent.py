"""The `traceparent` of W3C Trace Context: the trace of a job or message, and the span that caused it.

It is untrusted input (a header, a column that users write). As the standard demands, a malformed one is ignored; it
fails no job.
"""

import re
from collections.abc import Iterable

_FIELDS = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_CHARS_MAX = 512
NAME = "traceparent"


def read_traceparent(text: object) -> str | None:
    """Return ``text`` in version 00; ``None`` if it is not a traceparent.

    A later version is read as far as version 00 goes, as the standard demands of receivers.

    Invariants:
        TRC-1: a returned text has 55 characters, ``00-<32 hex>-<16 hex>-<2 hex>``, and no id of zeros.
    """
    if not isinstance(text, str) or len(text) > _CHARS_MAX:
        return None
    found = _FIELDS.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return f"00-{trace_id}-{span_id}-{flags}"


def traceparent_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the traceparent in a request's raw headers; ``None`` for none, a malformed one, or more than one."""
    found = [value for name, value in headers if name == b"traceparent"]
    return read_traceparent(found[0].decode("latin-1").strip(" \t")) if len(found) == 1 else None
