"""Requests and answers of the REST API and of ``--json``: reports, their files, and parts that services deliver.

:mod:`tickwright.capabilities.reports.schema` reads report types.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tickwright.capabilities.reports.plan import Format
from tickwright.ports.views import Link, UserData

Name = Annotated[str, Meta(min_length=1, max_length=50, pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Said = Annotated[str, Meta(max_length=100)]


class ReportRequestBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for a report.

    Attributes:
        type: One of the report types.
        conditions: Values of its parameters, at most 16 KiB.
        format: ``csv`` or ``parquet``; default: the type's.
        requester: Default: the caller's name. A requester has one report under way per query.
        department: Of the requester, to filter reports by.
        source: The system that sent the requester, as the caller names it.
        notify: The receiver to notify of the end; default: the type's.
        max_age: A finished report of the same requester and query answers too, if it is not older and has its file.
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
    """A report type.

    Attributes:
        listeners: The listeners of its parts.
        format: Used if the request names none.
        set_by: ``app`` or ``operator``; a program replaces only ``app``.
    """

    name: str
    listeners: list[str]
    stages: int
    format: str
    set_by: str
    created_at: datetime
    updated_at: datetime


class ReportTypeDetail(ReportTypeView, kw_only=True):
    """One report type with its definition.

    Attributes:
        definition: With the keys of ``[report_types.NAME]``; reading it gives the same type again.
    """

    definition: dict[str, Any]


class StoredReportType(msgspec.Struct):
    """The answer to a put."""

    report_type: ReportTypeDetail
    created: bool


class PartView(msgspec.Struct, kw_only=True):
    """The state of one listener's part.

    Attributes:
        kind: ``function``, ``sql`` or ``service``.
        required: Without it there is no file.
        state: ``waiting`` for its stage, ``due``, ``running``, ``done``, ``failed`` or ``dropped``.
        rows: So far, while it runs.
        attempts: Started attempts.
        error: Of the last failed attempt.
        asked_at: When its stage began; ``null`` while it waits for that.
        began_at: Start of the last attempt.
        waited_s: From ``asked_at`` to that attempt, or until now.
        took_s: Duration of that attempt, so far while it runs.
        slowest: Whether its stage ended with it, or still waits for it: the last part of the stage.
        worker: The process that fetches it now.
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
        source: The system that sent the requester, as the caller names it.
        query_key: Equal for requests with the same type, format and conditions.
        status: ``pending``, ``querying``, ``merging``, ``finished``, ``failed`` or ``cancelled``.
        format: Of the file.
        stage: The current or last stage.
        stages: Number of stages.
        parts_done: Of all stages.
        parts_expected: Of all stages.
        checks: Delayed checks of this stage so far.
        restarts: How often all parts were fetched again because some were lost.
        file_address: Where the file is in the object store.
        file: Where to fetch it: a path of this API; ``null`` before there is a file and after it was removed.
        rows: Of the file, without the header.
        checksum: SHA-256 of the file, hexadecimal.
        error: Why there is no file, as text.
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
        manifest: The parts of the file, and what is missing.
    """

    parts: list[PartView]
    manifest: Any


class RequestedReport(ReportView, kw_only=True):
    """The record that answers a request; ``created`` is false if an equal report already existed."""

    created: bool


# ---------------------------------------------------------------------- files and delivered parts


class ReportFile(msgspec.Struct, Link, kw_only=True):
    """A link to a report's file; anyone with the link can fetch the file.

    Attributes:
        url: Of the object store, or a path of this API (it begins with a slash) that needs no key.
        expires_at: When the link expires.
        name: The name to save the file under.
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
    """The data that a service needs to fetch its part.

    Attributes:
        epoch: Rises when parts were lost and all are fetched again; a delivery names it.
        state: ``waiting`` for its stage, ``due``, ``done``, ``failed`` or ``dropped``.
        conditions: Of the request, checked, with defaults.
        feed: Values from the stages before, for this stage's queries.
        columns: Types by name, as the report type declares them.
        deadline_at: When the report fails.
        now: The database's clock, which all times here use.
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
    """The result of a delivery.

    Attributes:
        already: Another delivery was first and its rows count; these are its figures.
        checksum: SHA-256 of the stored rows, hexadecimal.
    """

    report_id: int
    listener: str
    epoch: int
    rows: int
    bytes: int
    checksum: str
    already: bool


class PartRefusal(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A service's final refusal to deliver its part.

    Attributes:
        epoch: Of the announcement.
        error: The reason, for people.
    """

    epoch: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    error: Annotated[str, Meta(min_length=1, max_length=1000)]


class RefusedPart(msgspec.Struct, kw_only=True):
    """The result of a refusal; ``already`` if the part was refused before."""

    report_id: int
    listener: str
    epoch: int
    already: bool


# ---------------------------------------------------------------------- dead letters


class DeadCallView(msgspec.Struct, UserData, kw_only=True):
    """A dead-lettered call.

    Attributes:
        id: Of the message; ``null`` if it has none, and then only ``all`` requeues it.
        listener: The listener whose queue it was in.
        report_id: ``null`` if the body cannot be read.
        reason: A code; ``delivery_limit``, ``rejected`` or ``expired`` if RabbitMQ dead-lettered it.
        body: At most 64 KiB, escaped.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("body",)
    id: str | None
    listener: str | None
    report_id: int | None
    reason: str
    error_message: str
    died_at: datetime | None
    body: str | None
    payload_hidden: bool = False


class DeadCallPage(msgspec.Struct):
    """The oldest dead letters, and the number of all."""

    items: list[DeadCallView]
    count: int
