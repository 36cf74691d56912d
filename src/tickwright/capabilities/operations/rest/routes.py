"""The REST routes of the overview, workers, alerts, the outbox, the audit trail and API keys."""

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.operations.keys import ApiKeys
from tickwright.capabilities.operations.listings import AuditQuery, Operations
from tickwright.capabilities.operations.snapshots import Snapshots
from tickwright.capabilities.operations.views import (
    AlertView,
    AuditView,
    KeyRequest,
    KeyView,
    NewKeyView,
    OutboxView,
    RotateKeyRequest,
    WorkerView,
)
from tickwright.domain.time_texts import parse_duration
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Page, sight
from tickwright.rest.event_stream import STREAM, EventStream
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Id, Limit, answer, answers, takes


class DrainView(msgspec.Struct):
    """A worker that was asked to stop."""

    id: int
    outcome: str


STRUCTS = (
    DrainView, KeyRequest, KeyView, NewKeyView, Page[AlertView], Page[AuditView], Page[KeyView],
    Page[OutboxView], Page[WorkerView], RotateKeyRequest,
)  # fmt: skip


def operation_routes(operations: Operations, gate: Gate) -> APIRouter:
    """Return the routes of workers, alerts, the outbox and the audit trail."""
    router = APIRouter(tags=["operations"])
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]

    @router.get("/v1/workers", dependencies=viewer, **answers(Page[WorkerView]))
    async def list_workers() -> Response:
        """List every worker session of the last day, newest first."""
        return answer(Page(await operations.workers()))

    @router.post("/v1/workers/{worker}/drain", status_code=202, **answers(DrainView, 202))
    async def drain_worker(worker: Id, caller: admin) -> Response:
        """Ask a process of any role to finish what it runs and stop."""
        await operations.drain(worker, caller=caller)
        return answer(DrainView(worker, "requested"), 202)

    _listings(router, operations, gate)
    return router


def _listings(router: APIRouter, operations: Operations, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/alerts", dependencies=viewer, **answers(Page[AlertView]))
    async def list_alerts(
        state: Annotated[Literal["firing", "resolved"] | None, Query()] = None, cursor: Cursor = None, limit: Limit = 50
    ) -> Response:
        """List alerts, newest first."""
        return answer(await operations.alerts(state=state, cursor=cursor, limit=limit))

    @router.get("/v1/outbox", dependencies=viewer, **answers(Page[OutboxView]))
    async def list_outbox(
        destination: Annotated[str | None, Query(max_length=2048)] = None, cursor: Cursor = None, limit: Limit = 50
    ) -> Response:
        """List messages that wait for the relay, newest first; without their payloads."""
        return answer(await operations.outbox(destination=destination, cursor=cursor, limit=limit))

    @router.get("/v1/audit", dependencies=viewer, **answers(Page[AuditView]))
    async def list_audit(
        *,
        action: Annotated[str | None, Query(max_length=100)] = None,
        action_prefix: Annotated[str | None, Query(max_length=100, description="What the action begins with")] = None,
        subject: Annotated[str | None, Query(max_length=300)] = None,
        actor: Annotated[str | None, Query(max_length=200, description="Who did it")] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List operator actions, newest first. A filtered page reads at most 10,000."""
        query = AuditQuery(
            action=action, action_prefix=action_prefix, subject=subject, actor=actor, cursor=cursor, limit=limit
        )
        return answer(await operations.audit(query))


def key_routes(keys: ApiKeys, gate: Gate) -> APIRouter:
    """Return the routes of API keys, for admins."""
    router = APIRouter(tags=["keys"])
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]

    @router.get("/v1/keys", dependencies=[Depends(gate.allow(Role.ADMIN))], **answers(Page[KeyView]))
    async def list_keys() -> Response:
        """List every key, without the key itself."""
        return answer(Page(await keys.list()))

    @router.post("/v1/keys", status_code=201, **answers(NewKeyView, 201), **takes(KeyRequest))
    async def create_key(request: Request, caller: admin) -> Response:
        """Make a key, with a role or with scopes. The key is shown only in this response."""
        body = await gate.read(request, KeyRequest)
        expires_in = None if body.expires_in is None else parse_duration(body.expires_in, field="expires_in")
        role = None if body.role is None else Role[body.role.upper()]
        made = await keys.create(body.name, role, caller=caller, expires_in=expires_in, scopes=body.scopes)
        return answer(made, 201)

    rotating = {**answers(NewKeyView, 201), **takes(RotateKeyRequest, required=False)}

    @router.post("/v1/keys/{key_id}/rotate", status_code=201, **rotating)
    async def rotate_key(request: Request, key_id: Id, caller: admin) -> Response:
        """Make a successor with the same name, role, scopes and expiry; the old key expires after `overlap`."""
        body = await gate.read(request, RotateKeyRequest, default=RotateKeyRequest())
        overlap = parse_duration(body.overlap, field="overlap")
        expires_in = None if body.expires_in is None else parse_duration(body.expires_in, field="expires_in")
        made = await keys.rotate(key_id, caller=caller, overlap=overlap, expires_in=expires_in)
        gate.forget_keys()
        return answer(made, 201)

    @router.post("/v1/keys/{key_id}/revoke", **answers(KeyView))
    async def revoke_key(key_id: Id, caller: admin) -> Response:
        """Revoke a key; every replica refuses it within a second."""
        revoked = await keys.revoke(key_id, caller=caller)
        gate.forget_keys()
        return answer(revoked)

    return router


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
