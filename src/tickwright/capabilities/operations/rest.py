"""The REST routes of operations: overview, workers, leases, alerts and their receivers, the outbox, audit, API keys."""

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.operations.actions import OperatorActions
from tickwright.capabilities.operations.alerts.receivers import (
    AlertReceivers,
    ReceiverRequest,
    ReceiverSecret,
    ReceiverView,
    StoredReceiver,
)
from tickwright.capabilities.operations.keys import ApiKeys
from tickwright.capabilities.operations.listings import AuditQuery, Operations
from tickwright.capabilities.operations.snapshots import Snapshots
from tickwright.capabilities.operations.views import (
    AcknowledgeRequest,
    AlertView,
    AuditView,
    DestinationView,
    DiscardedMessage,
    KeyRequest,
    KeyView,
    LeaseView,
    NewKeyView,
    OutboxView,
    ReleasedLease,
    RetriedOutbox,
    RetryRequest,
    RotateKeyRequest,
    WorkerDetail,
    WorkerView,
)
from tickwright.domain.signatures import RotateRequest
from tickwright.domain.time_texts import parse_duration
from tickwright.engine.leases import LeasePurposes
from tickwright.ports.caller import Caller, Role
from tickwright.ports.session import Holdings
from tickwright.ports.views import Page, sight
from tickwright.rest.event_stream import STREAM, EventStream
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Id, Limit, accepts, answer, answers
from tickwright.store.pool import Pool

JobName = Annotated[str, Path(min_length=1, max_length=200)]
ReceiverName = Annotated[str, Path(min_length=1, max_length=50)]


class DrainView(msgspec.Struct):
    """A worker that was asked to stop."""

    id: int
    outcome: str


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

    @router.post("/v1/keys", status_code=201, **answers(NewKeyView, 201), **accepts(KeyRequest))
    async def create_key(request: Request, caller: admin) -> Response:
        """Make a key, with a role or with scopes. The key is shown only in this response."""
        body = await gate.read(request, KeyRequest)
        expires_in = None if body.expires_in is None else parse_duration(body.expires_in, field="expires_in")
        role = None if body.role is None else Role[body.role.upper()]
        made = await keys.create(body.name, role, caller=caller, expires_in=expires_in, scopes=body.scopes)
        return answer(made, 201)

    rotating = {**answers(NewKeyView, 201), **accepts(RotateKeyRequest, required=False)}

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


def action_routes(pool: Pool, purposes: LeasePurposes, holdings: Holdings, gate: Gate) -> APIRouter:
    """Return the routes of :class:`OperatorActions`."""
    router = APIRouter(tags=["operations"])
    actions = OperatorActions(pool, purposes, holdings)
    _workers(router, actions, gate)
    _outbox(router, actions, gate)
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.post("/v1/alerts/{alert}/acknowledge", **answers(AlertView), **accepts(AcknowledgeRequest, required=False))
    async def acknowledge_alert(request: Request, alert: Id, caller: operator) -> Response:
        """Note that you handle a firing alert; an alert that fires again later is a new one."""
        body = await gate.read(request, AcknowledgeRequest, default=AcknowledgeRequest())
        return answer(await actions.acknowledge(alert, body.note, caller=caller))

    return router


def _workers(router: APIRouter, actions: OperatorActions, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]

    @router.get("/v1/workers/{worker}", dependencies=viewer, **answers(WorkerDetail))
    async def get_worker(worker: Id) -> Response:
        """Return one worker session of the last day, and what it holds: at most 100 of each kind."""
        return answer(await actions.worker(worker))

    @router.get("/v1/leases", dependencies=viewer, **answers(Page[LeaseView]))
    async def list_leases() -> Response:
        """List the leases of the control loops: holder, since when, fence, and what the holder does."""
        return answer(Page(await actions.leases()))

    @router.post("/v1/leases/{job_name}/release", **answers(ReleasedLease))
    async def release_lease(job_name: JobName, caller: admin) -> Response:
        """Take a lease away from its holder: the fence rises, and the next process that requests it acquires it."""
        return answer(await actions.release(job_name, caller=caller))


def _outbox(router: APIRouter, actions: OperatorActions, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/outbox:destinations", dependencies=viewer, **answers(Page[DestinationView]))
    async def list_destinations() -> Response:
        """List the waiting messages per destination, the stuck and the oldest first; at most 1,000 destinations."""
        return answer(Page(await actions.destinations()))

    @router.post("/v1/outbox:retry", **answers(RetriedOutbox), **accepts(RetryRequest))
    async def retry_destination(request: Request, caller: operator) -> Response:
        """Retry a destination's waiting messages now, 1,000 a call; the relay may still pause it for up to 30 s."""
        body = await gate.read(request, RetryRequest)
        return answer(await actions.retry(body.destination, caller=caller))

    @router.post("/v1/outbox/{message}/discard", **answers(DiscardedMessage))
    async def discard_message(message: Id, caller: operator) -> Response:
        """Dead-letter a waiting message, which can be requeued. A message that is being sent is still sent."""
        return answer(await actions.discard(message, caller=caller))


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
    async def get_receiver(name: ReceiverName) -> Response:
        """Return one receiver of alerts, without its secrets."""
        return answer(await receivers.get(name))

    @router.put("/v1/alerts/receivers/{name}", **answers(StoredReceiver, 200, 201), **accepts(ReceiverRequest))
    async def put_receiver(request: Request, name: ReceiverName, caller: admin) -> Response:
        """Create or replace a receiver of alerts. Its first signing secret is shown only in this response."""
        stored = await receivers.put(name, await gate.read(request, ReceiverRequest), caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.post(
        "/v1/alerts/receivers/{name}/rotate-secret", **answers(ReceiverSecret), **accepts(RotateRequest, required=False)
    )
    async def rotate_receiver_secret(request: Request, name: ReceiverName, caller: admin) -> Response:
        """Make a new signing secret, shown only in this response; the old ones stay in use for `overlap`."""
        body = await gate.read(request, RotateRequest, default=RotateRequest())
        overlap = parse_duration(body.overlap, field="overlap")
        return answer(await receivers.rotate_secret(name, caller=caller, overlap=overlap))

    @router.delete("/v1/alerts/receivers/{name}", status_code=204, response_class=Response)
    async def delete_receiver(name: ReceiverName, caller: admin) -> Response:
        """Delete a receiver of alerts, and its waiting messages."""
        await receivers.delete(name, caller=caller)
        return Response(status_code=204)

    return router
