"""The listing of jobs and its counts: one filter, bounded looks."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from tickwright.capabilities.jobs.admin.filters import TEXT_CHARS_MAX, JobFilter, ListQuery
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.admin.views import JobCounts, JobPage
from tickwright.domain.states import JobStatus
from tickwright.ports.caller import Role
from tickwright.ports.user_data import sight
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Instant, Limit, answer, answers, instant_of

Statuses = Annotated[list[JobStatus] | None, Query(max_length=5)]
TypeText = Annotated[str | None, Query(max_length=50)]
KeyText = Annotated[str | None, Query(max_length=255)]
Text = Annotated[
    str | None,
    Query(max_length=TEXT_CHARS_MAX, description="Part of the key, the last error or the payload, in whatever case"),
]
Worker = Annotated[int | None, Query(ge=1, le=2**63 - 1, description="Held by this session now")]


def looking_routes(router: APIRouter, service: JobService, gate: Gate) -> None:
    """Add the routes."""
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/jobs", tags=["jobs"], dependencies=viewer, **answers(JobPage))
    async def list_jobs(  # noqa: PLR0917  FastAPI calls it by name
        status: Statuses = None,
        task_type: TypeText = None,
        execute_from: Instant = None,
        execute_to: Instant = None,
        idempotency_key: KeyText = None,
        text: Text = None,
        worker: Worker = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List jobs, newest first. `execute_from` is inclusive, `execute_to` exclusive.

        A page looks at no more than 20,000 rows. It may find less than `limit`, and then still have a `next`.
        """
        which = _filter(status, task_type, (execute_from, execute_to), idempotency_key, text, worker)
        return answer(await service.list(ListQuery.of(which, cursor, limit)))

    @router.get("/v1/jobs:counts", tags=["jobs"], dependencies=viewer, **answers(JobCounts))
    async def count_jobs(  # noqa: PLR0917
        status: Statuses = None,
        task_type: TypeText = None,
        execute_from: Instant = None,
        execute_to: Instant = None,
        idempotency_key: KeyText = None,
        text: Text = None,
        worker: Worker = None,
    ) -> Response:
        """Count jobs by state, with the filters of the listing.

        Each count stops at `capped_at`, and each costs bounded work: of the states in `at_least` there may be more.
        """
        which = _filter(status, task_type, (execute_from, execute_to), idempotency_key, text, worker)
        return answer(await service.count(which))


def _filter(  # noqa: PLR0917
    status: list[JobStatus] | None,
    task_type: str | None,
    execute: tuple[str | None, str | None],
    idempotency_key: str | None,
    text: str | None,
    worker: int | None,
) -> JobFilter:
    return JobFilter(
        statuses=tuple(sorted(set(status or ()))),
        task_type=task_type,
        execute_from=instant_of(execute[0], "execute_from"),
        execute_to=instant_of(execute[1], "execute_to"),
        idempotency_key=idempotency_key,
        text=text or None,
        worker=worker,
        in_payload=sight().data,
        in_addresses=sight().whole,
    )
