"""The routes of executions: how far they are, what they decided, and what can be done to one."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from tickwright.capabilities.batches.executions.executions import ExecutionQuery, Executions
from tickwright.capabilities.batches.views import (
    ActionView,
    ChunkWorker,
    ExecutionChange,
    ExecutionDetail,
    ExecutionView,
    SkippedClient,
)
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Explanation, Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Id, Limit, answer, answers

Status = Literal["NEW", "IN_PROGRESS", "FINISHED", "EXCEPTION_OCCURRED", "STOPPED", "DISABLED"]
BatchName = Annotated[str | None, Query(min_length=1, max_length=100)]
LongCursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before")]
STRUCTS: tuple[Any, ...] = (
    ActionView, ChunkWorker, ExecutionChange, ExecutionDetail, ExecutionView, Explanation,
    Page[ActionView], Page[ExecutionView], SkippedClient,
)  # fmt: skip
_TAGS: Any = ["executions"]


def add_executions(router: APIRouter, executions: Executions, gate: Gate) -> None:
    """Add every route of executions, below ``/v1``."""
    _looking(router, executions, gate)
    _acting(router, executions, gate)


def _looking(router: APIRouter, executions: Executions, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/executions", tags=_TAGS, dependencies=viewer, **answers(Page[ExecutionView]))
    async def list_executions(  # noqa: PLR0917  FastAPI calls it by name
        campaign: BatchName = None,
        batch: BatchName = None,
        kind: Annotated[Literal["campaign", "program"] | None, Query()] = None,
        status: Annotated[list[Status] | None, Query(max_length=6)] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List executions, newest first; of one `campaign` or `batch` by their slots. A page looks at 5,000 at most."""
        if campaign is not None and batch is not None:
            raise Rejected("wrong_argument", "campaign or batch, one of them", field="batch")
        if campaign is not None or batch is not None:
            kind = "program" if campaign is None else "campaign"
        statuses = tuple(sorted(set(status or ())))
        return answer(await executions.list(ExecutionQuery(kind, campaign or batch, statuses, cursor, limit)))

    @router.get("/v1/executions/{execution_id}", tags=_TAGS, dependencies=viewer, **answers(ExecutionDetail))
    async def get_execution(execution_id: Id) -> Response:
        """Return one: how far it is and how fast, where it failed with its trace, and whom it could not judge."""
        return answer(await executions.get(execution_id))

    @router.get("/v1/executions/{execution_id}/actions", tags=_TAGS, dependencies=viewer, **answers(Page[ActionView]))
    async def list_actions(
        execution_id: Id,
        client_id: Annotated[str | None, Query(min_length=1, max_length=1000)] = None,
        cursor: LongCursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List what it decided, by clients; with `client_id` about that one alone, and whether it has left."""
        return answer(await executions.actions(execution_id, client_id=client_id, cursor=cursor, limit=limit))

    @router.get("/v1/executions/{execution_id}/explain", tags=_TAGS, dependencies=viewer, **answers(Explanation))
    async def explain_execution(execution_id: Id) -> Response:
        """Say why it has not ended, and what happens next; or how it ended."""
        return answer(await executions.explain(execution_id))


def _acting(router: APIRouter, executions: Executions, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.post("/v1/executions/{execution_id}/pause", tags=_TAGS, **answers(ExecutionChange))
    async def pause_execution(execution_id: Id, caller: operator) -> Response:
        """Begin no more chunks and release none; the chunks at work end. Twice is harmless."""
        return answer(await executions.pause(execution_id, caller=caller))

    @router.post("/v1/executions/{execution_id}/resume", tags=_TAGS, **answers(ExecutionChange))
    async def resume_execution(execution_id: Id, caller: operator) -> Response:
        """Let a paused one go on."""
        return answer(await executions.resume(execution_id, caller=caller))

    @router.post("/v1/executions/{execution_id}/stop", tags=_TAGS, **answers(ExecutionChange))
    async def stop_execution(execution_id: Id, caller: operator) -> Response:
        """End it: `STOPPED`; what it has not released stays unreleased."""
        return answer(await executions.stop(execution_id, caller=caller))

    @router.post("/v1/executions/{execution_id}/retry", tags=_TAGS, **answers(ExecutionChange))
    async def retry_execution(execution_id: Id, caller: operator) -> Response:
        """Let a failed one go on at the chunks that are not done, with all their attempts."""
        return answer(await executions.retry(execution_id, caller=caller))
