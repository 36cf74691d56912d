"""Which headers a caller may add to an outgoing request.

This is an allow-list, because the set of dangerous headers is open: ``Host`` and ``Content-Length`` change what is
requested, ``Transfer-Encoding`` smuggles requests, ``Authorization`` and ``Cookie`` carry another identity,
``X-Forwarded-For`` a false origin.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from tickwright.domain.errors import Rejected
from tickwright.ports.broker import Message

HEADERS_MAX = 64
HEADER_VALUE_CHARS_MAX = 4096

_ALLOWED = frozenset({"traceparent", "tracestate", "baggage", "idempotency-key", "accept", "accept-language"})
_ALLOWED_PREFIX = re.compile(r"(?:tickwright|x|ce)-[a-z0-9!#$%&'*+.^_`|~-]+")
_FORBIDDEN_PREFIX = re.compile(r"x-(?:forwarded|real-ip|original|rewrite|http-method|method-override|host|accel).*")
_ID = re.compile(r"[A-Za-z0-9_:@-]{1,200}")
_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_+.-]+/[A-Za-z0-9!#$&^_+.-]+(?:; ?[a-z]+=[A-Za-z0-9_-]+)?")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


@lru_cache(maxsize=1024)
def _name_allowed(name: str) -> bool:
    if name in _ALLOWED:
        return True
    return bool(_ALLOWED_PREFIX.fullmatch(name)) and not _FORBIDDEN_PREFIX.fullmatch(name)


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers that a caller must not set.

    Raises:
        Rejected: ``header_not_allowed`` (the name) or ``invalid_header`` (CR, LF, other control
            characters, beyond ASCII, too long, too many). Permanent: do not retry.
    """
    if len(headers) > HEADERS_MAX:
        raise Rejected("invalid_header", f"A message carries at most {HEADERS_MAX} headers.")
    for name, value in headers.items():
        if not _name_allowed(name.lower()):
            message = f"The header {name[:80]!r} cannot be set; allowed are tickwright-*, x-*, ce-* and tracing."
            raise Rejected("header_not_allowed", message)
        if len(value) > HEADER_VALUE_CHARS_MAX or not _VALUE.fullmatch(value):
            message = f"The header {name[:80]!r} has at most {HEADER_VALUE_CHARS_MAX} printable ASCII characters."
            raise Rejected("invalid_header", message)


def check_message(message: Message) -> None:
    """Refuse a message whose id, content type or headers cannot be sent unchanged.

    Raises:
        Rejected: ``invalid_message``, or what ``check_headers`` raises. Permanent: do not retry.
    """
    if not _ID.fullmatch(message.id):
        raise Rejected("invalid_message", "A message id has 1 to 200 letters, digits and _ : @ -, and no dot.")
    if not _CONTENT_TYPE.fullmatch(message.content_type):
        raise Rejected("invalid_message", "The content type is not of the form type/subtype.")
    if message.headers:
        check_headers(message.headers)
