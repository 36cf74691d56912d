"""The report operations of API and programs in one object; links to files; dead letters of announcements.

An announcement only repeats what the ledger already has, and missing parts are announced again, so a dead letter costs
no report. It points to a publisher that is not Tickwright, or to a process that died on messages.

Existence and size of a file are checked before the first byte is sent. A later error aborts the response;
``Content-Length`` and ``ETag`` (the SHA-256 of the file) let a client detect it. A link opens one file until it
expires: its signature covers the report, the file's key and the expiry. A new secret of the installation invalidates
every link.
"""

import asyncio
import builtins
import hmac
import json
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tickwright.capabilities.reports.parts.deliveries import BODY_BYTES_MAX, Deliveries
from tickwright.capabilities.reports.parts.store import PartRows, PartStorage
from tickwright.capabilities.reports.report_types import ReportTypes
from tickwright.capabilities.reports.requests.records import LISTING, Records, not_found
from tickwright.capabilities.reports.requests.store import RecordsStore, Routes
from tickwright.capabilities.reports.requests.views import DeadCallPage, DeadCallView, ReportFile
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.engine.outbox.broker_dead_letters import BrokerDeadLetters, DeadLetterKind, common_fields
from tickwright.ports.objects import ObjectStore
from tickwright.ports.reports import SharedParts
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.task_queue import DeadMessage, DeadMessages
from tickwright.store.paging import Cursors
from tickwright.store.pool import Pool

# ---------------------------------------------------------------------- dead letters of announcements


def _view(dead: DeadMessage) -> DeadCallView:
    return DeadCallView(**common_fields(dead), listener=dead.key or None, report_id=_report_id(dead.body))


def _report_id(body: bytes) -> int | None:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    number = found.get("report_id") if isinstance(found, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**63 else None


DEAD_CALLS = DeadLetterKind("reports", "listener", _view, DeadCallPage)


# ---------------------------------------------------------------------- files

LINK_LIFE = timedelta(minutes=15)


def link_signature(secret: str, report_id: int, key: str, expires_s: int) -> str:
    """Return the signature of a link, 64 hexadecimal digits.

    ``key`` has no line break, like every key. ``expires_s`` is in Unix seconds by the database's clock.
    """
    text = f"tickwright report file\n{report_id}\n{expires_s}\n{key}"
    return hmac.digest(secret.encode(), text.encode(), "sha256").hex()


ANONYMOUS_LOOKUPS_MAX = 4
"""Links that are looked up at once: trying a link needs no API key, so the load on the database is bounded."""
CONTENT_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


class OpenFile(NamedTuple):
    """A file that exists, and the name to save it under.

    Attributes:
        etag: SHA-256, hexadecimal.
        read: Yields its bytes from an offset on; the caller closes the iterator.
    """

    name: str
    content_type: str
    bytes: int
    etag: str
    read: "Callable[[int], AsyncIterator[builtins.bytes]]"


class Files:
    """Finds files and makes links to them.

    Invariants:
        RFL-1: a link opens the one file that it was made for, until it expires.
        RFL-2: no response with a file begins before its size was compared with the record.
    """

    def __init__(self, pool: Pool, objects: ObjectStore) -> None:
        self._pool, self._objects = pool, objects
        self._anonymous_lookups = asyncio.Semaphore(ANONYMOUS_LOOKUPS_MAX)

    async def link(self, report_id: int) -> ReportFile:
        """Return a link to a report's file, for anyone and for 15 minutes at most.

        Raises:
            Rejected: ``report_not_found`` (404), ``report_not_finished`` (409) with its status, ``file_expired`` (410).
                Permanent.
            Unavailable: ``object_missing`` (502), ``object_store_unavailable``. Retry, or request the report again.
        """
        row = await self._row(report_id)
        if row["id"] is None:
            raise not_found(report_id)
        _check_has_file(row)
        await self._check_whole(row)
        until = min(row["now"] + LINK_LIFE, row["file_expires_at"])
        url = await self._url(row, until)
        return ReportFile(
            url=url,
            expires_at=until,
            name=_name(row),
            content_type=CONTENT_TYPES[row["format"]],
            rows=row["rows"],
            bytes=row["bytes"],
            checksum=row["checksum"],
        )

    async def open(self, report_id: int, expires_s: int, signature: str) -> OpenFile:
        """Return the file behind a link.

        Raises:
            Rejected: ``invalid_link`` (403), ``link_expired`` (403), ``file_expired`` (410). Permanent: get a new link.
            Unavailable: ``object_missing`` (502), ``object_store_unavailable``. Retry, or request the report again.
        """
        async with self._anonymous_lookups:
            row = await self._row(report_id)
        key = row["file_key"] or ""
        expected = link_signature(row["secret"], report_id, key, expires_s)
        if not hmac.compare_digest(expected.encode(), signature.encode()) or not key:
            raise Rejected(
                "invalid_link", "this link was not made by this installation, or its file is gone", status=403
            )
        if expires_s <= row["now"].timestamp():
            raise Rejected("link_expired", "this link has ended; ask for another one", status=403)
        _check_has_file(row)
        await self._check_whole(row)
        read = partial(self._objects.read, key)
        return OpenFile(_name(row), CONTENT_TYPES[row["format"]], row["bytes"], row["checksum"], read)

    async def _row(self, report_id: int) -> Any:
        return await self._pool.fetchrow(LISTING["report_file"], report_id)

    async def _url(self, row: Any, until: datetime) -> str:
        key, lasts = row["file_key"], until - row["now"]
        try:
            made = await self._objects.link(key, lasts=max(lasts, timedelta(seconds=1)))
        except Rejected as error:
            raise _not_ours(error) from error
        if made is not None:
            return made
        expires_s = math.ceil(until.timestamp())
        signature = link_signature(row["secret"], row["id"], key, expires_s)
        return f"/v1/report-files/{row['id']}?{urlencode({'expires': expires_s, 'signature': signature})}"

    async def _check_whole(self, row: Any) -> None:
        try:
            size_bytes = await self._objects.size(row["file_key"])
        except Rejected as error:
            raise _not_ours(error) from error
        if size_bytes is None:
            raise Unavailable(
                "object_missing", f"the file of report {row['id']} is not in the object store any more", status=502
            )
        if size_bytes != row["bytes"]:
            text = f"the file of report {row['id']} has {size_bytes} bytes instead of {row['bytes']}"
            raise Unavailable("object_damaged", text, status=502)


def _check_has_file(row: Any) -> None:
    status = row["status"]
    if status != "finished":
        why = f": {row['error']}" if row["error"] else ""
        text = f"report {row['id']} has no file, it is {status}{why}"
        raise Rejected("report_not_finished", text, status=409, state=status)
    if row["file_key"] is None or row["file_expires_at"] <= row["now"]:
        raise Rejected("file_expired", f"the file of report {row['id']} is not kept any more", status=410)


def _name(row: Any) -> str:
    return f"{row['type']}-{row['id']}.{row['format']}"


def _not_ours(error: Rejected) -> Unavailable:
    """Return the error of a refusal by the store, which the caller cannot fix."""
    return Unavailable(error.code, error.message, status=502)


@dataclass(frozen=True, slots=True)
class ReportResources:
    """The stores and routes that reports use in this process.

    Attributes:
        shared: The Redis hash; ``None`` without Redis.
        folder: Makes and returns the folder for spooled deliveries.
        part_bytes_max: Of one delivery.
        dead_calls: The dead letters of announcements; ``None`` without RabbitMQ.
    """

    routes: Routes
    shared: SharedParts | None
    objects: ObjectStore
    folder: Callable[[], Path]
    part_bytes_max: int = BODY_BYTES_MAX
    dead_calls: DeadMessages | None = None
    probe: Probe = NO_PROBE


class ReportsService:
    """All report operations of the API and the command line, by subject."""

    def __init__(self, pool: Pool, resources: ReportResources) -> None:
        cursors, parts = Cursors(pool), PartRows(pool)
        storage = PartStorage(parts, resources.shared, resources.objects, probe=resources.probe)
        store = RecordsStore(pool, resources.routes)
        self.types = ReportTypes(pool, cursors)
        self.records = Records(pool, store, self.types, storage, resources.objects, cursors=cursors)
        self.files = Files(pool, resources.objects)
        self.dead_calls = BrokerDeadLetters(pool, resources.dead_calls, DEAD_CALLS)
        self.deliveries = Deliveries(
            pool, parts, storage, resources.folder, bytes_max=resources.part_bytes_max, probe=resources.probe
        )
