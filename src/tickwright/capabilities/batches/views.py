"""Views of batches and executions: the answers of the REST API and of ``--json``."""

from datetime import datetime
from typing import Any, ClassVar

import msgspec

from tickwright.ports.user_data import UserData
from tickwright.ports.views import Reason


class BatchView(msgspec.Struct, kw_only=True):
    """What is executed, when.

    Attributes:
        kind: ``campaign``, or ``program`` for what a program brings.
        type: ``MANUAL`` or ``AUTOMATIC``.
        status: ``SCHEDULED`` when it runs by itself, else ``IDLE``.
        version: One more with each edit.
        next_slot_at: The next occurrence that nobody has dealt with.
        open_executions: New ones and those at work.
        set_by: ``app`` or ``operator``; a program replaces the first only.
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
        definition: In the words that it was set with, every one of them; what is read from them is the same again.
        next_slots: The next five occurrences; they run only while it is ``SCHEDULED``.
    """

    definition: dict[str, Any]
    next_slots: list[datetime]


class StoredBatch(msgspec.Struct):
    """The answer to a put; ``changed`` is false where it was so already, and then it is no new version."""

    batch: BatchDetail
    created: bool
    changed: bool


class VersionView(msgspec.Struct, kw_only=True):
    """That a version was made, by whom and when."""

    version: int
    made_by: str
    made_at: datetime


class VersionDetail(VersionView, kw_only=True):
    """One version, in the words that it was set with."""

    definition: dict[str, Any]


class TouchedExecution(msgspec.Struct, kw_only=True):
    """An execution that an action made or ended; ``status`` is what it is now."""

    id: int
    status: str


class BatchChange(msgspec.Struct, kw_only=True):
    """What an action did.

    Attributes:
        outcome: ``activated``, ``deactivated``, ``started``, ``stopped`` or ``unchanged``.
        status: Of the batch, now.
        executions: That were made or ended, in this order: the ended ones first.
    """

    name: str
    outcome: str
    status: str
    next_slot_at: datetime | None
    executions: list[TouchedExecution]


class BatchExplanation(msgspec.Struct, kw_only=True):
    """Why a batch runs or does not: the next occurrence, those that got no execution, what is in the way."""

    name: str
    status: str
    next_slot_at: datetime | None
    summary: str
    reasons: list[Reason]


class ExecutionView(msgspec.Struct, kw_only=True):
    """One occurrence of a batch.

    Attributes:
        name: Of the batch.
        slot_at: The occurrence; of one that was started by hand, the moment of that.
        started_by: ``schedule``, or who started it.
        status: ``NEW``, ``IN_PROGRESS``, ``FINISHED``, ``EXCEPTION_OCCURRED``, ``STOPPED`` or ``DISABLED``.
        version: Of the batch, with which it was begun.
        planned_at: When it had been cut into chunks.
        members: Counted when it was cut into chunks.
        seen: Of these, read so far.
        missing: Not selected because a field that decides is not there.
        skipped: Could not be judged.
        actions: Recorded, one per selected client.
        released: Of these, sent on their way.
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
    """An example of what could not be judged; without a client it is about the whole chunk."""

    chunk: int
    problem: str
    client_id: str | None = None


class ChunkWorker(msgspec.Struct, kw_only=True):
    """Who works on chunks of an execution now: how many, and since when on the oldest."""

    worker: str
    chunks: int
    since: datetime | None


class ExecutionDetail(ExecutionView, kw_only=True):
    """One execution.

    Attributes:
        progress: The share of its members that was read; of its chunks, where members are not counted. None before
            it has been cut into chunks.
        working: Up to twenty processes.
        seen_per_s: How fast the last chunks went; none while nothing is at work.
        eta_at: When the last member is read, at that pace.
        error_trace: Where it failed.
        problems: Up to ten examples of what could not be judged.
        definition: What it was begun with.
    """

    progress: float | None
    working: list[ChunkWorker]
    seen_per_s: float | None
    eta_at: datetime | None
    error_trace: str | None
    problems: list[SkippedClient]
    definition: Any


class ExecutionChange(msgspec.Struct, kw_only=True):
    """What an action did: ``paused``, ``resumed``, ``stopped``, ``retried`` or ``unchanged``."""

    id: int
    name: str
    outcome: str
    status: str
    paused: bool


class ActionView(msgspec.Struct, UserData, kw_only=True):
    """What was decided about one client.

    Attributes:
        chunk: With which it was written.
        client: What the message says of it.
        released: Whether the message has been sent on its way; it leaves with the others of its chunk.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("client",)
    client_id: str
    chunk: int
    client: Any
    released: bool
    payload_hidden: bool = False
