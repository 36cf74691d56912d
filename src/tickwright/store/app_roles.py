"""Database roles that use plain SQL only: their creation, and roles with more rights than that."""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any

import asyncpg

from tickwright.domain.errors import Rejected
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.store.sql", "app_roles.sql")
SCRAM_ROUNDS = 4096
_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_-]{0,62}")
_PASSWORD = re.compile(r"[!-~]{8,200}")


async def create_app_role(connection: Connection, name: str, *, login: bool, password: str | None) -> None:
    """Create a role that uses plain SQL only, or set the rights of an existing one, in one transaction.

    Args:
        connection: Of a database user that owns the schema and may create roles.
        name: Lower-case letters, digits, ``_`` and ``-``.
        login: Whether it may log in; otherwise a group for other roles.
        password: 8 to 200 printable ASCII characters; sent as a SCRAM verifier, so no server log contains it.

    Raises:
        Rejected: ``invalid_role``, ``invalid_password``, ``role_too_powerful``, ``role_not_allowed``. Permanent.
    """
    verifier = None if password is None else scram_verifier(password)
    await _check(connection, name)
    try:
        async with connection.transaction():
            for (statement,) in await connection.fetch(SQL["statements"], name, login, verifier):
                await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError as error:
        advice = "tickwright roles create app --sql prints the statements for a user who may"
        raise Rejected("role_not_allowed", f"this database user may not do it ({error}); {advice}") from error


async def app_role_sql(connection: Connection, name: str, *, login: bool) -> list[str]:
    """Return the statements that create the role, with every right written out, to run by hand."""
    await _check(connection, name)
    making = [row[0] for row in await connection.fetch(SQL["statements"], name, login, None)]
    return making[:-1] + [row[0] for row in await connection.fetch(SQL["grants"], name)]


async def excess_rights(connection: Connection | Pool) -> list[Mapping[str, Any]]:
    """Return rights in our schema beyond those of an app role, of roles that do not run Tickwright."""
    return [dict(row) for row in await connection.fetch(SQL["excess"])]


async def _check(connection: Connection, name: str) -> None:
    if not _NAME.fullmatch(name) or name in {"public", "none"}:
        raise Rejected("invalid_role", "a role: 1 to 63 lower-case letters, digits, '_' or '-', not beginning with pg_")
    if (because := await connection.fetchval(SQL["power"], name)) is not None:
        raise Rejected("role_too_powerful", f"the role {name} cannot be held to fewer rights: {because}; use another")


def scram_verifier(password: str) -> str:
    """Return the form in which PostgreSQL stores a password (RFC 5803).

    Raises:
        Rejected: ``invalid_password``. Permanent.
    """
    if not _PASSWORD.fullmatch(password):
        raise Rejected("invalid_password", "a password: 8 to 200 printable ASCII characters without spaces")
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, SCRAM_ROUNDS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    parts = (base64.b64encode(one).decode() for one in (salt, stored, hmac.digest(salted, b"Server Key", "sha256")))
    return "SCRAM-SHA-256${}:{}${}:{}".format(SCRAM_ROUNDS, *parts)
