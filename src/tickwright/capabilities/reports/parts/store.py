"""Parts: the ledger with claims and places of rows, and the storage of the rows until they are merged.

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
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import structlog

from tickwright.capabilities.reports.plan import Listener, Plan
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.observe.logs import without_secrets
from tickwright.ports.caller import Caller
from tickwright.ports.ids import random_token
from tickwright.ports.objects import ObjectStore
from tickwright.ports.reports import Column, PartFacts, PartKey, Put, PutAnswer, SharedParts
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.audit import write_audit
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

if TYPE_CHECKING:  # every process reclaims parts and so loads this module
    from tickwright.capabilities.reports.merge.steps import Part

SQL = load("tickwright.capabilities.reports.sql", "parts.sql")
HOLDINGS = (SQL["held"],)
_RECORDS = load("tickwright.capabilities.reports.sql", "records.sql")
_ACTIVE = frozenset({"pending", "querying"})


class StoredPart(NamedTuple):
    """Facts and place (``redis``, ``postgres`` or ``object``) of stored rows; for PostgreSQL also ``data`` (NDJSON)."""

    facts: PartFacts
    place: str
    object_key: str | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """One claimed part."""

    key: PartKey
    stage: int
    served_by: str
    fence: int
    attempt: int
    type: str
    conditions: Mapping[str, Any]
    feed: Mapping[str, Any]
    requester: str
    deadline_at: datetime
    plan: Plan
    listener: Listener


class PartRows:
    """The rows of ``tickwright.report_parts``, for listeners and deliveries.

    Invariants:
        RPT-1: the holder of a claim writes only while it holds the claim.
        RPT-2: a part is done once; finishing the last one of its stage notifies.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.connect = pool.acquire

    async def claim(
        self,
        owner: int,
        rooms: Mapping[str, int],
        *,
        excluding: Collection[tuple[str, str]] = (),
        announced: tuple[int, str] | None = None,
        number: int = 0,
    ) -> list[Claim]:
        """Claim due parts, at most as many as there is room for.

        Args:
            owner: Token of the session.
            rooms: How many more this process can fetch, by function or source.
            excluding: Pairs of function or source and type that are not claimed.
            announced: Claim only this report's part of this listener, due or not yet.
            number: Of the claim; the session may refuse it.
        """
        report_id, listener = announced or (None, None)
        passed_over = [f"{name} {kind}" for name, kind in excluding]  # no name has a space
        rows = await self._pool.fetch(
            SQL["claim_parts"], owner, [*rooms], [*rooms.values()], report_id, listener, number, passed_over
        )
        pending = [row["report_id"] for row in rows if row["status"] == "pending"]
        if pending:
            await self._pool.execute(_RECORDS["note_querying"], pending)
        return [_claim(row) for row in rows]

    async def next_in_s(self, served_by: Sequence[str]) -> float | None:
        """Return in how many seconds a part is due; ``None`` if none is."""
        found: float | None = await self._pool.fetchval(SQL["next_part_in"], [*served_by])
        return found

    async def confirm(self, held: Mapping[tuple[int, str], tuple[int, int]], owner: int) -> set[tuple[int, str]]:
        """Write the rows so far, by (report, listener): (fence, rows); return the parts that ``owner`` still has."""
        rows = await self._pool.fetch(
            SQL["confirm_parts"],
            [report_id for report_id, _ in held],
            [listener for _, listener in held],
            [fence for fence, _ in held.values()],
            [rows for _, rows in held.values()],
            owner,
        )
        return {(row["report_id"], row["listener"]) for row in rows}

    async def finish(self, claim: Claim, owner: int, stored: StoredPart) -> bool:
        """Write that a part is done; false if the claim was lost."""
        values = (claim.fence, owner, *_stored(stored))
        async with self._change(claim.key, "finish_part", *values) as (connection, found):
            if found is not None:
                await self._end(connection, claim.key, claim.stage, stored.data)
        return found is not None

    async def deliver(self, key: PartKey, stage: int, began_at: datetime, stored: StoredPart, caller: Caller) -> bool:
        """Write that a service has delivered its part, and the caller; false if it was no longer expected."""
        async with self._change(key, "deliver_part", began_at, *_stored(stored)) as (connection, found):
            if found is not None:
                facts = stored.facts
                figures = {"rows": facts.rows, "bytes": facts.bytes, "checksum": facts.checksum}
                await _audit(connection, caller, "reports.deliver", key, figures)
                await self._end(connection, key, stage, stored.data)
        return found is not None

    async def fail(self, claim: Claim, owner: int, error: str, *, again: timedelta | None) -> bool:
        """Write that an attempt failed: due again after a while, or for good; false if the claim was lost."""
        values = (claim.fence, owner, without_secrets(error)[:1000], None if again is None else again.total_seconds())
        async with self._change(claim.key, "fail_part", *values) as (connection, state):
            if state == "failed":
                await self._end(connection, claim.key, claim.stage, None)
        return state is not None

    async def refuse(self, key: PartKey, stage: int, error: str, caller: Caller) -> bool:
        """Write that a service cannot deliver its part, and the caller; false if it was no longer expected."""
        async with self._change(key, "refuse_part", error[:1000]) as (connection, found):
            if found is not None:
                await _audit(connection, caller, "reports.refuse_part", key, {"error": error[:1000]})
                await self._end(connection, key, stage, None)
        return found is not None

    async def release(self, claim: Claim, owner: int) -> None:
        """Release a part and uncount its attempt."""
        key = claim.key
        await self._pool.execute(SQL["release_part"], key.report_id, key.listener, claim.fence, owner)
        await self._pool.execute(_RECORDS["notify"])

    async def release_unknown(self, connection: Connection, owner: int, known: Mapping[tuple[int, str], int]) -> int:
        """Release parts that ``owner`` has beyond ``known`` (with fences): the answer to a claim was lost."""
        reports, listeners = [one for one, _ in known], [one for _, one in known]
        returned = await connection.fetchval(SQL["release_unknown_parts"], owner, reports, listeners, [*known.values()])
        if returned:
            await connection.execute(_RECORDS["notify"])
        return int(returned)

    @staticmethod
    async def reclaim(connection: Connection, tokens: Sequence[int]) -> None:
        """Release the parts and steps of lost sessions, in the transaction that declares them lost."""
        await connection.execute(SQL["reclaim_parts"], [*tokens])
        await connection.execute(_RECORDS["reclaim_steps"], [*tokens])
        await connection.execute(_RECORDS["notify"])

    async def data(self, key: PartKey) -> bytes | None:
        """Return the rows of a part in PostgreSQL, as NDJSON."""
        found = await self._pool.fetchval(SQL["get_data"], key.report_id, key.listener, key.epoch)
        return None if found is None else bytes(found)

    @asynccontextmanager
    async def _change(self, key: PartKey, query: str, *values: Any) -> AsyncIterator[tuple[Connection, str | None]]:
        """Lock the report, change its part, and yield the result in the transaction; ``None``: nothing changed."""
        async with self._pool.acquire() as connection, connection.transaction():
            found = None
            if await self._lock(connection, key):
                found = await connection.fetchval(SQL[query], key.report_id, key.listener, key.epoch, *values)
            yield connection, found

    async def _lock(self, connection: Connection, key: PartKey) -> bool:
        row = await connection.fetchrow(_RECORDS["lock_report"], key.report_id)
        return row is not None and row["status"] in _ACTIVE and row["epoch"] == key.epoch

    async def _end(self, connection: Connection, key: PartKey, stage: int, data: bytes | None) -> None:
        if data is not None:
            await connection.execute(SQL["put_data"], key.report_id, key.listener, key.epoch, data)
        if await connection.fetchval(_RECORDS["note_part_end"], key.report_id, stage):
            await connection.execute(_RECORDS["notify"])


def _stored(part: StoredPart) -> tuple[int, int, str, str, str, str | None]:
    facts = part.facts
    return facts.rows, facts.bytes, facts.checksum, json.dumps(facts.columns), part.place, part.object_key


async def _audit(connection: Connection, caller: Caller, action: str, key: PartKey, details: Mapping[str, Any]) -> None:
    after = {"listener": key.listener, "epoch": key.epoch, **details}
    await write_audit(connection, caller, action, f"report:{key.report_id}", after=after)


def _claim(row: Any) -> Claim:
    plan = msgspec.json.decode(row["plan"], type=Plan)
    return Claim(
        key=PartKey(row["report_id"], row["epoch"], row["listener"], row["nonce"]),
        stage=row["stage"],
        served_by=row["served_by"],
        fence=row["fence"],
        attempt=row["attempts"],
        type=row["type"],
        conditions=json.loads(row["conditions"]),
        feed=json.loads(row["feed"]),
        requester=row["requester"],
        deadline_at=row["deadline_at"],
        plan=plan,
        listener=plan.listener(row["listener"]),
    )


# ---------------------------------------------------------------------- rows

INLINE_BYTES_MAX = 256 * 1024
HASH_TTL = timedelta(minutes=10)
READ_BYTES = 1024 * 1024
UPLOADS_MAX = 7  # 63 s of pauses, plus the time of seven failed uploads

_Note = tuple[int, int, str, tuple[Column, ...], Literal["redis", "object"], str | None]
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
        self, ledger: PartRows, shared: SharedParts | None, objects: ObjectStore, *, probe: Probe = NO_PROBE
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

    async def fetch(self, key: PartKey, part: "Part", path: Path) -> None:
        """Write a part's rows into a new file.

        Raises:
            LostPartError: They are missing, or have another checksum.
            Unavailable: Redis, PostgreSQL or the object store does not answer. Retry.
        """
        if part.place == "object":
            await self._fetch_object(key, part, path)
        elif part.place == "redis":
            if self._shared is None:
                text = f"{key.listener}: its rows are in Redis; set TICKWRIGHT_REDIS_URL"
                raise Unavailable("redis_not_configured", text)
            hashed = await self._shared.get(key)
            if hashed is None:
                raise LostPartError(f"{key.listener}: its rows are not in Redis any more")
            await asyncio.to_thread(_write, path, _as_lines(hashed))
        else:
            data = await self._ledger.data(key)
            if data is None:
                raise LostPartError(f"{key.listener}: its rows are not in PostgreSQL any more")
            await asyncio.to_thread(_write, path, data)
        if await asyncio.to_thread(_checksum, path) != part.checksum:
            raise LostPartError(f"{key.listener}: its rows have changed")

    async def _fetch_object(self, key: PartKey, part: "Part", path: Path) -> None:
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

    async def discard(self, report_id: int, status: str, nonce: str) -> None:
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
    from tickwright.capabilities.reports.parts.spool import private_file

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
    return json.dumps([facts.rows, facts.bytes, facts.checksum, facts.columns, stored.place, stored.object_key])


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
    return StoredPart(PartFacts(columns, rows, size, checksum), place, object_key)
