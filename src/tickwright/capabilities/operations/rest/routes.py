"""The routes that belong to no capability: what lives, what happened, and the keys."""

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from tickwright.api.auth import Authenticator
from tickwright.api.context import ApiContext
from tickwright.capabilities.operations.listings import AuditQuery
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
from tickwright.capabilities.polling.relay.admin import (
    PollPartitionView,
    PollRelayView,
    ReconcileRequest,
    ReconcileView,
    poll_partitions,
)
from tickwright.domain.time_texts import parse_duration
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Id, Limit, answer, answers, takes


class HealthView(msgspec.Struct):
    """That the process answers; nothing else."""

    status: str


class ReadyView(msgspec.Struct):
    """Whether the process can work, and what was asked."""

    ready: bool
    checks: dict[str, str]


class DrainView(msgspec.Struct):
    """A worker that was asked to stop."""

    id: int
    outcome: str


STRUCTS = (
    DrainView, HealthView, KeyRequest, KeyView, NewKeyView, Page[AlertView], Page[AuditView], Page[KeyView],
    Page[OutboxView], Page[PollPartitionView], Page[PollRelayView], Page[WorkerView], ReadyView,
    ReconcileRequest, ReconcileView, RotateKeyRequest,
)  # fmt: skip


def open_routes(context: ApiContext) -> APIRouter:
    """Return the routes that need no key: they say whether the process lives and works, and its counters."""
    router = APIRouter(tags=["process"])

    @router.get("/healthz", **answers(HealthView))
    async def healthz() -> Response:
        """Say that the process answers."""
        return answer(HealthView("ok"))

    @router.get("/readyz", **answers(ReadyView, 200, 503))
    async def readyz() -> Response:
        """Say whether the database answers and the loops turn; 503 when not."""
        state = await context.readiness()
        return answer(ReadyView(state.ready, dict(state.checks)), 200 if state.ready else 503)

    @router.get("/metrics", responses={200: {"description": "Prometheus", "content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Return the counters of this process as Prometheus text."""
        return Response(context.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def operation_routes(context: ApiContext, gate: Gate) -> APIRouter:
    """Return what operators look at."""
    router = APIRouter(tags=["operations"])
    operations = context.operations
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]

    @router.get("/v1/workers", dependencies=viewer, **answers(Page[WorkerView]))
    async def list_workers() -> Response:
        """List every worker session of the last day, newest first."""
        return answer(Page(await operations.workers()))

    @router.post("/v1/workers/{worker}/drain", status_code=202, **answers(DrainView, 202))
    async def drain_worker(worker: Id, caller: admin) -> Response:
        """Ask a process, whatever its roles are, to finish what it runs and stop."""
        await operations.drain(worker, caller=caller)
        return answer(DrainView(worker, "requested"), 202)

    _listings(router, context, gate)
    return router


def _listings(router: APIRouter, context: ApiContext, gate: Gate) -> None:
    operations = context.operations
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

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

    @router.get("/v1/outbox/polls", dependencies=viewer, **answers(Page[PollRelayView]))
    async def list_poll_relays() -> Response:
        """List the relays of polls: what waits, what is published, and whether the topic agrees."""
        return answer(Page(await context.polls.list()))

    @router.get("/v1/outbox/polls/partitions", dependencies=viewer, **answers(Page[PollPartitionView]))
    async def list_poll_partitions() -> Response:
        """List the partitions that polls went to: where they end, how far the consumers are, and who reads them."""
        return answer(Page(await poll_partitions(context.pool)))

    @router.post("/v1/outbox/polls/reconcile", **answers(ReconcileView), **takes(ReconcileRequest, required=False))
    async def reconcile_polls(request: Request, caller: operator) -> Response:
        """Make the topic and the database agree where a relay stands; without `apply` only say what would be done."""
        body = await gate.read(request, ReconcileRequest, default=ReconcileRequest())
        return answer(await context.polls.reconcile(body, caller=caller))

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
        """List operator actions, newest first. A page that filters looks at 10,000 at most."""
        query = AuditQuery(
            action=action, action_prefix=action_prefix, subject=subject, actor=actor, cursor=cursor, limit=limit
        )
        return answer(await operations.audit(query))


def key_routes(context: ApiContext, auth: Authenticator, gate: Gate) -> APIRouter:
    """Return the management of API keys, for admins."""
    router = APIRouter(tags=["keys"])
    keys = context.operations.keys
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]

    @router.get("/v1/keys", dependencies=[Depends(gate.allow(Role.ADMIN))], **answers(Page[KeyView]))
    async def list_keys() -> Response:
        """List every key, without what opens anything."""
        return answer(Page(await keys.list()))

    @router.post("/v1/keys", status_code=201, **answers(NewKeyView, 201), **takes(KeyRequest))
    async def create_key(request: Request, caller: admin) -> Response:
        """Make a key, with a role or with scopes. It is shown this once."""
        body = await gate.read(request, KeyRequest)
        expires_in = None if body.expires_in is None else parse_duration(body.expires_in, field="expires_in")
        role = None if body.role is None else Role[body.role.upper()]
        made = await keys.create(body.name, role, caller=caller, expires_in=expires_in, scopes=body.scopes)
        return answer(made, 201)

    rotating = {**answers(NewKeyView, 201), **takes(RotateKeyRequest, required=False)}

    @router.post("/v1/keys/{key_id}/rotate", status_code=201, **rotating)
    async def rotate_key(request: Request, key_id: Id, caller: admin) -> Response:
        """Make a successor with the same name, role, scopes and end; the old key ends after `overlap`."""
        body = await gate.read(request, RotateKeyRequest, default=RotateKeyRequest())
        overlap = parse_duration(body.overlap, field="overlap")
        expires_in = None if body.expires_in is None else parse_duration(body.expires_in, field="expires_in")
        made = await keys.rotate(key_id, caller=caller, overlap=overlap, expires_in=expires_in)
        auth.forget()
        return answer(made, 201)

    @router.post("/v1/keys/{key_id}/revoke", **answers(KeyView))
    async def revoke_key(key_id: Id, caller: admin) -> Response:
        """Refuse a key from now on; every other replica does within a second."""
        revoked = await keys.revoke(key_id, caller=caller)
        auth.forget()
        return answer(revoked)

    return router
