"""The REST routes that show fan-out at a glance."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from tickwright.capabilities.fanout.entities.entities import EntityQuery
from tickwright.capabilities.fanout.entities.matrix import Matrix
from tickwright.capabilities.fanout.entities.matrix_views import (
    EntityStanding,
    MatrixWindow,
    ModuleWindows,
    WindowMatrix,
)
from tickwright.ports.caller import Role
from tickwright.ports.views import Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Limit, answer, answers

STRUCTS: tuple[Any, ...] = (EntityStanding, MatrixWindow, ModuleWindows, Page[EntityStanding], WindowMatrix)
_TAGS: Any = ["fan-out"]
ModuleName = Annotated[str | None, Query(min_length=1, max_length=50)]


def add_matrix(router: APIRouter, matrix: Matrix, gate: Gate) -> None:
    """Add both looks, below ``/v1/fanout``."""
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/fanout/windows", tags=_TAGS, dependencies=viewer, **answers(WindowMatrix))
    async def window_matrix(
        module: ModuleName = None,
        hours: Annotated[int, Query(ge=1, le=168, description="Back from now")] = 24,
    ) -> Response:
        """Return modules against windows: what became of each, the newest first, at most 500 of a module."""
        return answer(await matrix.windows(module, hours))

    @router.get("/v1/fanout/entities", tags=_TAGS, dependencies=viewer, **answers(Page[EntityStanding]))
    async def entity_matrix(
        module: ModuleName = None,
        enabled: Annotated[bool | None, Query()] = None,
        q: Annotated[str, Query(max_length=100, description="What the code begins with")] = "",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List entities by their codes, each with the last success, the last error and the next window per module.

        A page that filters looks at 5,000 at most.
        """
        return answer(await matrix.entities(EntityQuery(module, enabled, q, cursor, limit)))
