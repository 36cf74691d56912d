"""What callers get to see of reports: the answers of the REST API and of ``--json``."""

from datetime import datetime
from typing import Any, ClassVar

import msgspec

from tickwright.ports.user_data import UserData


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
