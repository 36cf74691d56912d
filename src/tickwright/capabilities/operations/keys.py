"""API keys: create, list, rotate, revoke. The key itself is shown once and not stored."""

import hashlib
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tickwright.capabilities.operations.views import KeyView, NewKeyView
from tickwright.domain.errors import Rejected
from tickwright.domain.signatures import OVERLAP_DEFAULT, check_overlap
from tickwright.domain.strict_json import quoted
from tickwright.ports.caller import SCOPES, WORK_SCOPES, Caller, Role, is_scope
from tickwright.ports.ids import random_token
from tickwright.ports.views import view
from tickwright.store.audit import write_audit
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import filled, load

_SQL = filled(load("tickwright.capabilities.operations.sql", "access.sql"), "key_columns")
KEY_BYTES = 32
PREFIX_CHARS = 8
NAME_CHARS_MAX = 100
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,100}")


def key_hash(key: str) -> bytes:
    """Return the stored hash of a key; a plain SHA-256 is enough for 256 random bits."""
    return hashlib.sha256(key.encode()).digest()


def check_scopes(role: Role | None, scopes: Sequence[str]) -> None:
    """Refuse anything but a role or a set of existing scopes.

    Raises:
        Rejected: ``invalid_scopes``. Permanent.
    """
    if unknown := sorted(one for one in scopes if not is_scope(one)):
        why = f"no scope {quoted(unknown[0])}; known: {', '.join([*SCOPES, *WORK_SCOPES])}"
    elif len(set(scopes)) < len(scopes):
        why = "a scope is named twice"
    elif (role is None) == (not scopes):
        why = "a key has either a role (viewer, operator or admin) or scopes"
    else:
        return
    raise Rejected("invalid_scopes", f"scopes: {why}", field="scopes")


class ApiKeys:
    """The keys of the REST API."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def create(
        self,
        name: str,
        role: Role | None,
        *,
        caller: Caller,
        expires_in: timedelta | None = None,
        scopes: Sequence[str] = (),
    ) -> NewKeyView:
        """Make a key with a role, or with scopes.

        A process of an older release knows no scopes, so a key with scopes has the lowest role.

        Raises:
            Rejected: ``invalid_name``, ``invalid_scopes``. Permanent.
        """
        kept = role or Role.VIEWER
        check_scopes(role, scopes)
        if not _NAME.fullmatch(name):
            raise Rejected("invalid_name", f"name: 1 to {NAME_CHARS_MAX} printable characters", field="name")
        async with self._pool.acquire() as connection, connection.transaction():
            key, prefix = _new_key()
            row = await connection.fetchrow(
                _SQL["create"], name, kept.name.lower(), prefix, key_hash(key), expires_in, sorted(scopes)
            )
            made = NewKeyView(key, view(KeyView, row))
            await write_audit(connection, caller, "keys.create", f"key:{made.details.id}", after=made.details)
        return made

    async def list(self) -> list[KeyView]:
        """Return every key, newest first, without the key itself."""
        return [view(KeyView, row) for row in await self._pool.fetch(_SQL["list"])]

    async def revoke(self, key_id: int, *, caller: Caller) -> KeyView:
        """Refuse a key from now on; every replica does so within a second. Revoking twice changes nothing.

        Raises:
            Rejected: ``key_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, key_id)
            after = view(KeyView, await connection.fetchrow(_SQL["revoke"], key_id))
            await write_audit(
                connection, caller, "keys.revoke", f"key:{key_id}", before=view(KeyView, before), after=after
            )
        return after

    async def rotate(
        self, key_id: int, *, caller: Caller, overlap: timedelta = OVERLAP_DEFAULT, expires_in: timedelta | None = None
    ) -> NewKeyView:
        """Make a key with the same name, role and expiry; the old one expires after ``overlap``.

        ``expires_in`` replaces the expiry of the new key.

        Raises:
            Rejected: ``key_not_found`` (404); ``key_not_valid`` (409), revoked or expired; ``invalid_overlap``.
                Permanent.
        """
        check_overlap(overlap)
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, key_id)
            if not before["good"]:
                raise Rejected("key_not_valid", f"key {key_id} is revoked or expired; create a new one", status=409)
            key, prefix = _new_key()
            row = await connection.fetchrow(_SQL["succeed"], key_id, prefix, key_hash(key), expires_in)
            made = NewKeyView(key, view(KeyView, row))
            await connection.execute(_SQL["expire"], key_id, overlap)
            await write_audit(
                connection, caller, "keys.rotate", f"key:{key_id}", before=view(KeyView, before), after=made.details
            )
        return made

    async def _locked(self, connection: Connection, key_id: int) -> Any:
        row = await connection.fetchrow(_SQL["lock"], key_id)
        if row is None:
            raise Rejected("key_not_found", f"there is no key {key_id}", status=404)
        return row


def _new_key() -> tuple[str, str]:
    key = f"tw_{random_token(KEY_BYTES)}"
    return key, key[:PREFIX_CHARS]
