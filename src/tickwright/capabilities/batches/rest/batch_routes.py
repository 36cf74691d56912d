"""The routes that every kind of batch has, below its own path: look at it, let it run, stop it."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import Response

from tickwright.capabilities.batches.definitions.batches import Batches, BatchQuery
from tickwright.capabilities.batches.definitions.control import Running
from tickwright.capabilities.batches.views import (
    BatchChange,
    BatchDetail,
    BatchExplanation,
    BatchView,
    TouchedExecution,
    VersionDetail,
    VersionView,
)
from tickwright.ports.caller import Caller, Role
from tickwright.ports.views import Page
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Cursor, Instant, Limit, answer, answers

Name = Annotated[str, Path(min_length=1, max_length=100)]
Version = Annotated[int, Path(ge=1, le=2**31 - 1)]
Type = Annotated[Literal["MANUAL", "AUTOMATIC"] | None, Query()]
Status = Annotated[Literal["SCHEDULED", "IDLE"] | None, Query()]
Begins = Annotated[str, Query(max_length=100, description="What the name begins with")]
STRUCTS: tuple[Any, ...] = (
    BatchChange, BatchDetail, BatchExplanation, BatchView, Page[BatchView], Page[VersionView], TouchedExecution,
    VersionDetail, VersionView,
)  # fmt: skip


def add_looking(router: APIRouter, batches: Batches, gate: Gate) -> None:
    """Add what a viewer may see of one kind."""
    path, tags = f"/v1/{batches.kind.plural}", [batches.kind.plural]
    viewer = [Depends(gate.allow(Role.VIEWER))]
    seen: Any = {"tags": tags, "dependencies": viewer}

    @router.get(path, **seen, **answers(Page[BatchView]))
    async def list_batches(
        type: Type = None,  # noqa: A002  the parameter's name
        status: Status = None,
        q: Begins = "",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Response:
        """List them by name, with the next occurrence and the last execution of each."""
        return answer(await batches.list(BatchQuery(type, status, q, cursor, limit)))

    @router.get(f"{path}/{{name}}", **seen, **answers(BatchDetail))
    async def get_batch(name: Name) -> Response:
        """Return one: its definition, and its next five occurrences."""
        return answer(await batches.get(name))

    @router.get(f"{path}/{{name}}/versions", **seen, **answers(Page[VersionView]))
    async def list_versions(name: Name, cursor: Cursor = None, limit: Limit = 50) -> Response:
        """List its versions, newest first."""
        return answer(await batches.versions(name, cursor, limit))

    @router.get(f"{path}/{{name}}/versions/{{version}}", **seen, **answers(VersionDetail))
    async def get_version(name: Name, version: Version) -> Response:
        """Return one version as it was written."""
        return answer(await batches.version(name, version))

    @router.get(f"{path}/{{name}}/explain", **seen, **answers(BatchExplanation))
    async def explain_batch(name: Name, slot: Instant = None) -> Response:
        """Say why it runs or does not; with `slot` what became of that occurrence."""
        return answer(await batches.explain(name, slot))


def add_actions(router: APIRouter, running: Running, gate: Gate) -> None:
    """Add what an operator may do with one kind."""
    path, tags = f"/v1/{running.kind.plural}/{{name}}", [running.kind.plural]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]
    told = {
        "activate": (running.activate, "Let it run by its schedule, from the next occurrence on. Twice is harmless."),
        "deactivate": (running.deactivate, "Let it run no more; open executions become `DISABLED`. Twice is harmless."),
        "start": (running.start, "Execute it now; `overlap` decides where an execution is open."),
        "stop": (running.stop, "End its open executions: `STOPPED`; what they have not released stays unreleased."),
    }

    def add(action: str, act: Callable[..., Awaitable[BatchChange]], description: str) -> None:
        async def acted(name: Name, caller: operator) -> Response:
            return answer(await act(name, caller=caller))

        acted.__name__ = f"{action}_batch"
        router.post(f"{path}/{action}", tags=list(tags), description=description, **answers(BatchChange))(acted)

    for action, (act, description) in told.items():
        add(action, act, description)
