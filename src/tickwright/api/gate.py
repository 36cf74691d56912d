"""The gate of every route: caller, role, query, and the body, limited in type, encoding, bytes and time before parsing.

Implements :class:`tickwright.rest.gate.Gate`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
import structlog
from fastapi.requests import Request

from tickwright.api.auth import Authenticator
from tickwright.api.context import ApiLimits
from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import CALLER, Caller, Role
from tickwright.ports.ids import monotonic

T = TypeVar("T")
_log = structlog.get_logger("tickwright.api")
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
            return await _read_all(receive, bytes_max)
    except TimeoutError:
        raise _too_slow(timeout) from None


async def _read_all(receive: Receive, bytes_max: int) -> bytes:
    pieces, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size, more = size + len(pieces[-1]), message.get("more_body", False)
        if size > bytes_max:
            raise _too_large(bytes_max)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


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


class ApiGate:
    """The API's services for routes of capabilities."""

    def __init__(self, auth: Authenticator, limits: ApiLimits) -> None:
        self._auth, self._limits = auth, limits
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    def allow(self, role: Role, scope: str | None = None) -> Any:
        """Return a dependency that returns the caller, or refuses one below ``role`` or without ``scope``."""

        async def allowed(request: Request) -> Caller:
            caller: Caller = request.scope[CALLER]
            check_role(caller, role, scope)
            _check_query(request)
            return caller

        return allowed

    async def read(
        self, request: Request, kind: type[T], *, default: T | None = None, bytes_max: int | None = None
    ) -> T:
        """Return the JSON body as ``kind``; ``default`` where there is no body."""
        decoder: msgspec.json.Decoder[T] = self._decoders.setdefault(kind, msgspec.json.Decoder(kind))
        if default is None:
            return strict_json.decode(await self.read_bytes(request, bytes_max), decoder)
        body = await read_body(request.receive, None, self._limits.body_bytes_max, self._limits.body_timeout)
        if not body:
            return default
        check_type(request.scope["headers"], JSON_TYPES)
        return strict_json.decode(body, decoder)

    async def read_bytes(self, request: Request, bytes_max: int | None = None) -> bytes:
        """Return a JSON body as bytes; at most ``bytes_max``, or the limit of any body."""
        length = check_type(request.scope["headers"], JSON_TYPES)
        limits = self._limits
        return await read_body(request.receive, length, bytes_max or limits.body_bytes_max, limits.body_timeout)

    def stream(self, request: Request, *, csv: bool = False) -> AsyncIterator[bytes]:
        """Return an NDJSON body piece by piece; with ``csv`` also CSV."""
        check_type(request.scope["headers"], NDJSON_TYPES | CSV_TYPES if csv else NDJSON_TYPES)
        return stream_body(request.receive, self._limits.idle_timeout)

    def check_role(self, request: Any, role: Role, scope: str | None = None) -> None:
        """Refuse the caller of an ASGI request (its scope) as :meth:`allow` does."""
        check_role(request[CALLER], role, scope)

    async def read_raw(self, request: Any, receive: Receive, bytes_max: int | None = None) -> bytes:
        """Return the JSON body of an ASGI request (its scope) as bytes; at most ``bytes_max``, or the limit of any."""
        length, limits = check_type(request["headers"], JSON_TYPES), self._limits
        return await read_body(receive, length, bytes_max or limits.body_bytes_max, limits.body_timeout)

    def now(self) -> datetime | None:
        """Return a time that the database's clock has reached."""
        return self._auth.now()

    def forget_keys(self) -> None:
        """Look up every key again at its next use."""
        self._auth.forget()


def check_role(caller: Caller, role: Role, scope: str | None = None) -> None:
    """Refuse a caller below ``role``, or a key with scopes that do not include ``scope``.

    Raises:
        Rejected: ``forbidden`` (403). Permanent with this key.
    """
    if caller.scopes:
        if caller.has_scope(scope):
            return
        _log.warning("api.forbidden", caller=caller.name, scopes=sorted(caller.scopes), needed=scope or role.name)
        wanted = f"the scope {scope} or the role {role.name.lower()}" if scope else f"the role {role.name.lower()}"
        raise Rejected(
            "forbidden", f"this needs {wanted}; the key has only {', '.join(sorted(caller.scopes))}", status=403
        )
    if caller.role < role:
        _log.warning("api.forbidden", caller=caller.name, role=caller.role.name, needed=role.name)
        raise Rejected(
            "forbidden", f"this needs the role {role.name.lower()}; the key has {caller.role.name.lower()}", status=403
        )


def _check_query(request: Request) -> None:
    if not request.scope["query_string"]:
        return
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name, value in request.query_params.multi_items():
        if "\0" in value:
            raise Rejected("unsupported_character", "\\u0000 cannot be kept and is found nowhere", status=400)
        if name not in known:
            shown = strict_json.quoted(name)
            allowed = ", ".join(sorted(known)) or "none here"
            raise Rejected("unknown_parameter", f"no parameter {shown}; known: {allowed}", status=400)
