"""The routes of queues and of groups."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from tickwright.capabilities.jobs.admin.groups import GroupView, JobGroups, ReleasedGroup
from tickwright.capabilities.jobs.admin.queues import Queues, QueueView
from tickwright.capabilities.jobs.requests import ReleaseGroupRequest
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Limit, accepts, answer, answers

TypeName = Annotated[str, Path(min_length=1, max_length=50)]
QueueName = Annotated[str, Path(min_length=1, max_length=50)]


def add_queue_routes(router: APIRouter, queues: Queues, gate: Gate) -> None:
    """Add the routes."""
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/queues", tags=["queues"], dependencies=viewer, **answers(Page[QueueView]))
    async def list_queues() -> Response:
        """List every queue that a task type names or that is paused, by name."""
        return answer(Page(await queues.list()))

    @router.get("/v1/queues/{name}", tags=["queues"], dependencies=viewer, **answers(QueueView))
    async def get_queue(name: QueueName) -> Response:
        """Return one queue."""
        return answer(await queues.get(name))

    @router.post("/v1/queues/{name}/pause", tags=["queues"], **answers(QueueView))
    async def pause_queue(name: QueueName, caller: operator) -> Response:
        """Pause a queue: the jobs of its types wait, and running ones go on."""
        return answer(await queues.switch(name, "pause", caller=caller))

    @router.post("/v1/queues/{name}/enable", tags=["queues"], **answers(QueueView))
    async def enable_queue(name: QueueName, caller: operator) -> Response:
        """Run the jobs of a queue again."""
        return answer(await queues.switch(name, "enable", caller=caller))


def add_group_routes(router: APIRouter, groups: JobGroups, gate: Gate) -> None:
    """Add the routes."""
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/task-types/{name}/groups", tags=["task types"], dependencies=viewer, **answers(Page[GroupView]))
    async def list_groups(
        name: TypeName, *, stopped: bool = False, cursor: Cursor = None, limit: Limit = 50
    ) -> Response:
        """List the groups of its jobs by name, all or those that have `stopped` behind a failed job."""
        return answer(await groups.list(name, stopped=stopped, cursor=cursor, limit=limit))

    @router.post(
        "/v1/task-types/{name}/release-group",
        tags=["task types"],
        **answers(ReleasedGroup),
        **accepts(ReleaseGroupRequest),
    )
    async def release_group(request: Request, name: TypeName, caller: operator) -> Response:
        """Let a group go on that has stopped behind a failed job, which stays a dead letter."""
        body = await gate.read(request, ReleaseGroupRequest)
        return answer(await groups.release(name, body.group, caller=caller))
