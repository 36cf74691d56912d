"""Browser sessions: a random token for each sign-in, stored as its hash in a row that expires.

The cookie contains the token and not the key. It is worthless when its row is gone: signed out, revoked, unused for
``IDLE``, or ``LIFETIME`` old. A session is never valid without its key, which is looked up with it.
"""

from datetime import datetime, timedelta

import msgspec

from tickwright.api.cookies import MAX_AGE_S, TOKEN_PREFIX, Headers, session_tokens
from tickwright.capabilities.operations.keys import key_hash
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role
from tickwright.ports.ids import random_token
from tickwright.ports.views import view
from tickwright.store.audit import write_audit
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.api.sql", "sessions.sql")
LIFETIME = timedelta(seconds=MAX_AGE_S)
IDLE = timedelta(hours=2)
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
        rows = await self._pool.fetch(_SQL["list"], _whose(caller))
        return [view(BrowserSessionView, {**row, "current": row["id"] == caller.session_id}) for row in rows]

    async def revoke(self, session: int, *, caller: Caller) -> None:
        """End a session of the caller's key, or for an admin any session.

        Raises:
            Rejected: ``session_not_found`` (404): the caller has no such session. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            key_id = await connection.fetchval(_SQL["revoke"], session, _whose(caller))
            if key_id is None:
                raise Rejected("session_not_found", f"there is no session {session} that you may end", status=404)
            await write_audit(connection, caller, "sessions.revoke", f"session:{session}", before={"key_id": key_id})


def _whose(caller: Caller) -> int | None:
    return None if caller.role >= Role.ADMIN else caller.key_id or 0


def _hashes(headers: Headers) -> "list[bytes]":
    return [key_hash(token) for token in session_tokens(headers) if token is not None]


def _client(headers: Headers, address: str) -> str:
    agent = next((value.decode("latin-1") for name, value in headers if name == b"user-agent"), "")
    text = f"{address} {agent}".strip()[:CLIENT_CHARS_MAX]
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
