"""The line about fan-out: its counts, and the results of the last minute."""

from collections import Counter
from typing import Any

from tickwright.capabilities.fanout.consumer.consumer import ConsumerReporter, LastMinute
from tickwright.capabilities.fanout.overview import FanoutNow, line_of


def test_the_line_names_what_is_known_and_leaves_out_what_is_not() -> None:
    """A queue that was not counted is not shown as empty; zero dead letters are left out."""
    known = FanoutNow(12, 2, 3, 7, 1, 40, 2, 1, 0)
    assert line_of(known) == (
        "entities 12 in 2 modules · consumers 3 · queued 7 · dead letters 1 · "
        "last minute: succeeded 40, failed 2, superseded 1, expired 0"
    )
    unknown = line_of(FanoutNow(10_000, 2, 0, None, None, 0, 0, 0, 0))
    assert unknown.startswith("entities ≥10000 in 2 modules · consumers 0 · last minute")
    assert "dead letters" not in line_of(FanoutNow(1, 1, 1, 0, 0, 0, 0, 0, 0))


def test_a_minute_counts_what_was_added_within_it() -> None:
    """What is older does not count; tasks that were given up in their window failed as well."""
    minute, counts = LastMinute(), Counter(succeeded=100)
    assert minute.since(counts, 0.0)["succeeded"] == 0
    counts.update(succeeded=5, failed=1, given_up=1)
    assert minute.since(counts, 30.0) == {"succeeded": 5, "failed": 2, "superseded": 0, "expired": 0}
    counts.update(expired=2)
    assert minute.since(counts, 60.0) == {"succeeded": 5, "failed": 2, "superseded": 0, "expired": 2}
    assert minute.since(counts, 89.0) == {"succeeded": 0, "failed": 0, "superseded": 0, "expired": 2}
    assert not any(minute.since(counts, 200.0).values())


def test_a_count_that_fails_keeps_the_last_figures() -> None:
    """The number of dead letters stays while RabbitMQ is unavailable."""

    class Side:
        """A consumer and its queue."""

        def __init__(self) -> None:
            self.counts: Counter[str] = Counter()
            self.queued: list[int] | None = None

    side = Side()
    facts: dict[str, Any] = {"modules": ["A"]}
    reporter = ConsumerReporter(side.counts, side, facts)
    reporter.report()
    assert "fanout_dead_letters" not in facts
    side.queued = [5, 2]
    reporter.report()
    side.queued = None
    reporter.report()
    assert (facts["fanout_queued"], facts["fanout_dead_letters"], facts["modules"]) == (5, 2, ["A"])
    side.queued = [0, 0]
    reporter.report()
    assert (facts["fanout_queued"], facts["fanout_dead_letters"]) == (0, 0)
