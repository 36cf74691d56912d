"""Parts of services: a program in any language reads the announcements and delivers its part by HTTP.

Rows are written to a file, checked line by line, stored, and only then written into the ledger, so an interrupted
delivery leaves nothing. The first delivery of an epoch counts; the answer to a later one reports this. Deliveries of
one part run one after the other, so that its rows use this process's disk once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from tickwright.capabilities.reports.parts.spool import rows_of, write_part
from tickwright.capabilities.reports.parts.store import PartRows, PartStorage, StoredPart
from tickwright.capabilities.reports.plan import Listener, Plan
from tickwright.capabilities.reports.requests.records import LISTING, not_found
from tickwright.capabilities.reports.requests.views import DeliveredPart, PartRefusal, RefusedPart, ServicePart
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.strict_json import quoted
from tickwright.ports.caller import Caller
from tickwright.ports.ids import random_token
from tickwright.ports.reports import PartKey
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.views import view
from tickwright.store.pool import Pool

BODY_BYTES_MAX = 1024**3
DELIVERY_WAIT_S = 30.0
"""How long a delivery waits for an earlier one of the same part, before its own rows are read."""
_OVER = frozenset({"merging", "finished", "failed", "cancelled"})


class Deliveries:
    """Accepts the parts that services deliver.

    Args:
        folder: Makes and returns the folder for spooled rows; called in a thread, more than once.
        bytes_max: Of one delivery.

    Invariants:
        RDL-1: a part is written into the ledger once per epoch, after its rows are whole.
        RDL-2: rows that do not count are removed.
        RDL-3: this process reads and stores one delivery of a part at a time; other parts do not wait for it.
    """

    def __init__(
        self,
        pool: Pool,
        parts: PartRows,
        storage: PartStorage,
        folder: Callable[[], Path],
        *,
        bytes_max: int = BODY_BYTES_MAX,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._pool, self._parts, self._storage, self._folder = pool, parts, storage, folder
        self._bytes_max, self._probe = bytes_max, probe
        self._locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()

    async def get(self, report_id: int, listener: str) -> ServicePart:
        """Return the data that a service needs to fetch its part.

        Raises:
            Rejected: ``report_not_found``, ``part_not_found`` (404), ``not_a_service``. Permanent.
        """
        row = await self._row(report_id, listener)
        return view(ServicePart, row, columns=_listener(row).columns)

    async def deliver(
        self,
        report_id: int,
        listener: str,
        epoch: int,
        body: AsyncIterator[bytes],
        *,
        caller: Caller,
        length: int | None = None,
    ) -> DeliveredPart:
        """Accept a part.

        Args:
            report_id: Of the record.
            listener: Of the part.
            epoch: Of the announcement.
            body: NDJSON, an object per row; at most ``bytes_max`` bytes.
            caller: For the audit trail.
            length: Of the body in bytes, if known in advance.

        Raises:
            Rejected: ``report_not_found``, ``part_not_found`` (404); ``not_a_service``; ``part_stale`` (409) with the
                current epoch; ``report_over``, ``stage_not_open``, ``part_given_up`` (409); ``body_too_large`` (413);
                the errors of :func:`rows_of` and :func:`write_part`. Permanent for these rows.
            Unavailable: ``no_space``, ``object_store_unavailable``; ``part_in_flight``: an earlier delivery is not over
                after 30 s. Retry.
        """
        row = await self._row(report_id, listener)
        if _is(row, epoch, "done"):
            return _already(row)
        _check_open(row, epoch)
        if length is not None and length > self._bytes_max:
            raise self._too_large()
        async with self._one_at_a_time(report_id, listener) as waited:
            if waited:
                row = await self._row(report_id, listener)
                if _is(row, epoch, "done"):
                    return _already(row)
                _check_open(row, epoch)
            return await self._take(row, epoch, body, caller)

    @asynccontextmanager
    async def _one_at_a_time(self, report_id: int, listener: str) -> AsyncIterator[bool]:
        """Wait for earlier deliveries of the same part; yield whether there was one."""
        lock = self._locks.setdefault((report_id, listener), asyncio.Lock())
        waited = lock.locked()
        try:
            async with asyncio.timeout(DELIVERY_WAIT_S):
                await lock.acquire()
        except TimeoutError:
            text = f"another delivery of {listener} of report {report_id} is under way; deliver again"
            raise Unavailable("part_in_flight", text) from None
        try:
            yield waited
        finally:
            lock.release()

    async def _take(self, row: Any, epoch: int, body: AsyncIterator[bytes], caller: Caller) -> DeliveredPart:
        report_id, listener = row["report_id"], row["listener"]
        key, path = PartKey(report_id, epoch, listener, row["nonce"]), await self._path(report_id, listener)
        try:
            facts = await write_part(rows_of(self._bounded(body)), path, declared=_listener(row).columns)
            await self._probe.reached("reports.delivery_spooled", key=key)
            stored = await self._storage.put(key, path, facts, plan=_plan(row))
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        if stored is None:
            return await self._not_taken(key, None, ours=False)
        ours = stored.facts is facts  # not facts of an earlier delivery's mark in Redis
        await self._probe.reached("reports.delivery_stored", key=key)
        if await self._parts.deliver(key, row["stage"], row["now"], stored, caller):
            facts = stored.facts
            counted = {"epoch": epoch, "rows": facts.rows, "bytes": facts.bytes, "checksum": facts.checksum}
            return view(DeliveredPart, row, **counted, already=not ours)
        return await self._not_taken(key, stored, ours=ours and stored.place != "postgres")

    async def refuse(self, report_id: int, listener: str, refusal: PartRefusal, *, caller: Caller) -> RefusedPart:
        """Accept a service's refusal to deliver its part; if the part is required, the report fails.

        Raises:
            Rejected: As :meth:`deliver`; ``part_done`` (409): its rows exist. Permanent.
        """
        row = await self._row(report_id, listener)
        key = PartKey(report_id, refusal.epoch, listener, row["nonce"])
        if _is(row, refusal.epoch, "failed"):
            return RefusedPart(report_id=report_id, listener=listener, epoch=refusal.epoch, already=True)
        _check_open(row, refusal.epoch)
        done = await self._parts.refuse(key, row["stage"], refusal.error, caller)
        if not done:
            row = await self._row(report_id, listener)
            if not _is(row, refusal.epoch, "failed"):
                _check_open(row, refusal.epoch)
                raise _busy(row)
        return RefusedPart(report_id=report_id, listener=listener, epoch=refusal.epoch, already=not done)

    # ------------------------------------------------------------------ pieces

    async def _row(self, report_id: int, listener: str) -> Any:
        row = await self._pool.fetchrow(LISTING["service_part"], report_id, listener)
        if row is None:
            raise not_found(report_id)
        if row["listener"] is None:
            raise Rejected("part_not_found", f"report {report_id} has no part of {quoted(listener)}", status=404)
        if row["kind"] != "service":
            text = f"{listener} is a {row['kind']}: a process with the role report-listener fetches its part"
            raise Rejected("not_a_service", text)
        return row

    async def _path(self, report_id: int, listener: str) -> Path:
        try:
            folder = await asyncio.to_thread(self._folder)
        except OSError as error:
            raise Unavailable("no_space", f"no folder can be made for the part: {error.strerror}") from error
        return folder / f"{report_id}-{listener}-{random_token(8)}.ndjson"

    async def _bounded(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        size_bytes = 0
        async for piece in body:
            size_bytes += len(piece)
            if size_bytes > self._bytes_max:
                raise self._too_large()
            yield piece

    def _too_large(self) -> Rejected:
        return Rejected("body_too_large", f"a part has at most {self._bytes_max} bytes", status=413)

    async def _not_taken(self, key: PartKey, stored: StoredPart | None, *, ours: bool) -> DeliveredPart:
        """Answer a delivery that the ledger did not accept; remove its object unless it counts.

        ``stored`` is of this delivery, or found in Redis. ``ours``: it has the rows of this delivery, though another
        one may have written them to the ledger. The object of another delivery stays, because it may count; retention
        removes it.
        """
        row = await self._row(key.report_id, key.listener)
        done = _is(row, key.epoch, "done")
        counts = (
            done
            and stored is not None
            and (row["checksum"], row["object_key"]) == (stored.facts.checksum, stored.object_key)
        )
        if ours and stored is not None and stored.object_key is not None and not counts:
            await self._storage.drop([stored.object_key])
        if done:
            return _already(row, ours=ours and counts)
        _check_open(row, key.epoch)
        raise _busy(row)


def _plan(row: Any) -> Plan:
    return msgspec.json.decode(row["plan"], type=Plan)


def _listener(row: Any) -> Listener:
    return _plan(row).listener(row["listener"])


def _is(row: Any, epoch: int, state: str) -> bool:
    return bool(row["epoch"] == epoch and row["state"] == state)


def _check_open(row: Any, epoch: int) -> None:
    """Refuse a part that is not expected, or not yet."""
    status, name = row["status"], f"{row['listener']} of report {row['report_id']}"
    if status in _OVER:
        raise _conflict("report_over", f"report {row['report_id']} is {status}; it takes no more parts", row)
    if row["epoch"] != epoch:
        text = f"parts of epoch {row['epoch']} count, not of {epoch}; fetch the part's state again"
        raise _conflict("part_stale", text, row)
    if row["state"] == "waiting":
        text = f"{name} belongs to stage {row['stage']}, and stage {row['report_stage']} is under way"
        raise _conflict("stage_not_open", text, row)
    if row["state"] == "done":
        raise _conflict("part_done", f"{name} is done already", row)
    if row["state"] in {"failed", "dropped"}:
        raise _conflict("part_given_up", f"{name} is not expected any more: it is {row['state']}", row)


def _conflict(code: str, text: str, row: Any) -> Rejected:
    return Rejected(code, text, status=409, epoch=row["epoch"], state=row["state"], report_status=row["status"])


def _busy(row: Any) -> Unavailable:
    """Return the error of a delivery that failed because the part became open again between two reads."""
    return Unavailable("part_in_flight", f"report {row['report_id']} is changing; deliver again")


def _already(row: Any, *, ours: bool = False) -> DeliveredPart:
    return view(DeliveredPart, row, already=not ours)
