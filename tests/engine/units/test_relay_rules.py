"""Whether an outcome concerns its destination or only its message."""

from datetime import timedelta

import pytest

from tickwright.engine.outbox.relay_rules import refuses_message
from tickwright.ports.broker import Accepted, Outcome, Refused, Unknown


@pytest.mark.parametrize(
    ("outcome", "is_of_the_message"),
    [
        *((Refused(f"http_{status}", "no", status=status), True) for status in (400, 404, 409, 410, 413, 422, 499)),
        *((Refused(f"http_{status}", "no", status=status), False) for status in (401, 403, 407, 408, 425, 429)),
        *((Refused(f"http_{status}", "no", status=status), False) for status in (307, 500, 503)),
        *((Refused(code, "no"), True) for code in ("message_too_large", "record_refused", "precondition_failed")),
        *((Refused(code, "no"), False) for code in ("topic_missing", "unroutable", "broker_nack", "broker_busy")),
        (Refused("gateway_refused", "no"), True),
        (Refused("gateway_refused", "later", retry_after=timedelta(seconds=1)), False),
        (Refused("http_422", "later", status=422, retry_after=timedelta()), False),
        (Unknown("timeout", "silence"), False),
        (Accepted(), False),
    ],
)
def test_a_refusal_is_of_the_message_or_of_the_destination(outcome: Outcome, is_of_the_message: bool) -> None:
    """A destination that is unavailable, overloaded, forbids or asks to wait refuses all messages; others one."""
    assert refuses_message(outcome) is is_of_the_message
