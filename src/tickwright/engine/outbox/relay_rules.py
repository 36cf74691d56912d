"""Pure decisions of the relay: the order within a batch, and what an outcome means for a row."""

import json
from collections.abc import Sequence
from datetime import timedelta

from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.retries import RECEIVER_STATUSES, RetryPolicy, within_an_hour
from tickwright.engine.outbox.table import OutboxRow, Verdicts
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown

ATTEMPTS_MAX = 20
ERROR_CHARS_MAX = 2000
SCHEME_CHARS_MAX = 40
OF_THE_MESSAGE = frozenset(
    {"message_too_large", "record_refused", "too_large", "precondition_failed", "gateway_refused"}
)
"""Codes with which a working broker refuses this message."""
DELIVER = "tickwright-deliver"
"""The header of a row whose payload is an envelope: what its destination gets, ``plain`` or ``cipher``. Not sent."""
_OF_KEYS = frozenset({"payload_key_missing", "payload_unreadable"})
_UNREADABLE = Refused(
    "invalid_header", "A number in the headers is too long, or they are nested too deeply.", final=True
)


def waves(rows: Sequence[OutboxRow]) -> list[list[OutboxRow]]:
    """Split a batch so that no wave has two rows of one (destination, key), and rows of a key go in order of id.

    Rows without a key have no order and are all in the first wave.
    """
    found: list[list[OutboxRow]] = []
    depth: dict[tuple[str, str], int] = {}
    for row in sorted(rows, key=lambda row: row.id):
        level = 0
        if row.key is not None:
            level = depth.get((row.destination, row.key), 0)
            depth[row.destination, row.key] = level + 1
        if level == len(found):
            found.append([])
        found[level].append(row)
    return found


def scheme_of(destination: str) -> str:
    """Return the part before the first colon."""
    return destination.partition(":")[0]


def unknown_scheme(destination: str) -> str:
    """Return the reason why a row of this destination waits; alerts search for its first word."""
    return f"unknown_scheme: no relay here carries {scheme_of(destination)[:SCHEME_CHARS_MAX]!r}"


def message_of(row: OutboxRow, timeout: timedelta, keys: PayloadKeys = NO_KEYS) -> Message | Outcome:
    """Return a row's message, with the same id and bytes on every attempt, or why it cannot be sent."""
    try:
        headers = {name.lower(): _text(value) for name, value in json.loads(row.headers).items()}
    except (ValueError, RecursionError):  # too many digits, or nested too deeply
        return _UNREADABLE
    content_type = headers.pop("content-type", "application/json")
    body = row.payload
    if headers.pop(DELIVER, None) == "plain":
        try:
            body = keys.open(body, Purpose.MESSAGE, row.destination)
        except Unavailable as error:
            return Unknown(error.code, error.message)
        except Rejected as error:
            return Refused(error.code, error.message, final=True)
    return Message(
        id=f"out_{row.id}",
        destination=row.destination,
        body=body.encode(),
        key=row.key,
        headers=headers,
        content_type=content_type,
        timeout=timeout,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def refuses_message(outcome: Outcome) -> bool:
    """Return whether the destination works and refuses only this message; not when it requests a wait."""
    if not isinstance(outcome, Refused) or outcome.retry_after is not None:
        return False
    if outcome.status is None:
        return outcome.code in OF_THE_MESSAGE
    return 400 <= outcome.status < 500 and outcome.status not in RECEIVER_STATUSES


def decide_outcome(row: OutboxRow, outcome: Outcome, policy: RetryPolicy, unit: float, into: Verdicts) -> bool:
    """Add what ``outcome`` means for ``row`` to ``into``; return whether the row is settled.

    ``row`` does not count this attempt yet; ``unit`` is a random number in ``[0, 1)``.
    """
    if isinstance(outcome, Accepted):
        into.sent.append(row.id)
        return True
    withheld = DELIVER in row.headers and outcome.code not in _OF_KEYS  # a receiver's text may quote the message
    error = outcome.code if withheld else f"{outcome.code}: {outcome.reason}"
    error = error.replace("\x00", " ")[:ERROR_CHARS_MAX]
    error = error.encode("utf-8", "backslashreplace").decode()
    attempt = row.attempts + 1
    is_last = attempt >= ATTEMPTS_MAX and outcome.code != "payload_key_missing"
    if is_last or (isinstance(outcome, Refused) and outcome.final):
        into.dead.append(row.id)
        into.dead_errors.append(error)
        return True
    wish = within_an_hour(outcome.retry_after) if isinstance(outcome, Refused) else None
    into.retried.append(row.id)
    into.tries.append(row.attempts)
    into.waits_s.append(policy.delay(attempt, unit, wish).total_seconds())
    into.retry_errors.append(error)
    return False
