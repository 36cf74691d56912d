"""The REST routes of schedules."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.jobs.requests import KEY_PATTERN, key_of
from tickwright.capabilities.jobs.schedules.definition import ScheduleChange, ScheduleRequest
from tickwright.capabilities.jobs.schedules.service import PREVIEW_DEFAULT, PREVIEW_MAX, Schedules
from tickwright.capabilities.jobs.schedules.views import (
    Preview,
    ScheduleDetail,
    ScheduleExplanation,
    ScheduleView,
    StartedJob,
    StoredSchedule,
)
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Instant, Limit, accepts, answer, answers

Name = Annotated[str, Path(min_length=1, max_length=100)]
Begins = Annotated[str, Query(max_length=100, description="What the name begins with")]
TypeText = Annotated[str | None, Query(max_length=50)]
Count = Annotated[int, Query(ge=1, le=PREVIEW_MAX)]
OfName = Annotated[str, Query(max_length=100, description="Its place in the spread depends on its name")]
_TAGS: Any = ["schedules"]
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": KEY_PATTERN},
}


def schedule_routes(schedules: Schedules, gate: Gate) -> APIRouter:
    """Return every route of schedules, below ``/v1``."""
    router = APIRouter()
    _add_queries(router, schedules, gate)
    _add_definitions(router, schedules, gate)
    _add_control(router, schedules, gate)
    return router


def _add_queries(router: APIRouter, schedules: Schedules, gate: Gate) -> None:
    viewer, operator = [Depends(gate.allow(Role.VIEWER))], [Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/schedules", tags=_TAGS, dependencies=viewer, **answers(Page[ScheduleView]))
    async def list_schedules(
        q: Begins = "", task_type: TypeText = None, cursor: Cursor = None, limit: Limit = 50
    ) -> Response:
        """List periodic jobs by name, with the next occurrence and the last job of each."""
        return answer(await schedules.page(begins=q, task_type=task_type, cursor=cursor, limit=limit))

    @router.get("/v1/schedules/{name}", tags=_TAGS, dependencies=viewer, **answers(ScheduleDetail))
    async def get_schedule(name: Name) -> Response:
        """Return one, with its payload, its next ten occurrences and the newest occurrences without a job."""
        return answer(await schedules.detail(name))

    @router.get("/v1/schedules/{name}/preview", tags=_TAGS, dependencies=viewer, **answers(Preview))
    async def preview_schedule(name: Name, count: Count = PREVIEW_DEFAULT) -> Response:
        """Return its next occurrences, in UTC and on its own clocks, and where these change; also of a paused one."""
        return answer(await schedules.preview(name, count))

    @router.get("/v1/schedules/{name}/explain", tags=_TAGS, dependencies=viewer, **answers(ScheduleExplanation))
    async def explain_schedule(name: Name, slot: Instant = None) -> Response:
        """Explain why it makes jobs or does not; with `slot`, what happened to that occurrence."""
        return answer(await schedules.explain(name, slot))

    @router.post(
        "/v1/schedules:preview",
        tags=_TAGS,
        dependencies=operator,
        **answers(Preview),
        **accepts(ScheduleRequest),
    )
    async def preview_unsaved_schedule(
        request: Request, name: OfName = "preview", count: Count = PREVIEW_DEFAULT
    ) -> Response:
        """Return the next occurrences of a definition that is not saved, or every mistake in it."""
        definition = await gate.read(request, ScheduleRequest)
        return answer(await schedules.preview_unsaved(definition, name, count))


def _add_definitions(router: APIRouter, schedules: Schedules, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.put("/v1/schedules/{name}", tags=_TAGS, **answers(StoredSchedule, 200, 201), **accepts(ScheduleRequest))
    async def put_schedule(request: Request, name: Name, caller: operator) -> Response:
        """Create a schedule, or replace its definition. Changed times count from now on.

        Jobs that exist keep what they were made with. From then on the definition is the operator's: what a program
        declares under this name does not replace it.
        """
        stored = await schedules.put(name, await gate.read(request, ScheduleRequest), caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.patch("/v1/schedules/{name}", tags=_TAGS, **answers(StoredSchedule), **accepts(ScheduleChange))
    async def change_schedule(request: Request, name: Name, caller: operator) -> Response:
        """Change only the given fields. With `version`, refused (409) unless that is the newest version."""
        return answer(await schedules.change(name, await gate.read(request, ScheduleChange), caller=caller))

    @router.delete("/v1/schedules/{name}", tags=_TAGS, status_code=204, response_class=Response)
    async def delete_schedule(name: Name, caller: operator) -> Response:
        """Delete a schedule; jobs that it made stay. One that a program declares comes back when that starts."""
        await schedules.delete(name, caller=caller)
        return Response(status_code=204)


def _add_control(router: APIRouter, schedules: Schedules, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.post("/v1/schedules/{name}/pause", tags=_TAGS, **answers(ScheduleView))
    async def pause_schedule(name: Name, caller: operator) -> Response:
        """Make no more jobs of it. A job that is due within two seconds may exist already. Twice is harmless."""
        return answer(await schedules.switch(name, "pause", caller=caller))

    @router.post("/v1/schedules/{name}/enable", tags=_TAGS, **answers(ScheduleView))
    async def enable_schedule(name: Name, caller: operator) -> Response:
        """Make jobs again, from now on: what was missed is not caught up. Twice is harmless."""
        return answer(await schedules.switch(name, "enable", caller=caller))

    run: Any = {**answers(StartedJob, 201, 200), "openapi_extra": {"parameters": [_KEY]}}

    @router.post("/v1/schedules/{name}/run-now", tags=_TAGS, **run)
    async def run_schedule_now(request: Request, name: Name, caller: operator) -> Response:
        """Make one job now, beside the occurrences. The same `Idempotency-Key` returns 200 and the existing job."""
        made = await schedules.run_now(name, caller=caller, key=key_of(request.scope["headers"]))
        return answer(made, 201 if made.created else 200, {"location": f"/v1/jobs/{made.id}"})
