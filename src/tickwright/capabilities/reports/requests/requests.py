"""What callers may ask of reports, as typed bodies. What a report type may say is read in :mod:`report_terms`."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tickwright.capabilities.reports.types.plan import Format

Name = Annotated[str, Meta(min_length=1, max_length=50, pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Said = Annotated[str, Meta(max_length=100)]


class ReportRequestBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A report that somebody wants.

    Attributes:
        type: One of the report types.
        conditions: Values of its parameters, at most 16 KiB.
        format: ``csv`` or ``parquet``; the type's where it is left out.
        requester: For whom; the caller's own name where it is left out. A requester has one running report per query.
        department: Of the requester, to find reports by.
        source: Who sent the requester to us, in the caller's own words.
        notify: The receiver that hears of the end; the type's where it is left out.
        max_age: A finished report of the same requester and query answers as well, if it is not older and has its file.
    """

    type: Name
    conditions: dict[str, Any] = {}
    format: Format | None = None
    requester: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    department: Said | None = None
    source: Said = ""
    notify: Name | None = None
    max_age: Annotated[str, Meta(max_length=40, examples=["1h"])] | None = None
