"""The messages of the worker protocol: bodies of requests and answers, and their bounds.

Version 1. Within a version, answers may get new fields, which clients ignore, and requests may get new optional ones.
Anything else is a new version, which a client asks for when it registers. See docs/worker-protocol.md.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwright.domain.time_texts import DurationText

PROTOCOL = 1
CLAIM_MAX = 1000
HELD_MAX = 5000
TYPES_MAX = 200
RESULT_BYTES_MAX = 65_536
CHUNK_RESULT_BYTES_MAX = 2_000_000
BODY_BYTES_MAX = 4_000_000
"""Of a call of results, in which chunks have their actions."""
SESSION_HEADER = "Tickwright-Session"

Number = Annotated[int, Meta(ge=1, le=2**63 - 1)]
TypeName = Annotated[str, Meta(min_length=1, max_length=50)]
TypeNames = Annotated[list[TypeName], Meta(min_length=1, max_length=TYPES_MAX)]
CallName = Annotated[str, Meta(min_length=1, max_length=100)]
CallNames = Annotated[list[CallName], Meta(max_length=TYPES_MAX)]
WorkKind = Literal["job", "poll", "task", "chunk"]


class RemoteRegistration(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A remote worker that begins.

    Attributes:
        name: For operators, such as ``host:pid``.
        pool: It works what has the target ``remote:POOL``.
        types: The task types that it has handlers for.
        partners: The partners that it polls for trackers.
        modules: The modules whose tasks it runs for entities.
        batches: The batches whose chunks it works on.
        client: The client and its version, for operators.
        lease: After so long without a heartbeat the worker is lost; that of the process by default.
        protocol: The version of this protocol.
    """

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    pool: Annotated[str, Meta(min_length=1, max_length=255, pattern="^[A-Za-z_][A-Za-z0-9_.-]*$")]
    types: Annotated[list[TypeName], Meta(max_length=TYPES_MAX)] = []
    partners: CallNames = []
    modules: CallNames = []
    batches: CallNames = []
    client: Annotated[str, Meta(max_length=100)] = ""
    lease: DurationText | None = None
    protocol: int = PROTOCOL

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The kinds and names of the calls that it makes for consumers."""
        named = {"poll": self.partners, "task": self.modules, "chunk": self.batches}
        return [(kind, name) for kind, names in named.items() for name in dict.fromkeys(names)]


class RemoteType(msgspec.Struct, frozen=True):
    """A type of a registration. One that ``waits`` is paused; one with ``other_target`` is not for this pool."""

    name: str
    state: Literal["ready", "waits", "unknown", "other_target"]


class RemoteRegistered(msgspec.Struct, frozen=True):
    """The session of a remote worker.

    Attributes:
        session: The secret for the header ``Tickwright-Session`` of every other call; shown only here.
        id: The session, as operators see it.
        heartbeat_ms: How often to send a heartbeat: a third of the lease.
        types: The state of each type. One that is not ready needs no new registration when it becomes ready.
    """

    session: str
    id: int
    protocol: int
    lease_ms: int
    heartbeat_ms: int
    types: list[RemoteType]


class RemoteAttempt(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One attempt of one job, or one poll, task or chunk: what every call about it carries.

    Ids are unique among all kinds.
    """

    id: Number
    fence: Number
    kind: WorkKind = "job"


RemoteAttempts = Annotated[list[RemoteAttempt], Meta(max_length=HELD_MAX)]


class RemoteClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for work.

    Attributes:
        claim: A number that rises by one with each claim of the session, beginning at 1.
        max: At most so many jobs and other calls together.
        wait: How long the answer may wait for one, at most 60 s.
        types: Jobs of some of the types of the registration, and nothing else; everything by default.
        held: After a claim without an answer: every attempt that the worker knows of. The server then refuses claims of
            lower numbers, and releases what the session holds besides these, without counting an attempt. Send it only
            while no other claim of the session is under way.
    """

    claim: Number
    max: Annotated[int, Meta(ge=1, le=CLAIM_MAX)] = 1
    wait: DurationText = "0s"
    types: TypeNames | None = None
    held: RemoteAttempts | None = None


class RemoteJob(msgspec.Struct, frozen=True, gc=False):
    """One claimed job.

    Attributes:
        attempt: The number of this attempt, from 1.
        fence: Rises with every attempt of this job; every call about it carries it.
        execute_at: When its user wanted it to run.
        timeout_ms: How long the attempt may run. The server enforces it, too, a little later.
        start_in_ms: How long to wait before the start; above 0 only for types with a rate.
        expires_in_ms: It must not start later than this.
        begin: This is the last attempt: call ``begin`` before its start, so that it counts only if it began.
        traceparent: The trace that the job was scheduled in.
    """

    id: int
    type: str
    payload: Any
    attempt: int
    max_attempts: int
    fence: int
    execute_at: str
    timeout_ms: int
    start_in_ms: int
    expires_in_ms: int | None
    begin: bool
    traceparent: str | None


class RemoteWork(msgspec.Struct, frozen=True, gc=False):
    """One poll of a tracker, task of an entity or chunk of a batch, to be made for a consumer.

    Attributes:
        name: Of the partner, module or batch.
        payload: See docs/worker-protocol.md for the fields of each kind.
        timeout_ms: How long it may take from now on. The server enforces it, too, a little later.
        fence: Rises with every claim of this call.
    """

    id: int
    kind: Literal["poll", "task", "chunk"]
    name: str
    payload: Any
    timeout_ms: int
    fence: int


class RemoteJobs(msgspec.Struct, frozen=True):
    """What a claim has found; ``drain``: claim no more, finish what runs, and close the session."""

    jobs: list[RemoteJob]
    drain: bool
    calls: list[RemoteWork] = []


class RemoteCallView(msgspec.Struct, frozen=True, kw_only=True):
    """A poll, task or chunk that a consumer has handed over, for operators.

    Attributes:
        name: Of the partner, module or batch.
        worker: The session of the remote worker that makes it; none while it waits for one.
        deadline_at: It ends then at the latest.
        progress: As its worker has reported it last.
    """

    id: int
    kind: Literal["poll", "task", "chunk"]
    pool: str
    name: str
    worker: int | None
    worker_name: str | None
    began_at: datetime | None
    deadline_at: datetime
    progress: Any
    fence: int


class RemoteCallList(msgspec.Struct, frozen=True):
    """Calls, the oldest first; 1,000 at most."""

    items: list[RemoteCallView]


class RemoteAttemptList(msgspec.Struct, forbid_unknown_fields=True):
    """Some attempts."""

    jobs: Annotated[list[RemoteAttempt], Meta(min_length=1, max_length=CLAIM_MAX)]


class RemoteBegun(msgspec.Struct, frozen=True):
    """Which last attempts begin.

    ``lost``: drop them. ``locked``: another transaction has locked the job's row; release the job, or ask again.
    """

    begins: list[int]
    lost: list[int]
    locked: list[int]


class RemoteHeartbeat(msgspec.Struct, forbid_unknown_fields=True):
    """A worker is alive; ``held`` are all attempts that it runs."""

    held: RemoteAttempts = []


class RemoteStop(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt that must stop.

    Drop it where the reason is ``lost``, because the worker does not hold it, or ``timeout``, because the server has
    ended it. Where its user has ``cancelled`` it, report ``cancelled``, or how it ended.
    """

    id: int
    fence: int
    reason: Literal["lost", "cancelled", "timeout"]
    kind: WorkKind = "job"


class RemoteRenewal(msgspec.Struct, frozen=True):
    """The lease was extended by ``lease_ms``."""

    lease_ms: int
    drain: bool
    stop: list[RemoteStop]


class RemoteProgressItem(msgspec.Struct, forbid_unknown_fields=True):
    """The progress of one running attempt: any JSON."""

    id: Number
    fence: Number
    progress: msgspec.Raw
    kind: WorkKind = "job"


class RemoteProgress(msgspec.Struct, forbid_unknown_fields=True):
    """The progress of running attempts."""

    jobs: Annotated[list[RemoteProgressItem], Meta(min_length=1, max_length=CLAIM_MAX)]


class _Result(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="outcome"):
    id: Number
    fence: Number
    kind: WorkKind = "job"


class RemoteComplete(_Result, tag="complete"):
    """The attempt succeeded. ``result`` is kept with the job; a poll or a chunk has one of its own form."""

    result: msgspec.Raw | UnsetType = UNSET


class RemoteFail(_Result, tag="fail"):
    """The attempt failed. It is retried by the policy of its type, unless it was the last one or ``final``.

    ``retry_after`` is the least wait before the next attempt.
    """

    message: Annotated[str, Meta(max_length=20_000)]
    code: Annotated[str, Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9_.:-]+$")] = "handler_error"
    final: bool = False
    retry_after: DurationText | None = None


class RemoteThrottled(_Result, tag="throttled"):
    """The partner of a poll or of a task requests silence: no process calls it before ``retry_after`` is over."""

    retry_after: DurationText


class RemoteSnooze(_Result, tag="snooze"):
    """It is to be called again after ``wait``; costs no attempt."""

    wait: DurationText


class RemoteRelease(_Result, tag="release"):
    """The attempt ends without a result, because its worker stops; costs no attempt.

    ``started``: the handler had begun, which the job's history then shows.
    """

    started: bool = False


class RemoteCancel(_Result, tag="cancelled"):
    """The handler stopped because the job's user cancelled it. Without such a cancel it counts as ``release``."""


RemoteResult = RemoteComplete | RemoteFail | RemoteThrottled | RemoteSnooze | RemoteRelease | RemoteCancel


class RemoteResults(msgspec.Struct, forbid_unknown_fields=True):
    """How attempts ended; each job at most once."""

    results: Annotated[list[RemoteResult], Meta(min_length=1, max_length=CLAIM_MAX)]


class RemoteRecorded(msgspec.Struct, frozen=True):
    """What became of the results.

    Attributes:
        done: How many were written now.
        stale: Ids of attempts that the session does not hold: they have ended before, by an earlier call or otherwise.
            Nothing was changed. Drop them.
        locked: Ids whose rows another transaction has locked. Nothing was changed. Send these results again.
    """

    done: int
    stale: list[int]
    locked: list[int]


class RemoteReported(msgspec.Struct, frozen=True):
    """Whose progress was written; ``stale`` attempts are not the session's."""

    done: int
    stale: list[int]


class RemoteClose(msgspec.Struct, forbid_unknown_fields=True):
    """An empty object."""


class RemoteClosed(msgspec.Struct, frozen=True):
    """How many jobs and other calls were released, which the worker still held."""

    released: int
