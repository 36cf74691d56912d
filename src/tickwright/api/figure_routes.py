"""How each task type does."""

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from tickwright.ports.caller import Role
from tickwright.ports.gate import Gate
from tickwright.ports.rest import answer, answers
from tickwright.runtime.type_figures import TypeFiguresView, TypesNow

STRUCTS = (TypeFiguresView,)


def figure_routes(types: TypesNow, gate: Gate) -> APIRouter:
    """Return the routes of figures."""
    router = APIRouter()

    @router.get(
        "/v1/task-types:figures",
        tags=["task types"],
        dependencies=[Depends(gate.allow(Role.VIEWER))],
        **answers(TypeFiguresView),
    )
    async def task_type_figures() -> Response:
        """Say of each task type what waits and runs, how fast, how late and how often it fails."""
        return answer(await types.figures())

    return router
