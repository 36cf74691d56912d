"""The REST routes of the overview: a snapshot, or a stream."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from tickwright.capabilities.operations.snapshots import Snapshots
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import sight
from tickwright.rest.event_stream import STREAM, EventStream
from tickwright.rest.gate import Gate
from tickwright.rest.routing import answer, answers

_EVENTS = {
    "description": "Server-sent events named `overview`, each with an OverviewView as its data, about one a second",
    "content": {"text/event-stream": {}},
}


def overview_routes(snapshots: Snapshots, gate: Gate) -> APIRouter:
    """Return the overview's routes."""
    router = APIRouter(tags=["operations"])
    viewer = Annotated[Caller, Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/overview", dependencies=[Depends(gate.allow(Role.VIEWER))], **answers(snapshots.view))
    async def overview() -> Response:
        """Return a snapshot that is at most about a second old, with the series of the last fifteen minutes."""
        return answer(await snapshots.latest())

    @router.get(STREAM, responses={200: _EVENTS})
    async def stream(caller: viewer) -> Response:
        """Stream snapshots as server-sent events, while the key or session is valid; 503 `too_many_streams`."""
        return EventStream(snapshots.subscribe(caller.key_id, caller.session_id, sight=sight()), "overview")

    return router
