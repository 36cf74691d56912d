"""The REST routes of reports: records, files, parts that services deliver, and report types.

A file is sent whole, or the one range that ``Range`` names, in constant memory. Its first piece is read before the
response begins, so that an unavailable store gives a problem document, not a broken file. A response with fewer or more
bytes than promised is aborted.
"""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from tickwright.capabilities.reports.requests.views import (
    DeadCallPage,
    DeliveredPart,
    PartRefusal,
    RefusedPart,
    ReportDetail,
    ReportFile,
    ReportRequestBody,
    ReportTypeDetail,
    ReportTypeView,
    ReportView,
    RequestedReport,
    ServicePart,
    StoredReportType,
)
from tickwright.capabilities.reports.service import CONTENT_TYPES, DEAD_CALLS, OpenFile, ReportsService
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Explanation, Page, sees_user_data
from tickwright.rest.dead_letters import Operation, add_dead_letters
from tickwright.rest.gate import Gate
from tickwright.rest.routing import NDJSON, Cursor, Id, Limit, accepts, answer, answers

# ---------------------------------------------------------------------- file responses

_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")


class Span(NamedTuple):
    """The bytes from ``first`` up to, and without, ``end``."""

    first: int
    end: int


def span_of(header: str | None, size_bytes: int) -> Span | None:
    """Return the span of a ``Range`` header; ``None``, which means the whole file, unless it is one span of bytes.

    Raises:
        Rejected: ``range_not_satisfiable`` (416): it begins after the end. Permanent.
    """
    found = None if header is None else _RANGE.fullmatch(header.replace(" ", ""))
    if found is None or not (found["first"] or found["last"]):
        return None
    if not found["first"]:
        first, end = max(0, size_bytes - int(found["last"])), size_bytes
    else:
        first = int(found["first"])
        end = size_bytes if not found["last"] else min(size_bytes, int(found["last"]) + 1)
        if found["last"] and int(found["last"]) < first:
            return None
    if first >= end:
        raise Rejected(
            "range_not_satisfiable",
            f"the file has {size_bytes} bytes",
            status=416,
            headers=[(b"content-range", f"bytes */{size_bytes}".encode())],
        )
    return Span(first, end)


async def file_answer(file: OpenFile, wanted: str | None, only_if: str | None) -> Response:
    """Return the response with a file; it closes the file.

    If the header ``If-Range`` (``only_if``) names another file, the header ``Range`` (``wanted``) is ignored.

    Raises:
        Rejected: ``range_not_satisfiable`` (416). Permanent.
        Unavailable: ``object_missing``, ``object_store_unavailable``: the first bytes cannot be read. Retry.
    """
    etag = f'"{file.etag}"'
    part = span_of(wanted if only_if in (None, etag) else None, file.bytes)
    span = part or Span(0, file.bytes)
    pieces = _exactly(file, span)
    try:
        first = await anext(pieces, b"")
    except Rejected as error:
        raise Unavailable(error.code, error.message, status=502) from error
    headers = {
        "content-length": str(span.end - span.first),
        "content-disposition": f'attachment; filename="{file.name}"',
        "etag": etag,
        "accept-ranges": "bytes",
        "x-content-type-options": "nosniff",
        "cache-control": "private, no-store",
    }
    if part is not None:
        headers["content-range"] = f"bytes {span.first}-{span.end - 1}/{file.bytes}"
    return StreamingResponse(_from(first, pieces), 200 if part is None else 206, headers, media_type=file.content_type)


async def _exactly(file: OpenFile, span: Span) -> AsyncIterator[bytes]:
    """Yield all bytes of the span, or raise."""
    at, pieces = span.first, file.read(span.first)
    try:
        async for piece in pieces:
            wanted = piece[: max(0, span.end - at)]
            at += len(piece)
            if wanted:
                yield wanted
            if at >= span.end and at < file.bytes:
                return
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]  # stores return generators
    if at != file.bytes:
        raise Unavailable("object_damaged", f"the store gave {at} of {file.bytes} bytes", status=502)


async def _from(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for piece in pieces:
            yield piece
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- records

Status = Literal["pending", "querying", "merging", "finished", "failed", "cancelled"]
ListenerName = Annotated[str, Path(min_length=1, max_length=50)]
Epoch = Annotated[int, Query(ge=1, le=2**31 - 1, description="As the service was asked")]
Filter = Annotated[str | None, Query(min_length=1, max_length=200)]
_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_TAGS: Any = ["reports"]


def _request_routes(router: APIRouter, service: ReportsService, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]
    records = service.records
    asked = {**answers(RequestedReport, 201, 200), **accepts(ReportRequestBody)}

    @router.post("/v1/reports", tags=_TAGS, status_code=201, **asked)
    async def request_report(request: Request, caller: operator) -> Response:
        """Request a report; the answer is its record, at once.

        If the same requester has an equal report under way (same type, format and conditions), the answer is its record
        (200). With `max_age`, a finished one that is not older answers too, if its file exists. Conditions are for
        roles that see data of users.
        """
        body = await gate.read(request, ReportRequestBody)
        if body.conditions:  # row counts would reveal hidden data
            _check_user_data("the conditions of a report are")
        made = await records.request(body, caller)
        return answer(made, 201 if made.created else 200, {"location": f"/v1/reports/{made.id}"})

    @router.post("/v1/reports/{report_id}/cancel", tags=_TAGS, **answers(ReportView))
    async def cancel_report(report_id: Id, caller: operator) -> Response:
        """End a report without a file and stop its work. May be repeated; 409 if it has ended otherwise."""
        return answer(await records.cancel(report_id, caller=caller))


def _read_routes(router: APIRouter, service: ReportsService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/reports", tags=_TAGS, dependencies=viewer, **answers(Page[ReportView]))
    async def list_reports(  # noqa: PLR0917  FastAPI calls it by name
        requester: Filter = None,
        department: Filter = None,
        type: Filter = None,  # noqa: A002  the parameter's name
        status: Annotated[list[Status] | None, Query(max_length=6)] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List reports, newest first. A page that filters by more than the requester reads at most 5,000."""
        statuses = tuple(sorted(set(status or ())))
        filters = {"requester": requester, "department": department, "type": type}
        return answer(await service.records.list(**filters, statuses=statuses, cursor=cursor, limit=limit))

    @router.get("/v1/reports/{report_id}", tags=_TAGS, dependencies=viewer, **answers(ReportDetail))
    async def get_report(report_id: Id) -> Response:
        """Return one report: its record, the state of each part, and the content of its file."""
        return answer(await service.records.get(report_id))

    @router.get("/v1/reports/{report_id}/explain", tags=_TAGS, dependencies=viewer, **answers(Explanation))
    async def explain_report(report_id: Id) -> Response:
        """Explain why a report is not finished: what it waits for, since when, and what happens next."""
        return answer(await service.records.explain(report_id))


def _file_routes(router: APIRouter, service: ReportsService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]
    bytes_of = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in CONTENT_TYPES.values()}
    linked = answers(ReportFile)
    linked["responses"][307] = {"description": "The link, in Location"}

    @router.get("/v1/reports/{report_id}/file", tags=_TAGS, dependencies=viewer, **linked)
    async def report_file(request: Request, report_id: Id) -> Response:
        """Redirect to the file: 307 to a signed link for 15 minutes; with `Accept: application/json`, return the link.

        409 while there is no file, 410 after it has expired, 502 if the object store has lost it.
        """
        _check_user_data("a report's file is")
        found = await service.files.link(report_id)
        if _wants_json(request):
            return answer(found)
        return Response(status_code=307, headers={"location": found.url})

    @router.get(
        "/v1/report-files/{report_id}",
        tags=_TAGS,
        responses={
            200: {"description": "The file", "content": bytes_of},
            206: {"description": "The part of it that `Range` names", "content": bytes_of},
            416: {"description": "`Range` lies behind its end", "content": _PROBLEM},
        },
    )
    async def signed_file(
        request: Request,
        report_id: Id,
        expires: Annotated[int, Query(ge=0, le=2**40)],
        signature: Annotated[str, Query(pattern="^[0-9a-f]{64}$")],
    ) -> Response:
        """Return the file of a signed link; no key is needed. `Range` may name one part of it."""
        found = await service.files.open(report_id, expires, signature)
        return await file_answer(found, request.headers.get("range"), request.headers.get("if-range"))


_DELIVER = "reports:deliver"


def _check_user_data(what: str) -> None:
    if not sees_user_data():
        raise Rejected("payload_hidden", f"{what} data of users, which your role does not see", status=403)


def _wants_json(request: Request) -> bool:
    """Whether the caller accepts JSON first."""
    kinds = [kind.partition(";")[0].strip().lower() for kind in request.headers.get("accept", "").split(",")]
    return kinds[0] == "application/json"


def _delivery_routes(router: APIRouter, service: ReportsService, gate: Gate) -> None:
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR, _DELIVER))]
    deliveries = service.deliveries
    lines: dict[str, Any] = {
        "openapi_extra": {"requestBody": {"required": True, "content": {NDJSON: {"schema": {"type": "string"}}}}}
    }

    @router.get(
        "/v1/reports/{report_id}/parts/{listener}",
        tags=_TAGS,
        dependencies=[Depends(gate.allow(Role.VIEWER, _DELIVER))],
        **answers(ServicePart),
    )
    async def get_part(report_id: Id, listener: ListenerName) -> Response:
        """Return the data that a service needs to fetch its part: conditions, feed, epoch and deadline.

        403 for a role that does not see data of users: without the conditions, a service would fetch the wrong rows.
        """
        _check_user_data("conditions and feed are")
        return answer(await deliveries.get(report_id, listener))

    @router.put("/v1/reports/{report_id}/parts/{listener}", tags=_TAGS, **answers(DeliveredPart), **lines)
    async def deliver_part(
        request: Request, report_id: Id, listener: ListenerName, epoch: Epoch, caller: operator
    ) -> Response:
        """Deliver a service's part as NDJSON, an object per row; at most 1 GiB.

        The first delivery of an epoch counts; a later one is answered with `already` and the figures of the first. An
        interrupted delivery leaves nothing.
        """
        length = request.headers.get("content-length", "")
        said = int(length) if length.isdigit() else None
        body = gate.stream(request)
        return answer(await deliveries.deliver(report_id, listener, epoch, body, caller=caller, length=said))

    @router.post(
        "/v1/reports/{report_id}/parts/{listener}/fail", tags=_TAGS, **answers(RefusedPart), **accepts(PartRefusal)
    )
    async def refuse_part(request: Request, report_id: Id, listener: ListenerName, caller: operator) -> Response:
        """Report that a service cannot deliver its part, for good; if the part is required, the report fails."""
        refusal = await gate.read(request, PartRefusal)
        return answer(await deliveries.refuse(report_id, listener, refusal, caller=caller))


Name = Annotated[str, Path(min_length=1, max_length=50)]


def report_routes(service: ReportsService, gate: Gate) -> APIRouter:
    """Return every route of this capability, below ``/v1``."""
    router = APIRouter()
    for add_routes in (_type_routes, _request_routes, _read_routes, _file_routes, _delivery_routes):
        add_routes(router, service, gate)
    add_dead_letters(
        router,
        service.dead_calls,
        gate,
        kind=DEAD_CALLS.name,
        page=DeadCallPage,
        filter_by=DEAD_CALLS.filter,
        listing=Operation(
            "list_dead_calls",
            "List announcements of reports that were given up, the oldest first. RabbitMQ keeps them for a week.",
        ),
        requeuing=Operation(
            "requeue_dead_calls",
            "Put them back to their listeners, the oldest first, at most 1,000 a call; ids among the oldest 10,000."
            "\n\nAn announcement of a report that is over, or of a part that is there, is dropped when it is read.",
        ),
    )
    return router


def _type_routes(router: APIRouter, service: ReportsService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    types = service.types
    tags: Any = ["report-types"]
    stored = {**answers(StoredReportType, 200, 201), **accepts(dict[str, Any])}

    @router.get("/v1/report-types", tags=tags, dependencies=viewer, **answers(Page[ReportTypeView]))
    async def list_report_types(cursor: Cursor = None, limit: Limit = 50) -> Response:
        """List report types by name."""
        return answer(await types.list(cursor, limit))

    @router.get("/v1/report-types/{name}", tags=tags, dependencies=viewer, **answers(ReportTypeDetail))
    async def get_report_type(name: Name) -> Response:
        """Return one report type; PUT accepts its definition."""
        return answer(await types.get(name))

    @router.put("/v1/report-types/{name}", tags=tags, **stored)
    async def put_report_type(request: Request, name: Name, caller: admin) -> Response:
        """Create or replace a report type; the body is its definition, with the keys of `[report_types.NAME]`."""
        definition: dict[str, Any] = await gate.read(request, dict[str, Any])
        put = await types.put(name, definition, caller=caller)
        return answer(put, 201 if put.created else 200)

    @router.delete("/v1/report-types/{name}", tags=tags, status_code=204, response_class=Response)
    async def delete_report_type(name: Name, caller: admin) -> Response:
        """Delete a report type; existing reports continue with their own plan."""
        await types.delete(name, caller=caller)
        return Response(status_code=204)
