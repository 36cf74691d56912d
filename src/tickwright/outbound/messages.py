"""Outgoing messages: the outcome that an exception of aiohttp means, excerpts of answers, and allowed headers.

Headers have an allow-list, because the set of dangerous headers is open: ``Host`` and ``Content-Length`` change what is
requested, ``Transfer-Encoding`` smuggles requests, ``Authorization`` and ``Cookie`` carry another identity,
``X-Forwarded-For`` a false origin.

A failure before the first byte of the message was sent (name, address, connection, TLS) is ``Refused``: the receiver
certainly took nothing. A later failure is ``Unknown``, unless the receiver answered.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from functools import lru_cache

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from tickwright.domain.errors import Rejected
from tickwright.domain.secrets import GROWTH_MAX, mask_secrets, spellings
from tickwright.outbound.resolver import BlockedError, ResolveTimeoutError
from tickwright.ports.broker import Message, Refused, Unknown

EXCERPT_CHARS_MAX = 500
VALUE_CHARS_MIN = 4
TAILS_MAX = 16
_BETWEEN = re.compile(r"[:;=,+ ]|%(?:20|2C|3A|3B|3D)", re.IGNORECASE)


def excerpt(body: bytes, path: str = "") -> str:
    """Return the beginning of a body as printable text, at most 500 characters, without ``path`` or a part of it.

    Escapes stay as they are: the masking of other addresses depends on whether a slash is escaped.
    """
    spelled = set().union(*map(spellings, _hidden(path)))
    read_bytes = 4 * EXCERPT_CHARS_MAX + GROWTH_MAX * len(path)
    text = body[:read_bytes].decode("utf-8", "backslashreplace")
    text = mask_secrets(text, spelled, mask="/…", until=4 * EXCERPT_CHARS_MAX)
    return "".join(character if character.isprintable() else " " for character in text)[:EXCERPT_CHARS_MAX].strip()


def _hidden(path: str) -> set[str]:
    """Return the parts of a URL that can be a credential.

    - Path and query, together and alone.
    - Values of the query, and names without a value.
    - Tails of the path that begin at one of its first slashes: an application mounted below a prefix shows those.
    - Segments that are not words: 8 or more characters with a digit, or 16 or more characters.
    - Parts of segments and values that are not words, such as the token in ``Bearer%20TOKEN``.
    """
    alone, _, query = path.partition("?")
    named = [(value or name) for name, _, value in (pair.partition("=") for pair in query.split("&"))]
    values = {value for value in named if len(value) >= VALUE_CHARS_MIN}
    within = alone.strip("/")
    segments = within.split("/")
    tails = {"/" + "/".join(segments[first:]) for first in range(1, min(len(segments), TAILS_MAX))}
    parts = {path, alone, alone.rstrip("/"), query, *values, *({within} if "/" in within else ())}
    return {
        *(part for part in parts if len(part) > 1),
        *(tail for tail in tails if len(tail) > VALUE_CHARS_MIN),
        *filter(_may_be_secret, _parts([*segments, *named])),
    }


def _parts(texts: list[str]) -> list[str]:
    return [*texts, *(part for text in texts for part in _BETWEEN.split(text))]


def _may_be_secret(segment: str) -> bool:
    return len(segment) >= 16 or (len(segment) >= 8 and any(map(str.isdigit, segment)))


BLOCKED_CODE = "ssrf_blocked"

_NAME_IS_UNKNOWN = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
_TLS_CODES = {
    9: "tls_expired",  # not yet valid
    10: "tls_expired",
    18: "tls_self_signed",
    19: "tls_self_signed",  # a self-signed certificate in the chain
    62: "tls_wrong_host",
    64: "tls_wrong_host",  # 64 is for a host that is an IP address
}


def blocked(reason: str) -> Refused:
    """Return the outcome for a blocked address. Its text does not contain the address."""
    text = f"This destination is not allowed ({reason}); see TICKWRIGHT_ALLOW_TARGETS."
    return Refused(BLOCKED_CODE, text, final=True)


def outcome_of(error: BaseException) -> Refused | Unknown:
    """Return the outcome that an exception of an attempt means; unexpected exceptions mean *unknown*."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return Refused("connect_timeout", "No connection within the timeout; nothing was sent.")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return _tls(error)
        case aiohttp.ClientConnectorDNSError() as problem:
            return _dns(problem.os_error)
        case aiohttp.ClientConnectorError() as problem:
            return _connect(problem.os_error)
        case aiohttp.InvalidURL():
            return Refused("invalid_target", "The destination is not a valid URL.", final=True)
    return _after_sending(error)


def _after_sending(error: BaseException) -> Unknown:
    match error:
        case asyncio.TimeoutError():
            return Unknown("timeout", "No complete answer within the timeout; it may have been taken.")
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return Unknown("bad_response", "The answer is not valid HTTP, or its head is too large.")
    return Unknown("connection_lost", "The connection broke before a complete answer.")


def _tls(error: BaseException) -> Refused:
    problem = getattr(error, "certificate_error", None)
    if not isinstance(problem, ssl.SSLCertVerificationError):
        return Refused("tls_failed", "The TLS handshake failed; nothing was sent.")
    code = _TLS_CODES.get(problem.verify_code, "tls_failed")
    return Refused(code, f"The certificate is not trusted: {problem.verify_message[:200]}.")


def _dns(error: OSError) -> Refused:
    match error:
        case BlockedError(reason=reason):
            return blocked(reason)
        case ResolveTimeoutError():
            return Refused("dns_timeout", "The DNS did not answer in time; nothing was sent.")
        case socket.gaierror(errno=number) if number in _NAME_IS_UNKNOWN:
            return Refused("dns_not_found", "The host name does not exist; nothing was sent.")
        case _:
            return Refused("dns_failed", "The DNS could not resolve the host name; nothing was sent.")


def _connect(error: OSError) -> Refused:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, BlockedError):
        cause = cause.__cause__
    match cause or error:
        case BlockedError(reason=reason):
            return blocked(reason)
        case ConnectionRefusedError():
            return Refused("connection_refused", "No program listens there; nothing was sent.")
        case _:
            return Refused("connect_failed", "The connection could not be made; nothing was sent.")


HEADERS_MAX = 64
HEADER_VALUE_CHARS_MAX = 4096

_ALLOWED = frozenset({"traceparent", "tracestate", "baggage", "idempotency-key", "accept", "accept-language"})
_ALLOWED_PREFIX = re.compile(r"(?:tickwright|x|ce)-[a-z0-9!#$%&'*+.^_`|~-]+")
_FORBIDDEN_PREFIX = re.compile(r"x-(?:forwarded|real-ip|original|rewrite|http-method|method-override|host|accel).*")
_ID = re.compile(r"[A-Za-z0-9_:@-]{1,200}")
_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_+.-]+/[A-Za-z0-9!#$&^_+.-]+(?:; ?[a-z]+=[A-Za-z0-9_-]+)?")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


@lru_cache(maxsize=1024)
def _name_allowed(written: str) -> bool:
    name = written.lower()
    return name in _ALLOWED or bool(_ALLOWED_PREFIX.fullmatch(name) and not _FORBIDDEN_PREFIX.fullmatch(name))


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers that a caller must not set.

    Raises:
        Rejected: ``header_not_allowed`` (the name) or ``invalid_header`` (CR, LF, other control
            characters, beyond ASCII, too long, too many). Permanent: do not retry.
    """
    if len(headers) > HEADERS_MAX:
        raise Rejected("invalid_header", f"A message carries at most {HEADERS_MAX} headers.")
    for name, value in headers.items():
        if not _name_allowed(name):
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
