"""The calls of reports that were given up: shown as far as they can be read, and put back to their listeners.

A call only says sooner what the ledger says, and what is missing is announced again. So dead letters here cost no
report; they tell of a publisher that is no Tickwright, or of a process that died over messages. They are in RabbitMQ;
without one there is no call, and no dead letter.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from msgspec import Meta

from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role
from tickwright.ports.fanout import DeadTask, DeadTasks
from tickwright.ports.gate import Gate
from tickwright.ports.rest import Limit, answer, answers, takes
from tickwright.ports.user_data import UserData
from tickwright.store.audit import update_audit, write_audit
from tickwright.store.pool import Pool

BODY_CHARS_MAX = 65_536
LOOK_AT_MAX = 1000
REQUEUE_MAX = 1000
YEAR_9999_S = 253_370_764_800

MessageId = Annotated[str, Meta(min_length=1, max_length=255)]


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


class DeadCallRequeueRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters go back: by the ids of their messages, or ``all``, the oldest first."""

    ids: Annotated[list[MessageId], Meta(min_length=1, max_length=REQUEUE_MAX)] | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=REQUEUE_MAX)] = REQUEUE_MAX


class DeadCallsRequeued(msgspec.Struct):
    """What went back to its listener's queue; ``more`` when the limit may have left some over."""

    requeued: int
    ids: list[str]
    more: bool


STRUCTS: tuple[Any, ...] = (DeadCallPage, DeadCallRequeueRequest, DeadCallView, DeadCallsRequeued)


class DeadCalls:
    """What operators do with them; ``calls`` is ``None`` without RabbitMQ."""

    def __init__(self, pool: Pool, calls: DeadTasks | None) -> None:
        self._pool, self._calls = pool, calls

    async def list(self, *, listener: str | None = None, limit: int = 50) -> DeadCallPage:
        """Return the oldest ones; of one listener, among the oldest 1,000.

        Raises:
            Unavailable: RabbitMQ does not answer. Retry.
        """
        if self._calls is None:
            return DeadCallPage([], 0)
        views = [_view(one) for one in await self._calls.peek(limit if listener is None else LOOK_AT_MAX)]
        fitting = [one for one in views if listener is None or one.listener == listener]
        return DeadCallPage(fitting[:limit], await self._calls.count())

    async def requeue(
        self, *, caller: Caller, ids: Sequence[str] | None, limit: int = REQUEUE_MAX
    ) -> DeadCallsRequeued:
        """Put them back, those of ``ids`` or all, the oldest first, at most 1,000 a call.

        The line of the audit trail is written before: nothing goes back that nobody has asked for. Ids that are no
        dead letters (any more) are left out of the answer.

        Raises:
            Unavailable: RabbitMQ does not answer, or takes nothing now. Retry; what went back before stays there.
        """
        if self._calls is None:
            return DeadCallsRequeued(0, [], more=False)
        asked = {"kind": "reports", "ids": ids, "limit": limit}
        async with self._pool.acquire() as connection:
            line = await write_audit(connection, caller, "dead_letters.requeue", "reports", before=asked)
        done = await self._calls.requeue(limit, message_ids=ids)
        async with self._pool.acquire() as connection:
            await update_audit(connection, line, {"ids": done})
        return DeadCallsRequeued(len(done), done, len(done) == limit)


def dead_call_routes(router: APIRouter, calls: DeadCalls, gate: Gate) -> None:
    """Add the routes."""
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/dead-letters/reports", tags=["dead letters"], dependencies=viewer, **answers(DeadCallPage))
    async def list_dead_calls(
        listener: Annotated[str | None, Query(min_length=1, max_length=50)] = None, limit: Limit = 50
    ) -> Response:
        """List calls of reports that were given up, the oldest first. RabbitMQ keeps them for a week."""
        return answer(await calls.list(listener=listener, limit=limit))

    @router.post(
        "/v1/dead-letters/reports/requeue",
        tags=["dead letters"],
        **answers(DeadCallsRequeued),
        **takes(DeadCallRequeueRequest),
    )
    async def requeue_dead_calls(request: Request, caller: operator) -> Response:
        """Put them back to their listeners, the oldest first, at most 1,000 a call; ids among the oldest 10,000.

        A call of a report that is over, or of a part that is there, is dropped when it is read again.
        """
        body = await gate.read(request, DeadCallRequeueRequest)
        if (body.ids is None) is not body.all:
            raise Rejected("empty_filter", "give either the ids, or all")
        return answer(await calls.requeue(caller=caller, ids=body.ids, limit=body.limit))


def _view(dead: DeadTask) -> DeadCallView:
    since = dead.died_at_s
    return DeadCallView(
        id=dead.message_id,
        listener=dead.key or None,
        report_id=_report_id(dead.body),
        reason=dead.reason,
        error_message=dead.text,
        died_at=datetime.fromtimestamp(since, UTC) if since is not None and 0 <= since < YEAR_9999_S else None,
        body=dead.body.decode("utf-8", "backslashreplace")[:BODY_CHARS_MAX],
    )


def _report_id(body: bytes) -> int | None:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    number = found.get("report_id") if isinstance(found, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**63 else None
