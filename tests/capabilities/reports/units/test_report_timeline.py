"""The parts of a report over time: how long each waited and ran, and which part its stage waited for."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tickwright.capabilities.reports.requests.explain import timeline

NOW = datetime(2030, 5, 17, 13, 7, tzinfo=UTC)


def at(second: float | None) -> datetime | None:
    """Return the instant this many seconds ago."""
    return None if second is None else NOW - timedelta(seconds=second)


def part(
    listener: str, state: str, asked: float | None, began: float | None, done: float | None, *, stage: int = 1
) -> Any:
    """Return a row of ``get_parts``; instants are in seconds ago."""
    return {
        "listener": listener, "stage": stage, "kind": "function", "required": True, "state": state, "rows": 1,
        "bytes": 2, "attempts": 1, "error": None, "asked_at": at(asked), "began_at": at(began), "done_at": at(done),
        "worker": None, "now": NOW,
    }  # fmt: skip


def test_a_part_waited_until_it_began_and_took_until_it_was_done() -> None:
    """A running part takes until now; a due part waits until now; one of a later stage does neither."""
    parts = [
        part("done", "done", 60, 50, 20),
        part("running", "running", 60, 45, None),
        part("due", "due", 60, None, None),
        part("waiting", "waiting", None, None, None, stage=2),
        part("dropped", "dropped", 60, None, None),
    ]
    assert [(one.listener, one.waited_s, one.took_s) for one in timeline(parts)] == [
        ("done", 10.0, 30.0), ("running", 15.0, 45.0), ("due", 60.0, None), ("waiting", None, None),
        ("dropped", None, None),
    ]  # fmt: skip


def test_the_last_part_of_each_stage_is_marked_and_no_other() -> None:
    """Not the part that took longest, but the one that its stage waited for or still waits for."""
    parts = [
        part("long", "done", 100, 100, 50),
        part("late", "done", 100, 45, 40),
        part("second", "done", 40, 30, 20, stage=2),
        part("other", "failed", 40, 40, 35, stage=2),
        part("open", "running", 20, 19, None, stage=3),
        part("over", "done", 20, 20, 1, stage=3),
        part("waits", "waiting", None, None, None, stage=4),
    ]
    assert [one.listener for one in timeline(parts) if one.slowest] == ["late", "second", "open"]


def test_of_two_that_end_together_one_is_marked() -> None:
    """A stage has one slowest part."""
    parts = [part("a", "due", 9, None, None), part("b", "running", 9, 5, None)]
    assert [one.slowest for one in timeline(parts)] == [True, False]
