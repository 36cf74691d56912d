"""Request bodies as typed structs, and how a body becomes a job.

REST, the NDJSON import and the command line all read text here, so that one rule has one error. A field that belongs to
Tickwright (``status``, ``attempts``, ``fence``) is refused as ``unknown_field``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwright.capabilities.jobs.states import JobStatus
from tickwright.capabilities.jobs.unique import Unique, UniqueRequest, read_unique
from tickwright.capabilities.jobs.worker.pools import NAME, NAME_RULE, NEEDS_MAX, QUEUE
from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected, storable
from tickwright.domain.signatures import digest_of
from tickwright.domain.time_texts import (
    RATE_PER_S_MIN,
    YEAR_MAX,
    DurationText,
    InstantText,
    parse_duration,
    parse_instant,
)
from tickwright.engine.payload_keys import FINGERPRINT_BYTES
from tickwright.ports.views import CURSOR_CHARS_MAX

PAYLOAD_BYTES_MAX = 65_536
SEALED_BYTES_MAX = 48_000
"""Of a payload of an encrypted type: its envelope has a third more, and fits into the bound of all payloads."""
SURELY_FITS = PAYLOAD_BYTES_MAX // 4
"""A payload of at most this many characters fits in any encoding."""
WRITTEN_BYTES_MAX = 1_048_576
DIGITS_MAX = 309
EXPONENTS_FROM = WRITTEN_BYTES_MAX // DIGITS_MAX * len("1e300,")
KEY_LENGTH_MAX = 255
GROUP_BYTES_MAX = 255
GROUP_LIMIT_MAX = 1000
TAGS_MAX = 20
TAG_CHARS_MAX = 100
METADATA_BYTES_MAX = 16_384
METADATA_FILTERS_MAX = 5
METADATA_TEXT_MAX = 400
METADATA_WRITTEN_MAX = 32_768
"""As PostgreSQL writes it: with blanks, and 1e300 with 301 digits."""
PRIORITY_MAX = 100
ATTEMPTS_MAX = 1000
TIMEOUT_MAX = timedelta(days=1)
FIRST_INSTANT = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME = datetime(YEAR_MAX, 1, 1, tzinfo=UTC)
_EXPONENT = re.compile("[eE][+-]?[0-9]{3}")
TYPE_NAME = NAME
TEXT_CHARS_MAX = 200
TypeName = Annotated[str, Meta(description=NAME_RULE, examples=["invoice.remind"])]


class NewJob(msgspec.Struct, frozen=True):
    """A requested job, checked by :func:`check_new_job`.

    Attributes:
        payload: JSON text.
        execute_at: Aware; ``None`` is now, by the database's clock.
        delay: Added to the database's now; only without ``execute_at``.
        key: Idempotency key, unique among the jobs of the last days.
        digest: Digest of the request; detects the same key with another request.
        traceparent: The trace that it belongs to; the :class:`Enqueuer` sets it from its caller's trace.
        tags: Labels to find it by, different ones; empty without any.
        metadata: The JSON text of an object, to find it by; ``None`` without one.
        group: Its group, such as a customer, for which its type has limits; ``None`` without one.
        unique: Its own rule; ``None`` is that of its type, ``False`` none.
        uniqueness: The rule that holds for it and the digest of its arguments, as JSON text; the :class:`Enqueuer` sets
            it, from the plain payload.
        digests: Of a sealed job: its digest under each payload key; ``digest`` is the first.
    """

    task_type: str
    payload: str = "{}"
    execute_at: datetime | None = None
    key: str | None = None
    digest: bytes | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout: timedelta | None = None
    expires_at: datetime | None = None
    delay: timedelta | None = None
    traceparent: str | None = None
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    group: str | None = None
    unique: Unique | Literal[False] | None = None
    uniqueness: str | None = None
    digests: tuple[bytes, ...] = ()

    @property
    def is_detailed(self) -> bool:
        """Whether it has anything that most jobs have not, and that only other statements insert."""
        return self.metadata is not None or bool(self.tags) or self.group is not None

    def is_other(self, digest: bytes) -> bool:
        """Whether a stored digest is of another request; one under a key that is unknown here may be of this one."""
        if not self.digests:
            return digest != self.digest
        size = FINGERPRINT_BYTES
        return any(digest[:size] == known[:size] and digest != known for known in self.digests)

    @property
    def details(self) -> str | None:
        """What most jobs have not, as JSON text; ``None`` for most jobs."""
        if not self.is_detailed and self.uniqueness is None:
            return None
        given: dict[str, Any] = {"tags": self.tags} if self.tags else {}
        if self.uniqueness is not None:
            given["unique"] = msgspec.Raw(self.uniqueness.encode())
        if self.metadata is not None:
            given["metadata"] = msgspec.Raw(self.metadata.encode())
        if self.group is not None:
            given["group"] = self.group
        return msgspec.json.encode(given).decode()


J = TypeVar("J", bound=NewJob)


def check_new_job(job: J) -> J:
    """Return ``job`` when its values are within the bounds.

    Raises:
        Rejected: With a stable code and what to do. Permanent.
    """
    if not TYPE_NAME.fullmatch(job.task_type):
        raise Rejected("invalid_task_type", f"task_type: {NAME_RULE}", field="task_type")
    if len(job.payload) > SURELY_FITS and _is_too_long(job.payload):
        text = f"payload: at most {PAYLOAD_BYTES_MAX} bytes, and no thousands of numbers such as 1e300"
        raise Rejected("payload_too_large", text, status=413, field="payload")
    if job.key is not None and not (_is_text(job.key) and 1 <= len(job.key) <= KEY_LENGTH_MAX):
        text = f"idempotency key: 1 to {KEY_LENGTH_MAX} characters, without NUL and halves of surrogate pairs"
        raise Rejected("invalid_key", text, status=409, field="idempotency_key")
    if job.priority not in range(-PRIORITY_MAX, PRIORITY_MAX + 1):
        raise Rejected("invalid_priority", f"priority: -{PRIORITY_MAX} to {PRIORITY_MAX}", field="priority")
    if job.max_attempts is not None and job.max_attempts not in range(1, ATTEMPTS_MAX + 1):
        raise Rejected("invalid_max_attempts", f"max_attempts: 1 to {ATTEMPTS_MAX}", field="max_attempts")
    if job.timeout is not None and not timedelta(milliseconds=1) <= job.timeout <= TIMEOUT_MAX:
        raise Rejected("invalid_timeout", "timeout: 1 ms to 1 day", field="timeout")
    check_instant("execute_at", job.execute_at)
    check_instant("expires_at", job.expires_at)
    if job.tags:
        check_tags(job.tags)
    if job.metadata is not None:
        check_metadata(job.metadata)
    if job.group is not None:
        check_group(job.group)
    return job


def check_group(group: str) -> None:
    """Refuse a group that no job may have. Raises ``Rejected`` (``invalid_group``): permanent."""
    if not (_is_text(group) and 1 <= len(group.encode()) <= GROUP_BYTES_MAX):
        text = f"group: a text of 1 to {GROUP_BYTES_MAX} bytes, without NUL and halves of surrogate pairs"
        raise Rejected("invalid_group", text, field="group")


def check_tags(tags: Sequence[str]) -> None:
    """Refuse tags that no job may have. Raises ``Rejected`` (``invalid_tags``): permanent."""
    fit = len(tags) <= TAGS_MAX and len(set(tags)) == len(tags)
    if not (fit and all(1 <= len(tag) <= TAG_CHARS_MAX and storable(tag) == tag for tag in tags)):
        text = f"tags: at most {TAGS_MAX}, different ones, each of 1 to {TAG_CHARS_MAX} characters without NUL"
        raise Rejected("invalid_tags", text, field="tags")


def check_metadata(metadata: str) -> None:
    """Refuse metadata that no job may have. Raises ``Rejected`` (``invalid_metadata``, ``metadata_too_large``)."""
    if not metadata.lstrip().startswith("{"):
        raise Rejected("invalid_metadata", "metadata: a JSON object", field="metadata")
    written = len(metadata) * 3 // 2 + len(_EXPONENT.findall(metadata)) * DIGITS_MAX
    if len(metadata.encode()) > METADATA_BYTES_MAX or written > METADATA_WRITTEN_MAX:
        text = f"metadata: at most {METADATA_BYTES_MAX} bytes, and no hundred numbers such as 1e300"
        raise Rejected("metadata_too_large", text, status=413, field="metadata")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and storable(value) == value


def _is_too_long(payload: str) -> bool:
    """Whether a payload is too long, also as PostgreSQL writes it: 1e300 has 301 digits there."""
    if len(payload) > PAYLOAD_BYTES_MAX or len(payload.encode()) > PAYLOAD_BYTES_MAX:
        return True
    return len(payload) > EXPONENTS_FROM and len(_EXPONENT.findall(payload)) * DIGITS_MAX > WRITTEN_BYTES_MAX


def check_instant(field: str, at: datetime | None) -> None:
    """Refuse an instant at which no job may be due. Raises ``Rejected``, as for a new job: permanent."""
    if at is None:
        return
    if not isinstance(at, datetime):
        raise Rejected("invalid_datetime", f"{field}: give a datetime with its offset", field=field)
    if at.tzinfo is None:
        raise Rejected("naive_datetime", f"{field}: a time needs its offset, such as 2026-11-21T10:00:00Z", field=field)
    if not FIRST_INSTANT <= at < END_OF_TIME:
        raise Rejected("time_out_of_range", f"{field}: between 1970 and {YEAR_MAX - 1}", field=field)


Ids = Annotated[list[Annotated[int, Meta(ge=1, le=2**63 - 1)]], Meta(min_length=1, max_length=1000)]
Target = Annotated[str, Meta(min_length=1, max_length=2048, examples=["https://example.org/jobs"])]
FinalStatuses = Annotated[list[Annotated[int, Meta(ge=300, le=599)]], Meta(max_length=100)]
Attempts = Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)]
RetryFactor = Annotated[float, Meta(ge=1, le=10)]
Concurrency = Annotated[int, Meta(ge=1, le=100_000)]
RatePerS = Annotated[float, Meta(ge=RATE_PER_S_MIN, le=100_000)]
QueueName = Annotated[str, Meta(min_length=1, max_length=50, description=NAME_RULE, examples=["critical"])]
Need = Annotated[str, Meta(min_length=1, max_length=50, description=NAME_RULE)]
Needs = Annotated[list[Need], Meta(max_length=NEEDS_MAX, examples=[["gpu"]])]
Deliver = Literal["plain", "cipher"]
BulkLimit = Annotated[int, Meta(ge=1, le=1000)]
CursorText = Annotated[str, Meta(max_length=CURSOR_CHARS_MAX)]
Key = Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH_MAX)]
Tags = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=TAG_CHARS_MAX)]],
    Meta(max_length=TAGS_MAX, extra_json_schema={"uniqueItems": True}, examples=[["nightly", "eu"]]),
]
Metadata = Annotated[
    dict[str, Any], Meta(description=f"A JSON object, at most {METADATA_BYTES_MAX} bytes", examples=[{"tenant": "a"}])
]
Group = Annotated[
    str,
    Meta(
        description=f"The group of the job, such as a customer, at most {GROUP_BYTES_MAX} bytes",
        min_length=1,
        max_length=GROUP_BYTES_MAX,
        examples=["customer-7"],
    ),
]
GroupLimit = Annotated[int, Meta(ge=1, le=GROUP_LIMIT_MAX)]
GroupOrder = Literal["stop", "skip", "continue"]
FilterTags = Annotated[list[Annotated[str, Meta(min_length=1, max_length=TAG_CHARS_MAX)]], Meta(max_length=TAGS_MAX)]
FilterMetadata = Annotated[
    list[Annotated[str, Meta(max_length=METADATA_TEXT_MAX, examples=["tenant=a"])]],
    Meta(max_length=METADATA_FILTERS_MAX),
]
Shift = Annotated[
    str,
    Meta(
        description="A duration, with '-' before it to go back",
        examples=["-1h"],
        extra_json_schema={"pattern": "^-?[0-9].*(d|h|m|s)$"},
    ),
]


class JobRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A job to schedule. Without ``execute_at`` and ``delay`` it is due at once."""

    task_type: Annotated[str, Meta(min_length=1, max_length=50, pattern="^[A-Za-z0-9][A-Za-z0-9_.:-]*$")]
    payload: Annotated[Any, Meta(description=f"Any JSON, at most {PAYLOAD_BYTES_MAX} bytes; {{}} when left out")] = None
    execute_at: InstantText | None = None
    delay: DurationText | None = None
    idempotency_key: Key | None = None
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] = 0
    max_attempts: Attempts | None = None
    timeout: DurationText | None = None
    expires_at: InstantText | None = None
    tags: Tags = []
    metadata: Metadata | None = None
    group: Group | None = None
    unique: UniqueRequest | Annotated[bool, Meta(extra_json_schema={"const": False})] | None = None


class _Wire(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """:class:`JobRequest` as it is decoded, without bounds: ``check_new_job`` has an error for each of those."""

    task_type: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    execute_at: str | None = None
    delay: str | None = None
    idempotency_key: str | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout: str | None = None
    expires_at: str | None = None
    tags: tuple[str, ...] = ()
    metadata: msgspec.Raw = msgspec.Raw(b"null")
    group: str | None = None
    unique: msgspec.Raw = msgspec.Raw(b"null")


_decoder = msgspec.json.Decoder(_Wire)


@dataclass(frozen=True, slots=True)
class ScheduleBounds:
    """How far from the database's now a job that is requested as text may be due.

    Attributes:
        horizon: Ahead of now.
        grace: Behind now: a client that was offline may still send its jobs.
    """

    horizon: timedelta = timedelta(days=3660)
    grace: timedelta = timedelta(days=1)


BOUNDS = ScheduleBounds()
KEY_PATTERN = "^[!-~]+$"
_HEADER_KEY = re.compile(r"[!-~]+\Z")


def read_job(
    body: bytes, *, key: str | None = None, now: datetime | None = None, bounds: ScheduleBounds = BOUNDS
) -> NewJob:
    """Return the checked job that ``body`` asks for.

    Args:
        body: One JSON object, already within the caller's byte limit.
        key: An idempotency key from outside the body; must not contradict one inside.
        now: The database's clock as far as known; ``None`` skips the horizon.
        bounds: How far from now it may be due.

    Raises:
        Rejected: Syntax and unknown fields 400, values 422, size 413, key too long 409. Permanent: do not retry.
    """
    wire = strict_json.decode(body, _decoder)
    payload = bytes(wire.payload).decode()
    execute_at = _instant(wire.execute_at, "execute_at")
    if key is not None and wire.idempotency_key is not None and key != wire.idempotency_key:
        text = "the Idempotency-Key header and idempotency_key differ; send one of them"
        raise Rejected("key_conflict", text, field="idempotency_key")
    job = check_new_job(
        NewJob(
            task_type=wire.task_type,
            payload=payload,
            execute_at=execute_at,
            key=wire.idempotency_key if key is None else key,
            priority=wire.priority,
            max_attempts=wire.max_attempts,
            timeout=None if wire.timeout is None else parse_duration(wire.timeout, field="timeout"),
            expires_at=_instant(wire.expires_at, "expires_at"),
            delay=_delay(wire),
            tags=wire.tags,
            metadata=object_text(wire.metadata),
            group=wire.group,
            unique=unique_of_call(msgspec.json.decode(wire.unique)),
        )
    )
    if now is not None:
        check_bounds(job, now, bounds)
    return job if job.key is None else with_digest(job)


def object_text(value: msgspec.Raw) -> str | None:
    """Return the JSON text of an optional object of a request; ``null`` is none."""
    text = bytes(value).decode()
    return None if text == "null" else text


def unique_of_call(value: Any) -> Unique | Literal[False] | None:
    """Return the rule of one call: ``None`` is that of its type, ``False`` none. Raises as :func:`read_unique`."""
    return value if value is None or value is False else read_unique(value)


def with_digest(job: J) -> J:
    """Return ``job`` with the digest of its request, which detects its key on another request.

    Jobs without details have the digests of the releases that had none.
    """
    rule = [] if job.unique is None else [msgspec.json.encode(job.unique and job.unique.stored())]
    digest = digest_of(
        job.task_type, _canonical(job.payload), job.execute_at, job.delay, job.priority, job.max_attempts, job.timeout,
        job.expires_at, *([_canonical(job.metadata or "null"), *sorted(job.tags)] if job.is_detailed else ()),
        *([["group", job.group]] if job.group is not None else ()),
        *rule,
    )  # fmt: skip
    return msgspec.structs.replace(job, digest=digest)


def _canonical(text: str) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(text), order="deterministic")


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the ``Idempotency-Key`` of a request's ASGI headers, or ``None``.

    Raises:
        Rejected: ``key_conflict``: two of them differ; ``invalid_key`` (409): it does not match its schema. Permanent.
    """
    keys = {value.decode("latin-1") for name, value in headers if name == b"idempotency-key"}
    if len(keys) > 1:
        raise Rejected("key_conflict", "there are Idempotency-Key headers that differ; send one of them")
    key = keys.pop() if keys else None
    if key is not None and not _HEADER_KEY.match(key):
        raise Rejected("invalid_key", "Idempotency-Key: ASCII characters without blanks, at least one", status=409)
    return key


def _delay(wire: _Wire) -> timedelta | None:
    if wire.delay is None:
        return None
    if wire.execute_at is not None:
        raise Rejected("execute_at_and_delay", "send execute_at or delay, not both", field="delay")
    return parse_duration(wire.delay, field="delay")


def _instant(text: str | None, field: str) -> datetime | None:
    return None if text is None else parse_instant(text, field=field)


def check_bounds(job: NewJob, now: datetime, bounds: ScheduleBounds) -> None:
    """Refuse a job that is due too far from ``now``, or that expires before it is due.

    Raises:
        Rejected: ``beyond_horizon``, ``time_in_past`` or ``expires_before_due``. Permanent.
    """
    due = job.execute_at or now + (job.delay or timedelta())
    if due > now + bounds.horizon:
        raise Rejected("beyond_horizon", f"execute_at: at most {bounds.horizon.days} days ahead", field="execute_at")
    if due < now - bounds.grace:
        raise Rejected("time_in_past", f"execute_at: at most {bounds.grace.days} day(s) ago", field="execute_at")
    if job.expires_at is not None and job.expires_at <= due:
        raise Rejected("expires_before_due", "expires_at: must be after the job is due", field="expires_at")


class RescheduleRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A new time: either ``execute_at`` or ``delay``."""

    execute_at: InstantText | None = None
    delay: DurationText | None = None


class EditRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes of a pending job; a field that is left out keeps its value, and ``null`` removes ``metadata``.

    ``version`` is that of the job as the client read it. If the job has another version by now, nothing changes.
    The steps that the job's handler has done stay done, also with another payload; ``from_start`` removes them.
    """

    version: Annotated[int, Meta(ge=1, le=2**63 - 1)] | UnsetType = UNSET
    payload: Annotated[Any, Meta(description=f"Any JSON, at most {PAYLOAD_BYTES_MAX} bytes")] | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    from_start: bool = False


class JobEdit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """:class:`EditRequest` as it is decoded, without bounds, as :class:`NewJob` has its values; ``check`` has those."""

    version: int | UnsetType = UNSET
    payload: msgspec.Raw | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    from_start: bool = False

    def changes(self) -> dict[str, Any]:
        """Return what it changes: JSON as text, no metadata as ``None``.

        Raises:
            Rejected: ``empty_edit``, or a value is out of bounds, as for a new job. Permanent.
        """
        given = {name: getattr(self, name) for name in EDITED if getattr(self, name) is not UNSET}
        if not given:
            if self.from_start:
                return given
            raise Rejected("empty_edit", f"say what to change: {', '.join((*EDITED, 'from_start'))}")
        if "payload" in given:
            given["payload"] = bytes(given["payload"]).decode()
        if "metadata" in given:
            given["metadata"] = object_text(given["metadata"])
        check_new_job(NewJob("any", **given))
        return given


EDITED = ("payload", "priority", "tags", "metadata")
_edit_decoder = msgspec.json.Decoder(JobEdit)


def read_edit(body: bytes) -> JobEdit:
    """Return the edit that ``body`` asks for. Raises ``Rejected``: syntax and unknown fields 400, values 422."""
    return strict_json.decode(body, _edit_decoder)


class FilterRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The jobs that an action applies to; at least one field must select them.

    With ``dry_run`` the action changes nothing and returns how many jobs match, up to 10,000. ``cursor`` is the
    ``next`` of the previous call.
    """

    ids: Ids | None = None
    status: Annotated[list[JobStatus], Meta(max_length=6)] = []
    task_type: Annotated[str, Meta(min_length=1, max_length=50)] | None = None
    execute_from: InstantText | None = None
    execute_to: InstantText | None = None
    idempotency_key: Key | None = None
    text: Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)] | None = None
    tag: FilterTags = []
    metadata: FilterMetadata = []
    group: Group | None = None
    limit: BulkLimit = 1000
    cursor: CursorText | None = None
    dry_run: bool = False


class RetryJobsRequest(FilterRequest, forbid_unknown_fields=True, kw_only=True):
    """Which failed jobs to run again; ``from_start`` removes the steps that their handlers have done."""

    from_start: bool = False


class MoveRequest(FilterRequest, forbid_unknown_fields=True, kw_only=True):
    """Which jobs to move, and to when: one of ``execute_at``, ``delay`` from now, ``shift`` of each due time."""

    execute_at: InstantText | None = None
    delay: DurationText | None = None
    shift: Shift | None = None


class ReleaseGroupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which group to let go on."""

    group: Group


class RequeueRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to requeue: by id, or the oldest of one subject (a task type, a destination).

    With ``dry_run`` the action changes nothing and returns how many there are among 100,000. ``cursor`` is the ``next``
    of the previous call; with it, letters that died again meanwhile are not requeued a second time. ``from_start``
    removes the steps that the handlers of jobs have done.
    """

    kind: Literal["job", "outbox"] = "job"
    ids: Ids | None = None
    subject: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    limit: BulkLimit = 1000
    cursor: CursorText | None = None
    dry_run: bool = False
    from_start: bool = False


class TaskTypeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A complete task type: a field that is left out gets its default, except ``encrypted``, which keeps its value."""

    target: Target
    timeout: DurationText = "30s"
    max_attempts: Attempts = 3
    retry_base: DurationText = "1s"
    retry_factor: RetryFactor = 2.0
    retry_cap: DurationText = "1h"
    final_statuses: FinalStatuses = []
    concurrency: Concurrency | None = None
    rate_per_s: RatePerS | None = None
    keep_history: bool = True
    queue: QueueName = QUEUE
    needs: Needs = []
    group_limit: GroupLimit | None = None
    group_rate_per_s: RatePerS | None = None
    group_order: GroupOrder | None = None
    unique: UniqueRequest | None = None
    encrypted: bool | UnsetType = UNSET
    deliver: Deliver | None = None


class TaskTypeChange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes of a task type; a field that is left out keeps its value.

    ``version`` is that of the type as the client read it. If the type has another version by now, nothing changes.
    """

    version: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    target: Target | UnsetType = UNSET
    timeout: DurationText | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    retry_base: DurationText | UnsetType = UNSET
    retry_factor: RetryFactor | UnsetType = UNSET
    retry_cap: DurationText | UnsetType = UNSET
    final_statuses: FinalStatuses | UnsetType = UNSET
    concurrency: Concurrency | UnsetType | None = UNSET
    rate_per_s: RatePerS | UnsetType | None = UNSET
    keep_history: bool | UnsetType = UNSET
    queue: QueueName | UnsetType = UNSET
    needs: Needs | UnsetType = UNSET
    group_limit: GroupLimit | UnsetType | None = UNSET
    group_rate_per_s: RatePerS | UnsetType | None = UNSET
    group_order: GroupOrder | UnsetType | None = UNSET
    unique: UniqueRequest | UnsetType | None = UNSET
    encrypted: bool | UnsetType = UNSET
    deliver: Deliver | UnsetType | None = UNSET

    def on(self, present: Mapping[str, Any]) -> TaskTypeRequest:
        """Return the complete type: ``present`` with the changes applied."""
        names = TaskTypeRequest.__struct_fields__
        changes = {name: value for name in names if (value := getattr(self, name)) is not UNSET}
        return TaskTypeRequest(**{name: present[name] for name in names} | changes)
