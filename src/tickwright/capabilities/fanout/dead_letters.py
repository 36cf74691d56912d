"""The dead letters of fan-out: shown as far as they can be read, and put back into the queue.

They are in RabbitMQ and not in the database, so their ids are those of messages, and they come oldest first. A message
that nobody could read is shown with its characters escaped.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from msgspec import Meta

from tickwright.capabilities.fanout.party import masked
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role
from tickwright.ports.fanout import DeadTask, DeadTasks
from tickwright.ports.gate import Gate
from tickwright.ports.rest import Limit, answer, answers, takes
from tickwright.ports.user_data import UserData
from tickwright.store.audit import update_audit, write_audit
from tickwright.store.pool import Pool

BODY_CHARS_MAX = 65_536
NAME_CHARS_MAX = 100
LOOK_AT_MAX = 1000
REQUEUE_MAX = 1000
YEAR_9999_S = 253_370_764_800

MessageId = Annotated[str, Meta(min_length=1, max_length=255)]


class DeadTaskView(msgspec.Struct, UserData, kw_only=True):
    """A task that was given up.

    Attributes:
        id: Of the message; none where it has none, and then it is requeued with ``all`` only.
        entity_code: As far as the body can be read, as ``task_type``.
        reason: Why, as a code: ``delivery_limit``, ``rejected`` or ``expired`` where RabbitMQ moved it by itself.
        body: At most 64 KiB, escaped; what looks like a secret is ``***``.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("body",)
    id: str | None
    entity_code: str | None
    task_type: str | None
    reason: str
    error_message: str
    died_at: datetime | None
    body: str | None
    payload_hidden: bool = False


class DeadTaskPage(msgspec.Struct):
    """The oldest dead letters, and how many there are in all."""

    items: list[DeadTaskView]
    count: int


class DeadTaskRequeueRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters go back: by the ids of their messages, or ``all``, the oldest first."""

    ids: Annotated[list[MessageId], Meta(min_length=1, max_length=REQUEUE_MAX)] | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=REQUEUE_MAX)] = REQUEUE_MAX


class DeadTasksRequeued(msgspec.Struct):
    """What went back into the queue; ``more`` when the limit may have left some over."""

    requeued: int
    ids: list[str]
    more: bool


STRUCTS: tuple[Any, ...] = (DeadTaskPage, DeadTaskRequeueRequest, DeadTasksRequeued, DeadTaskView)


class DeadLetters:
    """What operators do with them, wherever the queue is."""

    def __init__(self, pool: Pool, tasks: DeadTasks) -> None:
        self._pool, self._tasks = pool, tasks

    async def list(self, *, task_type: str | None = None, limit: int = 50) -> DeadTaskPage:
        """Return the oldest ones; of one task type, among the oldest 1,000.

        Raises:
            Unavailable: The queue does not answer. Retry.
        """
        found = await self._tasks.peek(limit if task_type is None else LOOK_AT_MAX)
        views = [_view(one) for one in found]
        fitting = [one for one in views if task_type is None or one.task_type == task_type]
        return DeadTaskPage(fitting[:limit], await self._tasks.count())

    async def requeue(
        self, *, caller: Caller, ids: Sequence[str] | None, limit: int = REQUEUE_MAX
    ) -> DeadTasksRequeued:
        """Put them back, those of ``ids`` or all, the oldest first, at most 1,000 a call.

        The line of the audit trail is written before: nothing goes back that nobody has asked for. Ids that are no
        dead letters (any more) are left out of the answer.

        Raises:
            Unavailable: The queue does not answer, or takes nothing now. Retry; what went back before stays there.
        """
        asked = {"kind": "fanout", "ids": ids, "limit": limit}
        async with self._pool.acquire() as connection:
            line = await write_audit(connection, caller, "dead_letters.requeue", "fanout", before=asked)
        done = await self._tasks.requeue(limit, message_ids=ids)
        async with self._pool.acquire() as connection:
            await update_audit(connection, line, {"ids": done})
        return DeadTasksRequeued(len(done), done, len(done) == limit)


def add_dead_letters(router: APIRouter, service: DeadLetters, gate: Gate) -> None:
    """Add the routes."""
    viewer = [Depends(gate.allow(Role.VIEWER))]
    operator = Annotated[Caller, Depends(gate.allow(Role.OPERATOR))]

    @router.get("/v1/dead-letters/fanout", tags=["dead letters"], dependencies=viewer, **answers(DeadTaskPage))
    async def list_dead_tasks(
        task_type: Annotated[str | None, Query(min_length=1, max_length=50)] = None, limit: Limit = 50
    ) -> Response:
        """List tasks of fan-out that were given up, the oldest first. They stay in RabbitMQ until they are requeued."""
        return answer(await service.list(task_type=task_type, limit=limit))

    @router.post(
        "/v1/dead-letters/fanout/requeue",
        tags=["dead letters"],
        **answers(DeadTasksRequeued),
        **takes(DeadTaskRequeueRequest),
    )
    async def requeue_dead_tasks(request: Request, caller: operator) -> Response:
        """Put them back into the queue, the oldest first, at most 1,000 a call. Ids are sought among the oldest 10,000.

        A task whose window is over is dropped when it is read again.
        """
        body = await gate.read(request, DeadTaskRequeueRequest)
        if (body.ids is None) is not body.all:
            raise Rejected("empty_filter", "give either the ids, or all")
        return answer(await service.requeue(caller=caller, ids=body.ids, limit=body.limit))


def _view(dead: DeadTask) -> DeadTaskView:
    text = dead.body.decode("utf-8", "backslashreplace")
    found: Any = None
    try:
        found = json.loads(text, parse_int=float)  # int refuses thousands of digits, and no number is shown
    except RecursionError:
        text = masked(text)
    except ValueError:
        found = None
    else:
        text = masked(text)
    named = found if isinstance(found, dict) else {}
    since = dead.died_at_s
    return DeadTaskView(
        id=dead.message_id,
        entity_code=_name(named.get("EntityCode")),
        task_type=_name(named.get("TaskType")),
        reason=dead.reason,
        error_message=dead.text,
        died_at=datetime.fromtimestamp(since, UTC) if since is not None and 0 <= since < YEAR_9999_S else None,
        body=text[:BODY_CHARS_MAX],
    )


def _name(value: Any) -> str | None:
    return value[:NAME_CHARS_MAX] if isinstance(value, str) else None
