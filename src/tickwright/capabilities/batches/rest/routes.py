"""The REST routes of campaigns, of the batches that programs bring, and of their executions."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from tickwright.capabilities.batches.definitions.campaign_views import (
    CheckedCampaign,
    DryRun,
    SelectedClient,
    StoredCampaign,
)
from tickwright.capabilities.batches.definitions.problems import Mistake
from tickwright.capabilities.batches.rest.batch_routes import STRUCTS as BATCH_STRUCTS
from tickwright.capabilities.batches.rest.batch_routes import Name, add_actions, add_looking
from tickwright.capabilities.batches.rest.execution_routes import STRUCTS as EXECUTION_STRUCTS
from tickwright.capabilities.batches.rest.execution_routes import add_executions
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.capabilities.batches.views import BatchDetail
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role
from tickwright.ports.user_data import sees
from tickwright.rest.gate import Gate
from tickwright.rest.routing import answer, answers, takes

STRUCTS: tuple[Any, ...] = (
    CheckedCampaign, DryRun, Mistake, SelectedClient, StoredCampaign, *BATCH_STRUCTS, *EXECUTION_STRUCTS,
)  # fmt: skip
_TAGS: Any = ["campaigns"]
_NOTHING: dict[str, Any] = {}


def campaign_routes(service: CampaignsService, gate: Gate) -> APIRouter:
    """Return every route of this capability, below ``/v1``."""
    router = APIRouter()
    _setting(router, service, gate)
    _trying(router, service, gate)
    add_looking(router, service.campaign_rows, gate)
    add_actions(router, service.running_campaigns, gate)
    add_looking(router, service.programs, gate)
    add_actions(router, service.running_programs, gate)
    add_executions(router, service.executions, gate)
    return router


def _setting(router: APIRouter, service: CampaignsService, gate: Gate) -> None:
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    campaigns = service.campaigns
    made = {**answers(BatchDetail, 201), **takes(dict[str, Any])}
    stored = {**answers(StoredCampaign, 200, 201), **takes(dict[str, Any])}

    @router.post("/v1/campaigns", tags=_TAGS, status_code=201, **made)
    async def create_campaign(request: Request, caller: admin) -> Response:
        """Make a campaign; the body is its `name` and its definition. It is `IDLE`: activate or start it.

        A wrong definition is refused with every mistake in `problems`; one in the expression has its line and column.
        """
        made = await campaigns.create(await gate.read(request, dict[str, Any]), caller=caller)
        return answer(made, 201, {"location": f"/v1/campaigns/{made.name}"})

    @router.put("/v1/campaigns/{name}", tags=_TAGS, **stored)
    async def put_campaign(request: Request, name: Name, caller: admin) -> Response:
        """Make a campaign, or set it whole: a new version, for executions that begin from now on.

        With `version` in the body the edit is refused (409) where that is not the newest one any more. A changed
        schedule counts from the next occurrence on.
        """
        put = await campaigns.put(name, await gate.read(request, dict[str, Any]), caller=caller)
        return answer(put, 201 if put.created else 200)

    @router.delete("/v1/campaigns/{name}", tags=_TAGS, status_code=204, response_class=Response)
    async def delete_campaign(name: Name, caller: admin) -> Response:
        """Forget a campaign with its versions, executions and actions; 409 while one is open."""
        await service.campaign_rows.delete(name, caller=caller)
        return Response(status_code=204)


def _trying(router: APIRouter, service: CampaignsService, gate: Gate) -> None:
    admin = [Depends(gate.allow(Role.ADMIN))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]
    campaigns = service.campaigns
    checked = {**answers(CheckedCampaign), **takes(dict[str, Any])}
    tried_unsaved = {**answers(DryRun), **takes(dict[str, Any])}
    tried = {**answers(DryRun), **takes(dict[str, Any], required=False)}

    @router.post("/v1/campaigns:check", tags=_TAGS, dependencies=admin, **checked)
    async def check_campaign(request: Request) -> Response:
        """Say everything that is wrong with a definition, without saving it."""
        return answer(await campaigns.check(await gate.read(request, dict[str, Any])))

    @router.post("/v1/campaigns:dry-run", tags=_TAGS, dependencies=admin, **tried_unsaved)
    async def dry_run_unsaved_campaign(request: Request) -> Response:
        """Count whom a campaign that is not saved would select now: its `audience` and its `expression`."""
        return answer(await campaigns.dry_run_unsaved(await gate.read(request, dict[str, Any])))

    @router.post("/v1/campaigns/{name}/dry-run", tags=_TAGS, **tried)
    async def dry_run_campaign(request: Request, name: Name, caller: operator) -> Response:
        """Count whom a campaign would select now and show ten of them; nothing is saved and nothing leaves.

        `audience` and `expression` in the body are tried instead of its own, for roles that see data of users; another
        audience is an admin's to read.
        """
        words = await gate.read(request, dict[str, Any], default=_NOTHING)
        if words and not sees():  # its count answers any question about clients
            raise Rejected("payload_hidden", "your role does not see data of users, so it tries nothing", status=403)
        return answer(await campaigns.dry_run(name, words, caller=caller))
