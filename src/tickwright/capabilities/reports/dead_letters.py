"""Dead letters of report calls in RabbitMQ: their views and REST routes.

A call only announces what the ledger already has, and missing parts are announced again, so a dead letter costs no
report. It points to a publisher that is not Tickwright, or to a process that died on messages.
"""

import json
from datetime import datetime
from typing import Any, ClassVar

import msgspec
from fastapi import APIRouter

from tickwright.engine.outbox.broker_dead_letters import BrokerDeadLetters, DeadLetterKind, common_fields
from tickwright.ports.task_queue import DeadMessage, DeadMessagesRequest, DeadMessagesRequeued
from tickwright.ports.views import UserData
from tickwright.rest.dead_letters import Operation, add_dead_letters
from tickwright.rest.gate import Gate


class DeadCallView(msgspec.Struct, UserData, kw_only=True):
    """A dead-lettered call.

    Attributes:
        id: Of the message; ``null`` if it has none, and then only ``all`` requeues it.
        listener: The listener whose queue it was in.
        report_id: ``null`` if the body cannot be read.
        reason: A code; ``delivery_limit``, ``rejected`` or ``expired`` if RabbitMQ dead-lettered it.
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
    """The oldest dead letters, and the number of all."""

    items: list[DeadCallView]
    count: int


STRUCTS: tuple[Any, ...] = (DeadCallPage, DeadCallView, DeadMessagesRequest, DeadMessagesRequeued)


def _view(dead: DeadMessage) -> DeadCallView:
    return DeadCallView(**common_fields(dead), listener=dead.key or None, report_id=_report_id(dead.body))


def _report_id(body: bytes) -> int | None:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    number = found.get("report_id") if isinstance(found, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**63 else None


DEAD_CALLS = DeadLetterKind("reports", "listener", _view, DeadCallPage)
DeadCalls = BrokerDeadLetters[DeadCallView, DeadCallPage]


def add_dead_calls(router: APIRouter, calls: DeadCalls, gate: Gate) -> None:
    """Add the routes."""
    add_dead_letters(
        router,
        calls,
        gate,
        kind=DEAD_CALLS.name,
        page=DeadCallPage,
        filter_by=DEAD_CALLS.filter,
        listing=Operation(
            "list_dead_calls",
            "List calls of reports that were given up, the oldest first. RabbitMQ keeps them for a week.",
        ),
        requeuing=Operation(
            "requeue_dead_calls",
            "Put them back to their listeners, the oldest first, at most 1,000 a call; ids among the oldest 10,000."
            "\n\nA call of a report that is over, or of a part that is there, is dropped when it is read again.",
        ),
    )
