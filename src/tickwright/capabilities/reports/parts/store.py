"""The ledger of parts: the process and claim of each part, and the place of its rows."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from tickwright.capabilities.reports.types.plan import Listener, Plan
from tickwright.observe.logs import without_secrets
from tickwright.ports.caller import Caller
from tickwright.ports.reports import Column, PartFacts, PartKey
from tickwright.store.audit import write_audit
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.reports.sql", "parts.sql")
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


class PartsStore:
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
        but: Collection[tuple[str, str]] = (),
        announced: tuple[int, str] | None = None,
        number: int = 0,
    ) -> list[Claim]:
        """Claim due parts, at most as many as there is room for.

        Args:
            owner: Token of the session.
            rooms: How many more this process can fetch, by function or source.
            but: Pairs of function or source and type that are not claimed.
            announced: Claim only this report's part of this listener, due or not yet.
            number: Of the claim; the session may refuse it.
        """
        report_id, listener = announced or (None, None)
        passed_over = [f"{name} {kind}" for name, kind in but]  # no name has a space
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

    async def keep(self, held: Mapping[tuple[int, str], tuple[int, int]], owner: int) -> set[tuple[int, str]]:
        """Write the rows so far, by (report, listener): (fence, rows); return the parts that ``owner`` still has."""
        rows = await self._pool.fetch(
            SQL["keep_parts"],
            [report_id for report_id, _ in held],
            [listener for _, listener in held],
            [fence for fence, _ in held.values()],
            [rows for _, rows in held.values()],
            owner,
        )
        return {(row["report_id"], row["listener"]) for row in rows}

    async def finish(self, claim: Claim, owner: int, stored: StoredPart) -> bool:
        """Write that a part is done; false if the claim was lost."""
        async with self._pool.acquire() as connection, connection.transaction():
            if not await self._lock(connection, claim.key):
                return False
            found = await connection.fetchval(
                SQL["finish_part"], *_key(claim.key), claim.fence, owner, *_stored(stored)
            )
            if found is None:
                return False
            await self._end(connection, claim.key, claim.stage, stored.data)
        return True

    async def deliver(self, key: PartKey, stage: int, began_at: datetime, stored: StoredPart, caller: Caller) -> bool:
        """Write a service's delivery and the audit row; false if the part was no longer expected."""
        async with self._pool.acquire() as connection, connection.transaction():
            if not await self._lock(connection, key):
                return False
            found = await connection.fetchval(SQL["deliver_part"], *_key(key), began_at, *_stored(stored))
            if found is None:
                return False
            facts = stored.facts
            details = {**_details(key), "rows": facts.rows, "bytes": facts.bytes, "checksum": facts.checksum}
            await write_audit(connection, caller, "reports.deliver", f"report:{key.report_id}", after=details)
            await self._end(connection, key, stage, stored.data)
        return True

    async def fail(self, claim: Claim, owner: int, error: str, *, again: timedelta | None) -> bool:
        """Write that an attempt failed: due again after ``again``, or failed for good; false if the claim was lost."""
        again_s = None if again is None else again.total_seconds()
        async with self._pool.acquire() as connection, connection.transaction():
            if not await self._lock(connection, claim.key):
                return False
            state = await connection.fetchval(
                SQL["fail_part"], *_key(claim.key), claim.fence, owner, without_secrets(error)[:1000], again_s
            )
            if state == "failed":
                await self._end(connection, claim.key, claim.stage, None)
        return state is not None

    async def refuse(self, key: PartKey, stage: int, error: str, caller: Caller) -> bool:
        """Write a service's refusal and the audit row; false if the part was no longer expected."""
        async with self._pool.acquire() as connection, connection.transaction():
            if not await self._lock(connection, key):
                return False
            found = await connection.fetchval(SQL["refuse_part"], *_key(key), error[:1000])
            if found is not None:
                details = {**_details(key), "error": error[:1000]}
                await write_audit(connection, caller, "reports.refuse_part", f"report:{key.report_id}", after=details)
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

    async def reclaim(self, connection: Connection, tokens: Sequence[int]) -> None:
        """Release the parts and steps of lost sessions, in the transaction that declares them lost."""
        await connection.execute(SQL["reclaim_parts"], [*tokens])
        await connection.execute(_RECORDS["reclaim_steps"], [*tokens])
        await connection.execute(_RECORDS["notify"])

    async def data(self, key: PartKey) -> bytes | None:
        """Return the rows of a part in PostgreSQL, as NDJSON."""
        found = await self._pool.fetchval(SQL["get_data"], key.report_id, key.listener, key.epoch)
        return None if found is None else bytes(found)

    async def _lock(self, connection: Connection, key: PartKey) -> bool:
        row = await connection.fetchrow(_RECORDS["lock_report"], key.report_id)
        return row is not None and row["status"] in _ACTIVE and row["epoch"] == key.epoch

    async def _end(self, connection: Connection, key: PartKey, stage: int, data: bytes | None) -> None:
        if data is not None:
            await connection.execute(SQL["put_data"], key.report_id, key.listener, key.epoch, data)
        if await connection.fetchval(_RECORDS["notify_if_complete"], key.report_id, stage):
            await connection.execute(_RECORDS["notify"])


def columns_to_json(columns: Sequence[Column]) -> str:
    """Return columns as the ledger stores them: a list of pairs, in order."""
    return json.dumps([[column.name, column.type] for column in columns])


def columns_from(pairs: Sequence[Sequence[str]]) -> tuple[Column, ...]:
    """Return columns from the ledger's pairs."""
    return tuple(Column(name, kind) for name, kind in pairs)


def _stored(part: StoredPart) -> tuple[int, int, str, str, str, str | None]:
    facts = part.facts
    return facts.rows, facts.bytes, facts.checksum, columns_to_json(facts.columns), part.place, part.object_key


def _details(key: PartKey) -> dict[str, Any]:
    return {"listener": key.listener, "epoch": key.epoch}


def _key(key: PartKey) -> tuple[int, str, int]:
    return key.report_id, key.listener, key.epoch


def _claim(row: Any) -> Claim:
    plan = msgspec.json.decode(row["plan"], type=Plan)
    listener = plan.listener(row["listener"])
    assert listener is not None  # noqa: S101  the parts of a record are made from its plan
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
        listener=listener,
    )
