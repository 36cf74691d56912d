"""What Redis stores: run claims and publish marks of fan-out, and parts of reports. Each change is one script.

Redis has no sessions, so a run claim lives for ten seconds and is renewed. It is a field in the hash of its entity. A
success that happens while the ledger is unavailable is kept in a separate hash until the ledger has it.

A publish mark is one key per window of an entity: absent, ``p:<token>`` (claimed, with a short life) or ``d:<token>``
(published, kept for the window and longer). If Redis loses any of this, a task runs or a window is published at most
twice, and consumers drop the duplicate.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TypeVar
from urllib.parse import unquote

import structlog

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.fanout import EntityWindow, HeldRun, Mark, MarkClaim, Run, RunClaim, RunStart, Success
from tickwright.ports.reports import RESERVED_LISTENERS, PartKey, Put, PutAnswer
from tickwright.transports.redis.connection import RedisClient, Script, key_part, milliseconds

RUN_LEASE = timedelta(seconds=10)
KEEP_S = 172_800  # two days without a change: longer than any window
AHEAD_S = 60  # a window further ahead comes from a clock that was wrong
CHUNK = 500
CARRIED_MAX = 1_000
INSTANT_MAX_S = 7_258_118_400  # the year 2200

_STARTS = (RunStart.BEGUN, RunStart.BUSY, RunStart.DONE)
_BEGIN, _END, _RENEW = Script("runs_begin.lua"), Script("runs_end.lua"), Script("runs_renew.lua")
_CARRIED, _FORGET = Script("runs_carried.lua"), Script("runs_forget.lua")
T = TypeVar("T")
_log = structlog.get_logger("tickwright.redis")


def runs_key(prefix: str, entity_code: str) -> str:
    """Return the key of an entity's hash of run claims."""
    return f"{prefix}:runs:{key_part(entity_code)}"


def instant_s(text: str) -> float | None:
    """Return the instant that Redis stores as text; ``None`` if it is not from 1970 to 2200."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found < INSTANT_MAX_S else None


class RedisRunClaims:
    """Implements :class:`tickwright.ports.fanout.CarryingRunClaims`.

    Args:
        prefix: Of every key; on Redis Cluster one with a hash tag, such as ``{gocpi}``.
        lease: How long a claim lives without a renewal, by the clock of Redis. Renew every third of it.
    """

    def __init__(self, redis: RedisClient, *, prefix: str = "gocpi", lease: timedelta = RUN_LEASE) -> None:
        self._redis, self._prefix = redis, prefix
        self._lease_ms = milliseconds(lease)
        self._carry = f"{prefix}:carry"

    async def begin(self, runs: Sequence[Run], owner: int) -> list[RunClaim]:
        """Claim each run in order; earlier runs in ``runs`` count."""
        begun: list[RunClaim] = []
        for chunk in _chunks(runs):
            arguments = [argument for run in chunk for argument in (run.task_type, run.window_s, run.at_once)]
            keys = [runs_key(self._prefix, run.entity_code) for run in chunk]
            now_s, *found = await self._redis.call(_BEGIN, keys, owner, self._lease_ms, KEEP_S, AHEAD_S, *arguments)
            begun += [
                RunClaim(_STARTS[start], int(fence), float(now_s), instant_s(success))
                for start, fence, success in zip(found[::3], found[1::3], found[2::3], strict=True)
            ]
        return begun

    async def end(self, ended: Sequence[HeldRun], owner: int, *, carry: bool = False) -> list[bool]:
        """Release the claims. A success moves the window and the last success, forward only."""
        ours: list[bool] = []
        for chunk in _chunks(ended):
            keys = [self._carry, *(runs_key(self._prefix, end.run.entity_code) for end in chunk)]
            arguments = [argument for end in chunk for argument in _end_arguments(end)]
            found = await self._redis.call(_END, keys, owner, KEEP_S, int(carry), *arguments)
            ours += [bool(is_ours) for is_ours in found]
        return ours

    async def renew(self, held: Sequence[HeldRun], owner: int) -> list[bool]:
        """Renew the claims for the full lease."""
        ours: list[bool] = []
        for chunk in _chunks(held):
            keys = [runs_key(self._prefix, end.run.entity_code) for end in chunk]
            arguments = [argument for end in chunk for argument in (end.run.task_type, end.claim.fence)]
            found = await self._redis.call(_RENEW, keys, owner, self._lease_ms, KEEP_S, *arguments)
            ours += [bool(is_ours) for is_ours in found]
        return ours

    async def carried(self, limit: int) -> list[Success]:
        """Return at most ``limit`` (1,000) successes that the ledger lacks; drop fields that it would refuse."""
        found = await self._redis.call(_CARRIED, [self._carry], min(limit, CARRIED_MAX))
        successes, garbage = [], []
        for field, value in zip(found[::2], found[1::2], strict=True):
            success = _success(field, value)
            if success is None:
                garbage += [field, value]
            else:
                successes.append(success)
        if garbage:
            _log.warning(
                "redis.invalid_field_dropped", key=self._carry, fields=[ascii(field) for field in garbage[:6:2]]
            )
            await self._redis.call(_FORGET, [self._carry], *garbage)
        return successes

    async def forget(self, successes: Sequence[Success]) -> None:
        """Drop successes that the ledger has, unless a newer one has replaced them."""
        for chunk in _chunks(successes):
            fields = [
                text for success in chunk for text in (_field(success.entity_code, success.task_type), _value(success))
            ]
            await self._redis.call(_FORGET, [self._carry], *fields)


def _end_arguments(end: HeldRun) -> tuple[str | int, ...]:
    run = end.run
    succeeded = int(end.error is None and not end.released)
    began = repr(end.claim.begun_s)
    return run.task_type, end.claim.fence, succeeded, run.window_s, began, _field(run.entity_code, run.task_type)


def _field(entity_code: str, task_type: str) -> str:
    return f"{key_part(entity_code)}|{key_part(task_type)}"


def _value(success: Success) -> str:
    return f"{success.window_s}|{success.success_s!r}"


def _success(field: str, value: str) -> Success | None:
    """Parse a field; ``None`` unless writing it again gives the same text, because ``forget`` could not drop it."""
    entity_code, _, task_type = (unquote(part) for part in field.partition("|"))
    window_s, _, success_s = value.partition("|")
    try:
        success = Success(entity_code, task_type, int(window_s), float(success_s))
    except ValueError:
        return None
    sound = entity_code.isprintable() and task_type.isprintable() and 0 <= success.window_s < INSTANT_MAX_S
    sound = sound and 0 <= success.success_s < INSTANT_MAX_S
    ours = sound and _field(entity_code, task_type) == field and _value(success) == value
    return success if ours else None


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + CHUNK] for first in range(0, len(items), CHUNK))


_MARKS = (Mark.MINE, Mark.TAKEN, Mark.SEALED)
_CLAIM, _SEAL, _RELEASE = Script("marks_claim.lua"), Script("marks_seal.lua"), Script("marks_release.lua")


class RedisMarks:
    """Implements :class:`tickwright.ports.fanout.Marks`.

    Args:
        prefix: Of every key; on Redis Cluster one with a hash tag, such as ``{gocpi}``.
    """

    def __init__(self, redis: RedisClient, *, prefix: str = "gocpi") -> None:
        self._redis, self._prefix = redis, prefix

    async def claim(self, windows: Sequence[EntityWindow], token: str, lease: timedelta) -> list[MarkClaim]:
        """Claim free windows. The same round trip returns the last success from the run claims."""
        claimed: list[MarkClaim] = []
        for chunk in _chunks(windows):
            keys = [key for window in chunk for key in (self._key(window), runs_key(self._prefix, window.entity_code))]
            types = [window.task_type for window in chunk]
            answer = await self._redis.call(_CLAIM, keys, token, milliseconds(lease), *types)
            pairs = zip(answer[::2], answer[1::2], strict=True)
            claimed += [MarkClaim(_MARKS[mark], instant_s(success)) for mark, success in pairs]
        return claimed

    async def seal(self, windows: Sequence[EntityWindow], token: str, *, keep: timedelta) -> int:
        """Keep the marks for ``keep``, and write lost ones again. Return how many belong to another token."""
        others = 0
        for chunk in _chunks(windows):
            others += await self._redis.call(_SEAL, [self._key(window) for window in chunk], token, milliseconds(keep))
        return others

    async def release(self, windows: Sequence[EntityWindow], token: str) -> None:
        """Delete the marks that ``token`` still claims."""
        for chunk in _chunks(windows):
            await self._redis.call(_RELEASE, [self._key(window) for window in chunk], token)

    def _key(self, window: EntityWindow) -> str:
        return f"{self._prefix}:publish:{key_part(window.entity_code)}:{key_part(window.task_type)}:{window.window_s}"


# Parts of reports: the hash ``FileDownloadRecordEntity-{id}`` (the name that senders in other languages know).
#
# The record in PostgreSQL decides what is complete. If Redis loses a hash, all parts are fetched again in a new epoch.
# Two kinds of value are foreign: *invalid* is what no release writes, *not ours* is the hash of a record of the same
# number in another database, which has another nonce. Both stay unchanged (only ``touch`` can renew the second), get is
# logged, and the part is stored elsewhere.

DATA_BYTES_MAX = 1_048_576
NOTE_BYTES_MAX = 1_048_576  # the note names every column
TOUCHED_MAX = 500

_ANSWERS = (Put.STORED, Put.ALREADY, Put.STALE)
_FOUND, _FOREIGN_GET, _FOREIGN_PUT, _NOT_OURS = 0, 2, 3, 4
_PUT, _GET = Script("parts_put.lua"), Script("parts_get.lua")
_TOUCH, _CLOSE = Script("parts_touch.lua"), Script("parts_close.lua")


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
        code, first = await self._redis.call(
            _PUT, [name], key.epoch, key.listener, data, note, milliseconds(ttl), key.nonce, raw=True
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
        code, data = await self._redis.call(_GET, [name], key.epoch, key.listener, key.nonce, raw=True)
        if code == _FOREIGN_GET:
            _log.warning("redis.hash_foreign", key=name)
        return data if code == _FOUND else None

    async def touch(self, report_ids: Sequence[tuple[int, int]], *, ttl: timedelta) -> None:
        """Renew the lives of hashes, 500 per round trip; foreign keys stay unchanged."""
        for first in range(0, len(report_ids), TOUCHED_MAX):
            chunk = report_ids[first : first + TOUCHED_MAX]
            await self._redis.call_each(
                _TOUCH, [(self.key(report_id), epoch, milliseconds(ttl)) for report_id, epoch in chunk]
            )

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
