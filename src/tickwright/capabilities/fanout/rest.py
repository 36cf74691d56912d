"""The REST routes of fan-out: entities, modules, windows and dead letters."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from tickwright.capabilities.fanout.entities.entities import EntityQuery
from tickwright.capabilities.fanout.entities.schemas import (
    DeadTaskPage,
    EntityDetail,
    EntityExplanation,
    EntityLine,
    EntityRequest,
    EntityState,
    EntityView,
    ModuleDetail,
    ModuleRequest,
    ModuleView,
    StoredEntity,
    StoredModule,
    WindowMatrix,
)
from tickwright.capabilities.fanout.service import DEAD_TASKS, FanoutService
from tickwright.domain.lines import ImportResult
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Page
from tickwright.rest.dead_letters import Operation, add_dead_letters
from tickwright.rest.gate import Gate
from tickwright.rest.routing import NDJSON, Cursor, Limit, StructSchema, accepts, answer, answers

CSV = "text/csv"
Code = Annotated[str, Path(min_length=1, max_length=100)]
Name = Annotated[str, Path(min_length=1, max_length=50)]
ModuleName = Annotated[str | None, Query(min_length=1, max_length=50)]


def fanout_routes(service: FanoutService, gate: Gate) -> APIRouter:
    """Return every route of this capability, below ``/v1``."""
    router = APIRouter()
    _entities(router, service, gate)
    _modules(router, service, gate)
    _matrix(router, service, gate)
    _dead_letters(router, service, gate)
    return router


def _entities(router: APIRouter, service: FanoutService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    entities = service.entities

    @router.get("/v1/entities", tags=["entities"], dependencies=viewer, **answers(Page[EntityView]))
    async def list_entities(
        module: Annotated[str | None, Query(min_length=1, max_length=50, description="Polled for it")] = None,
        enabled: Annotated[bool | None, Query()] = None,
        q: Annotated[str, Query(max_length=100, description="What the code begins with")] = "",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List entities by their codes, without their parties. A page with a filter reads 5,000 at most."""
        return answer(await entities.list(EntityQuery(module, enabled, q, cursor, limit)))

    @router.get("/v1/entities/{code}", tags=["entities"], dependencies=viewer, **answers(EntityDetail))
    async def get_entity(code: Code) -> Response:
        """Return one entity: its party, and its last results per module."""
        return answer(await entities.get(code))

    @router.get("/v1/entities/{code}/explain", tags=["entities"], dependencies=viewer, **answers(EntityExplanation))
    async def explain_entity(code: Code, module: Annotated[str, Query(min_length=1, max_length=50)]) -> Response:
        """Explain why an entity is polled for a module now, or is not."""
        return answer(await entities.explain(code, module))

    @router.put("/v1/entities/{code}", tags=["entities"], **answers(StoredEntity, 200, 201), **accepts(EntityRequest))
    async def put_entity(request: Request, code: Code, caller: admin) -> Response:
        """Create an entity, or replace it; schedulers are notified at once. An equal one changes nothing.

        Secrets in the party are written `${env:NAME}`: messages contain the party unchanged.
        """
        stored = await entities.put(code, await gate.read(request, EntityRequest), caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.delete("/v1/entities/{code}", tags=["entities"], status_code=204, response_class=Response)
    async def delete_entity(code: Code, caller: admin) -> Response:
        """Stop polling an entity and delete it; the times of its last successful runs are kept."""
        await entities.delete(code, caller=caller)
        return Response(status_code=204)

    @router.post("/v1/entities/{code}/pause", tags=["entities"], **answers(EntityView))
    async def pause_entity(code: Code, caller: admin) -> Response:
        """Stop polling an entity: its `is_polling_enabled` becomes false."""
        return answer(await entities.switch(code, "pause", caller=caller))

    @router.post("/v1/entities/{code}/enable", tags=["entities"], **answers(EntityView))
    async def enable_entity(code: Code, caller: admin) -> Response:
        """Poll an entity again, from the current window on."""
        return answer(await entities.switch(code, "enable", caller=caller))

    lines = {kind: {"schema": StructSchema(EntityLine, {"type": "string"})} for kind in (NDJSON, CSV)}
    body: dict[str, Any] = {"openapi_extra": {"requestBody": {"required": True, "content": lines}}}

    @router.post("/v1/entities:bulk", tags=["entities"], **answers(ImportResult), **body)
    async def import_entities(request: Request, caller: admin) -> Response:
        """Create or replace entities from NDJSON, one `EntityLine` per line, or CSV with the same columns.

        In CSV, `party` is JSON, and the first line names the columns. Lines are committed in batches of up to 1,000 in
        their order; a bad line is rejected alone. When the connection is cut off, committed batches stay and the rest
        is dropped; the same upload can be sent again.
        """
        as_csv = request.headers.get("content-type", "").lower().startswith(CSV)
        return answer(await entities.import_lines(gate.stream(request, csv=True), caller=caller, as_csv=as_csv))


def _modules(router: APIRouter, service: FanoutService, gate: Gate) -> None:
    viewer = [Depends(gate.allow(Role.VIEWER))]
    admin = Annotated[Caller, Depends(gate.allow(Role.ADMIN))]
    modules = service.modules

    @router.get("/v1/modules", tags=["modules"], dependencies=viewer, **answers(Page[ModuleView]))
    async def list_modules() -> Response:
        """List every module by name."""
        return answer(Page(await modules.list()))

    @router.get("/v1/modules/{name}", tags=["modules"], dependencies=viewer, **answers(ModuleDetail))
    async def get_module(name: Name) -> Response:
        """Return one module, how many entities are polled for it, and the counts of its last windows."""
        return answer(await modules.show(name))

    @router.put("/v1/modules/{name}", tags=["modules"], **answers(StoredModule, 200, 201), **accepts(ModuleRequest))
    async def put_module(request: Request, name: Name, caller: admin) -> Response:
        """Create a module, or replace its settings, the fields of `[modules.NAME]`; schedulers are notified."""
        stored = await modules.put(name, await gate.read(request, ModuleRequest), caller=caller)
        return answer(stored, 201 if stored.created else 200)

    @router.post("/v1/modules/{name}/pause", tags=["modules"], **answers(ModuleView))
    async def pause_module(name: Name, caller: admin) -> Response:
        """Stop polling entities for it."""
        return answer(await modules.switch(name, "pause", caller=caller))

    @router.post("/v1/modules/{name}/enable", tags=["modules"], **answers(ModuleView))
    async def enable_module(name: Name, caller: admin) -> Response:
        """Poll entities for it again, from the current window on."""
        return answer(await modules.switch(name, "enable", caller=caller))


def _matrix(router: APIRouter, service: FanoutService, gate: Gate) -> None:
    tags: Any = ["fan-out"]
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/fanout/windows", tags=tags, dependencies=viewer, **answers(WindowMatrix))
    async def window_matrix(
        module: ModuleName = None, hours: Annotated[int, Query(ge=1, le=168, description="Back from now")] = 24
    ) -> Response:
        """Return modules against windows: the counts of each window, the newest first, at most 500 of a module."""
        return answer(await service.matrix.windows(module, hours))

    @router.get("/v1/fanout/entities", tags=tags, dependencies=viewer, **answers(Page[EntityState]))
    async def entity_matrix(
        module: ModuleName = None,
        enabled: Annotated[bool | None, Query()] = None,
        q: Annotated[str, Query(max_length=100, description="What the code begins with")] = "",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List entities by their codes, each with the last success, the last error and the next window per module.

        A page with a filter reads 5,000 at most.
        """
        return answer(await service.matrix.entities(EntityQuery(module, enabled, q, cursor, limit)))


def _dead_letters(router: APIRouter, service: FanoutService, gate: Gate) -> None:
    add_dead_letters(
        router,
        service.dead_letters,
        gate,
        kind=DEAD_TASKS.name,
        page=DeadTaskPage,
        filter_by=DEAD_TASKS.filter,
        listing=Operation(
            "list_dead_tasks",
            "List tasks of fan-out that were given up, the oldest first. They stay in RabbitMQ until they are "
            "requeued.",
        ),
        requeuing=Operation(
            "requeue_dead_tasks",
            "Put them back into the queue, the oldest first, at most 1,000 a call. Ids are sought among the oldest "
            "10,000.\n\nA task whose window is over is dropped when it is read again.",
        ),
    )
