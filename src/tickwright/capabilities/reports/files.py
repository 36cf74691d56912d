"""The file of a report: a signed link, and the bytes behind it.

Existence and size of the file are checked before the first byte is sent. A later error aborts the response;
``Content-Length`` and ``ETag`` (the SHA-256 of the file) let a client detect it.

A link opens one file until it expires: its signature covers the report, the file's key and the expiry. A new secret of
the installation invalidates every link.
"""

import asyncio
import builtins
import hmac
import math
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tickwright.capabilities.reports.requests.records import LISTING, not_found
from tickwright.capabilities.reports.requests.views import ReportFile
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.objects import ObjectStore
from tickwright.store.pool import Pool

LINK_LIFE = timedelta(minutes=15)


def link_signature(secret: str, report_id: int, key: str, expires_s: int) -> str:
    """Return the signature of a link, 64 hexadecimal digits.

    ``key`` has no line break, like every key. ``expires_s`` is in Unix seconds by the database's clock.
    """
    text = f"tickwright report file\n{report_id}\n{expires_s}\n{key}"
    return hmac.digest(secret.encode(), text.encode(), "sha256").hex()


def link_path(secret: str, report_id: int, key: str, expires_s: int) -> str:
    """Return the link, as a path of the API."""
    query = {"expires": expires_s, "signature": link_signature(secret, report_id, key, expires_s)}
    return f"/v1/report-files/{report_id}?{urlencode(query)}"


def is_signed(secret: str, report_id: int, key: str, expires_s: int, given: str) -> bool:
    """Whether ``given`` is the signature; compares in constant time."""
    return hmac.compare_digest(link_signature(secret, report_id, key, expires_s).encode(), given.encode())


STRANGERS_MAX = 4
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
        self._strangers = asyncio.Semaphore(STRANGERS_MAX)

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
        _check_there(row)
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
        async with self._strangers:
            row = await self._row(report_id)
        key = row["file_key"] or ""
        if not is_signed(row["secret"], report_id, key, expires_s, signature) or not key:
            raise Rejected(
                "invalid_link", "this link was not made by this installation, or its file is gone", status=403
            )
        if expires_s <= row["now"].timestamp():
            raise Rejected("link_expired", "this link has ended; ask for another one", status=403)
        _check_there(row)
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
        return link_path(row["secret"], row["id"], key, math.ceil(until.timestamp()))

    async def _check_whole(self, row: Any) -> None:
        try:
            there = await self._objects.size(row["file_key"])
        except Rejected as error:
            raise _not_ours(error) from error
        if there is None:
            raise Unavailable(
                "object_missing", f"the file of report {row['id']} is not in the object store any more", status=502
            )
        if there != row["bytes"]:
            text = f"the file of report {row['id']} has {there} bytes instead of {row['bytes']}"
            raise Unavailable("object_damaged", text, status=502)


def _check_there(row: Any) -> None:
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
