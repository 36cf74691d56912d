"""The definition of a workflow: the JSON that ``tickwright.add_workflow`` reads, as structs.

A program builds it with :mod:`tickwright.app.workflows`; REST and the command line read it as text. Its rules are in
the database, so that a definition is refused for the same reasons, with the same codes, whichever way it comes.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tickwright.capabilities.jobs.requests import NewJob
from tickwright.capabilities.jobs.sealing import seal_payload
from tickwright.domain import strict_json
from tickwright.domain.errors import Contended, Rejected, TickwrightError
from tickwright.engine.payload_keys import PayloadKeys
from tickwright.store.borrowed import ServerError, server_error

OnFailed = Literal["cancel", "wait", "run", "only"]
"""What a job does where one that it waits for did not complete: it is cancelled; it waits until that one is retried; it
runs when all have ended; or it runs only then, as soon as one failed, and is skipped where all completed."""

DEFINITION_BYTES_MAX = 10_485_760
"""Of a definition as text. A program may build a larger one, up to 64 MiB."""
JOBS_MAX = 200_000
NAME_CHARS_MAX = 200
RULE_PREFIX = "workflows_"
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""With its offset: the database would read another one in its own time zone."""
_CHECK_VIOLATION, _LOCKED, _DEADLOCK, _DATA_EXCEPTION = "23514", "55P03", "40P01", "22"


class WorkflowJob(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job of a definition.

    Attributes:
        name: Unique in the whole workflow; the type and its place in the list by default.
        after: Names of jobs and inner workflows that it waits for.
        arguments: Members of its payload that are results of jobs, which it waits for: a name, or a list of names.
        workflow: The name of the inner workflow that it is in.
        delay: Counted from when all that it waits for has ended.
        timeout: As an interval of PostgreSQL, as ``delay``.
    """

    name: str | UnsetType = UNSET
    task_type: str
    payload: msgspec.Raw | UnsetType = UNSET
    after: list[str] = []
    arguments: Mapping[str, str | list[str]] | UnsetType = UNSET
    on_failed: str = "cancel"
    workflow: str | None = None
    execute_at: Instant | None = None
    delay: str | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout: str | None = None
    expires_at: Instant | None = None
    tags: list[str] | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    group: str | None = None
    traceparent: str | None = None


class InnerWorkflow(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A workflow inside of another one; others wait for its end by its name.

    Attributes:
        after: What its first jobs wait for: those that wait for nothing else.
        workflow: The name of the inner workflow that it is in; listed before it.
    """

    name: str
    after: list[str] = []
    workflow: str | None = None


class WorkflowDefinition(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A workflow to add.

    Attributes:
        jobs: Each behind those that it waits for; so there are no cycles.
        key: Idempotency key: the same key adds nothing twice.
        deadline: When it is not complete after so long, it is cancelled and has failed.
    """

    name: str
    jobs: list[WorkflowJob]
    workflows: list[InnerWorkflow] = []
    key: str | None = None
    deadline: str | None = None

    @property
    def task_types(self) -> set[str]:
        """The types of its jobs."""
        return {job.task_type for job in self.jobs}


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(WorkflowDefinition)


def read_definition(body: bytes) -> WorkflowDefinition:
    """Return the workflow that a JSON body asks for.

    Raises:
        Rejected: ``workflow_too_large`` (413), syntax and unknown fields 400. Permanent.
    """
    if len(body) > DEFINITION_BYTES_MAX:
        text = f"a definition has at most {DEFINITION_BYTES_MAX} bytes; keep large payloads elsewhere"
        raise Rejected("workflow_too_large", text, status=413)
    return strict_json.decode(body, _decoder)


def definition_json(definition: WorkflowDefinition) -> str:
    """Return the argument of ``tickwright.add_workflow``. Raises ``Rejected`` (``workflow_value``): permanent."""
    try:
        return _encode(definition).decode()
    except UnicodeEncodeError as error:
        raise Rejected("workflow_value", f"a text of the workflow cannot be stored: {error.reason}") from error


def interval_text(value: timedelta | None) -> str | None:
    """Return a duration as PostgreSQL reads it, exactly."""
    return None if value is None else f"{value.days} days {value.seconds}.{value.microseconds:06} seconds"


def job_of(job: NewJob) -> WorkflowJob:
    """Return a checked job as one of a definition, without its place in the workflow.

    Raises:
        Rejected: ``workflow_job_key``: the job has a key of its own. ``workflow_job_unique``: it has a rule of its own.
            Permanent.
    """
    if job.key is not None:
        raise Rejected(
            "workflow_job_key", "a job of a workflow has no key of its own; give the workflow one", field="key"
        )
    if job.unique:
        text = "a job of a workflow is not unique; give the workflow a key, or schedule a unique job from a handler"
        raise Rejected("workflow_job_unique", text, field="unique")
    return WorkflowJob(
        task_type=job.task_type,
        payload=msgspec.Raw(job.payload.encode()),
        execute_at=job.execute_at,
        delay=interval_text(job.delay),
        priority=job.priority,
        max_attempts=job.max_attempts,
        timeout=interval_text(job.timeout),
        expires_at=job.expires_at,
        tags=list(job.tags) or UNSET,
        metadata=UNSET if job.metadata is None else msgspec.Raw(job.metadata.encode()),
        group=job.group,
        traceparent=job.traceparent,
    )


def sealed(definition: WorkflowDefinition, encrypted: AbstractSet[str], keys: PayloadKeys) -> WorkflowDefinition:
    """Return the definition with the payloads of encrypted types in envelopes.

    Raises:
        Rejected: ``workflow_encrypted``: a result of an encrypted job, or of another one for it, is an argument; the
            database can write neither. Permanent.
        Unavailable: ``payload_keys_missing``. Retry in a process that has the keys.
    """
    types = {job.name: job.task_type for job in definition.jobs if job.name is not UNSET}
    jobs = []
    for job in definition.jobs:
        given = [] if job.arguments is UNSET else list(job.arguments.values())
        names = [name for value in given for name in ([value] if isinstance(value, str) else value)]
        if names and (job.task_type in encrypted or any(types.get(name) in encrypted for name in names)):
            name = job.task_type if job.name is UNSET else job.name
            text = f"job {name}: results of or for encrypted jobs are no arguments; read them in its handler"
            raise Rejected("workflow_encrypted", text, field="arguments")
        if job.task_type in encrypted:
            payload = "{}" if job.payload is UNSET else bytes(job.payload).decode()
            envelope = msgspec.Raw(seal_payload(job.task_type, payload, keys).encode())
            jobs.append(msgspec.structs.replace(job, payload=envelope))
        else:
            jobs.append(job)
    return msgspec.structs.replace(definition, jobs=jobs)


def refusal(error: BaseException) -> TickwrightError | None:
    """Return the error for what the database refuses in a definition; ``None`` where it is something else."""
    if (answer := server_error(error)) is None:
        return None
    if answer.sqlstate in {_LOCKED, _DEADLOCK}:
        return Contended("key_in_flight", "another request with this key is under way; try again")
    if answer.sqlstate.startswith(_DATA_EXCEPTION):  # text that is no JSON for PostgreSQL, such as with a NUL
        return Rejected("workflow_value", answer.message)
    return _broken_rule(answer) if answer.sqlstate == _CHECK_VIOLATION else None


def _broken_rule(answer: ServerError) -> TickwrightError:
    text = answer.message.removeprefix("workflow refused: ").removeprefix("job refused: ")
    if answer.rule == f"{RULE_PREFIX}key_reused":
        return Contended("key_reused", text)
    if not answer.rule.startswith(RULE_PREFIX):
        return Rejected("workflow_job", text)
    code = answer.rule.removeprefix(RULE_PREFIX)
    return Rejected(f"workflow_{code}", text, status=413 if code == "too_large" else 422)
