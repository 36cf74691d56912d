"""Putting dead letters of a broker back by REST: one route for every kind of them."""

from collections.abc import Sequence
from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from tickwright.ports.caller import Caller, Role
from tickwright.ports.dead_letters import DeadMessagesRequest, DeadMessagesRequeued
from tickwright.rest.gate import Gate
from tickwright.rest.routing import answer, answers, takes


class Requeuing(Protocol):
    """Who keeps dead letters of one kind."""

    async def requeue(self, *, caller: Caller, ids: Sequence[str] | None, limit: int) -> DeadMessagesRequeued:
        """Put back those of ``ids``, or the oldest."""
        ...


def add_requeue(router: APIRouter, letters: Requeuing, gate: Gate, *, kind: str, name: str, description: str) -> None:
    """Add the route for a kind, named as in the path of its list.

    ``name`` is the operation's, which programs made from the OpenAPI document know; ``description`` says in it what
    becomes of the messages.
    """
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.post(
        f"/v1/dead-letters/{kind}/requeue",
        name=name,
        description=description,
        tags=["dead letters"],
        **answers(DeadMessagesRequeued),
        **takes(DeadMessagesRequest),
    )
    async def requeue(request: Request, caller: operator) -> Response:
        body = await gate.read(request, DeadMessagesRequest)
        body.check()
        return answer(await letters.requeue(caller=caller, ids=body.ids, limit=body.limit))
