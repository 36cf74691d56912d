"""The calls of reports that RabbitMQ gave up: what operators see of them, and their REST routes.

A call only says sooner what the ledger says, and what is missing is announced again. So a dead letter here costs no
report; it tells of a publisher that is no Tickwright, or of a process that died over messages.
"""

import json
from datetime import datetime
from typing import Any, ClassVar

import msgspec
from fastapi import APIRouter

from tickwright.engine.outbox.broker_dead_letters import BrokerDeadLetters, DeadLetterKind, common_fields
from tickwright.ports.dead_letters import DeadMessage, DeadMessagesRequest, DeadMessagesRequeued
from tickwright.ports.user_data import UserData
from tickwright.rest.dead_letters import Operation, add_dead_letters
from tickwright.rest.gate import Gate


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
