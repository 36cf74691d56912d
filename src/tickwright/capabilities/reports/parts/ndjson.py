"""Rows as a stranger sends them: NDJSON, an object in each line, read strictly and told by the line when it is wrong.

What two parsers could read differently is refused, see :mod:`tickwright.domain.strict_json`. A number with more digits
than a float holds stays exact, as a decimal.
"""

import json
import re
from collections.abc import AsyncIterable, AsyncIterator
from decimal import Decimal
from typing import Any

from tickwright.capabilities.reports.parts.columns import check_count
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import loads

LINE_BYTES_MAX = 2**20
_LONG_NUMBER = re.compile(rb"[0-9][0-9.]{15}")


async def rows_of(stream: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Give the rows of a stream that is cut anywhere; the last line may lack its line feed.

    Raises:
        Rejected: ``line_too_long``, ``row_value``: a line is no object; ``invalid_json``, ``duplicate_key``,
            ``non_finite_number``, ``number_out_of_range``, ``too_deep``, ``unsupported_character``; all with ``line``;
            ``too_many_columns`` with ``row``. Permanent.
    """
    number, kept = 0, bytearray()  # of a line without its end; it grows in place
    async for chunk in stream:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            number += 1
            yield _row(bytes(kept) + line if kept else line, number)
            kept.clear()
        kept += rest
        if len(kept) > LINE_BYTES_MAX:
            raise _too_long(number + 1)
    if kept:
        yield _row(bytes(kept), number + 1)


def _row(line: bytes, number: int) -> dict[str, Any]:
    if len(line) > LINE_BYTES_MAX:
        raise _too_long(number)
    try:
        row = loads(line)
    except Rejected as error:
        details = {**error.details, "line": number}
        raise Rejected(error.code, f"line {number}: {error.message}", status=error.http_status, **details) from None
    if not isinstance(row, dict):
        raise Rejected("row_value", f"line {number}: write one JSON object with the columns of the row", line=number)
    check_count(len(row), number)
    return json.loads(line, parse_float=_exact) if _LONG_NUMBER.search(line) else row


def _exact(text: str) -> float | Decimal:
    number, exact = float(text), Decimal(text)
    return number if Decimal(repr(number)) == exact else exact


def _too_long(number: int) -> Rejected:
    return Rejected("line_too_long", f"line {number} has more than {LINE_BYTES_MAX} bytes", status=413, line=number)
