"""Parts of reports in Redis: the hash ``FileDownloadRecordEntity-{id}`` of the document; each change is one script.

The record in PostgreSQL decides what is complete. If Redis loses a hash, the parts of one epoch are requested again. A
foreign value under such a key stays unchanged and is logged, and the part is stored elsewhere. The same holds for the
hash of a record of the same number in another database, which has another nonce; only ``touch`` can renew its life.
"""

from collections.abc import Sequence
from datetime import timedelta

import structlog

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import RESERVED_LISTENERS, PartKey, Put, PutAnswer
from tickwright.transports.redis.connection import RedisClient, Script, milliseconds

DATA_BYTES_MAX = 1_048_576
NOTE_BYTES_MAX = 1_048_576  # the note names every column
TOUCHED_MAX = 500

_ANSWERS = (Put.STORED, Put.ALREADY, Put.STALE)
_FOUND, _FOREIGN_GET, _FOREIGN_PUT, _NOT_OURS = 0, 2, 3, 4
_PUT, _GET = Script("parts_put.lua"), Script("parts_get.lua")
_TOUCH, _CLOSE = Script("parts_touch.lua"), Script("parts_close.lua")
_log = structlog.get_logger("tickwright.redis")


class RedisParts:
    """Implements :class:`tickwright.ports.reports.SharedParts`. Every call but ``touch`` is one script with one key.

    Args:
        prefix: Before every key, with a colon; empty means the document's names. Two installations on one Redis should
            have two: with one prefix, the second of two reports of one number stores its parts elsewhere.
    """

    def __init__(self, redis: RedisClient, prefix: str = "") -> None:
        self._redis, self._before = redis, f"{prefix}:" if prefix else ""

    def key(self, report_id: int) -> str:
        """Return the key of a report's hash."""
        return f"{self._before}FileDownloadRecordEntity-{report_id}"

    async def put(self, key: PartKey, data: bytes, note: str, *, ttl: timedelta) -> PutAnswer:
        """Store a part once.

        Args:
            key: Its epoch is the ledger's. An epoch newer than the hash's empties the hash.
            data: At most 1 MiB, stored byte for byte.
            note: At most 1 MiB; a repeated put returns the note of the first one.
            ttl: The life of the whole hash, from now on.

        Raises:
            Unavailable: ``redis_unavailable``, the part may be stored; ``hash_foreign``, the key holds a foreign value;
                ``hash_not_ours``, it holds another record's parts. Store the part elsewhere, or retry.
            Rejected: ``reserved_listener``, ``part_too_large``. Permanent.
        """
        _check(key.listener, data, note)
        name = self.key(key.report_id)
        code, first = await self._redis.call_raw(
            _PUT, [name], key.epoch, key.listener, data, note, milliseconds(ttl), key.nonce
        )
        if code == _NOT_OURS:
            raise Unavailable(
                "hash_not_ours",
                f"The key {name} of Redis belongs to a report of another installation. Give each a prefix of its own.",
            )
        if code == _FOREIGN_PUT:
            raise Unavailable(
                "hash_foreign",
                f"The key {name} of Redis holds something that is no report's hash. Delete it, or set another prefix.",
            )
        return PutAnswer(_ANSWERS[code], first.decode("utf-8", "replace"))

    async def get(self, key: PartKey) -> bytes | None:
        """Return a part's data, byte for byte; ``None`` also if the key holds a foreign value."""
        name = self.key(key.report_id)
        code, data = await self._redis.call_raw(_GET, [name], key.epoch, key.listener, key.nonce)
        if code == _FOREIGN_GET:
            _log.warning("redis.hash_foreign", key=name)
        return data if code == _FOUND else None

    async def touch(self, report_ids: Sequence[tuple[int, int]], *, ttl: timedelta) -> None:
        """Renew the lives of hashes, 500 per round trip; foreign keys stay unchanged."""
        for first in range(0, len(report_ids), TOUCHED_MAX):
            chunk = report_ids[first : first + TOUCHED_MAX]
            await self._redis.call_each(_TOUCH, [(self.key(known), epoch, milliseconds(ttl)) for known, epoch in chunk])

    async def close(self, report_id: int, status: str, *, nonce: str, ttl: timedelta) -> None:
        """Replace the hash by a tombstone; a foreign key stays unchanged."""
        if not await self._redis.call(_CLOSE, [self.key(report_id)], status, milliseconds(ttl), nonce):
            _log.warning("redis.hash_foreign", key=self.key(report_id))


def _check(listener: str, data: bytes, note: str) -> None:
    if listener in RESERVED_LISTENERS or listener.startswith("done:"):
        raise Rejected("reserved_listener", f"A listener cannot be called {listener!r}: the hash has such a field.")
    if len(data) > DATA_BYTES_MAX or len(note.encode()) > NOTE_BYTES_MAX:
        text = f"A part in Redis has at most {DATA_BYTES_MAX} bytes, and a note of at most {NOTE_BYTES_MAX}."
        raise Rejected("part_too_large", text)
