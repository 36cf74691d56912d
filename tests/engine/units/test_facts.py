"""Facts that a process reports: a value that fails is left out, logged once, and ends nothing."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from tickwright.domain.errors import Rejected
from tickwright.engine.facts import Facts
from tickwright.engine.session import WorkerSession
from tickwright.plugin import Context, Registrations


def broken() -> Any:
    """Raise, as a bug of a plugin does."""
    raise KeyError("greetings")


@pytest.mark.parametrize("value", [broken, {1, 2}, float("nan"), "\0", "\ud800", "x" * 32_000])
def test_a_value_that_fails_or_cannot_be_stored_is_left_out(value: Any) -> None:
    """The others stay; the log names it once, not at every heartbeat."""
    facts = Facts("session.counter_failed", bytes_max=32_000)
    with capture_logs() as logs:
        for _ in range(3):
            assert facts.read({"good": lambda: 1, "bad": value, "small": [2]}) == {"good": 1, "small": [2]}
    assert [(entry["event"], entry["part"]) for entry in logs] == [("session.counter_failed", "bad")]


def test_a_session_survives_a_fact_that_fails() -> None:
    """Its renewal carries the other facts."""
    session = WorkerSession(None, name="x", roles=(), version="0")
    session.facts |= {"bad": broken, "count": 7}
    assert '"count": 7' in session._facts_json()


def test_counters_of_a_taken_name_are_refused() -> None:
    """The second would replace the first, and rates would mix both."""
    context = Context(None, None, None, Registrations(), dict)  # type: ignore[arg-type]
    context.add_counters(calls=lambda: 1)
    with pytest.raises(Rejected, match="there are counters named 'calls' already"):
        context.add_counters(calls=lambda: 2)
