"""Actions on all jobs that a filter names, a thousand a call."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from tickwright.capabilities.jobs.admin.bulk_actions import Call, ManyJobs, Move
from tickwright.capabilities.jobs.admin.filters import JobFilter
from tickwright.capabilities.jobs.admin.views import BulkAction, Requeued
from tickwright.capabilities.jobs.enqueue.requests import FilterRequest, MoveRequest
from tickwright.domain.time_texts import parse_duration
from tickwright.ports.caller import Caller, Role
from tickwright.ports.user_data import sees
from tickwright.rest.gate import Gate
from tickwright.rest.routing import answer, answers, instant_of, takes


def many_routes(router: APIRouter, many: ManyJobs, gate: Gate) -> None:
    """Add the routes."""
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.post("/v1/jobs:cancel", tags=["jobs"], **answers(BulkAction), **takes(FilterRequest))
    async def cancel_jobs(request: Request, caller: operator) -> Response:
        """Cancel what a filter names, the oldest first, at most 1,000 a call."""
        return answer(await many.cancel(_call(await gate.read(request, FilterRequest), caller)))

    @router.post("/v1/jobs:retry", tags=["jobs"], **answers(Requeued), **takes(FilterRequest))
    async def retry_jobs(request: Request, caller: operator) -> Response:
        """Put the failed jobs that a filter names back to work, the oldest first, at most 1,000 a call."""
        return answer(await many.retry(_call(await gate.read(request, FilterRequest), caller)))

    @router.post("/v1/jobs:run-now", tags=["jobs"], **answers(BulkAction), **takes(FilterRequest))
    async def run_jobs_now(request: Request, caller: operator) -> Response:
        """Make the pending jobs that a filter names due now, the oldest first, at most 1,000 a call."""
        return answer(await many.run_now(_call(await gate.read(request, FilterRequest), caller)))

    @router.post("/v1/jobs:reschedule", tags=["jobs"], **answers(BulkAction), **takes(MoveRequest))
    async def reschedule_jobs(request: Request, caller: operator) -> Response:
        """Move the pending jobs that a filter names, the oldest first, at most 1,000 a call.

        With `delay` or `shift` send `next` as `cursor` as long as there is `more`: a call without it begins again and
        moves jobs that were moved before.
        """
        body = await gate.read(request, MoveRequest)
        return answer(await many.reschedule(_call(body, caller), _move(body)))


def _call(body: FilterRequest, caller: Caller) -> Call:
    which = JobFilter(
        ids=None if body.ids is None else tuple(body.ids),
        task_type=body.task_type,
        execute_from=instant_of(body.execute_from, "execute_from"),
        execute_to=instant_of(body.execute_to, "execute_to"),
        statuses=tuple(sorted(set(body.status))),
        idempotency_key=body.idempotency_key,
        text=body.text,
        in_payload=sees(),
    )
    return Call(which, caller, body.limit, body.cursor, body.dry_run)


def _move(body: MoveRequest) -> Move:
    delay = None if body.delay is None else parse_duration(body.delay, field="delay")
    return Move(instant_of(body.execute_at, "execute_at"), delay, _shift(body.shift))


def _shift(text: str | None) -> timedelta | None:
    if text is None:
        return None
    back = text.startswith("-")
    length = parse_duration(text[back:], field="shift")
    return -length if back else length
