"""The REST routes of workflows."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.jobs.admin.waits import WorkflowWaits, parse_wait
from tickwright.capabilities.jobs.requests import KEY_PATTERN, key_of
from tickwright.capabilities.jobs.rest import READ_S, Wait, unless_gone
from tickwright.capabilities.jobs.workflows.definition import (
    DEFINITION_BYTES_MAX,
    NAME_CHARS_MAX,
    WorkflowDefinition,
    read_definition,
)
from tickwright.capabilities.jobs.workflows.graph_views import (
    CreatedWorkflow,
    GraphNode,
    GraphNodeDetail,
    GraphView,
    WorkflowDetail,
    WorkflowExplanation,
    WorkflowPage,
)
from tickwright.capabilities.jobs.workflows.reader import NodeFilter, WorkflowFilter, WorkflowReader
from tickwright.capabilities.jobs.workflows.service import Workflows
from tickwright.capabilities.jobs.workflows.views import WorkflowAction
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Id, Instant, Limit, accepts, answer, answers, instant_of
from tickwright.store.bounds import within

SCOPE = "jobs:schedule"
WorkflowState = Literal["running", "completed", "failed", "cancelled"]
NodeState = Literal["waiting", "pending", "processing", "running", "completed", "failed", "cancelled", "skipped"]
States = Annotated[list[WorkflowState] | None, Query(max_length=4)]
NodeStates = Annotated[list[NodeState] | None, Query(max_length=8)]
Text = Annotated[str | None, Query(max_length=200, description="Part of the name or the key, in whatever case")]
GroupId = Annotated[int | None, Query(ge=1, le=2**63 - 1, description="Of the graph: the nodes of this group")]
Begins = Annotated[str, Query(max_length=NAME_CHARS_MAX, description="What the name begins with")]
_TAGS: Any = ["workflows"]
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The `key` of the workflow; where both are given, they are equal.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": KEY_PATTERN},
}
_EXAMPLE = {
    "name": "order 17",
    "jobs": [
        {"name": "charge", "task_type": "payment.charge", "payload": {"order": 17}},
        {"name": "pack", "task_type": "shop.pack", "after": ["charge"]},
        {"name": "tell", "task_type": "mail.send", "after": ["charge", "pack"], "arguments": {"receipt": "charge"}},
    ],
}


class FromJob(msgspec.Struct, forbid_unknown_fields=True):
    """Where an action on a workflow begins; without a body it is about the whole.

    Attributes:
        job_id: The action is about this job and all that come after it.
    """

    job_id: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None


def workflow_routes(workflows: Workflows, reader: WorkflowReader, waits: WorkflowWaits, gate: Gate) -> APIRouter:
    """Return every route of workflows, below ``/v1``."""
    router = APIRouter()
    _add_adding(router, workflows, gate)
    _add_reading(router, reader, waits, gate)
    _add_nodes(router, reader, gate)
    _add_actions(router, workflows, gate)
    return router


def _add_adding(router: APIRouter, workflows: Workflows, gate: Gate) -> None:
    body = accepts(WorkflowDefinition)["openapi_extra"]["requestBody"]
    body["content"]["application/json"]["example"] = _EXAMPLE
    extra: Any = {"openapi_extra": {"requestBody": body, "parameters": [_KEY]}}
    operator = [Depends(gate.allow(Role.OPERATOR, SCOPE))]

    @router.post("/v1/workflows", tags=_TAGS, dependencies=operator, **answers(CreatedWorkflow, 201, 200), **extra)
    async def add_workflow(request: Request) -> Response:
        """Add a workflow: jobs that wait for jobs. All of it is added, or nothing; its first jobs run at once.

        The body has at most 10 MiB (413 `body_too_large`). A rule that it breaks is named by a code that begins with
        `workflow_`, such as `workflow_order` for a cycle. The same key with the same body returns 200 and the existing
        workflow.
        """
        definition = read_definition(await gate.read_bytes(request, DEFINITION_BYTES_MAX))
        key = key_of(request.scope["headers"])
        if key is not None and definition.key not in {None, key}:
            raise Rejected("invalid_key", "key: give the same as in Idempotency-Key, or leave it out", field="key")
        made = await workflows.add_once(msgspec.structs.replace(definition, key=key or definition.key))
        return answer(
            CreatedWorkflow(made.id, made.created),
            201 if made.created else 200,
            {"location": f"/v1/workflows/{made.id}"},
        )


def _add_reading(router: APIRouter, reader: WorkflowReader, waits: WorkflowWaits, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/workflows", tags=_TAGS, dependencies=viewer, **answers(WorkflowPage))
    async def list_workflows(  # noqa: PLR0917  FastAPI calls it by name
        state: States = None,
        text: Text = None,
        created_from: Instant = None,
        created_to: Instant = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List workflows, newest first, without those inside of others. `created_to` is exclusive.

        A page reads at most 20,000 rows. It may have fewer workflows than `limit`, and still a `next`.
        """
        which = WorkflowFilter(
            tuple(sorted(set(state or ()))), text or None, instant_of(created_from, "created_from"),
            instant_of(created_to, "created_to"),
        )  # fmt: skip
        return answer(await reader.page(which, cursor=cursor, limit=limit))

    @router.get("/v1/workflows/{workflow_id}", tags=_TAGS, **answers(WorkflowDetail))
    async def get_workflow(
        request: Request,
        workflow_id: Id,
        caller: Annotated[Caller, Depends(gate.allow(Role.VIEWER))],
        wait: Wait = None,
    ) -> Response:
        """Return one workflow with its jobs by state; with `wait` when it has ended, or as it is when the time is over.

        503 `too_many_waits` where too many requests of the key, or in the process, wait already.
        """
        time = None if wait is None else parse_wait(wait)
        found = await reader.detail(workflow_id)
        if time is None or found.ended_at is not None:
            return answer(found)
        await unless_gone(request, waits.wait(workflow_id, time, caller))
        with within(READ_S):  # the time of the request itself is over
            return answer(await reader.detail(workflow_id))

    @router.get("/v1/workflows/{workflow_id}/graph", tags=_TAGS, dependencies=viewer, **answers(GraphView))
    async def get_workflow_graph(workflow_id: Id) -> Response:
        """Return its graph in at most 200 groups: nodes of one type and name that wait for the same are one group.

        A group names how many of its nodes are in which state. Its `id` selects them in `nodes`.
        """
        return answer(await reader.graph(workflow_id))

    @router.get("/v1/workflows/{workflow_id}/explain", tags=_TAGS, dependencies=viewer, **answers(WorkflowExplanation))
    async def explain_workflow(workflow_id: Id) -> Response:
        """Explain why a workflow is in its state, and name the jobs that it waits for."""
        return answer(await reader.explain(workflow_id))


def _add_nodes(router: APIRouter, reader: WorkflowReader, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/workflows/{workflow_id}/nodes", tags=_TAGS, dependencies=viewer, **answers(Page[GraphNode]))
    async def list_workflow_nodes(  # noqa: PLR0917  FastAPI calls it by name
        workflow_id: Id,
        status: NodeStates = None,
        group: GroupId = None,
        q: Begins = "",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List its jobs and the workflows inside of it, in the order of the definition."""
        which = NodeFilter(tuple(sorted(set(status or ()))), group, q)
        return answer(await reader.nodes(workflow_id, which, cursor=cursor, limit=limit))

    @router.get(
        "/v1/workflows/{workflow_id}/nodes/{node_id}", tags=_TAGS, dependencies=viewer, **answers(GraphNodeDetail)
    )
    async def get_workflow_node(workflow_id: Id, node_id: Id) -> Response:
        """Return a node with its neighbours: what it waits for, and what waits for it, at most 100 of each."""
        return answer(await reader.node(workflow_id, node_id))


def _add_actions(router: APIRouter, workflows: Workflows, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]
    body: Any = accepts(FromJob, required=False)

    @router.post("/v1/workflows/{workflow_id}/cancel", tags=_TAGS, **answers(WorkflowAction), **body)
    async def cancel_workflow(request: Request, workflow_id: Id, caller: operator) -> Response:
        """Cancel a workflow, or with `job_id` that job and all that come after it.

        Jobs that wait or are pending end at once. Workers are asked to stop the running ones; the workflow ends when
        these have ended.
        """
        start = await gate.read(request, FromJob, default=FromJob())
        return answer(await workflows.cancel(workflow_id, caller=caller, from_job=start.job_id))

    @router.post("/v1/workflows/{workflow_id}/retry", tags=_TAGS, **answers(WorkflowAction), **body)
    async def retry_workflow(request: Request, workflow_id: Id, caller: operator) -> Response:
        """Run again what failed, was cancelled or skipped; or with `job_id` that job and all of these after it.

        Jobs keep their ids and get all their attempts. Completed ones stay as they are.
        """
        start = await gate.read(request, FromJob, default=FromJob())
        return answer(await workflows.retry(workflow_id, caller=caller, from_job=start.job_id))
