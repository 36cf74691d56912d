"""The REST routes of trackers; those of accounts, partners and slices are in :mod:`.admin_routes`.

Bodies are read strictly, so no route lets FastAPI parse one.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.polling.partners.views import (
    BreakerNow,
    Budget,
    CallCounts,
    PartnerFigures,
    QuietNow,
    Quota,
    Share,
    WaitingPolls,
)
from tickwright.capabilities.polling.rest.admin_routes import account_routes, partner_routes, slice_routes
from tickwright.capabilities.polling.trackers.events import News
from tickwright.capabilities.polling.trackers.listing import TrackerQuery, states_of
from tickwright.capabilities.polling.trackers.requests import (
    AccountChange,
    AccountRequest,
    EventRequest,
    PreviewRequest,
    ReplayRequest,
    TrackerRequest,
    check_status,
    read_tracker,
)
from tickwright.capabilities.polling.trackers.service import PollingService
from tickwright.capabilities.polling.trackers.views import (
    AccountDetail,
    AccountLine,
    AccountView,
    EndedTracker,
    EventOutcome,
    FreshSeries,
    PartnerView,
    RegisteredTracker,
    Replay,
    SliceView,
    StoredAccount,
    StoredPartner,
    TrackerDetail,
    TrackerView,
)
from tickwright.capabilities.polling.wheels.load_views import (
    AccountLoad,
    HeatCell,
    LoadPreview,
    PartnerLoad,
    SliceHeat,
    WholeLoad,
)
from tickwright.domain.errors import Rejected
from tickwright.domain.instants import parse_instant
from tickwright.domain.lines import ImportResult
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Explanation, Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import NDJSON, Cursor, Id, Limit, answer, answers, takes

CSV = "text/csv"
STRUCTS: tuple[Any, ...] = (
    AccountChange, AccountDetail, AccountLine, AccountLoad, AccountRequest, AccountView, BreakerNow, Budget, CallCounts,
    EndedTracker, EventOutcome, EventRequest, Explanation, FreshSeries, HeatCell, ImportResult, LoadPreview,
    Page[AccountLine], Page[PartnerView], Page[SliceView], Page[TrackerView], PartnerFigures, PartnerLoad,
    PartnerView, PreviewRequest, QuietNow, Quota, RegisteredTracker, Replay, ReplayRequest, Share, SliceHeat,
    SliceView, StoredAccount, StoredPartner, TrackerDetail, TrackerRequest, TrackerView, WaitingPolls, WholeLoad,
)  # fmt: skip


def polling_routes(service: PollingService, gate: Gate) -> APIRouter:
    """Return every route of this capability, below ``/v1``."""
    router = APIRouter()
    _registering(router, service, gate)
    _looking(router, service, gate)
    _acting(router, service, gate)
    account_routes(router, service, gate)
    partner_routes(router, service, gate)
    slice_routes(router, service, gate)
    return router


def _registering(router: APIRouter, service: PollingService, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR, "trackers:register"))]

    @router.post("/v1/trackers", tags=["trackers"], **answers(RegisteredTracker, 201, 200), **takes(TrackerRequest))
    async def register(request: Request, caller: operator) -> Response:
        """Register one tracker. Same partner and `external_id`: 200 and the tracker that is there, as it is."""
        new = read_tracker(await gate.read_bytes(request), now=gate.now())
        made = await service.register(new, caller=caller)
        headers = {"location": f"/v1/trackers/{made.tracker.id}"}
        return answer(made, 201 if made.created else 200, headers)

    lines = {kind: {"schema": {"type": "string"}} for kind in (NDJSON, CSV)}
    body: dict[str, Any] = {"openapi_extra": {"requestBody": {"required": True, "content": lines}}}

    @router.post("/v1/trackers:bulk", tags=["trackers"], **answers(ImportResult), **body)
    async def import_trackers(request: Request, caller: operator) -> Response:
        """Register trackers from NDJSON, one `TrackerRequest` per line, or CSV with the same columns.

        Lines are committed in batches of up to 5,000 in their order; a bad line is rejected and costs no other.
        Accounts that nobody knew get the default interval. When the connection breaks off, whole batches stay and
        the rest is dropped; the same upload can be sent again and registers nobody twice. The first line of CSV names
        the columns.
        """
        as_csv = request.headers.get("content-type", "").lower().startswith(CSV)
        chunks = gate.stream(request, csv=True)
        return answer(await service.import_trackers(chunks, caller=caller, as_csv=as_csv, now=gate.now()))


def _looking(router: APIRouter, service: PollingService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/trackers", tags=["trackers"], dependencies=viewer, **answers(Page[TrackerView]))
    async def list_trackers(  # noqa: PLR0917  FastAPI calls it by name
        account_id: Annotated[str | None, Query(max_length=200)] = None,
        partner: Annotated[str | None, Query(max_length=50)] = None,
        status: Annotated[str | None, Query(max_length=100)] = None,
        ended: Annotated[bool | None, Query()] = None,
        state: Annotated[Literal["waiting", "placed", "ended"] | None, Query()] = None,
        external_id: Annotated[str | None, Query(min_length=1, max_length=200, description="How it begins")] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List trackers, newest first; those whose external id begins with a text in the order of these.

        A page looks at 20,000 at most: it may be short and still have a `next`.
        """
        states = states_of(state, ended=ended)
        query = TrackerQuery(account_id, partner, status, states, external_id, cursor, limit)
        return answer(await service.list(query))

    @router.get("/v1/trackers/{tracker_id}", tags=["trackers"], dependencies=viewer, **answers(TrackerDetail))
    async def get_tracker(tracker_id: Id) -> Response:
        """Return one tracker, with the last ten events that polls brought."""
        return answer(await service.get(tracker_id))

    @router.get("/v1/trackers/{tracker_id}/explain", tags=["trackers"], dependencies=viewer, **answers(Explanation))
    async def explain_tracker(tracker_id: Id) -> Response:
        """Say why a tracker is where it is: its next turn, what holds it up, where its poll is, its last answer."""
        return answer(await service.explain(tracker_id))


def _acting(router: APIRouter, service: PollingService, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR, "trackers:register"))]
    courier = Annotated[Caller, Depends(gate.allow(Role.OPERATOR, "trackers:events"))]

    @router.post("/v1/trackers/{tracker_id}/end", tags=["trackers"], **answers(EndedTracker))
    async def end_tracker(tracker_id: Id, caller: operator) -> Response:
        """Poll a tracker no more. Twice is harmless."""
        return answer(await service.end(tracker_id, caller=caller))

    @router.post(
        "/v1/trackers/{tracker_id}/events",
        tags=["trackers"],
        **answers(EventOutcome),
        **takes(EventRequest),
    )
    async def take_event(request: Request, tracker_id: Id, caller: courier) -> Response:
        """Take news that a courier sent: they outrank polling, and the next poll waits for one whole interval.

        Answers what it did: `applied`, `stale` (not newer than the status), `duplicate`, or `ended`.
        """
        body = await gate.read(request, EventRequest)
        at = parse_instant(body.at, field="at")
        news = News(check_status(body.status), at, _id(body.event_id))
        return answer(await service.take_news(tracker_id, news, caller=caller))


def _id(event_id: str | None) -> str | None:
    if event_id is not None and "\0" in event_id:
        raise Rejected("unsupported_character", "event_id: \\u0000 cannot be kept", status=400, field="event_id")
    return event_id
