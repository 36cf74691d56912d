"""A file as an answer: whole, or the one part that ``Range`` names; in constant memory.

The first piece is there before the answer begins, so that a store that does not answer is a problem and no broken
file. An answer that gets fewer or more bytes than it promised is broken off, so that no client takes it for whole.
"""

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from fastapi.responses import Response, StreamingResponse

from tickwright.capabilities.reports.files.files import OpenFile
from tickwright.domain.errors import Rejected, Unavailable

_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")


class Span(NamedTuple):
    """The bytes from ``first`` up to, and without, ``end``."""

    first: int
    end: int


def span_of(header: str | None, size_bytes: int) -> Span | None:
    """Return what a ``Range`` header asks for; ``None`` for the whole: there is none, or it is not one span of bytes.

    Raises:
        Rejected: ``range_not_satisfiable`` (416): it lies behind the end. Permanent.
    """
    found = None if header is None else _RANGE.fullmatch(header.replace(" ", ""))
    if found is None or not (found["first"] or found["last"]):
        return None
    if not found["first"]:
        first, end = max(0, size_bytes - int(found["last"])), size_bytes
    else:
        first = int(found["first"])
        end = size_bytes if not found["last"] else min(size_bytes, int(found["last"]) + 1)
        if found["last"] and int(found["last"]) < first:
            return None
    if first >= end:
        raise Rejected(
            "range_not_satisfiable",
            f"the file has {size_bytes} bytes",
            status=416,
            headers=[(b"content-range", f"bytes */{size_bytes}".encode())],
        )
    return Span(first, end)


async def file_answer(file: OpenFile, wanted: str | None, only_if: str | None) -> Response:
    """Return the answer with a file.

    Args:
        file: Read from the first byte that is wanted, and closed with the answer.
        wanted: The header ``Range``.
        only_if: The header ``If-Range``: the part, if the file is that one; else the whole.

    Raises:
        Rejected: ``range_not_satisfiable`` (416). Permanent.
        Unavailable: ``object_missing``, ``object_store_unavailable``: the store does not give the first bytes. Retry.
    """
    etag = f'"{file.etag}"'
    part = span_of(wanted if only_if in (None, etag) else None, file.bytes)
    span = part or Span(0, file.bytes)
    pieces = _exactly(file, span)
    try:
        first = await anext(pieces, b"")
    except Rejected as error:
        raise Unavailable(error.code, error.message, status=502) from error
    headers = {
        "content-length": str(span.end - span.first),
        "content-disposition": f'attachment; filename="{file.name}"',
        "etag": etag,
        "accept-ranges": "bytes",
        "x-content-type-options": "nosniff",
        "cache-control": "private, no-store",
    }
    if part is not None:
        headers["content-range"] = f"bytes {span.first}-{span.end - 1}/{file.bytes}"
    return StreamingResponse(_from(first, pieces), 200 if part is None else 206, headers, media_type=file.content_type)


async def _exactly(file: OpenFile, span: Span) -> AsyncIterator[bytes]:
    """Give the bytes of the span, all of them or an error."""
    at, pieces = span.first, file.read(span.first)
    try:
        async for piece in pieces:
            wanted = piece[: max(0, span.end - at)]
            at += len(piece)
            if wanted:
                yield wanted
            if at >= span.end and at < file.bytes:
                return
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]  # stores give generators
    if at != file.bytes:
        raise Unavailable("object_damaged", f"the store gave {at} of {file.bytes} bytes", status=502)


async def _from(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for piece in pieces:
            yield piece
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]
