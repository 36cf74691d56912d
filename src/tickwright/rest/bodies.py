"""Request bodies: type, encoding, bytes and time are limited before parsing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from datetime import timedelta
from typing import Any

from tickwright.domain.errors import Rejected
from tickwright.ports.ids import monotonic

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Headers = list[tuple[bytes, bytes]]
JSON_TYPES = frozenset({b"application/json"})
NDJSON_TYPES = frozenset({b"application/x-ndjson", b"application/ndjson", b"application/jsonl"})
CSV_TYPES = frozenset({b"text/csv"})
_CHARSETS = frozenset({b"", b"charset=utf-8", b'charset="utf-8"'})
_DIGITS_MAX = 15
STREAM_BYTES_PER_S = 1024


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


def check_type(headers: Headers, types: frozenset[bytes]) -> int | None:
    """Return the declared length of a body with one of ``types`` and no encoding.

    Raises:
        Rejected: ``unsupported_media_type`` or ``unsupported_encoding`` (415). Permanent.
    """
    length: int | None = None
    media = None
    for name, value in headers:
        if name == b"content-type":
            media = value.lower()
        elif name == b"content-length":
            length = int(value) if value.isdigit() and len(value) <= _DIGITS_MAX else 10**_DIGITS_MAX
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise Rejected(
                "unsupported_encoding",
                "send the body as it is, without Content-Encoding",
                status=415,
                headers=[(b"accept-encoding", b"identity")],
            )
    if media not in types:
        kind, _, parameter = (media or b"").partition(b";")
        if kind.strip() not in types or parameter.strip() not in _CHARSETS:
            raise Rejected(
                "unsupported_media_type",
                f"Content-Type: one of {', '.join(sorted(t.decode() for t in types))}",
                status=415,
            )
    return length


async def read_body(receive: Receive, length: int | None, bytes_max: int, timeout: timedelta) -> bytes:
    """Return the whole body.

    Raises:
        Rejected: ``body_too_large`` (413), also when it comes in chunks; ``request_timeout`` (408). Permanent.
        ClientGone: The client has left.
    """
    if length is not None and length > bytes_max:
        raise _too_large(bytes_max)
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            body: bytes = message.get("body", b"")
            if not message.get("more_body", False):
                if len(body) > bytes_max:
                    raise _too_large(bytes_max)
                return body
            return await _read_rest(receive, body, bytes_max)
    except TimeoutError:
        raise _too_slow(timeout) from None


async def _read_rest(receive: Receive, first: bytes, bytes_max: int) -> bytes:
    pieces, size = [first], len(first)
    while True:
        if size > bytes_max:
            raise _too_large(bytes_max)
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if not message.get("more_body", False):
            if size > bytes_max:
                raise _too_large(bytes_max)
            return b"".join(pieces)


async def stream_body(receive: Receive, idle: timedelta, bytes_per_s: int = STREAM_BYTES_PER_S) -> AsyncIterator[bytes]:
    """Yield the body piece by piece, whatever its length.

    Only the time spent waiting for the client counts: ``idle`` in all, and more with each piece received.

    Raises:
        Rejected: ``request_timeout`` (408): no data for ``idle``, or less than ``bytes_per_s``. Permanent.
        ClientGone: The stream broke off.
    """
    more, patience_s = True, idle.total_seconds()
    while more:
        began_s = monotonic()
        try:
            async with asyncio.timeout(patience_s):
                message = await receive()
        except TimeoutError:
            raise _too_slow(idle) from None
        if message["type"] != "http.request":
            raise ClientGone
        body, more = message.get("body", b""), message.get("more_body", False)
        patience_s = min(idle.total_seconds(), patience_s - (monotonic() - began_s) + len(body) / bytes_per_s)
        if body:
            yield body


def _too_large(bytes_max: int) -> Rejected:
    return Rejected("body_too_large", f"a body has at most {bytes_max} bytes", status=413)


def _too_slow(timeout: timedelta) -> Rejected:
    within = f"{timeout.total_seconds():g} s"
    return Rejected("request_timeout", f"the body, or enough of it, did not come within {within}", status=408)
