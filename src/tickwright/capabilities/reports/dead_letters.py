"""The calls of reports that were given up: shown as far as they can be read, and put back to their listeners.

A call only says sooner what the ledger says, and what is missing is announced again. So dead letters here cost no
report; they tell of a publisher that is no Tickwright, or of a process that died over messages. They are in RabbitMQ;
without one there is no call, and no dead letter.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec
from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from tickwright.engine.outbox.broker_dead_letters import died_at, oldest, requeue
from tickwright.ports.caller import Caller, Role
from tickwright.ports.dead_letters import (
    BODY_CHARS_MAX,
    REQUEUE_MAX,
    DeadMessage,
    DeadMessages,
    DeadMessagesRequest,
    DeadMessagesRequeued,
)
from tickwright.ports.user_data import UserData
from tickwright.rest.dead_letters import add_requeue
from tickwright.rest.gate import Gate
from tickwright.rest.routing import Limit, answer, answers
from tickwright.store.pool import Pool

_REQUEUE = (
    "Put them back to their listeners, the oldest first, at most 1,000 a call; ids among the oldest 10,000.\n\n"
    "A call of a report that is over, or of a part that is there, is dropped when it is read again."
)


class DeadCallView(msgspec.Struct, UserData, kw_only=True):
    """A call that was given up.

    Attributes:
        id: Of the message; none where it has none, and then it is requeued with ``all`` only.
        listener: In whose queue it was.
        report_id: As far as the body can be read.
        reason: Why, as a code: ``delivery_limit``, ``rejected`` or ``expired`` where RabbitMQ moved it by itself.
        body: At most 64 KiB, escaped.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("body",)
    id: str | None
    listener: str | None
    report_id: int | None
    reason: str
    error_message: str
    died_at: datetime | None
    body: str | None
    payload_hidden: bool = False


class DeadCallPage(msgspec.Struct):
    """The oldest dead letters, and how many there are in all."""

    items: list[DeadCallView]
    count: int


STRUCTS: tuple[Any, ...] = (DeadCallPage, DeadCallView, DeadMessagesRequest, DeadMessagesRequeued)


class DeadCalls:
    """What operators do with them; ``calls`` is ``None`` without RabbitMQ."""

    def __init__(self, pool: Pool, calls: DeadMessages | None) -> None:
        self._pool, self._calls = pool, calls

    async def list(self, *, listener: str | None = None, limit: int = 50) -> DeadCallPage:
        """Return the oldest ones; of one listener, among the oldest 1,000.

        Raises:
            Unavailable: RabbitMQ does not answer. Retry.
        """
        if self._calls is None:
            return DeadCallPage([], 0)
        fits = None if listener is None else lambda one: one.listener == listener
        return DeadCallPage(*await oldest(self._calls, _view, fits=fits, limit=limit))

    async def requeue(
        self, *, caller: Caller, ids: Sequence[str] | None, limit: int = REQUEUE_MAX
    ) -> DeadMessagesRequeued:
        """Put them back as :func:`tickwright.engine.outbox.broker_dead_letters.requeue` does, at most 1,000 a call.

        Raises:
            Unavailable: RabbitMQ does not answer, or takes nothing now. Retry; what went back before stays there.
        """
        if self._calls is None:
            return DeadMessagesRequeued(0, [], more=False)
        return await requeue(self._pool, self._calls, "reports", caller=caller, ids=ids, limit=limit)


def dead_call_routes(router: APIRouter, calls: DeadCalls, gate: Gate) -> None:
    """Add the routes."""
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/dead-letters/reports", tags=["dead letters"], dependencies=viewer, **answers(DeadCallPage))
    async def list_dead_calls(
        listener: Annotated[str | None, Query(min_length=1, max_length=50)] = None, limit: Limit = 50
    ) -> Response:
        """List calls of reports that were given up, the oldest first. RabbitMQ keeps them for a week."""
        return answer(await calls.list(listener=listener, limit=limit))

    add_requeue(router, calls, gate, kind="reports", name="requeue_dead_calls", description=_REQUEUE)


def _view(dead: DeadMessage) -> DeadCallView:
    return DeadCallView(
        id=dead.message_id,
        listener=dead.key or None,
        report_id=_report_id(dead.body),
        reason=dead.reason,
        error_message=dead.text,
        died_at=died_at(dead),
        body=dead.body.decode("utf-8", "backslashreplace")[:BODY_CHARS_MAX],
    )


def _report_id(body: bytes) -> int | None:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    number = found.get("report_id") if isinstance(found, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**63 else None
