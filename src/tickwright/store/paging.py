"""Cursors: where a listing continues. Each is signed, and bound to its listing's filter."""

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Any

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.signatures import digest_of
from tickwright.ports.views import CURSOR_CHARS_MAX
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.store.sql", "paging.sql")
LIMIT_DEFAULT, LIMIT_MAX = 50, 200
NEWEST = 2**63 - 1
_MAC_BYTES = 16


async def installation_id(pool: Pool) -> str:
    """Return the id of this installation, which is secret: show only digests of it."""
    return str(await pool.fetchval(_SQL["installation_id"]))


class Cursors:
    """Makes and reads cursors, which are valid on all replicas of one installation."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._secret: bytes | None = None

    async def make(self, position: Any, *listing: Any) -> str:
        """Return the cursor of ``position`` in the listing that ``listing`` (name and filters) describes."""
        body = msgspec.json.encode(position)
        return base64.urlsafe_b64encode(await self._mac(body, listing) + body).decode().rstrip("=")

    async def read(self, cursor: str, kind: type, *listing: Any) -> Any:
        """Return the position of ``cursor``.

        Raises:
            Rejected: ``invalid_cursor`` (400): forged, or from another listing or filter. Permanent: start without one.
        """
        try:
            data = base64.urlsafe_b64decode(cursor[:CURSOR_CHARS_MAX].encode() + b"==")
            mac, body = data[:_MAC_BYTES], data[_MAC_BYTES:]
            if not hmac.compare_digest(mac, await self._mac(body, listing)):
                raise _forged()
            return msgspec.json.decode(body, type=kind)
        except (ValueError, binascii.Error, msgspec.MsgspecError):
            raise _forged() from None

    async def _mac(self, body: bytes, listing: tuple[Any, ...]) -> bytes:
        if self._secret is None:
            self._secret = digest_of("cursor", await installation_id(self._pool))
        return hmac.digest(self._secret, digest_of(*listing) + body, "sha256")[:_MAC_BYTES]


async def fetch_page(pool: Pool, sql: str, *arguments: Any) -> Sequence[Any]:
    """Return the rows of a listing, read in the order of its index."""
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(_SQL["plan_page"])
        rows: Sequence[Any] = await connection.fetch(sql, *arguments)
        return rows


def _forged() -> Rejected:
    return Rejected(
        "invalid_cursor", "this cursor is not from this listing; start again without one", status=400, field="cursor"
    )


def checked_limit(limit: int) -> int:
    """Return ``limit`` if a page may have that many rows.

    Raises:
        Rejected: ``invalid_limit``. Permanent.
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise Rejected("invalid_limit", f"limit: 1 to {LIMIT_MAX}", field="limit")
    return limit
