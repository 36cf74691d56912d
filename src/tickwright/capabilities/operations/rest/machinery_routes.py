"""The REST routes of a worker, the leases, the outbox per destination, and acknowledged alerts."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from tickwright.capabilities.operations.machinery import OperatorActions
from tickwright.capabilities.operations.views import (
    AcknowledgeRequest,
    AlertView,
    DestinationView,
    DiscardedMessage,
    Holding,
    LeaseView,
    ReleasedLease,
    RetriedOutbox,
    RetryRequest,
    WorkerDetail,
)
from tickwright.engine.leases import LeasePurposes
from tickwright.ports.caller import Caller, Role
from tickwright.ports.session import Holdings
from tickwright.ports.views import Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Id, answer, answers, takes
from tickwright.store.pool import Pool

JobName = Annotated[str, Path(min_length=1, max_length=200)]
STRUCTS = (
    AcknowledgeRequest, AlertView, DestinationView, DiscardedMessage, Holding, LeaseView, Page[DestinationView],
    Page[LeaseView], ReleasedLease, RetriedOutbox, RetryRequest, WorkerDetail,
)  # fmt: skip


def machinery_routes(pool: Pool, purposes: LeasePurposes, holdings: Holdings, gate: Gate) -> APIRouter:
    """Return the routes of :class:`OperatorActions`."""
    router = APIRouter(tags=["operations"])
    actions = OperatorActions(pool, purposes, holdings)
    _workers(router, actions, gate)
    _outbox(router, actions, gate)
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.post("/v1/alerts/{alert}/acknowledge", **answers(AlertView), **takes(AcknowledgeRequest, required=False))
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

    @router.post("/v1/outbox:retry", **answers(RetriedOutbox), **takes(RetryRequest))
    async def retry_destination(request: Request, caller: operator) -> Response:
        """Retry a destination's waiting messages now, 1,000 a call; the relay may still pause it for up to 30 s."""
        body = await gate.read(request, RetryRequest)
        return answer(await actions.retry(body.destination, caller=caller))

    @router.post("/v1/outbox/{message}/discard", **answers(DiscardedMessage))
    async def discard_message(message: Id, caller: operator) -> Response:
        """Dead-letter a waiting message, which can be requeued. A message that is being sent is still sent."""
        return answer(await actions.discard(message, caller=caller))
