"""Routes without a key: liveness, readiness and metrics of the process."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from fastapi import APIRouter
from fastapi.responses import Response

from tickwright.rest.routing import answer, answers


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this process can work now; ``checks`` has each check's result."""

    ready: bool
    checks: Mapping[str, str] = field(default_factory=dict)


class HealthView(msgspec.Struct):
    """The process answers."""

    status: str


class ReadyView(msgspec.Struct):
    """Whether the process can work, and the result of each check."""

    ready: bool
    checks: dict[str, str]


STRUCTS = (HealthView, ReadyView)


def open_routes(readiness: Callable[[], Awaitable[Readiness]], metrics: Callable[[], bytes]) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["process"])

    @router.get("/healthz", **answers(HealthView))
    async def healthz() -> Response:
        """Show that the process answers."""
        return answer(HealthView("ok"))

    @router.get("/readyz", **answers(ReadyView, 200, 503))
    async def readyz() -> Response:
        """Show whether the database answers and the loops run; 503 if not."""
        state = await readiness()
        return answer(ReadyView(state.ready, dict(state.checks)), 200 if state.ready else 503)

    @router.get("/metrics", responses={200: {"description": "Prometheus", "content": {"text/plain": {}}}})
    async def show_metrics() -> Response:
        """Return the counters of this process as Prometheus text."""
        return Response(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router
