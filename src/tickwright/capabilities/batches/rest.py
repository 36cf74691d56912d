"""The REST routes of campaigns, batches of programs and executions."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.batches.definitions.batches import Batches
from tickwright.capabilities.batches.definitions.campaigns import CheckedCampaign, DryRun, StoredCampaign
from tickwright.capabilities.batches.executions.executions import Executions
from tickwright.capabilities.batches.executions.states import BatchAction, ExecutionAction
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.capabilities.batches.views import (
    ActionView,
    BatchChange,
    BatchDetail,
    BatchExplanation,
    BatchView,
    ExecutionChange,
    ExecutionDetail,
    ExecutionView,
    StoredBatch,
    VersionDetail,
    VersionView,
)
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Explanation, Page, sees_user_data
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Id, Instant, Limit, accepts, answer, answers

Name = Annotated[str, Path(min_length=1, max_length=100)]
Version = Annotated[int, Path(ge=1, le=2**31 - 1)]
Type = Annotated[Literal["MANUAL", "AUTOMATIC"] | None, Query()]
BatchState = Annotated[Literal["SCHEDULED", "IDLE"] | None, Query()]
Begins = Annotated[str, Query(max_length=100, description="What the name begins with")]
ExecutionState = Literal["NEW", "IN_PROGRESS", "FINISHED", "EXCEPTION_OCCURRED", "STOPPED", "DISABLED"]
BatchName = Annotated[str | None, Query(min_length=1, max_length=100)]
LongCursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before")]
_CAMPAIGNS: Any = ["campaigns"]
_EXECUTIONS: Any = ["executions"]
_NO_CHANGES: dict[str, Any] = {}


def campaign_routes(service: CampaignsService, gate: Gate) -> APIRouter:
    """Return every route of this capability, below ``/v1``."""
    router = APIRouter()
    _add_definitions(router, service, gate)
    _add_checks(router, service, gate)
    _add_remote_batches(router, service, gate)
    for batches in (service.campaign_batches, service.programs):
        _add_queries(router, batches, gate)
        _add_control(router, batches, gate)
    _add_execution_queries(router, service.executions, gate)
    _add_execution_control(router, service.executions, gate)
    return router


def _add_definitions(router: APIRouter, service: CampaignsService, gate: Gate) -> None:
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    campaigns = service.campaigns
    created = {**answers(BatchDetail, 201), **accepts(dict[str, Any])}
    stored = {**answers(StoredCampaign, 200, 201), **accepts(dict[str, Any])}

    @router.post("/v1/campaigns", tags=_CAMPAIGNS, status_code=201, **created)
    async def create_campaign(request: Request, caller: admin) -> Response:
        """Create a campaign from its `name` and its definition. It is `IDLE` until it is activated or started.

        An invalid definition is refused with all mistakes in `problems`; one in the expression has its line and column.
        """
        new = await campaigns.create(await gate.read(request, dict[str, Any]), caller=caller)
        return answer(new, 201, {"location": f"/v1/campaigns/{new.name}"})

    @router.put("/v1/campaigns/{name}", tags=_CAMPAIGNS, **stored)
    async def put_campaign(request: Request, name: Name, caller: admin) -> Response:
        """Create a campaign, or replace its definition: a new version, for executions that begin from now on.

        With `version` in the body, a put is refused (409) unless that is the newest version. A changed schedule
        counts from the next occurrence on.
        """
        put = await campaigns.put(name, await gate.read(request, dict[str, Any]), caller=caller)
        return answer(put, 201 if put.created else 200)

    @router.delete("/v1/campaigns/{name}", tags=_CAMPAIGNS, status_code=204, response_class=Response)
    async def delete_campaign(name: Name, caller: admin) -> Response:
        """Delete a campaign with its versions, executions and actions; 409 while an execution is open."""
        await service.campaign_batches.delete(name, caller=caller)
        return Response(status_code=204)


def _add_remote_batches(router: APIRouter, service: CampaignsService, gate: Gate) -> None:
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    tags: Any = ["batches"]

    @router.put("/v1/batches/{name}", tags=tags, **answers(StoredBatch, 200, 201), **accepts(dict[str, Any]))
    async def put_batch(request: Request, name: Name, caller: admin) -> Response:
        """Create a batch for remote workers, or replace its definition: a new version. `target` is `remote:POOL`.

        With `version` in the body, a put is refused (409) unless that is the newest version.
        """
        put = await service.put_remote(name, await gate.read(request, dict[str, Any]), caller=caller)
        return answer(put, 201 if put.created else 200)

    @router.delete("/v1/batches/{name}", tags=tags, status_code=204, response_class=Response)
    async def delete_batch(name: Name, caller: admin) -> Response:
        """Delete a batch with its versions, executions and actions; 409 while an execution is open."""
        await service.programs.delete(name, caller=caller)
        return Response(status_code=204)


def _add_checks(router: APIRouter, service: CampaignsService, gate: Gate) -> None:
    admin = [Depends(gate.allow(Role.ADMIN))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]
    campaigns = service.campaigns
    checked, tried_unsaved = ({**answers(struct), **accepts(dict[str, Any])} for struct in (CheckedCampaign, DryRun))
    tried = {**answers(DryRun), **accepts(dict[str, Any], required=False)}

    @router.post("/v1/campaigns:check", tags=_CAMPAIGNS, dependencies=admin, **checked)
    async def check_campaign(request: Request) -> Response:
        """Return every mistake in a definition, without saving it."""
        return answer(await campaigns.check(await gate.read(request, dict[str, Any])))

    @router.post("/v1/campaigns:dry-run", tags=_CAMPAIGNS, dependencies=admin, **tried_unsaved)
    async def dry_run_unsaved_campaign(request: Request) -> Response:
        """Count the clients that a definition would select now, by its `audience` and `expression`; it is not saved."""
        return answer(await campaigns.dry_run_unsaved(await gate.read(request, dict[str, Any])))

    @router.post("/v1/campaigns/{name}/dry-run", tags=_CAMPAIGNS, **tried)
    async def dry_run_campaign(request: Request, name: Name, caller: operator) -> Response:
        """Count the clients that a campaign would select now, and return ten of them; nothing is saved or sent.

        `audience` and `expression` in the body replace those of the campaign, for roles that see data of users; only an
        admin may read another audience.
        """
        changes = await gate.read(request, dict[str, Any], default=_NO_CHANGES)
        if changes and not sees_user_data():  # the count of any condition reveals data of clients
            raise Rejected("payload_hidden", "your role does not see data of users, so it tries nothing", status=403)
        return answer(await campaigns.dry_run(name, changes, caller=caller))


def _add_queries(router: APIRouter, batches: Batches, gate: Gate) -> None:
    """Add the routes of one kind for viewers."""
    path, tags = f"/v1/{batches.kind.plural}", [batches.kind.plural]
    shared: Any = {"tags": tags, "dependencies": [Depends(gate.allow(Role.VIEWER))]}

    @router.get(path, **shared, **answers(Page[BatchView]))
    async def list_batches(
        type: Type = None,  # noqa: A002  the parameter's name
        status: BatchState = None,
        q: Begins = "",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List them by name, with the next occurrence and the last execution of each."""
        return answer(await batches.list(type=type, status=status, begins=q, cursor=cursor, limit=limit))

    @router.get(f"{path}/{{name}}", **shared, **answers(BatchDetail))
    async def get_batch(name: Name) -> Response:
        """Return one: its definition, and its next five occurrences."""
        return answer(await batches.get(name))

    @router.get(f"{path}/{{name}}/versions", **shared, **answers(Page[VersionView]))
    async def list_versions(name: Name, cursor: Cursor = None, limit: Limit = 50) -> Response:
        """List its versions, newest first."""
        return answer(await batches.versions(name, cursor, limit))

    @router.get(f"{path}/{{name}}/versions/{{version}}", **shared, **answers(VersionDetail))
    async def get_version(name: Name, version: Version) -> Response:
        """Return one version with its definition."""
        return answer(await batches.version(name, version))

    @router.get(f"{path}/{{name}}/explain", **shared, **answers(BatchExplanation))
    async def explain_batch(name: Name, slot: Instant = None) -> Response:
        """Explain why it runs or does not; with `slot`, what happened to that occurrence."""
        return answer(await batches.explain(name, slot))


def _add_control(router: APIRouter, batches: Batches, gate: Gate) -> None:
    """Add the routes of one kind for operators."""
    path, tags = f"/v1/{batches.kind.plural}/{{name}}", [batches.kind.plural]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]
    actions = {
        BatchAction.ACTIVATE: "Let it run by its schedule, from the next occurrence on. Twice is harmless.",
        BatchAction.DEACTIVATE: "Let it run no more; open executions become `DISABLED`. Twice is harmless.",
        BatchAction.START: "Execute it now; `overlap` decides where an execution is open.",
        BatchAction.STOP: "End its open executions: `STOPPED`; what they have not released stays unreleased.",
    }

    def add(action: BatchAction, description: str) -> None:
        async def acted(name: Name, caller: operator) -> Response:
            return answer(await batches.act(action, name, caller=caller))

        acted.__name__ = f"{action}_batch"
        router.post(f"{path}/{action}", tags=list(tags), description=description, **answers(BatchChange))(acted)

    for action, description in actions.items():
        add(action, description)


def _add_execution_queries(router: APIRouter, executions: Executions, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/executions", tags=_EXECUTIONS, dependencies=viewer, **answers(Page[ExecutionView]))
    async def list_executions(  # noqa: PLR0917  FastAPI calls it by name
        campaign: BatchName = None,
        batch: BatchName = None,
        kind: Annotated[Literal["campaign", "program"] | None, Query()] = None,
        status: Annotated[list[ExecutionState] | None, Query(max_length=6)] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List executions, newest first; of one `campaign` or `batch` by their slots. A page reads 5,000 at most."""
        if campaign is not None and batch is not None:
            raise Rejected("wrong_argument", "campaign or batch, one of them", field="batch")
        if campaign is not None or batch is not None:
            kind = "program" if campaign is None else "campaign"
        statuses = tuple(sorted(set(status or ())))
        name = campaign or batch
        return answer(await executions.list(kind=kind, name=name, statuses=statuses, cursor=cursor, limit=limit))

    @router.get("/v1/executions/{execution_id}", tags=_EXECUTIONS, dependencies=viewer, **answers(ExecutionDetail))
    async def get_execution(execution_id: Id) -> Response:
        """Return one: its progress and pace, the trace of its failure, and examples of clients it could not judge."""
        return answer(await executions.get(execution_id))

    @router.get(
        "/v1/executions/{execution_id}/actions", tags=_EXECUTIONS, dependencies=viewer, **answers(Page[ActionView])
    )
    async def list_actions(
        execution_id: Id,
        client_id: Annotated[str | None, Query(min_length=1, max_length=1000)] = None,
        cursor: LongCursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List its decisions, by clients; with `client_id` about one client, and whether the message was released."""
        return answer(await executions.actions(execution_id, client_id=client_id, cursor=cursor, limit=limit))

    @router.get("/v1/executions/{execution_id}/explain", tags=_EXECUTIONS, dependencies=viewer, **answers(Explanation))
    async def explain_execution(execution_id: Id) -> Response:
        """Explain why it has not ended and what happens next, or how it ended."""
        return answer(await executions.explain(execution_id))


def _add_execution_control(router: APIRouter, executions: Executions, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]
    actions = {
        ExecutionAction.PAUSE: "Start no more chunks and release none; running chunks end. Twice is harmless.",
        ExecutionAction.RESUME: "Continue a paused execution.",
        ExecutionAction.STOP: "End it as `STOPPED`; unreleased actions stay unreleased.",
        ExecutionAction.RETRY: (
            "Continue a failed execution at the chunks that are not done; each has all its attempts again."
        ),
    }

    def add(action: ExecutionAction, description: str) -> None:
        async def acted(execution_id: Id, caller: operator) -> Response:
            return answer(await executions.act(action, execution_id, caller=caller))

        acted.__name__ = f"{action}_execution"
        path = f"/v1/executions/{{execution_id}}/{action}"
        router.post(path, tags=_EXECUTIONS, description=description, **answers(ExecutionChange))(acted)

    for action, description in actions.items():
        add(action, description)
