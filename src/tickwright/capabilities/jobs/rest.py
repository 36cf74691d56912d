"""The REST routes of one-shot jobs, their task types and their dead letters.

The gate provides the caller, the role and the body. Bodies are read strictly, so no route lets FastAPI parse one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.jobs.admin.bulk_actions import BulkCall, BulkMove, JobBulkActions
from tickwright.capabilities.jobs.admin.limits_rest import add_group_routes, add_queue_routes
from tickwright.capabilities.jobs.admin.search import JobFilter, ListQuery
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.admin.views import (
    BulkAction,
    CreatedJob,
    DeadLetter,
    JobAction,
    JobCounts,
    JobDetail,
    JobPage,
    Requeued,
    SecretView,
    StoredTaskType,
    TaskTypeView,
)
from tickwright.capabilities.jobs.admin.waits import JobProgress, JobWaits, parse_wait
from tickwright.capabilities.jobs.enqueue import Scheduled
from tickwright.capabilities.jobs.requests import (
    BOUNDS,
    GROUP_BYTES_MAX,
    KEY_PATTERN,
    METADATA_FILTERS_MAX,
    TAGS_MAX,
    TEXT_CHARS_MAX,
    EditRequest,
    FilterRequest,
    JobRequest,
    MoveRequest,
    RequeueRequest,
    RescheduleRequest,
    RetryJobsRequest,
    ScheduleBounds,
    TaskTypeChange,
    TaskTypeRequest,
    key_of,
    read_edit,
)
from tickwright.capabilities.jobs.results import JobState
from tickwright.capabilities.jobs.states import FINAL, JobStatus
from tickwright.domain.errors import Rejected
from tickwright.domain.lines import ImportResult
from tickwright.domain.signatures import RotateRequest
from tickwright.domain.strict_json import quoted
from tickwright.domain.time_texts import parse_duration
from tickwright.domain.traceparent import NAME, traceparent_of
from tickwright.observe import traces
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Explanation, Page, sees_user_data, sight
from tickwright.rest.event_stream import EventStream, client_gone
from tickwright.rest.gate import Gate
from tickwright.rest.problems import SAFE_HEADERS
from tickwright.rest.routing import (
    NDJSON,
    Cursor,
    Id,
    Instant,
    Limit,
    StructSchema,
    accepts,
    answer,
    answers,
    instant_of,
)
from tickwright.store.bounds import Abandoned, within

SCOPE = "jobs:schedule"
READ_S = 10.0
TypeName = Annotated[str, Path(min_length=1, max_length=50)]


def job_routes(service: JobService, waits: JobWaits, gate: Gate, bounds: ScheduleBounds = BOUNDS) -> APIRouter:
    """Return every route of this capability, below ``/v1``."""
    router = APIRouter()
    _scheduling(router, service, gate, bounds)
    _reading(router, service, gate)
    _waiting(router, service, waits, gate)
    _acting(router, service, gate)
    _bulk_actions(router, service.many, gate)
    _task_types(router, service, gate)
    add_queue_routes(router, service.queues, gate)
    add_group_routes(router, service.groups, gate)
    _dead_letters(router, service, gate)
    return router


def created_answer(made: Scheduled) -> tuple[int, str, bytes]:
    """Return status, ``Location`` and body of a scheduled job, for the fast route and the route."""
    place = f"/v1/jobs/{made.id}"
    if made.created:
        text = f'{{"id":{made.id},"created":true,"outcome":"inserted","replaced":[],"status":null}}'
        return 201, place, text.encode()
    body = CreatedJob(made.id, made.created, made.outcome, list(made.replaced), made.status)
    return 200, place, msgspec.json.encode(body)


def _scheduling(router: APIRouter, service: JobService, gate: Gate, bounds: ScheduleBounds) -> None:
    allowed = gate.allow(Role.OPERATOR, SCOPE)
    operator = Annotated[Caller, Depends(allowed)]

    @router.post(
        "/v1/jobs",
        dependencies=[Depends(allowed)],
        tags=["jobs"],
        **answers(CreatedJob, 201, 200),
        **_with(accepts(JobRequest), 255),
    )
    async def schedule(request: Request) -> Response:
        """Schedule one job. The same `Idempotency-Key` with the same request returns 200 and the existing job.

        So does a unique job whose arguments another one holds; `outcome` says what happened to that one.
        """
        body = await gate.read_bytes(request)
        headers = request.scope["headers"]
        with traces.continued(traceparent_of(headers)):
            made = await service.schedule_text(body, key=key_of(headers), now=gate.now(), bounds=bounds)
        status, location, text = created_answer(made)
        return Response(text, status, {"location": location}, media_type="application/json")

    lines = {"openapi_extra": {"requestBody": {"required": True, "content": {NDJSON: {"schema": {"type": "string"}}}}}}

    @router.post("/v1/jobs:bulk", tags=["jobs"], **answers(ImportResult), **_with(lines, 200))
    async def import_jobs(request: Request, caller: operator) -> Response:
        """Schedule jobs from NDJSON, one `JobRequest` per line, in constant memory.

        Lines are committed in their order, in batches of up to 5,000 (1,000 where lines have keys). A bad line is
        rejected and affects no other. When the connection breaks off, committed batches stay and the rest is dropped:
        the audit trail's `jobs.import` row has the last committed line. With an `Idempotency-Key`, send the same upload
        again: no job is created twice.
        """
        chunks, headers = gate.stream(request), request.scope["headers"]
        with traces.continued(traceparent_of(headers)):
            key = key_of(headers)
            return answer(
                await service.enqueuer.import_lines(chunks, caller=caller, key=key, now=gate.now(), bounds=bounds)
            )


_TRACEPARENT = {
    "name": NAME,
    "in": "header",
    "description": "The trace that the job belongs to (W3C Trace Context); a malformed one is ignored.",
    "schema": {"type": "string", "examples": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]},
}


def _with(extra: dict[str, Any], key_chars_max: int) -> dict[str, Any]:
    """Return ``extra`` with the headers of a request that schedules."""
    schema = {"type": "string", "minLength": 1, "maxLength": key_chars_max, "pattern": KEY_PATTERN}
    key = {"name": "Idempotency-Key", "in": "header", "schema": schema}
    return {"openapi_extra": {**extra["openapi_extra"], "parameters": [key, _TRACEPARENT]}}


JobStatuses = Annotated[list[JobStatus] | None, Query(max_length=6)]
TypeText = Annotated[str | None, Query(max_length=50)]
KeyText = Annotated[str | None, Query(max_length=255)]
Text = Annotated[
    str | None,
    Query(max_length=TEXT_CHARS_MAX, description="Part of the key, the last error or the payload, in whatever case"),
]
WithTags = Annotated[
    list[str] | None, Query(max_length=TAGS_MAX, description="Has this tag; repeat it for all of several")
]
WithMetadata = Annotated[
    list[str] | None,
    Query(
        max_length=METADATA_FILTERS_MAX, description="`key=value` of its metadata: a text, number, true, false or null"
    ),
]
WithGroup = Annotated[
    str | None, Query(min_length=1, max_length=GROUP_BYTES_MAX, description="The whole name of its group")
]
Worker = Annotated[int | None, Query(ge=1, le=2**63 - 1, description="Held by this session now")]
OfWorkflow = Annotated[
    int | None,
    Query(ge=1, le=2**63 - 1, description="Of this workflow: the outermost one, or the one that it is directly in"),
]


def _reading(router: APIRouter, service: JobService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/jobs", tags=["jobs"], dependencies=viewer, **answers(JobPage))
    async def list_jobs(  # noqa: PLR0917  FastAPI calls it by name
        status: JobStatuses = None,
        task_type: TypeText = None,
        execute_from: Instant = None,
        execute_to: Instant = None,
        idempotency_key: KeyText = None,
        text: Text = None,
        tag: WithTags = None,
        metadata: WithMetadata = None,
        group: WithGroup = None,
        worker: Worker = None,
        workflow: OfWorkflow = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List jobs, newest first. `execute_from` is inclusive, `execute_to` exclusive.

        A page reads at most 20,000 rows. It may have fewer jobs than `limit`, and still a `next`.
        """
        details = tag, metadata, group
        which = _filter(
            status, task_type, (execute_from, execute_to), idempotency_key, text, details, (worker, workflow)
        )
        return answer(await service.list(ListQuery.of(which, cursor, limit)))

    @router.get("/v1/jobs:counts", tags=["jobs"], dependencies=viewer, **answers(JobCounts))
    async def count_jobs(  # noqa: PLR0917
        status: JobStatuses = None,
        task_type: TypeText = None,
        execute_from: Instant = None,
        execute_to: Instant = None,
        idempotency_key: KeyText = None,
        text: Text = None,
        tag: WithTags = None,
        metadata: WithMetadata = None,
        group: WithGroup = None,
        worker: Worker = None,
        workflow: OfWorkflow = None,
    ) -> Response:
        """Count jobs by state, with the filters of the list.

        Each count stops at `capped_at`, and its work is bounded: the states in `at_least` may have more.
        """
        details = tag, metadata, group
        which = _filter(
            status, task_type, (execute_from, execute_to), idempotency_key, text, details, (worker, workflow)
        )
        return answer(await service.count(which))

    @router.get("/v1/jobs/{job_id}/explain", tags=["jobs"], dependencies=viewer, **answers(Explanation))
    async def explain_job(job_id: Id) -> Response:
        """Explain why a job is in its state."""
        return answer(await service.explain(job_id))


Wait = Annotated[
    str | None,
    Query(max_length=40, description="Answer when the job has ended, after this time at the latest; 1ms to 60s"),
]
_EVENTS = {
    "description": "Server-sent events named `job`, each with a JobProgress as its data; a final status is in the last",
    "content": {"text/event-stream": {"schema": StructSchema(JobProgress, {"type": "string"})}},
}


def _waiting(router: APIRouter, service: JobService, waits: JobWaits, gate: Gate) -> None:
    viewer = Annotated[Caller, Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/jobs/{job_id}", tags=["jobs"], **answers(JobDetail))
    async def get_job(request: Request, job_id: Id, caller: viewer, wait: Wait = None) -> Response:
        """Return one job, live or finished; with `wait` when it has ended, or its present state when the time is over.

        503 `too_many_waits` where too many requests of the key, or in the process, wait already.
        """
        time = None if wait is None else parse_wait(wait)
        job = await service.get_raw(job_id)
        if time is None or job.status in FINAL:
            return answer(job)
        ended = await unless_gone(request, waits.wait(job_id, time, caller))
        with within(READ_S):  # the time of the request itself is over
            try:
                job = await service.get_raw(job_id)
            except Rejected:
                if ended is None:
                    raise
                job = msgspec.structs.replace(job, status=ended.status)  # completed, and its type keeps no history
        return answer(job)

    @router.get("/v1/jobs/{job_id}/events", tags=["jobs"], responses={200: _EVENTS})
    async def stream_job(job_id: Id, caller: viewer) -> Response:
        """Stream a job's state, its progress and its end as server-sent events; 503 `too_many_streams`.

        The stream ends with the job, and after five minutes at the latest: then connect again.
        """
        await service.get_raw(job_id)
        return EventStream(waits.stream(job_id, caller, sight()), "job")


async def unless_gone(request: Request, waiting: Coroutine[Any, Any, JobState | None]) -> JobState | None:
    """Return the end of ``waiting``. Raises ``Abandoned`` as soon as the client has left."""
    wait, gone = asyncio.ensure_future(waiting), asyncio.ensure_future(client_gone(request.receive))
    try:
        await asyncio.wait({wait, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not wait.done():
            raise Abandoned
        return wait.result()
    finally:
        wait.cancel()
        gone.cancel()


def _acting(router: APIRouter, service: JobService, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.patch("/v1/jobs/{job_id}", tags=["jobs"], **answers(JobAction), **accepts(EditRequest))
    async def edit_job(request: Request, job_id: Id, caller: operator) -> Response:
        """Change the payload, priority, tags or metadata of a pending job, or remove the steps that it has done.

        409 `version_conflict` when its `version` is not the one sent; a claim is a new version, too.
        """
        edit = read_edit(await gate.read_bytes(request))
        return answer(await service.edit(job_id, edit, caller=caller))

    @router.post("/v1/jobs/{job_id}/cancel", tags=["jobs"], **answers(JobAction, 200, 202))
    async def cancel_job(job_id: Id, caller: operator) -> Response:
        """Cancel a job. 200: it never starts. 202: its worker was asked to stop it; read the job to see its end."""
        done = await service.cancel(job_id, caller=caller)
        return answer(done, 202 if done.outcome == "requested" else 200)

    @router.post("/v1/jobs/{job_id}/retry", tags=["jobs"], **answers(JobAction))
    async def retry_job(job_id: Id, caller: operator, from_start: Annotated[bool, Query()] = False) -> Response:
        """Run a failed job again under its own id, with all its attempts, due now.

        Steps that its handler has done stay done; `from_start` removes them.
        """
        return answer(await service.retry(job_id, caller=caller, from_start=from_start))

    @router.post("/v1/jobs/{job_id}/reschedule", tags=["jobs"], **answers(JobAction), **accepts(RescheduleRequest))
    async def reschedule_job(request: Request, job_id: Id, caller: operator) -> Response:
        """Move a pending job to another time: `execute_at`, or `delay` from now."""
        body = await gate.read(request, RescheduleRequest)
        if (body.execute_at is None) == (body.delay is None):
            raise Rejected("execute_at_or_delay", "send execute_at or delay, one of them", field="execute_at")
        delay = None if body.delay is None else parse_duration(body.delay, field="delay")
        at = instant_of(body.execute_at, "execute_at")
        return answer(await service.reschedule(job_id, caller=caller, execute_at=at, delay=delay))

    @router.post("/v1/jobs/{job_id}/run-now", tags=["jobs"], **answers(JobAction))
    async def run_job_now(job_id: Id, caller: operator) -> Response:
        """Make a pending job due now."""
        return answer(await service.run_now(job_id, caller=caller))


def _task_types(router: APIRouter, service: JobService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]

    @router.get("/v1/task-types", tags=["task types"], dependencies=viewer, **answers(Page[TaskTypeView]))
    async def list_task_types() -> Response:
        """List every task type by name."""
        return answer(Page(await service.types.list()))

    @router.get("/v1/task-types/{name}", tags=["task types"], dependencies=viewer, **answers(TaskTypeView))
    async def get_task_type(name: TypeName) -> Response:
        """Return one task type."""
        return answer(await service.types.get(name))

    @router.put(
        "/v1/task-types/{name}", tags=["task types"], **answers(StoredTaskType, 200, 201), **accepts(TaskTypeRequest)
    )
    async def put_task_type(request: Request, name: TypeName, caller: admin) -> Response:
        """Create or replace a task type. Its first signing secret is shown only in this response.

        A type whose endpoint answered 410 keeps waiting, unless the target changes.
        """
        stored = await service.types.put(name, await gate.read(request, TaskTypeRequest), caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.patch("/v1/task-types/{name}", tags=["task types"], **answers(StoredTaskType), **accepts(TaskTypeChange))
    async def change_task_type(request: Request, name: TypeName, caller: admin) -> Response:
        """Change the given fields of a task type; 409 `version_conflict` when its `version` is not the one sent."""
        return answer(await service.types.change(name, await gate.read(request, TaskTypeChange), caller=caller))

    @router.post("/v1/task-types/{name}/pause", tags=["task types"], **answers(TaskTypeView))
    async def pause_task_type(name: TypeName, caller: admin) -> Response:
        """Pause a task type: its jobs wait."""
        return answer(await service.types.switch(name, "pause", caller=caller))

    @router.post("/v1/task-types/{name}/enable", tags=["task types"], **answers(TaskTypeView))
    async def enable_task_type(name: TypeName, caller: admin) -> Response:
        """Run its jobs again, after a pause or a 410."""
        return answer(await service.types.switch(name, "enable", caller=caller))

    @router.post(
        "/v1/task-types/{name}/rotate-secret",
        tags=["task types"],
        **answers(SecretView),
        **accepts(RotateRequest, required=False),
    )
    async def rotate_secret(request: Request, name: TypeName, caller: admin) -> Response:
        """Make a new signing secret, shown only in this response; the old ones stay in use for `overlap`."""
        body = await gate.read(request, RotateRequest, default=RotateRequest())
        overlap = parse_duration(body.overlap, field="overlap")
        return answer(await service.types.rotate_secret(name, caller=caller, overlap=overlap))

    @router.delete("/v1/task-types/{name}", tags=["task types"], status_code=204, response_class=Response)
    async def delete_task_type(name: TypeName, caller: admin) -> Response:
        """Delete a task type; its jobs wait like those of an unknown type."""
        await service.types.delete(name, caller=caller)
        return Response(status_code=204)


def _dead_letters(router: APIRouter, service: JobService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/dead-letters", tags=["dead letters"], dependencies=viewer, **answers(Page[DeadLetter]))
    async def list_dead_letters(
        kind: Annotated[Literal["job", "outbox"] | None, Query()] = None,
        subject: Annotated[str | None, Query(max_length=2048)] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List dead letters, newest first; `subject` is a task type or a destination."""
        return answer(await service.dead_letters.list(kind=kind, subject=subject, cursor=cursor, limit=limit))

    @router.post("/v1/dead-letters/requeue", tags=["dead letters"], **answers(Requeued), **accepts(RequeueRequest))
    async def requeue_dead_letters(request: Request, caller: operator) -> Response:
        """Requeue dead letters, the oldest first, at most 1,000 a call; with `dry_run` count them."""
        body = await gate.read(request, RequeueRequest)
        letters = service.dead_letters
        if body.dry_run:
            return answer(await letters.count(body.kind, ids=body.ids, subject=body.subject))
        done = await letters.requeue(
            body.kind,
            caller=caller,
            ids=body.ids,
            subject=body.subject,
            limit=body.limit,
            cursor=body.cursor,
            from_start=body.from_start,
        )
        return answer(done)


def _filter(  # noqa: PLR0917
    status: list[JobStatus] | None,
    task_type: str | None,
    execute: tuple[str | None, str | None],
    idempotency_key: str | None,
    text: str | None,
    details: tuple[list[str] | None, list[str] | None, str | None],
    held: tuple[int | None, int | None],
) -> JobFilter:
    return JobFilter(
        statuses=tuple(sorted(set(status or ()))),
        task_type=task_type,
        execute_from=instant_of(execute[0], "execute_from"),
        execute_to=instant_of(execute[1], "execute_to"),
        idempotency_key=idempotency_key,
        text=text or None,
        tags=tuple(details[0] or ()),
        metadata=tuple(details[1] or ()),
        group=details[2],
        worker=held[0],
        workflow=held[1],
        in_payload=sight().data,
        in_addresses=sight().whole,
    )


def _bulk_actions(router: APIRouter, many: JobBulkActions, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.post("/v1/jobs:cancel", tags=["jobs"], **answers(BulkAction), **accepts(FilterRequest))
    async def cancel_jobs(request: Request, caller: operator) -> Response:
        """Cancel the jobs that a filter matches, the oldest first, at most 1,000 a call."""
        return answer(await many.cancel(_call(await gate.read(request, FilterRequest), caller)))

    @router.post("/v1/jobs:retry", tags=["jobs"], **answers(Requeued), **accepts(RetryJobsRequest))
    async def retry_jobs(request: Request, caller: operator) -> Response:
        """Run the failed jobs that a filter matches again, the oldest first, at most 1,000 a call."""
        body = await gate.read(request, RetryJobsRequest)
        return answer(await many.retry(_call(body, caller), from_start=body.from_start))

    @router.post("/v1/jobs:run-now", tags=["jobs"], **answers(BulkAction), **accepts(FilterRequest))
    async def run_jobs_now(request: Request, caller: operator) -> Response:
        """Make the pending jobs that a filter matches due now, the oldest first, at most 1,000 a call."""
        return answer(await many.run_now(_call(await gate.read(request, FilterRequest), caller)))

    @router.post("/v1/jobs:reschedule", tags=["jobs"], **answers(BulkAction), **accepts(MoveRequest))
    async def reschedule_jobs(request: Request, caller: operator) -> Response:
        """Move the pending jobs that a filter matches, the oldest first, at most 1,000 a call.

        With `delay` or `shift`, send `next` as `cursor` while `more` is true: a call without it starts from the first
        job and moves jobs again.
        """
        body = await gate.read(request, MoveRequest)
        return answer(await many.reschedule(_call(body, caller), _move(body)))


def _call(body: FilterRequest, caller: Caller) -> BulkCall:
    which = JobFilter(
        ids=None if body.ids is None else tuple(body.ids),
        task_type=body.task_type,
        execute_from=instant_of(body.execute_from, "execute_from"),
        execute_to=instant_of(body.execute_to, "execute_to"),
        statuses=tuple(sorted(set(body.status))),
        idempotency_key=body.idempotency_key,
        text=body.text,
        tags=tuple(body.tag),
        group=body.group,
        metadata=tuple(body.metadata),
        in_payload=sees_user_data(),
    )
    return BulkCall(which, caller, body.limit, body.cursor, body.dry_run)


def _move(body: MoveRequest) -> BulkMove:
    delay = None if body.delay is None else parse_duration(body.delay, field="delay")
    shift = None if body.shift is None else parse_duration(body.shift.removeprefix("-"), field="shift")
    if shift is not None and body.shift and body.shift.startswith("-"):
        shift = -shift
    return BulkMove(instant_of(body.execute_at, "execute_at"), delay, shift)


Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
POST_JOB_PATH = "/v1/jobs"
_HEADERS = [(b"content-type", b"application/json"), *SAFE_HEADERS]


async def post_job(service: JobService, gate: Gate, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
    """Respond to ``POST /v1/jobs`` without the framework, whose work per request would exceed that of the insert.

    The checks, responses and errors are those of the route: both use the same functions, and a test compares them. The
    API turns an error into a problem document.
    """
    gate.check_role(scope, Role.OPERATOR, SCOPE)
    if scope["query_string"]:
        name = scope["query_string"].decode("latin-1").partition("=")[0]
        raise Rejected("unknown_parameter", f"no parameter {quoted(name)}; known: none here", status=400)
    body, headers = await gate.read_raw(scope, receive), scope["headers"]
    with traces.continued(traceparent_of(headers)):
        made = await service.schedule_text(body, key=key_of(headers), now=gate.now())
    status, location, text = created_answer(made)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*_HEADERS, (b"location", location.encode()), (b"content-length", str(len(text)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": text})
