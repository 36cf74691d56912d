"""Browser sessions: a random token for each sign-in, stored as its hash in a row that expires.

The cookie contains the token and not the key. It is worthless when its row is gone: signed out, revoked, unused for
``IDLE``, or ``LIFETIME`` old. A session is never valid without its key, which is looked up with it.

Failed sign-ins are limited together, only to bound the log, because guessing 256 bits is impossible. A valid key is
looked up before that limit, so a flood of bad ones locks no user out. Successful sign-ins are limited per key: each
writes an audit row, which is never deleted, and a viewer's key can write no other.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
import structlog
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from tickwright.api.auth import CSRF, Authenticator, RateBound, unauthenticated
from tickwright.api.context import ApiContext
from tickwright.api.cookies import (
    IDLE,
    MAX_AGE_S,
    TOKEN_PREFIX,
    Headers,
    Site,
    cross_site,
    csrf_token,
    is_key,
    over_tls,
    session_tokens,
    signed_in,
    signed_out,
    site_of,
)
from tickwright.capabilities.operations.keys import key_hash
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role
from tickwright.ports.ids import monotonic, random_token
from tickwright.ports.views import Page, view
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Id, accepts, answer, answers
from tickwright.store.audit import write_audit
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.api.sql", "sessions.sql")
LIFETIME = timedelta(seconds=MAX_AGE_S)
OF_KEY_MAX = 100
CLIENT_CHARS_MAX = 200
_TOKEN_BYTES = 32


class BrowserSessionView(msgspec.Struct):
    """A browser that is signed in.

    Attributes:
        name: Of its key.
        client: Its address and user agent.
        seen_at: Its last use, to some minutes.
        current: Whether this request belongs to the session.
    """

    id: int
    key_id: int
    name: str
    role: str
    client: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime
    current: bool = False


class Sessions:
    """The sessions of the API."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def open(self, caller: Caller, headers: Headers, address: str) -> str:
        """Return the token of a new session; end the session in ``headers``, so each sign-in has a new token."""
        token = f"{TOKEN_PREFIX}{random_token(_TOKEN_BYTES)}"
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(_SQL["close"], _hashes(headers))
            session = await connection.fetchval(
                _SQL["open"], key_hash(token), caller.key_id, _client(headers, address), IDLE, LIFETIME
            )
            await connection.execute(_SQL["bound"], caller.key_id, OF_KEY_MAX)
            after = {"role": caller.role.name.lower(), "session": session}
            await write_audit(connection, caller, "session.open", f"key:{caller.key_id}", after=after)
        return token

    async def close(self, caller: Caller, headers: Headers) -> None:
        """End the session in ``headers``, if any; every replica refuses its cookie within a second."""
        async with self._pool.acquire() as connection, connection.transaction():
            if not await connection.fetch(_SQL["close"], _hashes(headers)):
                return  # nothing to audit: a bearer key has no session
            after = {"role": caller.role.name.lower(), "session": caller.session_id}
            await write_audit(connection, caller, "session.close", f"key:{caller.key_id}", after=after)

    async def list(self, caller: Caller) -> list[BrowserSessionView]:
        """Return the sessions of the caller's key, or for an admin all sessions, newest first."""
        rows = await self._pool.fetch(_SQL["list"], _key_filter(caller))
        return [view(BrowserSessionView, {**row, "current": row["id"] == caller.session_id}) for row in rows]

    async def revoke(self, session: int, *, caller: Caller) -> None:
        """End a session of the caller's key, or for an admin any session.

        Raises:
            Rejected: ``session_not_found`` (404): the caller has no such session. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            key_id = await connection.fetchval(_SQL["revoke"], session, _key_filter(caller))
            if key_id is None:
                raise Rejected("session_not_found", f"there is no session {session} that you may end", status=404)
            await write_audit(connection, caller, "sessions.revoke", f"session:{session}", before={"key_id": key_id})


def _key_filter(caller: Caller) -> int | None:
    return None if caller.role >= Role.ADMIN else caller.key_id or 0


def _hashes(headers: Headers) -> "list[bytes]":
    return [key_hash(token) for token in session_tokens(headers) if token is not None]


def _client(headers: Headers, address: str) -> str:
    agent = next((value.decode("latin-1") for name, value in headers if name == b"user-agent"), "")
    text = f"{address} {agent}".strip()[:CLIENT_CHARS_MAX]
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in text)


SIGN_IN_BYTES_MAX = 1_024
FAILURES_BURST = 20
FAILURE_GAP_S = 1.0
OPENED_BURST = 100
OPENED_GAP_S = 10.0
_log = structlog.get_logger("tickwright.api")


class SessionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A sign-in with an API key."""

    key: Annotated[str, msgspec.Meta(max_length=200)]


class SessionView(msgspec.Struct):
    """The identity of the request's key.

    Attributes:
        csrf: Value for the header ``x-tickwright-csrf`` of every change with the cookie; null for a bearer key.
        shows_payloads: Whether this role sees payloads and other user data.
    """

    name: str
    role: str
    key_id: int | None
    version: str
    csrf: str | None
    shows_payloads: bool


def _count_sign_in(bound: RateBound, advice: str) -> None:
    if wait_s := bound.count(monotonic()):
        raise Rejected("too_many_sign_ins", advice, status=429, retry_after_s=wait_s)


def session_routes(context: ApiContext, auth: Authenticator, gate: Gate) -> APIRouter:
    """Return the routes of the session."""
    router = APIRouter(tags=["session"])
    any_caller = Annotated[Caller, Depends(gate.allow(Role.VIEWER))]
    sessions = Sessions(context.pool)
    sign_in = _SignIn(sessions, auth)

    @router.post("/v1/session", **answers(SessionView), **accepts(SessionRequest))
    async def open_session(request: Request) -> Response:
        """Sign in with an API key: the answer sets a cookie that scripts cannot read, for at most twelve hours."""
        if site_of(request.scope["headers"]) is Site.OTHER:
            raise cross_site()
        body = await gate.read(request, SessionRequest, bytes_max=SIGN_IN_BYTES_MAX)
        caller, token = await sign_in.open(body.key, request)
        cookie = signed_in(token, context.cookie_path, secure=_secure(request))
        return answer(_view(context, caller, csrf_token(token)), headers=dict([cookie]))

    @router.get("/v1/session", **answers(SessionView))
    async def session(request: Request, caller: any_caller) -> Response:
        """Return the identity of the request's key."""
        return answer(_view(context, caller, request.scope.get(CSRF)))

    @router.delete("/v1/session", status_code=204, response_class=Response)
    async def close_session(request: Request, caller: any_caller) -> Response:
        """Sign out: the session ends everywhere; the key stays valid."""
        await sign_in.close(caller, request)
        return Response(status_code=204, headers=dict([signed_out(context.cookie_path, secure=_secure(request))]))

    @router.get("/v1/sessions", **answers(Page[BrowserSessionView]))
    async def list_sessions(caller: any_caller) -> Response:
        """List the browsers that are signed in with the caller's key, or for an admin with any key."""
        return answer(Page(await sessions.list(caller)))

    @router.delete("/v1/sessions/{session_id}", status_code=204, response_class=Response)
    async def revoke_session(session_id: Id, caller: any_caller) -> Response:
        """Sign out another browser: one of the caller's key, or for an admin any. Takes effect within a second."""
        await sessions.revoke(session_id, caller=caller)
        auth.forget()
        return Response(status_code=204)

    return router


class _SignIn:
    """Opens and closes sessions, with log and audit trail."""

    def __init__(self, sessions: Sessions, auth: Authenticator) -> None:
        self._sessions, self._auth = sessions, auth
        self._failures = RateBound(FAILURE_GAP_S, (FAILURES_BURST - 1) * FAILURE_GAP_S)
        self._opened: defaultdict[int, RateBound] = defaultdict(  # per key that signed in; there are few
            lambda: RateBound(OPENED_GAP_S, (OPENED_BURST - 1) * OPENED_GAP_S)
        )

    async def open(self, key: str, request: Request) -> tuple[Caller, str]:
        try:
            if not is_key(key):
                raise unauthenticated("this is no API key; one begins with tw_ and has 46 characters")
            caller = await self._auth.caller_of_key(key)
        except Rejected as error:
            if error.http_status == 401:
                _count_sign_in(self._failures, "too many sign-ins fail here; wait, and copy the whole key")
                _log.warning("session.open", outcome="refused", client=_address(request))
            raise
        if caller.scopes:
            why = "a key with scopes is a program's; sign in with one that has a role"
            raise Rejected("key_has_scopes", why, status=403)
        advice = "too many sign-ins with this key; wait, or send it as a bearer token, which needs none"
        _count_sign_in(self._opened[caller.key_id or 0], advice)
        token = await self._sessions.open(caller, request.scope["headers"], str(_address(request) or ""))
        self._auth.forget()  # the previous session, or the oldest one, has ended
        _log.info("session.open", outcome="opened", caller=caller.name, role=caller.role.name, client=_address(request))
        return caller, token

    async def close(self, caller: Caller, request: Request) -> None:
        await self._sessions.close(caller, request.scope["headers"])
        self._auth.forget()
        _log.info("session.close", caller=caller.name)


def _view(context: ApiContext, caller: Caller, csrf: str | None) -> SessionView:
    shows = caller.role >= context.payloads_from
    return SessionView(caller.name, caller.role.name.lower(), caller.key_id, context.version, csrf, shows)


def _secure(request: Request) -> bool:
    return over_tls(request.scope["headers"], request.scope["scheme"])


def _address(request: Request) -> Any:
    return request.client.host if request.client else None
