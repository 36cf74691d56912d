"""Views of batches and executions: the answers of the REST API and of ``--json``."""

from datetime import datetime
from typing import Any, ClassVar

import msgspec

from tickwright.ports.views import Reason, UserData


class BatchView(msgspec.Struct, kw_only=True):
    """A batch: what is executed, and when.

    Attributes:
        kind: ``campaign``, or ``program`` for a batch that a program registers.
        type: ``MANUAL`` or ``AUTOMATIC``.
        status: ``SCHEDULED`` when it runs by its schedule, else ``IDLE``.
        version: One more with each change of its definition.
        next_slot_at: The next occurrence that is not handled yet.
        open_executions: New and running ones.
        set_by: ``app`` or ``operator``; a program replaces only its own definition.
    """

    name: str
    kind: str
    type: str
    status: str
    version: int
    next_slot_at: datetime | None
    product_codes: list[str]
    open_executions: int
    last_execution_id: int | None
    last_status: str | None
    last_slot_at: datetime | None
    set_by: str
    created_at: datetime
    updated_at: datetime


class BatchDetail(BatchView, kw_only=True):
    """One batch.

    Attributes:
        definition: As it was set, with every field; putting it again changes nothing.
        next_slots: The next five occurrences; they run only while it is ``SCHEDULED``.
    """

    definition: dict[str, Any]
    next_slots: list[datetime]


class StoredBatch(msgspec.Struct):
    """The answer to a put; ``changed`` is false for an equal definition, which makes no new version."""

    batch: BatchDetail
    created: bool
    changed: bool


class VersionView(msgspec.Struct, kw_only=True):
    """A version: its number, its author and its time."""

    version: int
    made_by: str
    made_at: datetime


class VersionDetail(VersionView, kw_only=True):
    """One version with its definition."""

    definition: dict[str, Any]


class TouchedExecution(msgspec.Struct, kw_only=True):
    """An execution that an action created or ended; ``status`` is its present one."""

    id: int
    status: str


class BatchChange(msgspec.Struct, kw_only=True):
    """The result of an action.

    Attributes:
        outcome: ``activated``, ``deactivated``, ``started``, ``stopped`` or ``unchanged``.
        executions: Those that it ended, then those that it created.
    """

    name: str
    outcome: str
    status: str
    next_slot_at: datetime | None
    executions: list[TouchedExecution]


class BatchExplanation(msgspec.Struct, kw_only=True):
    """Why a batch runs or does not: the next occurrence, occurrences without an execution, and what prevents a run."""

    name: str
    status: str
    next_slot_at: datetime | None
    summary: str
    reasons: list[Reason]


class ExecutionView(msgspec.Struct, kw_only=True):
    """One occurrence of a batch.

    Attributes:
        slot_at: The occurrence; for a start by hand, the time of the start.
        started_by: ``schedule``, or the caller who started it.
        status: ``NEW``, ``IN_PROGRESS``, ``FINISHED``, ``EXCEPTION_OCCURRED``, ``STOPPED`` or ``DISABLED``.
        version: Of the batch, when the execution began.
        planned_at: When it was divided into chunks.
        members: Of its audience, counted when it was divided into chunks.
        seen: Members that were read so far.
        missing: Of these, not selected because a field of the condition is missing.
        skipped: Of these, could not be judged.
        actions: Recorded, one per selected client.
        released: Of these, released for delivery.
    """

    id: int
    name: str
    kind: str
    slot_at: datetime
    started_by: str
    status: str
    version: int | None
    created_at: datetime
    started_at: datetime | None
    planned_at: datetime | None
    finished_at: datetime | None
    paused_at: datetime | None
    chunks: int
    chunks_done: int
    chunks_released: int
    members: int
    seen: int
    selected: int
    missing: int
    skipped: int
    actions: int
    released: int
    error_code: str | None
    error_message: str | None
    ended_why: str | None


class SkippedClient(msgspec.Struct, kw_only=True):
    """An example of a client that could not be judged; without a client, the problem is of the whole chunk."""

    chunk: int
    problem: str
    client_id: str | None = None


class ChunkWorker(msgspec.Struct, kw_only=True):
    """A process that works on chunks of an execution: how many, and the start of the oldest."""

    worker: str
    chunks: int
    since: datetime | None


class ExecutionDetail(ExecutionView, kw_only=True):
    """One execution.

    Attributes:
        progress: The share of its members that was read, or of its chunks when members are not counted. Null before it
            was divided into chunks.
        working: Up to twenty processes.
        seen_per_s: Pace of the last chunks; null while no chunk is running.
        eta_at: When the last member will be read, at that pace.
        problems: Up to ten examples of clients that could not be judged.
        definition: With which it began.
    """

    progress: float | None
    working: list[ChunkWorker]
    seen_per_s: float | None
    eta_at: datetime | None
    error_trace: str | None
    problems: list[SkippedClient]
    definition: Any


class ExecutionChange(msgspec.Struct, kw_only=True):
    """The result of an action: ``paused``, ``resumed``, ``stopped``, ``retried`` or ``unchanged``."""

    id: int
    name: str
    outcome: str
    status: str
    paused: bool


class ActionView(msgspec.Struct, UserData, kw_only=True):
    """The decision about one client.

    Attributes:
        client: The client's fields in the message.
        released: Whether the message was released for delivery, with the others of its chunk.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("client",)
    client_id: str
    chunk: int
    client: Any
    released: bool
    payload_hidden: bool = False
