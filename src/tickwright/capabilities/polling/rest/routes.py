"""The REST routes of trackers; those of accounts, partners and slices are in :mod:`.admin_routes`.

Bodies are read strictly, so no route lets FastAPI parse one.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.polling.partners import (
    BreakerNow,
    Budget,
    CallCounts,
    PartnerFigures,
    PartnerView,
    QuietNow,
    Quota,
    Share,
    StoredPartner,
    WaitingPolls,
)
from tickwright.capabilities.polling.relay.admin import (
    PollPartitionView,
    PollRelayAdmin,
    PollRelayView,
    ReconcileRequest,
    ReconcileView,
    poll_partitions,
)
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.polling.trackers.accounts import (
    AccountDetail,
    AccountLine,
    AccountLoad,
    AccountView,
    LoadPreview,
    PartnerLoad,
    StoredAccount,
    WholeLoad,
)
from tickwright.capabilities.polling.trackers.events import StatusEvent
from tickwright.capabilities.polling.trackers.freshness import FreshSeries
from tickwright.capabilities.polling.trackers.requests import (
    AccountChange,
    AccountRequest,
    EndedTracker,
    EventOutcome,
    EventRequest,
    Minutes,
    PreviewRequest,
    RegisteredTracker,
    ReplayRequest,
    TrackerDetail,
    TrackerRequest,
    TrackerView,
    check_status,
    read_tracker,
)
from tickwright.capabilities.polling.trackers.store import TrackerQuery, states_of
from tickwright.capabilities.polling.wheels.slices import HeatCell, Replay, SliceHeat, SliceView
from tickwright.domain.errors import Rejected
from tickwright.domain.lines import ImportResult
from tickwright.domain.time_texts import parse_instant
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Explanation, Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import NDJSON, Cursor, Id, Instant, Limit, answer, answers, instant_of, takes
from tickwright.store.pool import Pool

CSV = "text/csv"
STRUCTS: tuple[Any, ...] = (
    AccountChange, AccountDetail, AccountLine, AccountLoad, AccountRequest, AccountView, BreakerNow, Budget,
    CallCounts, EndedTracker, EventOutcome, EventRequest, Explanation, FreshSeries, HeatCell, ImportResult,
    LoadPreview, Page[AccountLine], Page[PartnerView], Page[PollPartitionView], Page[PollRelayView], Page[SliceView],
    Page[TrackerView], PartnerFigures, PartnerLoad, PartnerView, PreviewRequest, QuietNow, Quota, ReconcileRequest,
    ReconcileView, RegisteredTracker, Replay, ReplayRequest, Share, SliceHeat, SliceView, StoredAccount, StoredPartner,
    TrackerDetail, TrackerRequest, TrackerView, WaitingPolls, WholeLoad,
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
        news = StatusEvent(check_status(body.status), at, _id(body.event_id))
        return answer(await service.take_event(tracker_id, news, caller=caller))


def _id(event_id: str | None) -> str | None:
    if event_id is not None and "\0" in event_id:
        raise Rejected("unsupported_character", "event_id: \\u0000 cannot be kept", status=400, field="event_id")
    return event_id


# The REST routes of accounts, partners and slices.

AccountId = Annotated[str, Path(min_length=1, max_length=200)]
Name = Annotated[str, Path(min_length=1, max_length=50)]


def account_routes(router: APIRouter, service: PollingService, gate: Gate) -> None:
    """Add what there is to see and to set of accounts."""
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    accounts = service.accounts

    @router.get("/v1/accounts", tags=["accounts"], dependencies=viewer, **answers(Page[AccountLine]))
    async def list_accounts(
        sort: Annotated[Literal["id", "lag"], Query(description="`lag`: the worst first")] = "id",
        text: Annotated[str | None, Query(min_length=1, max_length=200, description="That the id holds")] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List accounts by their ids, or the worst lag first (of the first 10,000 accounts).

        A page that filters looks at 10,000 at most: it may be short and still have a `next`.
        """
        return answer(await accounts.list(sort=sort, text=text, cursor=cursor, limit=limit))

    @router.get("/v1/accounts/{account_id}", tags=["accounts"], dependencies=viewer, **answers(AccountDetail))
    async def get_account(account_id: AccountId) -> Response:
        """Return one account, by what interval its trackers are placed now, and about how many it has."""
        return answer(await accounts.get(account_id))

    @router.get("/v1/accounts/{account_id}/freshness", tags=["accounts"], dependencies=viewer, **answers(FreshSeries))
    async def account_freshness(
        account_id: AccountId, hours: Annotated[int, Query(ge=1, le=744, description="Back from now")] = 24
    ) -> Response:
        """Return how fresh an account was: whole days, then slices of five minutes as far back as they are kept."""
        return answer(await accounts.series(account_id, hours))

    @router.put(
        "/v1/accounts/{account_id}", tags=["accounts"], **answers(StoredAccount, 200, 201), **takes(AccountRequest)
    )
    async def put_account(request: Request, account_id: AccountId, caller: admin) -> Response:
        """Create an account, or set it whole. Its trackers are moved within minutes; no process is restarted."""
        stored = await accounts.put(account_id, await gate.read(request, AccountRequest), caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.patch("/v1/accounts/{account_id}", tags=["accounts"], **answers(AccountView), **takes(AccountChange))
    async def change_account(request: Request, account_id: AccountId, caller: admin) -> Response:
        """Set what is given of an account and nothing else, so that nobody's edit is written over."""
        return answer(await accounts.change(account_id, await gate.read(request, AccountChange), caller=caller))

    @router.post(
        "/v1/accounts/{account_id}/preview",
        tags=["accounts"],
        dependencies=[Depends(gate.allow(Role.OPERATOR))],
        **answers(LoadPreview),
        **takes(PreviewRequest),
    )
    async def preview_account(request: Request, account_id: AccountId) -> Response:
        """Say what another interval or cap would do to the load, per partner and at the peak; nothing is changed."""
        return answer(await service.preview(account_id, await gate.read(request, PreviewRequest)))

    @router.post("/v1/accounts/{account_id}/pause", tags=["accounts"], **answers(AccountView))
    async def pause_account(account_id: AccountId, caller: admin) -> Response:
        """Select its trackers no more."""
        return answer(await accounts.pause(account_id, caller=caller))

    @router.post("/v1/accounts/{account_id}/enable", tags=["accounts"], **answers(AccountView))
    async def enable_account(account_id: AccountId, caller: admin) -> Response:
        """Select its trackers again, each at its own next turn."""
        return answer(await accounts.enable(account_id, caller=caller))


def partner_routes(router: APIRouter, service: PollingService, gate: Gate) -> None:
    """Add what there is to see and to set of partners."""
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    partners = service.partners

    @router.get("/v1/partners", tags=["partners"], dependencies=viewer, **answers(Page[PartnerView]))
    async def list_partners() -> Response:
        """List every partner by name."""
        return answer(Page(await partners.list()))

    @router.get("/v1/partners/{name}", tags=["partners"], dependencies=viewer, **answers(PartnerView))
    async def get_partner(name: Name) -> Response:
        """Return one partner, and whether it is called now."""
        return answer(await partners.get(name))

    @router.get("/v1/partners/{name}/figures", tags=["partners"], dependencies=viewer, **answers(PartnerFigures))
    async def partner_figures(name: Name) -> Response:
        """Say how a partner is called now: quota, outcomes, breaker, quiet hours, and what waits for it."""
        return answer(await service.partner_figures(name))

    @router.put("/v1/partners/{name}", tags=["partners"], **answers(StoredPartner, 200, 201), **takes(dict[str, Any]))
    async def put_partner(request: Request, name: Name, caller: admin) -> Response:
        """Create a partner, or replace its settings; the body is the settings, in the words of `[partners.NAME]`."""
        settings: dict[str, Any] = await gate.read(request, dict[str, Any])
        stored = await partners.put(name, settings, caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.patch("/v1/partners/{name}", tags=["partners"], **answers(PartnerView), **takes(dict[str, Any]))
    async def change_partner(request: Request, name: Name, caller: admin) -> Response:
        """Set what is given of a partner's settings and nothing else (RFC 7396: null takes a setting out)."""
        changes: dict[str, Any] = await gate.read(request, dict[str, Any])
        return answer(await partners.change(name, changes, caller=caller))

    @router.post("/v1/partners/{name}/pause", tags=["partners"], **answers(PartnerView))
    async def pause_partner(name: Name, caller: admin) -> Response:
        """Call it no more, and select none of its trackers."""
        return answer(await partners.pause(name, caller=caller))

    @router.post("/v1/partners/{name}/enable", tags=["partners"], **answers(PartnerView))
    async def enable_partner(name: Name, caller: admin) -> Response:
        """Call it again."""
        return answer(await partners.enable(name, caller=caller))

    @router.post("/v1/partners/{name}/reset", tags=["partners"], **answers(PartnerView))
    async def reset_partner(name: Name, caller: admin) -> Response:
        """Close its breaker, and end the silence that it asked for."""
        return answer(await partners.reset(name, caller=caller))


def slice_routes(router: APIRouter, service: PollingService, gate: Gate) -> None:
    """Add the slice ledger."""
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/slices", tags=["slices"], dependencies=viewer, **answers(Page[SliceView]))
    async def list_slices(  # noqa: PLR0917  FastAPI calls it by name
        minutes: Annotated[Minutes, Query(description="Length of a slice")] = "1",
        from_: Annotated[Instant, Query(alias="from")] = None,
        to: Instant = None,
        partner: Annotated[str | None, Query(max_length=50)] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List what became of each slice, newest first; `to` beyond now shows what is to come."""
        page = await service.slices.list(
            minutes=int(minutes),
            from_at=instant_of(from_, "from"),
            to_at=instant_of(to, "to"),
            partner=partner,
            cursor=cursor,
            limit=limit,
        )
        return answer(page)

    @router.get("/v1/slices:heat", tags=["slices"], dependencies=viewer, **answers(SliceHeat))
    async def heat_of_slices(
        from_: Annotated[Instant, Query(alias="from")] = None,
        to: Instant = None,
        step: Annotated[Literal["1", "5", "15", "60"], Query(description="Minutes of a cell")] = "5",
        partner: Annotated[str | None, Query(max_length=50)] = None,
    ) -> Response:
        """Return a range in one answer, the last day by default: what became of each cell, and how level it was.

        At most 2,000 cells and 11 days; `to` beyond now shows what is to come.
        """
        heat = await service.heat(
            from_at=instant_of(from_, "from"), to_at=instant_of(to, "to"), step_minutes=int(step), partner=partner
        )
        return answer(heat)

    @router.post("/v1/slices/replay", tags=["slices"], **answers(Replay), **takes(ReplayRequest))
    async def replay_slices(request: Request, caller: operator) -> Response:
        """Poll again what is missing of the last turns in a range, and nothing else; first count it with `dry_run`."""
        body = await gate.read(request, ReplayRequest)
        done = await service.slices.replay(
            parse_instant(body.from_, field="from"),
            parse_instant(body.to, field="to"),
            caller=caller,
            partner=body.partner,
            dry_run=body.dry_run,
            topic_lost=body.topic_lost,
        )
        return answer(done)


def relay_routes(pool: Pool, relays: PollRelayAdmin, gate: Gate) -> APIRouter:
    """Return the routes of the relays of polls, which stand with the outbox."""
    router = APIRouter(tags=["operations"])
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/outbox/polls", dependencies=viewer, **answers(Page[PollRelayView]))
    async def list_poll_relays() -> Response:
        """List the relays of polls: what waits, what is published, and whether the topic agrees."""
        return answer(Page(await relays.list()))

    @router.get("/v1/outbox/polls/partitions", dependencies=viewer, **answers(Page[PollPartitionView]))
    async def list_poll_partitions() -> Response:
        """List the partitions that polls went to: where they end, how far the consumers are, and who reads them."""
        return answer(Page(await poll_partitions(pool)))

    @router.post("/v1/outbox/polls/reconcile", **answers(ReconcileView), **takes(ReconcileRequest, required=False))
    async def reconcile_polls(request: Request, caller: operator) -> Response:
        """Make the topic and the database agree where a relay stands; without `apply` only say what would be done."""
        body = await gate.read(request, ReconcileRequest, default=ReconcileRequest())
        return answer(await relays.reconcile(body, caller=caller))

    return router
