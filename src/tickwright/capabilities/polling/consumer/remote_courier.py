"""Couriers in other languages: a partner with the target ``remote:POOL`` is polled by remote workers.

::

    [partners.acme]
    target = "remote:couriers"
    rate = "50/s"

The poll, its permit, its retries and the limits of the partner stay with the consumer: only the call is made elsewhere.
"""

import json
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tickwright.capabilities.polling.consumer.courier import Answer, Poll, Result, ScanEvent
from tickwright.domain.errors import Rejected
from tickwright.engine.remote.calls import CallEnd, CallRequest, RemoteCalls
from tickwright.observe.logs import without_secrets
from tickwright.partners.outcomes import Failed, Throttled, returned

KIND: Final = "poll"


class _Event(msgspec.Struct, forbid_unknown_fields=True):
    at: datetime
    text: str


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """The result of a poll, as a remote worker returns it."""

    status: str | None
    at: datetime | None = None
    events: list[_Event] = []
    terminal: bool = False


class RemoteCourier:
    """Hands the polls of one partner over to the remote workers of a pool.

    Attributes:
        own_timeout: It ends in time by itself: a poll's timeout begins when a worker claims it.
    """

    own_timeout = True

    def __init__(self, calls: RemoteCalls, pool: str, name: str) -> None:
        self._calls, self._pool, self._name = calls, pool, name

    async def __call__(self, poll: Poll) -> Result:
        """Return what a remote worker answers; never raises for a failed call."""
        payload = {
            "poll_id": poll.id,
            "tracker_id": poll.tracker_id,
            "external_id": poll.external_id,
            "account_id": poll.account_id,
            "partner": poll.partner,
            "due_at": poll.due_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        }
        call = CallRequest(KIND, self._pool, self._name, json.dumps(payload), poll.timeout)
        return result_of(await self._calls.call(call))


def result_of(end: CallEnd) -> Result:
    """Return the result of a poll that a remote worker has made. Pure."""
    match end.outcome:
        case "complete":
            return _answer_of(end.result)
        case "throttled":
            return _returned(Throttled(end.wait))
        case "fail":
            return _returned(Failed(f"{end.code}: {end.message}"))
        case "timeout":
            return Failed("timeout")
        case _:  # snoozed, or no worker has answered
            return end.postponed


def _answer_of(value: Any) -> Answer | Failed:
    try:
        read = msgspec.convert(value, _Answer)
        events = tuple(ScanEvent(_aware(event.at), event.text) for event in read.events)
        return Answer(read.status, None if read.at is None else _aware(read.at), events, terminal=read.terminal)
    except (msgspec.ValidationError, Rejected) as error:
        why = error.message if isinstance(error, Rejected) else str(error)
        return Failed(f"invalid_answer: {why}"[:500])


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _returned(result: Throttled | Failed) -> Result:
    """Return the result within the bounds that hold for a function's."""
    outcome = returned(result, without_secrets)
    return outcome if isinstance(outcome, Throttled | Failed) else Failed("no reason")
