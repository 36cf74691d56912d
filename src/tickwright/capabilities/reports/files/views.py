"""What callers get to see of files and of parts from outside: the answers of the REST API and of ``--json``."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tickwright.ports.user_data import Link


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
