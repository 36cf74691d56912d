"""The gate of every route: caller, role, query, body. Implements :class:`tickwright.rest.gate.Gate`."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import structlog
from fastapi.requests import Request

from tickwright.api.auth import Authenticator
from tickwright.api.context import ApiLimits
from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import CALLER, Caller, Role
from tickwright.rest.bodies import CSV_TYPES, JSON_TYPES, NDJSON_TYPES, Receive, check_type, read_body, stream_body

T = TypeVar("T")
_log = structlog.get_logger("tickwright.api")


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

    def check_role(self, scope: Any, role: Role, needed: str | None = None) -> None:
        """Refuse the caller of an ASGI scope as :meth:`allow` does."""
        check_role(scope[CALLER], role, needed)

    async def read_raw(self, scope: Any, receive: Receive) -> bytes:
        """Return the JSON body of an ASGI scope as bytes."""
        limits = self._limits
        return await read_body(
            receive, check_type(scope["headers"], JSON_TYPES), limits.body_bytes_max, limits.body_timeout
        )

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
        if scope in caller.scopes:
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
            shown = strict_json.shown(name)
            allowed = ", ".join(sorted(known)) or "none here"
            raise Rejected("unknown_parameter", f"no parameter {shown}; known: {allowed}", status=400)
