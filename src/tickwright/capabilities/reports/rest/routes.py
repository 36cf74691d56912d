"""The REST routes of reports."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from tickwright.capabilities.reports.dead_letters import STRUCTS as DEAD_STRUCTS
from tickwright.capabilities.reports.dead_letters import dead_call_routes
from tickwright.capabilities.reports.requests.views import ReportTypeDetail, ReportTypeView, StoredReportType
from tickwright.capabilities.reports.rest.record_routes import RECORD_STRUCTS
from tickwright.capabilities.reports.rest.record_routes import record_routes
from tickwright.capabilities.reports.service import ReportsService
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Limit, answer, answers, takes

Name = Annotated[str, Path(min_length=1, max_length=50)]
STRUCTS: tuple[Any, ...] = (
    Page[ReportTypeView], ReportTypeDetail, ReportTypeView, StoredReportType, *DEAD_STRUCTS, *RECORD_STRUCTS,
)  # fmt: skip


def report_routes(service: ReportsService, gate: Gate) -> APIRouter:
    """Return every route of this capability, below ``/v1``."""
    router = APIRouter()
    _types(router, service, gate)
    record_routes(router, service, gate)
    dead_call_routes(router, service.dead_calls, gate)
    return router


def _types(router: APIRouter, service: ReportsService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    types = service.types
    tags: Any = ["report-types"]
    stored = {**answers(StoredReportType, 200, 201), **takes(dict[str, Any])}

    @router.get("/v1/report-types", tags=tags, dependencies=viewer, **answers(Page[ReportTypeView]))
    async def list_report_types(cursor: Cursor = None, limit: Limit = 50) -> Response:
        """List report types by name."""
        return answer(await types.list(cursor, limit))

    @router.get("/v1/report-types/{name}", tags=tags, dependencies=viewer, **answers(ReportTypeDetail))
    async def get_report_type(name: Name) -> Response:
        """Return one report type; its definition is what a put takes."""
        return answer(await types.get(name))

    @router.put("/v1/report-types/{name}", tags=tags, **stored)
    async def put_report_type(request: Request, name: Name, caller: admin) -> Response:
        """Create a report type, or set it whole; the body is its definition, in the words of `[report_types.NAME]`."""
        words: dict[str, Any] = await gate.read(request, dict[str, Any])
        put = await types.put(name, words, caller=caller)
        return answer(put, 201 if put.created else 200)

    @router.delete("/v1/report-types/{name}", tags=tags, status_code=204, response_class=Response)
    async def delete_report_type(name: Name, caller: admin) -> Response:
        """Forget a report type; reports that were asked for go on with the plan that they were made with."""
        await types.delete(name, caller=caller)
        return Response(status_code=204)
