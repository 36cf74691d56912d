"""Which tasks are ours: an HMAC over a message's body, with its id in it, by a key that only the owner can read.

The queue, its exchange, a topic inside PostgreSQL and the outbox can be written by roles that may not say what runs
with which party. So schedulers sign, and consumers run nothing else. Keys are kept in memory: neither side asks the
database for a message.
"""

import base64
import hmac
from collections.abc import Sequence
from typing import NamedTuple

import asyncpg

from tickwright.domain.errors import Unavailable
from tickwright.ports.fanout import Delivery
from tickwright.ports.ids import monotonic
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SIGNATURE = "tickwright-signature"
VERSION = "v1,"
FRESH_S = 15.0
_PURPOSE = b"tickwright.fanout."

_SQL = load("tickwright.capabilities.fanout.sql", "keys.sql")


class MessageKeys(NamedTuple):
    """The keys as they were read, the one that signs first."""

    keys: Sequence[bytes] = ()
    read_s: float = float("-inf")

    def sign(self, body: bytes) -> str:
        """Return the value of the header ``tickwright-signature``.

        Raises:
            Unavailable: ``no_message_key``. Retry once there is one.
        """
        if not self.keys:
            remedy = "the owner of the schema makes one with tickwright.rotate_message_key()"
            raise Unavailable("no_message_key", f"tickwright.message_keys has no key to sign with; {remedy}")
        return _signature(self.keys[0], body)

    def refusal(self, delivery: Delivery) -> str | None:
        """Return why a message is not ours: ``unsigned`` or ``signature_wrong``; ``None`` where it is."""
        shown = delivery.headers.get(SIGNATURE)
        if shown is None:
            return "unsigned"
        if not isinstance(shown, str):
            return "signature_wrong"
        wanted = (_signature(key, delivery.body) for key in self.keys)
        given = shown.encode("utf-8", "replace")
        return None if any(hmac.compare_digest(one.encode(), given) for one in wanted) else "signature_wrong"

    @property
    def fresh(self) -> bool:
        """Whether they were read so lately that a key which is not among them is none of ours."""
        return bool(self.keys) and monotonic() - self.read_s < FRESH_S


NO_KEYS = MessageKeys()


def _signature(key: bytes, body: bytes) -> str:
    digest = hmac.digest(key, _PURPOSE + body, "sha256")
    return VERSION + base64.b64encode(digest).decode()


async def read_keys(database: Pool | Connection) -> MessageKeys:
    """Return the keys as they are now. Raises what a lost database raises; retry."""
    rows: list[asyncpg.Record] = await database.fetch(_SQL["message_keys"])
    return MessageKeys([bytes(row["key"]) for row in rows], monotonic())
