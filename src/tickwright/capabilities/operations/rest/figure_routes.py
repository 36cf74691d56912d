"""The REST route of the figures of task types."""

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from tickwright.capabilities.operations.overview.type_figures import TypeFiguresView, TypesNow
from tickwright.ports.caller import Role
from tickwright.rest.gate import Gate
from tickwright.rest.routing import answer, answers

STRUCTS = (TypeFiguresView,)


def figure_routes(types: TypesNow, gate: Gate) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.get(
        "/v1/task-types:figures",
        tags=["task types"],
        dependencies=[Depends(gate.allow(Role.VIEWER))],
        **answers(TypeFiguresView),
    )
    async def task_type_figures() -> Response:
        """Return for each task type its waiting and running jobs, rates, lateness and failures."""
        return answer(await types.figures())

    return router
