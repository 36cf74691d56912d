"""REST routes of dead letters in a broker: one pair of routes per kind."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from tickwright.ports.caller import Caller, Role
from tickwright.ports.task_queue import DeadMessagesRequest, DeadMessagesRequeued
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Limit, accepts, answer, answers


class DeadLetters(Protocol):
    """Lists and requeues dead letters of one kind; see ``engine.outbox.broker_dead_letters``."""

    async def list(self, wanted: str | None, *, limit: int) -> Any:
        """Return a page of the oldest ones, or of those that match ``wanted``."""

    async def requeue(self, *, caller: Caller, ids: Sequence[str] | None, limit: int) -> DeadMessagesRequeued:
        """Put those of ``ids``, or the oldest, back into their queue."""


class Operation(NamedTuple):
    """Name and description of a route in the OpenAPI document; generated clients use the name."""

    name: str
    description: str


def add_dead_letters(
    router: APIRouter, letters: DeadLetters, gate: Gate, *, kind: str, page: Any, filter_by: str,
    listing: Operation, requeuing: Operation,
) -> None:  # fmt: skip
    """Add ``/v1/dead-letters/{kind}``, filtered by the parameter ``filter_by``, and its ``/requeue``."""
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]
    tags: Any = ["dead letters"]

    @router.get(
        f"/v1/dead-letters/{kind}",
        **listing._asdict(),
        tags=tags,
        dependencies=[Depends(gate.allow(Role.VIEWER))],
        **answers(page),
    )
    async def list_oldest(
        wanted: Annotated[str | None, Query(alias=filter_by, min_length=1, max_length=50)] = None, limit: Limit = 50
    ) -> Response:
        return answer(await letters.list(wanted, limit=limit))

    @router.post(
        f"/v1/dead-letters/{kind}/requeue",
        **requeuing._asdict(),
        tags=tags,
        **answers(DeadMessagesRequeued),
        **accepts(DeadMessagesRequest),
    )
    async def requeue(request: Request, caller: operator) -> Response:
        body = await gate.read(request, DeadMessagesRequest)
        body.check()
        return answer(await letters.requeue(caller=caller, ids=body.ids, limit=body.limit))
