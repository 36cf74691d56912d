"""The dead letters of fan-out: shown as far as they can be read, and put back into the queue.

They are in RabbitMQ and not in the database, so their ids are those of messages, and they come oldest first. A message
that nobody could read is shown with its characters escaped.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec
from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from tickwright.capabilities.fanout.entities.party import masked
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

NAME_CHARS_MAX = 100
_REQUEUE = (
    "Put them back into the queue, the oldest first, at most 1,000 a call. Ids are sought among the oldest 10,000.\n\n"
    "A task whose window is over is dropped when it is read again."
)


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


STRUCTS: tuple[Any, ...] = (DeadTaskPage, DeadTaskView, DeadMessagesRequest, DeadMessagesRequeued)


class DeadLetters:
    """What operators do with them, wherever the queue is."""

    def __init__(self, pool: Pool, tasks: DeadMessages) -> None:
        self._pool, self._tasks = pool, tasks

    async def list(self, *, task_type: str | None = None, limit: int = 50) -> DeadTaskPage:
        """Return the oldest ones; of one task type, among the oldest 1,000.

        Raises:
            Unavailable: The queue does not answer. Retry.
        """
        fits = None if task_type is None else lambda one: one.task_type == task_type
        return DeadTaskPage(*await oldest(self._tasks, _view, fits=fits, limit=limit))

    async def requeue(
        self, *, caller: Caller, ids: Sequence[str] | None, limit: int = REQUEUE_MAX
    ) -> DeadMessagesRequeued:
        """Put them back as :func:`tickwright.engine.outbox.broker_dead_letters.requeue` does, at most 1,000 a call.

        Raises:
            Unavailable: The queue does not answer, or takes nothing now. Retry; what went back before stays there.
        """
        return await requeue(self._pool, self._tasks, "fanout", caller=caller, ids=ids, limit=limit)


def add_dead_letters(router: APIRouter, service: DeadLetters, gate: Gate) -> None:
    """Add the routes."""
    viewer = [Depends(gate.allow(Role.VIEWER))]

    @router.get("/v1/dead-letters/fanout", tags=["dead letters"], dependencies=viewer, **answers(DeadTaskPage))
    async def list_dead_tasks(
        task_type: Annotated[str | None, Query(min_length=1, max_length=50)] = None, limit: Limit = 50
    ) -> Response:
        """List tasks of fan-out that were given up, the oldest first. They stay in RabbitMQ until they are requeued."""
        return answer(await service.list(task_type=task_type, limit=limit))

    add_requeue(router, service, gate, kind="fanout", name="requeue_dead_tasks", description=_REQUEUE)


def _view(dead: DeadMessage) -> DeadTaskView:
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
    return DeadTaskView(
        id=dead.message_id,
        entity_code=_name(named.get("EntityCode")),
        task_type=_name(named.get("TaskType")),
        reason=dead.reason,
        error_message=dead.text,
        died_at=died_at(dead),
        body=text[:BODY_CHARS_MAX],
    )


def _name(value: Any) -> str | None:
    return value[:NAME_CHARS_MAX] if isinstance(value, str) else None
