"""The REST routes of trackers, accounts, partners and slices.

Bodies are read strictly, so no route lets FastAPI parse one.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.polling.partners import PartnerFigures, PartnerView, StoredPartner
from tickwright.capabilities.polling.relay.admin import (
    PollPartitionView,
    PollRelayAdmin,
    PollRelayView,
    ReconcileRequest,
    ReconcileView,
    poll_partitions,
)
from tickwright.capabilities.polling.service import PollingService, TrackerQuery, states_of
from tickwright.capabilities.polling.trackers.accounts import (
    AccountDetail,
    AccountLine,
    AccountView,
    LoadPreview,
    StoredAccount,
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
from tickwright.capabilities.polling.wheels.slices import Replay, SliceHeat, SliceView
from tickwright.domain.errors import Rejected
from tickwright.domain.lines import ImportResult
from tickwright.domain.time_texts import parse_instant
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Explanation, Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import NDJSON, Cursor, Id, Instant, Limit, accepts, answer, answers, instant_of
from tickwright.store.pool import Pool

CSV = "text/csv"


def polling_routes(service: PollingService, gate: Gate) -> APIRouter:
    """Return every route of this capability, below ``/v1``."""
    router = APIRouter()
    tracker_routes(router, service, gate)
    tracker_action_routes(router, service, gate)
    account_routes(router, service, gate)
    partner_routes(router, service, gate)
    slice_routes(router, service, gate)
    return router


def tracker_routes(router: APIRouter, service: PollingService, gate: Gate) -> None:
    """Add registering and reading trackers."""
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR, "trackers:register"))]

    @router.post("/v1/trackers", tags=["trackers"], **answers(RegisteredTracker, 201, 200), **accepts(TrackerRequest))
    async def register(request: Request, caller: operator) -> Response:
        """Register one tracker. The same partner and `external_id` again: 200 and the existing tracker, unchanged."""
        new = read_tracker(await gate.read_bytes(request), now=gate.now())
        made = await service.register(new, caller=caller)
        headers = {"location": f"/v1/trackers/{made.tracker.id}"}
        return answer(made, 201 if made.created else 200, headers)

    lines = {kind: {"schema": {"type": "string"}} for kind in (NDJSON, CSV)}
    body: dict[str, Any] = {"openapi_extra": {"requestBody": {"required": True, "content": lines}}}

    @router.post("/v1/trackers:bulk", tags=["trackers"], **answers(ImportResult), **body)
    async def import_trackers(request: Request, caller: operator) -> Response:
        """Register trackers from NDJSON, one `TrackerRequest` per line, or CSV with the same columns.

        Lines are committed in batches of up to 5,000 in their order; a bad line is rejected alone.
        New accounts get the default interval. When the connection is cut off, committed batches stay and the rest is
        dropped; the same upload can be sent again and registers no tracker twice. The first line of CSV names the
        columns.
        """
        as_csv = request.headers.get("content-type", "").lower().startswith(CSV)
        chunks = gate.stream(request, csv=True)
        return answer(await service.import_trackers(chunks, caller=caller, as_csv=as_csv, now=gate.now()))

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
        """List trackers, newest first; with `external_id`, those whose external id begins with it, in their order.

        A page reads 20,000 at most: it may be short and still have a `next`.
        """
        states = states_of(state, ended=ended)
        query = TrackerQuery(account_id, partner, status, states, external_id, cursor, limit)
        return answer(await service.list(query))

    @router.get("/v1/trackers/{tracker_id}", tags=["trackers"], dependencies=viewer, **answers(TrackerDetail))
    async def get_tracker(tracker_id: Id) -> Response:
        """Return one tracker with its last ten scan events."""
        return answer(await service.get(tracker_id))

    @router.get("/v1/trackers/{tracker_id}/explain", tags=["trackers"], dependencies=viewer, **answers(Explanation))
    async def explain_tracker(tracker_id: Id) -> Response:
        """Explain a tracker: its next poll, what delays it, where its poll is, and its last answer."""
        return answer(await service.explain(tracker_id))


def tracker_action_routes(router: APIRouter, service: PollingService, gate: Gate) -> None:
    """Add ending trackers and sending events."""
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR, "trackers:register"))]
    webhook = Annotated[Caller, Depends(gate.allow(Role.OPERATOR, "trackers:events"))]

    @router.post("/v1/trackers/{tracker_id}/end", tags=["trackers"], **answers(EndedTracker))
    async def end_tracker(tracker_id: Id, caller: operator) -> Response:
        """Stop polling a tracker. Twice is harmless."""
        return answer(await service.end(tracker_id, caller=caller))

    @router.post(
        "/v1/trackers/{tracker_id}/events", tags=["trackers"], **answers(EventOutcome), **accepts(EventRequest)
    )
    async def take_event(request: Request, tracker_id: Id, caller: webhook) -> Response:
        """Apply an event of a partner: it outranks polling, and the next poll waits one whole interval.

        The outcome is `applied`, `stale` (not newer than the status), `duplicate`, or `ended`.
        """
        body = await gate.read(request, EventRequest)
        at = parse_instant(body.at, field="at")
        if "\0" in (body.event_id or ""):
            raise Rejected("unsupported_character", "event_id: \\u0000 cannot be stored", status=400, field="event_id")
        event = StatusEvent(check_status(body.status), at, body.event_id)
        return answer(await service.take_event(tracker_id, event, caller=caller))


AccountId = Annotated[str, Path(min_length=1, max_length=200)]
Name = Annotated[str, Path(min_length=1, max_length=50)]


def account_routes(router: APIRouter, service: PollingService, gate: Gate) -> None:
    """Add reading and changing accounts."""
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    accounts = service.accounts

    @router.get("/v1/accounts", tags=["accounts"], dependencies=viewer, **answers(Page[AccountLine]))
    async def list_accounts(
        sort: Annotated[Literal["id", "lag"], Query(description="`lag`: the worst first")] = "id",
        text: Annotated[str | None, Query(min_length=1, max_length=200, description="Part of the id")] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List accounts by their ids, or the worst lag first (of the first 10,000 accounts).

        A page that filters reads 10,000 at most: it may be short and still have a `next`.
        """
        return answer(await accounts.list(sort=sort, text=text, cursor=cursor, limit=limit))

    @router.get("/v1/accounts/{account_id}", tags=["accounts"], dependencies=viewer, **answers(AccountDetail))
    async def get_account(account_id: AccountId) -> Response:
        """Return one account, the interval that its trackers are placed by, and about how many trackers it has."""
        return answer(await accounts.get(account_id))

    @router.get("/v1/accounts/{account_id}/freshness", tags=["accounts"], dependencies=viewer, **answers(FreshSeries))
    async def account_freshness(
        account_id: AccountId, hours: Annotated[int, Query(ge=1, le=744, description="Back from now")] = 24
    ) -> Response:
        """Return how fresh an account was: whole days, then slices of five minutes as far back as they are kept."""
        return answer(await accounts.series(account_id, hours))

    @router.put(
        "/v1/accounts/{account_id}", tags=["accounts"], **answers(StoredAccount, 200, 201), **accepts(AccountRequest)
    )
    async def put_account(request: Request, account_id: AccountId, caller: admin) -> Response:
        """Create an account, or replace its settings. Its trackers are moved within minutes, without a restart."""
        stored = await accounts.put(account_id, await gate.read(request, AccountRequest), caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.patch("/v1/accounts/{account_id}", tags=["accounts"], **answers(AccountView), **accepts(AccountChange))
    async def change_account(request: Request, account_id: AccountId, caller: admin) -> Response:
        """Change the given settings of an account; concurrent changes of others are kept."""
        return answer(await accounts.change(account_id, await gate.read(request, AccountChange), caller=caller))

    @router.post(
        "/v1/accounts/{account_id}/preview",
        tags=["accounts"],
        dependencies=[Depends(gate.allow(Role.OPERATOR))],
        **answers(LoadPreview),
        **accepts(PreviewRequest),
    )
    async def preview_account(request: Request, account_id: AccountId) -> Response:
        """Preview the load of another interval or cap, per partner and at the peak; nothing is changed."""
        return answer(await service.accounts.preview(account_id, await gate.read(request, PreviewRequest)))

    @router.post("/v1/accounts/{account_id}/pause", tags=["accounts"], **answers(AccountView))
    async def pause_account(account_id: AccountId, caller: admin) -> Response:
        """Stop selecting its trackers."""
        return answer(await accounts.switch(account_id, "pause", caller=caller))

    @router.post("/v1/accounts/{account_id}/enable", tags=["accounts"], **answers(AccountView))
    async def enable_account(account_id: AccountId, caller: admin) -> Response:
        """Select its trackers again, each at its own next slot."""
        return answer(await accounts.switch(account_id, "enable", caller=caller))


def partner_routes(router: APIRouter, service: PollingService, gate: Gate) -> None:
    """Add reading and changing partners."""
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
        """Return how a partner is called now: quota, outcomes, breaker, quiet hours, and waiting polls."""
        return answer(await service.partners.figures(name))

    @router.put("/v1/partners/{name}", tags=["partners"], **answers(StoredPartner, 200, 201), **accepts(dict[str, Any]))
    async def put_partner(request: Request, name: Name, caller: admin) -> Response:
        """Create a partner, or replace its settings; the body is the settings, with the fields of `[partners.NAME]`."""
        settings: dict[str, Any] = await gate.read(request, dict[str, Any])
        stored = await partners.put(name, settings, caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.patch("/v1/partners/{name}", tags=["partners"], **answers(PartnerView), **accepts(dict[str, Any]))
    async def change_partner(request: Request, name: Name, caller: admin) -> Response:
        """Change the given settings of a partner (RFC 7396: null removes a setting)."""
        changes: dict[str, Any] = await gate.read(request, dict[str, Any])
        return answer(await partners.change(name, changes, caller=caller))

    @router.post("/v1/partners/{name}/pause", tags=["partners"], **answers(PartnerView))
    async def pause_partner(name: Name, caller: admin) -> Response:
        """Stop calling it and selecting its trackers."""
        return answer(await partners.switch(name, "pause", caller=caller))

    @router.post("/v1/partners/{name}/enable", tags=["partners"], **answers(PartnerView))
    async def enable_partner(name: Name, caller: admin) -> Response:
        """Call it again."""
        return answer(await partners.switch(name, "enable", caller=caller))

    @router.post("/v1/partners/{name}/reset", tags=["partners"], **answers(PartnerView))
    async def reset_partner(name: Name, caller: admin) -> Response:
        """Close its breaker, and end the silence that it requested."""
        return answer(await partners.switch(name, "reset", caller=caller))


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
        """List the slices, newest first; a `to` in the future includes coming ones."""
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
        """Return a range as a heat map, the last day by default: the counts of each cell, and how level it was.

        At most 2,000 cells and 11 days; a `to` in the future includes coming slots.
        """
        heat = await service.slices.heat(
            from_at=instant_of(from_, "from"), to_at=instant_of(to, "to"), step_minutes=int(step), partner=partner
        )
        return answer(heat)

    @router.post("/v1/slices/replay", tags=["slices"], **answers(Replay), **accepts(ReplayRequest))
    async def replay_slices(request: Request, caller: operator) -> Response:
        """Poll again what is missing of the slots in a range. With `dry_run`, which is the default, only count it."""
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
    """Return the routes of the relays of polls, below those of the outbox."""
    router = APIRouter(tags=["operations"])
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/outbox/polls", dependencies=viewer, **answers(Page[PollRelayView]))
    async def list_poll_relays() -> Response:
        """List the relays of polls: what waits, what is published, and whether the topic agrees."""
        return answer(Page(await relays.list()))

    @router.get("/v1/outbox/polls/partitions", dependencies=viewer, **answers(Page[PollPartitionView]))
    async def list_poll_partitions() -> Response:
        """List the partitions that polls went to, with their ends, the consumers' positions, and their readers."""
        return answer(Page(await poll_partitions(pool)))

    @router.post("/v1/outbox/polls/reconcile", **answers(ReconcileView), **accepts(ReconcileRequest, required=False))
    async def reconcile_polls(request: Request, caller: operator) -> Response:
        """Set the topic and the database of a blocked relay to one number; without `apply` nothing is changed."""
        body = await gate.read(request, ReconcileRequest, default=ReconcileRequest())
        return answer(await relays.reconcile(body, caller=caller))

    return router
