"""Slow entities and the slots that they hold: the rule, without a consumer."""

from contextlib import suppress

import pytest

from tickwright.capabilities.fanout.consumer.task_run import (
    QUICK_RUNS,
    SLOW_MAX,
    SLOW_PART,
    SlowShare,
    timed_out_lately,
)

TIMEOUT_S = 10.0


def ran(share: SlowShare, code: str, lasted_s: float) -> None:
    """Run an entity once."""
    with share.slot(code, "M") as use:
        assert use.try_take()
        use.ran(lasted_s, TIMEOUT_S)


@pytest.mark.parametrize(
    ("slots", "percent", "most"), [(8, 25, 2), (1, 25, 1), (3, 25, 1), (100, 1, 1), (8, 100, 8), (7, 50, 3)]
)
def test_the_share_is_a_part_of_the_slots_and_at_least_one(slots: int, percent: int, most: int) -> None:
    """Rounded down, so that other slots are left where there are two."""
    assert SlowShare(slots, percent).most == most


def test_an_entity_is_slow_by_its_last_runs_and_for_its_module_only() -> None:
    """Half of the timeout makes it slow; a few quick runs in a row end it."""
    share = SlowShare(8, 25)
    ran(share, "A", SLOW_PART * TIMEOUT_S)
    assert share.entities == [("A", "M")]
    assert not share.is_slow(("A", "OTHER"))
    for _ in range(QUICK_RUNS):
        assert share.is_slow(("A", "M"))
        ran(share, "A", SLOW_PART * TIMEOUT_S - 0.1)
    assert share.entities == []


@pytest.mark.parametrize("every", [1, 2, 3, QUICK_RUNS])
def test_an_entity_that_hangs_now_and_then_stays_slow(every: int) -> None:
    """Otherwise each hang would take a slot of the healthy ones."""
    share = SlowShare(8, 25)
    for number in range(4 * QUICK_RUNS):
        assert number == 0 or share.is_slow(("A", "M"))
        ran(share, "A", TIMEOUT_S if number % every == 0 else 0.0)


def test_an_entity_is_slow_for_as_long_as_the_ledger_marks_it() -> None:
    """The ledger marks it with each claim, and does not shorten what this process observed."""
    share = SlowShare(8, 25)
    share.mark_timed_out(("A", "M"))
    assert share.is_slow(("A", "M"))
    ran(share, "A", 0.0)
    assert not share.is_slow(("A", "M"))
    ran(share, "A", TIMEOUT_S)
    share.mark_timed_out(("A", "M"))
    ran(share, "A", 0.0)
    assert share.is_slow(("A", "M"))


@pytest.mark.parametrize(
    ("since_s", "lately"),
    [(None, False), (0.0, True), (60.0 * QUICK_RUNS - 1, True), (60.0 * QUICK_RUNS, False), (-1.0, False)],
)
def test_a_time_out_is_remembered_for_as_many_windows(since_s: float | None, lately: bool) -> None:
    """A time-out in the future, written by a jumped clock, does not count."""
    assert timed_out_lately(since_s, 60) is lately


def test_slow_ones_hold_their_share_and_no_slot_more() -> None:
    """FAN-10: whether this process or the ledger found them slow; others always run."""
    share = SlowShare(4, 50)
    ran(share, "A", TIMEOUT_S)
    with share.slot("A", "M") as first, share.slot("B", "M") as second, share.slot("C", "M") as third:
        assert first.try_take()
        assert second.try_take(timed_out=True)
        assert share.running == share.most
        assert third.try_take()
        assert not third.try_take(timed_out=True)
    assert share.running == 0


def test_a_slot_that_is_slow_by_both_is_counted_once() -> None:
    """The ledger's mark on an entity that is slow here takes no second slot."""
    share = SlowShare(8, 25)
    ran(share, "A", TIMEOUT_S)
    with share.slot("A", "M") as use:
        assert use.try_take()
        assert use.try_take(timed_out=True)
        assert share.running == 1
    assert share.running == 0


def test_a_run_that_raises_leaves_its_slot() -> None:
    """However a run ends, its slot is free afterwards."""
    share = SlowShare(8, 25)
    with suppress(RuntimeError), share.slot("A", "M") as use:
        assert use.try_take(timed_out=True)
        raise RuntimeError
    assert share.running == 0


def test_the_oldest_slow_ones_are_forgotten() -> None:
    """Memory is bounded."""
    share = SlowShare(8, 25)
    for number in range(SLOW_MAX + 1):
        share.note((f"E{number}", "M"), is_slow=True)
    assert len(share.entities) == SLOW_MAX
    assert not share.is_slow(("E0", "M"))
