"""Requests and answers of the REST API and of ``--json``: reports, their files, and parts that services deliver.

What a report type may contain is read in :mod:`tickwright.capabilities.reports.types.schema`.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tickwright.capabilities.reports.types.plan import Format
from tickwright.ports.user_data import Link, UserData

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


class ReportTypeView(msgspec.Struct, kw_only=True):
    """What can be asked for.

    Attributes:
        listeners: Who brings the parts.
        format: Where the request names none.
        set_by: ``app`` or ``operator``; a program replaces the first only.
    """

    name: str
    listeners: list[str]
    stages: int
    format: str
    set_by: str
    created_at: datetime
    updated_at: datetime


class ReportTypeDetail(ReportTypeView, kw_only=True):
    """One report type.

    Attributes:
        definition: In the words of ``[report_types.NAME]``; what is read from it is the same type again.
    """

    definition: dict[str, Any]


class StoredReportType(msgspec.Struct):
    """The answer to a put."""

    report_type: ReportTypeDetail
    created: bool


class PartView(msgspec.Struct, kw_only=True):
    """What became of one listener's part.

    Attributes:
        kind: ``function``, ``sql`` or ``service``.
        required: Without it there is no file.
        state: ``waiting`` for its stage, ``due``, ``running``, ``done``, ``failed`` or ``dropped``.
        rows: So far, while it runs.
        attempts: That were begun.
        error: Of the last attempt that failed.
        asked_at: When its stage began; none while it waits for that.
        began_at: The last attempt.
        waited_s: From when it was asked for until that attempt began, or until now.
        took_s: That attempt, so far while it runs.
        slowest: Its stage was over, or goes on, because of it: the last one of its stage.
        worker: Who brings it now.
    """

    listener: str
    stage: int
    kind: str
    required: bool
    state: str
    rows: int
    bytes: int
    attempts: int
    error: str | None
    asked_at: datetime | None
    began_at: datetime | None
    done_at: datetime | None
    waited_s: float | None
    took_s: float | None
    slowest: bool
    worker: str | None


class ReportView(msgspec.Struct, UserData, kw_only=True):
    """The record of a report.

    Attributes:
        source: Who sent the requester to us, in the caller's own words.
        query_key: Equal for requests that mean the same: type, format and conditions.
        status: ``pending``, ``querying``, ``merging``, ``finished``, ``failed`` or ``cancelled``.
        format: Of the file.
        stage: That is under way, or was the last one.
        stages: How many there are.
        parts_done: Of all stages.
        parts_expected: The same.
        checks: How often the delayed check has looked, in this stage.
        restarts: How often all parts were asked again because some were lost.
        file_address: Where the file is in the object store.
        file: Where to fetch it: a path of this API; none until there is a file, and none after it was removed.
        rows: Of the file, without the header.
        checksum: SHA-256 of the file, hexadecimal.
        error: Why there is no file, in words.
        file_expires_at: When the file is removed.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("conditions", "file")
    id: int
    source: str
    type: str
    query_key: str
    conditions: Any
    department: str | None
    requester: str
    status: str
    format: str
    notify: str | None
    stage: int
    stages: int
    parts_done: int
    parts_expected: int
    checks: int
    restarts: int
    deadline_at: datetime
    file_address: str | None
    file: str | None
    rows: int | None
    bytes: int | None
    checksum: str | None
    error_code: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    last_part_at: datetime | None
    finished_at: datetime | None
    file_expires_at: datetime | None
    payload_hidden: bool = False


class ReportDetail(ReportView, kw_only=True):
    """One report.

    Attributes:
        parts: By stage and name.
        manifest: What the file was made of, part by part, and what is missing.
    """

    parts: list[PartView]
    manifest: Any


class RequestedReport(ReportView, kw_only=True):
    """The record that answers a request; ``created`` is false where an equal one had been asked for already."""

    created: bool


# ---------------------------------------------------------------------- files and delivered parts


class ReportFile(msgspec.Struct, Link, kw_only=True):
    """Where a report's file can be fetched, by anybody who has the link.

    Attributes:
        url: Of the object store, or a path of this API (it begins with a slash) that needs no key.
        expires_at: When the link ends.
        name: What the file should be saved as.
        rows: Of the file, without the header.
        checksum: SHA-256 of the file, hexadecimal.
    """

    url: str
    expires_at: datetime
    name: str
    content_type: str
    rows: int
    bytes: int
    checksum: str


class ServicePart(msgspec.Struct, kw_only=True):
    """What a service needs to bring its part.

    Attributes:
        epoch: Rises when parts were lost and all are asked again; a delivery names it.
        state: ``waiting`` for its stage, ``due``, ``done``, ``failed`` or ``dropped``.
        conditions: As they were given, checked, with their defaults.
        feed: What the stages before gave to this one's queries.
        columns: Types by name, as the report type declares them.
        deadline_at: When the report fails.
        now: The database's clock, as everything here is.
    """

    report_id: int
    listener: str
    type: str
    status: str
    epoch: int
    stage: int
    required: bool
    state: str
    conditions: Any
    feed: Any
    columns: dict[str, str]
    requester: str
    deadline_at: datetime
    now: datetime


class DeliveredPart(msgspec.Struct, kw_only=True):
    """What a delivery came to.

    Attributes:
        already: Another delivery came first, and its rows count; these are its figures.
        checksum: SHA-256 of the rows as they are kept, hexadecimal.
    """

    report_id: int
    listener: str
    epoch: int
    rows: int
    bytes: int
    checksum: str
    already: bool


class PartRefusal(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A service says that it cannot bring its part, for good.

    Attributes:
        epoch: As the service was asked.
        error: Why, for people.
    """

    epoch: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    error: Annotated[str, Meta(min_length=1, max_length=1000)]


class RefusedPart(msgspec.Struct, kw_only=True):
    """What a refusal came to; ``already`` where it had been said before."""

    report_id: int
    listener: str
    epoch: int
    already: bool
