"""Store a part's rows until they are merged, and fetch them.

Up to 256 KiB go into the Redis hash of the report, or into PostgreSQL if Redis is missing or unavailable. Larger parts
go into the object store, with a reference in the hash for its readers. Data and mark are written to the hash in one
step, and the ledger after it. If an earlier attempt has written the mark, its rows count, and those of this attempt are
removed.
"""

import asyncio
import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from tickwright.capabilities.reports.merge.steps import Part
from tickwright.capabilities.reports.parts.spool import private_file
from tickwright.capabilities.reports.parts.store import PartsStore, StoredPart, columns_from
from tickwright.capabilities.reports.types.plan import Plan
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.ids import random_token
from tickwright.ports.objects import ObjectStore
from tickwright.ports.reports import PartFacts, PartKey, Put, PutAnswer, SharedParts
from tickwright.ports.service import NO_PROBE, Probe

INLINE_BYTES_MAX = 256 * 1024
HASH_TTL = timedelta(minutes=10)
READ_BYTES = 1024 * 1024
UPLOADS_MAX = 7  # 63 s of pauses, plus the time of seven failed uploads

_Note = tuple[int, int, str, list[tuple[str, str]], Literal["redis", "object"], str | None]
_decode_note = msgspec.json.Decoder(_Note).decode
_NAME = re.compile(r"[A-Za-z0-9_-]+\.ndjson")
_log = structlog.get_logger("tickwright.reports")


class LostPartError(Exception):
    """The rows of a stored part are missing or have changed."""


class PartStorage:
    """Stores parts and fetches them; ``shared`` is ``None`` without Redis.

    Invariants:
        RPP-1: fetched rows have the checksum in the ledger, or the part is lost.
        RPP-2: a note in Redis can name only objects of its own part.
    """

    def __init__(
        self, ledger: PartsStore, shared: SharedParts | None, objects: ObjectStore, *, probe: Probe = NO_PROBE
    ) -> None:
        self._ledger, self._shared, self._objects, self._probe = ledger, shared, objects, probe

    async def put(self, key: PartKey, path: Path, facts: PartFacts, *, plan: Plan) -> StoredPart | None:
        """Store the rows in ``path``; ``None`` if the report is over or of a newer epoch.

        Raises:
            Unavailable: The object store does not answer. Retry.
            Rejected: The object store refuses. Permanent until an operator acts.
        """
        if facts.bytes <= INLINE_BYTES_MAX:
            rows = await asyncio.to_thread(path.read_bytes)
            stored = StoredPart(facts, "redis")
            answer = await self._mark(key, _as_array(rows), stored, plan)
            return StoredPart(facts, "postgres", data=rows) if answer is None else _counting(key, answer, stored)
        object_key = f"{_objects_of(key)}{random_token(6)}.ndjson"
        stored = StoredPart(facts, "object", object_key)
        await self._upload(object_key, path)
        await self._probe.reached("reports.part_uploaded", key=key)
        reference = {"object": self._objects.address(object_key), "rows": facts.rows, "bytes": facts.bytes}
        reference["sha256"] = facts.checksum
        answer = await self._mark(key, json.dumps(reference).encode(), stored, plan)
        if answer is None:  # no Redis, and no reader of a reference
            return stored
        counting = _counting(key, answer, stored)
        if counting is None or counting.object_key != object_key:
            await self.drop([object_key])
        return counting

    async def _upload(self, object_key: str, path: Path) -> None:
        """Upload; retry for a minute, because fetching the rows again costs more."""
        for tries in range(1, UPLOADS_MAX + 1):
            try:
                await self._objects.put_file(object_key, path)
            except Unavailable as error:
                if tries == UPLOADS_MAX:
                    raise
                _log.warning("reports.part_not_uploaded", key=object_key, tries=tries, error=error.message)
                await asyncio.sleep(2.0 ** (tries - 1))
            else:
                return

    async def _mark(self, key: PartKey, data: bytes, stored: StoredPart, plan: Plan) -> PutAnswer | None:
        """Write data and mark into the hash; ``None`` if Redis is unavailable or has a foreign mark."""
        if self._shared is None:
            return None
        try:
            answer = await self._shared.put(key, data, _note(stored), ttl=life(plan))
        except Unavailable as error:
            _log.warning("reports.redis_unavailable", report=key.report_id, code=error.code, error=error.message)
            return None
        await self._probe.reached("reports.part_marked", key=key)
        if answer.put is Put.ALREADY and _noted(key, answer.note) is None:
            _log.warning("reports.redis_note_foreign", report=key.report_id, listener=key.listener)
            return None
        return answer

    async def touch(self, report_id: int, epoch: int, plan: Plan) -> None:
        """Renew the life of a report in Redis."""
        await self.touch_all({(report_id, epoch): plan})

    async def touch_all(self, plans: Mapping[tuple[int, int], Plan]) -> None:
        """Renew the lives of (report, epoch) pairs, all of equal life in one call."""
        if self._shared is None:
            return
        by_life: defaultdict[timedelta, list[tuple[int, int]]] = defaultdict(list)
        for known, plan in plans.items():
            by_life[life(plan)].append(known)
        for ttl, alike in by_life.items():
            with suppress(Unavailable):
                await self._shared.touch(alike, ttl=ttl)

    async def fetch(self, key: PartKey, part: Part, path: Path) -> None:
        """Write a part's rows into a new file.

        Raises:
            LostPartError: They are missing, or have another checksum.
            Unavailable: Redis, PostgreSQL or the object store does not answer. Retry.
        """
        if part.place == "object":
            await self._fetch_object(key, part, path)
        elif part.place == "redis":
            await asyncio.to_thread(_write, path, _as_lines(await self._hashed(key)))
        else:
            data = await self._ledger.data(key)
            if data is None:
                raise LostPartError(f"{key.listener}: its rows are not in PostgreSQL any more")
            await asyncio.to_thread(_write, path, data)
        if await asyncio.to_thread(_checksum, path) != part.checksum:
            raise LostPartError(f"{key.listener}: its rows have changed")

    async def _hashed(self, key: PartKey) -> bytes:
        if self._shared is None:
            raise Unavailable(
                "redis_not_configured", f"{key.listener}: its rows are in Redis; set TICKWRIGHT_REDIS_URL"
            )
        data = await self._shared.get(key)
        if data is None:
            raise LostPartError(f"{key.listener}: its rows are not in Redis any more")
        return data

    async def _fetch_object(self, key: PartKey, part: Part, path: Path) -> None:
        object_key = part.object_key or ""
        size = await self._objects.size(object_key)
        if size is not None and size != part.bytes:  # a foreign file may be of any size
            raise LostPartError(f"{key.listener}: its rows have changed")
        try:
            await self._objects.fetch_file(object_key, path)
        except Rejected as error:
            if error.code != "object_missing":
                raise
            raise LostPartError(f"{key.listener}: its rows are not in the object store any more") from None

    async def close(self, report_id: int, status: str, nonce: str) -> None:
        """Remove the parts of a report that is over; retention removes what fails now."""
        if self._shared is not None:
            with suppress(Unavailable):
                await self._shared.close(report_id, status, nonce=nonce, ttl=HASH_TTL)
        try:
            found = await self._objects.listing(f"parts/{report_id}/", 1000)
            await self.drop([one.key for one in found])
        except TickwrightError as error:
            _log.warning("reports.parts_not_deleted", report=report_id, error=error.message)

    async def forget(self, stored: StoredPart) -> None:
        """Remove an uncounted part. With Redis an object stays: another attempt may have found it in the hash."""
        if stored.object_key is not None and self._shared is None:
            await self.drop([stored.object_key])

    async def drop(self, keys: list[str]) -> None:
        """Delete unneeded objects; retention deletes what remains."""
        try:
            if keys:
                await self._objects.delete(keys)
        except TickwrightError as error:
            _log.warning("reports.objects_not_deleted", keys=keys[:10], error=error.message)


def _counting(key: PartKey, answer: PutAnswer, ours: StoredPart) -> StoredPart | None:
    """Return the part that counts by the hash's answer: this one, or the one that an earlier attempt has marked."""
    match answer.put:
        case Put.STORED:
            return ours
        case Put.ALREADY:
            return _noted(key, answer.note)
    return None


def life(plan: Plan) -> timedelta:
    """Return how long a hash lives without progress: ten minutes, or two delayed checks if longer."""
    return max(HASH_TTL, timedelta(seconds=2 * plan.check_every_s))


def _as_array(lines: bytes) -> bytes:
    return b"[" + b",".join(line for line in lines.split(b"\n") if line) + b"]"


def _write(path: Path, data: bytes) -> None:
    with private_file(path, os.O_TRUNC) as file:
        file.write(data)


def _as_lines(array: bytes) -> bytes:
    try:
        rows = msgspec.json.decode(array, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LostPartError(f"what is in Redis is no array of rows: {error}") from None
    return b"".join(bytes(row) + b"\n" for row in rows)


def _checksum(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _note(stored: StoredPart) -> str:
    facts = stored.facts
    columns = [[column.name, column.type] for column in facts.columns]
    return json.dumps([facts.rows, facts.bytes, facts.checksum, columns, stored.place, stored.object_key])


def _objects_of(key: PartKey) -> str:
    return f"parts/{key.report_id}/{key.epoch}/{key.listener}-"


def _is_of(key: PartKey, place: str, object_key: str | None) -> bool:
    """Whether this part's rows may be stored there: any program can write a note with any key into Redis."""
    if place == "redis":
        return object_key is None
    begin = _objects_of(key)
    return object_key is not None and object_key.startswith(begin) and bool(_NAME.fullmatch(object_key, len(begin)))


def _noted(key: PartKey, note: str) -> StoredPart | None:
    """Return the part of a note; ``None`` if it is foreign."""
    try:
        rows, size, checksum, columns, place, object_key = _decode_note(note)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not _is_of(key, place, object_key):
        return None
    return StoredPart(PartFacts(columns_from(columns), rows, size, checksum), place, object_key)
