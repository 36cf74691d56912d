"""The REST routes of alert receivers; for admins, because a URL may have a credential."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from tickwright.capabilities.operations.alerts.receivers import (
    AlertReceivers,
    ReceiverRequest,
    ReceiverSecret,
    ReceiverView,
    StoredReceiver,
)
from tickwright.domain.signatures import RotateRequest
from tickwright.domain.time_texts import parse_duration
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import answer, answers, takes

Name = Annotated[str, Path(min_length=1, max_length=50)]
STRUCTS = (Page[ReceiverView], ReceiverRequest, ReceiverSecret, ReceiverView, RotateRequest, StoredReceiver)


def receiver_routes(receivers: AlertReceivers, gate: Gate) -> APIRouter:
    """Return the routes of alert receivers."""
    router = APIRouter(tags=["alert receivers"])
    allowed = gate.allow(Role.ADMIN)
    admin = Annotated[Caller, Depends(allowed)]

    @router.get("/v1/alerts/receivers", dependencies=[Depends(allowed)], **answers(Page[ReceiverView]))
    async def list_receivers() -> Response:
        """List every receiver of alerts by name, without its secrets."""
        return answer(Page(await receivers.list()))

    @router.get("/v1/alerts/receivers/{name}", dependencies=[Depends(allowed)], **answers(ReceiverView))
    async def get_receiver(name: Name) -> Response:
        """Return one receiver of alerts, without its secrets."""
        return answer(await receivers.get(name))

    @router.put("/v1/alerts/receivers/{name}", **answers(StoredReceiver, 200, 201), **takes(ReceiverRequest))
    async def put_receiver(request: Request, name: Name, caller: admin) -> Response:
        """Create or replace a receiver of alerts. Its first signing secret is shown only in this response."""
        stored = await receivers.put(name, await gate.read(request, ReceiverRequest), caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.post(
        "/v1/alerts/receivers/{name}/rotate-secret", **answers(ReceiverSecret), **takes(RotateRequest, required=False)
    )
    async def rotate_receiver_secret(request: Request, name: Name, caller: admin) -> Response:
        """Make a new signing secret, shown only in this response; the old ones stay in use for `overlap`."""
        body = await gate.read(request, RotateRequest, default=RotateRequest())
        overlap = parse_duration(body.overlap, field="overlap")
        return answer(await receivers.rotate_secret(name, caller=caller, overlap=overlap))

    @router.delete("/v1/alerts/receivers/{name}", status_code=204, response_class=Response)
    async def delete_receiver(name: Name, caller: admin) -> Response:
        """Delete a receiver of alerts, and its waiting messages."""
        await receivers.delete(name, caller=caller)
        return Response(status_code=204)

    return router
