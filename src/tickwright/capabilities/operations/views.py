"""Views of workers, leases, the outbox, alerts, the audit trail and API keys."""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec import Meta

from tickwright.domain.masking import masked_address, masked_document, read_json
from tickwright.domain.time_texts import DurationText
from tickwright.ports.views import AccessGranting, UserData

NOTE_CHARS_MAX = 1_000


class Holding(msgspec.Struct, kw_only=True):
    """A holding of a session.

    Attributes:
        kind: ``job``, ``lease``, ``execution`` (which it cuts into chunks), ``chunk``, ``report`` (of which it takes a
            step), ``part``, ``task`` (of fan-out), ``polls`` (in progress), or ``partition`` (of the polls' topic).
        id: Of the job, execution or report.
        name: Task type, lease, batch, report type, listener, entity and module, partner, or topic.
        number: Of the chunk or partition.
        since_at: When it took it.
        fence: The fence of its writes.
        count: Attempts of a job, members of a chunk, rows of a part so far, polls in progress.
    """

    kind: str
    id: int | None
    name: str | None
    number: int | None
    since_at: datetime | None
    fence: int | None
    count: int | None


class LeaseView(msgspec.Struct, kw_only=True):
    """One control loop's lease.

    Attributes:
        version: Its fence.
        held: Whether it has a holder now.
        owner: Name of the process.
        session: Its worker session, if one of that name lives.
        age_s: Since it was taken.
        guards: What only its holder does.
    """

    job_name: str
    slice_start: datetime | None
    slice_end: datetime | None
    last_started_at: datetime | None
    last_completed_at: datetime | None
    running: bool
    held: bool
    version: int
    owner: str | None
    session: int | None
    age_s: float | None
    lease_until: datetime | None
    guards: str


class ReleasedLease(msgspec.Struct):
    """A lease that was taken away: its former holder, and the present fence."""

    job_name: str
    owner: str | None
    version: int


class _ToDestination(AccessGranting):
    """A struct with a ``destination``, of which viewers see only the host."""

    __slots__ = ()
    destination: str

    def masked(self) -> Self:
        """Return it with only the host of its destination."""
        return msgspec.structs.replace(self, destination=masked_address(self.destination))  # type: ignore[type-var]


class DestinationView(msgspec.Struct, _ToDestination, kw_only=True):
    """The waiting messages of one destination.

    Attributes:
        waiting: Messages; from ``capped_at`` on that many or more.
        tried: Those of them that were tried before.
        oldest_s: The age of the oldest one.
        attempts: The highest number of attempts of one of them.
        next_try_at: When the first of the tried ones is due.
        state: ``flowing``; ``waiting`` for another try; ``stuck``, with ``why``.
        why: ``no_relay``, ``unknown_scheme``, ``too_old`` (more than two minutes) or ``failing``.
        error: The last error of the oldest one.
    """

    destination: str
    waiting: int
    tried: int
    capped_at: int
    oldest_s: float
    attempts: int
    next_try_at: datetime | None
    state: Literal["flowing", "waiting", "stuck"]
    why: Literal["no_relay", "unknown_scheme", "too_old", "failing"] | None
    error: str | None


class RetryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The destination whose messages are tried again now."""

    destination: Annotated[str, Meta(min_length=1, max_length=2048)]


class RetriedOutbox(msgspec.Struct):
    """How many messages are now due; call again while ``more`` is true."""

    destination: str
    retried: int
    more: bool


class DiscardedMessage(msgspec.Struct, _ToDestination, kw_only=True):
    """A discarded message: now a dead letter of the kind ``outbox``."""

    id: int
    destination: str
    key: str | None
    created_at: datetime
    attempts: int


class AcknowledgeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A note of the operator who handles an alert."""

    note: Annotated[str, Meta(max_length=NOTE_CHARS_MAX)] | None = None


class WorkerView(msgspec.Struct):
    """One worker session."""

    id: int
    name: str
    roles: list[str]
    version: str
    alive: bool
    started_at: datetime
    seen_at: datetime
    lease_until: datetime
    drain_requested_at: datetime | None
    lost_at: datetime | None
    facts: Any


class WorkerDetail(WorkerView, kw_only=True):
    """One worker session and what it holds.

    Attributes:
        seen_ago_s: The age of its last heartbeat; a living session sends one every second or two.
        facts: What it reports, with its ``counters`` since its start.
        holds: At most 100 of each kind.
        more: Kinds of which it holds more than are shown.
    """

    seen_ago_s: float
    holds: list[Holding]
    more: list[str]


class AlertView(msgspec.Struct):
    """One alert; ``acknowledged_by`` is the operator who handles it, while it fires."""

    id: int
    rule: str
    subject: str
    severity: str
    summary: str
    state: str
    fired_at: datetime
    seen_at: datetime
    resolved_at: datetime | None
    facts: Any
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    acknowledged_note: str | None


class OutboxView(msgspec.Struct, _ToDestination):
    """A message that waits for the relay."""

    id: int
    destination: str
    key: str | None
    created_at: datetime
    attempts: int
    next_at: datetime | None
    error_message: str | None


class AuditView(msgspec.Struct, UserData, AccessGranting):
    """One operator action."""

    USER_DATA: ClassVar[tuple[str, ...]] = ("before", "after")
    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    before: Any
    after: Any
    payload_hidden: bool = False

    def masked(self) -> Self:
        """Return it masked, also where an earlier release wrote it unmasked."""
        before, after = (masked_document(_decoded(one)) for one in (self.before, self.after))
        kind, colon, about = self.subject.partition(":")
        subject = f"{kind}{colon}{masked_address(about)}" if kind == "outbox" else self.subject
        return msgspec.structs.replace(self, before=before, after=after, subject=subject)


def _decoded(value: Any) -> Any:
    return read_json(bytes(value).decode()) if isinstance(value, msgspec.Raw) else value


class KeyView(msgspec.Struct):
    """An API key without its secret part.

    Attributes:
        role: None where it has scopes instead.
        scopes: All that it allows; empty where it has a role.
        prefix: Its first characters.
    """

    id: int
    name: str
    role: str | None
    scopes: list[str]
    prefix: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class NewKeyView(msgspec.Struct):
    """A new key, shown only in this response."""

    key: str
    details: KeyView


class RotateKeyRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How long the old key stays valid, and when the new one expires: by default with the old one."""

    overlap: DurationText = "24h"
    expires_in: DurationText | None = None


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A new API key, with a role or with scopes."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Literal["viewer", "operator", "admin"] | None = None
    scopes: Annotated[list[str], Meta(max_length=20)] = []
    expires_in: DurationText | None = None
