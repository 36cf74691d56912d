"""The claim frontier: jobs that claims return move the bounds of ranges, and never beyond what was read."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from tickwright.capabilities.jobs.model import ClaimedRow, ClaimPlan, ClaimRange
from tickwright.capabilities.jobs.worker import frontier
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs
from tickwright.capabilities.jobs.worker.frontier import (
    CHECK_GAP_S,
    CHECKED_MAX,
    DRAG_CLAIM_S,
    DRAG_CLAIMS,
    LOOKBACK_S,
    PRODUCTIVE_MAX,
    RANGES_MAX,
    SWEEP_SHARE,
    ClaimFrontier,
)

NOW_S = 1_795_268_220.0
READ_S = NOW_S - 5.0  # a claim on a stalled host
HEAD = 0.0
BEHIND_NOW_S = READ_S - LOOKBACK_S


def ranges_of(*names: str, limited: Collection[str] = (), more: Collection[ClaimRange] = ()) -> ClaimFrontier:
    """Return the ranges of a worker that knows the default range of each type, and ``more``."""
    claim_ranges = ClaimFrontier(is_serial=lambda name: name in limited)
    claim_ranges.learn(more)
    claim_ranges.whole_scope(names)
    return claim_ranges


def row(task_type: str, due_s: float, priority: int = 0) -> ClaimedRow:
    """Return a claimed row with the fields that the frontier reads."""
    return ClaimedRow(1, task_type, "{}", priority, 1, 3, 1, None, None, due_s, None, None)


def note(
    claim_ranges: ClaimFrontier,
    wanted: Mapping[str, int],
    *rows: ClaimedRow,
    total_max: int = 1000,
    new_ranges: Any = (),
) -> bool:
    """Note a claim that asked for so many rows of each type and returned ``rows``."""
    plan = ClaimPlan(tuple(wanted), tuple(wanted.values()), total_max)
    return claim_ranges.note(
        plan, claim_ranges.scope(wanted), ClaimedJobs(list(rows), NOW_S, None, READ_S, list(new_ranges))
    )


def frontiers(claim_ranges: ClaimFrontier, *names: str) -> dict[tuple[str, int], float]:
    """Return the bound of every known range of some types."""
    return {
        (claim_range.task_type, claim_range.priority): claim_range.frontier_s
        for claim_range in claim_ranges.whole_scope(names).ranges
    }


def frontier_of(claim_ranges: ClaimFrontier, name: str) -> float:
    """Return the bound of a type's default range."""
    return frontiers(claim_ranges, name)[name, 0]


def slow_down(claim_ranges: ClaimFrontier) -> None:
    """Make unbounded claims slow."""
    for _ in range(DRAG_CLAIMS):
        claim_ranges.watch(took_s=1.0, rows=0, ranges=1)
    assert claim_ranges.dragging


def plan_of(*names: str) -> ClaimPlan:
    """Return a plan that asks for ten of each."""
    return ClaimPlan(names, (10,) * len(names), 1000)


def test_a_type_with_more_due_jobs_continues_at_the_last_claimed_instant() -> None:
    """Its rows need not come in order: the bound is the latest of them."""
    claim_ranges = ranges_of("a")
    assert note(claim_ranges, {"a": 3}, row("a", 5.0), row("a", 9.0), row("a", 7.0))
    assert claim_ranges.hot == {"a"}
    assert frontier_of(claim_ranges, "a") == 9.0


def test_a_bound_before_now_goes_back_to_the_last_claimed_instant() -> None:
    """A claim without the bound may fill up with old rows; jobs due between them and the old bound were not read."""
    claim_ranges = ranges_of("a", "b")
    note(claim_ranges, {"a": 1, "b": 5}, row("a", 10.0))
    assert frontier_of(claim_ranges, "b") == BEHIND_NOW_S
    note(claim_ranges, {"b": 2}, row("b", 50.0), row("b", 60.0))
    assert frontier_of(claim_ranges, "b") == 60.0


def test_each_range_has_its_own_bound() -> None:
    """One priority's rows do not concern another, and a range without rows was perhaps not read."""
    claim_ranges = ranges_of("a", more=[ClaimRange("a", 10), ClaimRange("a", 20)])
    note(claim_ranges, {"a": 3}, row("a", 9.0, 20), row("a", 5.0, 10), row("a", 4.0, 10))
    assert frontiers(claim_ranges, "a") == {("a", 20): 9.0, ("a", 10): 5.0, ("a", 0): HEAD}


def test_types_outside_a_claim_keep_their_state() -> None:
    """Hot stays hot, no bound moves, and a type that was never claimed gets none, whatever another claim returns."""
    claim_ranges = ranges_of("hot", "cold", "fresh", "other")
    note(claim_ranges, {"hot": 1, "cold": 5}, row("hot", 10.0))
    assert not note(claim_ranges, {"other": 5})
    assert note(claim_ranges, {"other": 1}, row("other", 70.0))
    assert not note(claim_ranges, {"other": 5}, row("other", 80.0))
    assert claim_ranges.hot == {"hot"}
    assert frontiers(claim_ranges, "hot", "cold", "fresh") == {
        ("hot", 0): 10.0,
        ("cold", 0): BEHIND_NOW_S,
        ("fresh", 0): HEAD,
    }


def test_beside_a_hot_type_an_exhausted_one_is_bounded_a_little_before_now() -> None:
    """Its rows are claimed up to now; from the head each claim of the drain would read their dead rows again."""
    claim_ranges = ranges_of("hot", "a", "b", more=[ClaimRange("b", 10)])
    assert note(claim_ranges, {"hot": 1, "a": 5, "b": 5}, row("hot", 10.0), row("a", 90.0))
    assert frontiers(claim_ranges, "hot", "a", "b") == {
        ("hot", 0): 10.0, ("a", 0): BEHIND_NOW_S, ("b", 0): BEHIND_NOW_S, ("b", 10): BEHIND_NOW_S,
    }  # fmt: skip


def test_without_a_drain_every_type_is_read_from_the_head() -> None:
    """When no type has more due jobs, the bounds of the drain are removed."""
    claim_ranges = ranges_of("a", "b")
    note(claim_ranges, {"a": 1, "b": 5}, row("a", 10.0))
    assert not note(claim_ranges, {"a": 5, "b": 5}, row("a", 11.0), row("b", 90.0))
    assert claim_ranges.hot == frozenset()
    assert set(frontiers(claim_ranges, "a", "b").values()) == {HEAD}


def test_the_end_of_one_drain_leaves_the_bound_of_another() -> None:
    """Two types drain; the exhausted one gets its bound before now, the other keeps its own."""
    claim_ranges = ranges_of("a", "b")
    note(claim_ranges, {"a": 1, "b": 1}, row("a", 10.0), row("b", 20.0))
    assert note(claim_ranges, {"a": 5, "b": 1}, row("a", 11.0), row("b", 21.0))
    assert claim_ranges.hot == {"b"}
    assert frontiers(claim_ranges, "a", "b") == {("a", 0): BEHIND_NOW_S, ("b", 0): 21.0}


def test_a_claim_at_its_total_limit_marks_no_type_with_rows_as_exhausted() -> None:
    """The limit of the whole claim ends a type below its own limit."""
    claim_ranges = ranges_of("a", "b")
    assert note(claim_ranges, {"a": 5, "b": 5}, row("a", 10.0), row("a", 11.0), total_max=2)
    assert claim_ranges.hot == {"a"}
    assert frontier_of(claim_ranges, "a") == 11.0


def test_a_claim_continues_only_if_a_type_of_its_plan_had_more_due_jobs() -> None:
    """A claim of cold types reads from the head, also during another type's drain."""
    claim_ranges = ranges_of("hot", "cold")
    assert not claim_ranges.follows(plan_of("hot", "cold"))
    note(claim_ranges, {"hot": 1, "cold": 5}, row("hot", 10.0))
    assert claim_ranges.follows(plan_of("hot"))
    assert claim_ranges.follows(plan_of("cold", "hot"))
    assert not claim_ranges.follows(plan_of("cold"))


def test_the_next_claim_follows_at_once_when_a_priority_was_found() -> None:
    """A new range may have rows that this claim had no room for, though no type was full."""
    claim_ranges = ranges_of("a")
    assert note(claim_ranges, {"a": 5}, new_ranges=[ClaimRange("a", 10)])
    assert frontiers(claim_ranges, "a") == {("a", 0): HEAD, ("a", 10): HEAD}
    assert not note(claim_ranges, {"a": 5})


def test_a_range_that_is_found_again_keeps_its_bound() -> None:
    """A sweep and a claim may find the same priority; the second one resets nothing."""
    claim_ranges = ranges_of("a", more=[ClaimRange("a", 10)])
    note(claim_ranges, {"a": 1}, row("a", 10.0, 10))
    claim_ranges.learn([ClaimRange("a", 10)])
    assert frontiers(claim_ranges, "a")["a", 10] == 10.0


def test_a_limited_type_is_drained_from_the_head() -> None:
    """No sweep may read beyond its bound, so it has none."""
    claim_ranges = ranges_of("few", limited={"few"})
    assert note(claim_ranges, {"few": 1}, row("few", 10.0))
    assert claim_ranges.hot == {"few"}
    assert frontier_of(claim_ranges, "few") == HEAD


@pytest.mark.parametrize("limited", [(), ("a",)], ids=["free", "limited"])
def test_while_claims_are_slow_every_type_is_bounded(limited: tuple[str, ...]) -> None:
    """While dead rows crowd the head no claim starts there: neither in a drain nor after it."""
    claim_ranges = ranges_of("a", limited=limited)
    slow_down(claim_ranges)
    note(claim_ranges, {"a": 1}, row("a", 10.0))
    assert frontier_of(claim_ranges, "a") == 10.0
    note(claim_ranges, {"a": 5})
    assert frontier_of(claim_ranges, "a") == BEHIND_NOW_S


def test_single_slow_claims_do_not_bound_ranges() -> None:
    """One slow claim may happen, and a large one may take longer."""
    claim_ranges = ranges_of("a")
    for _ in range(DRAG_CLAIMS):
        claim_ranges.watch(took_s=1.0, rows=0, ranges=1)
        claim_ranges.watch(took_s=0.001, rows=0, ranges=1)
        claim_ranges.watch(took_s=0.1, rows=2000, ranges=1)
    assert not claim_ranges.dragging


def test_claims_of_many_ranges_may_take_longer() -> None:
    """Two probes of the index for each are no sign of dead rows."""
    claim_ranges = ranges_of("a")
    for _ in range(DRAG_CLAIMS):
        claim_ranges.watch(took_s=0.3, rows=0, ranges=10_000)
    assert not claim_ranges.dragging


def test_an_empty_range_is_forgotten_and_found_again() -> None:
    """That of the default priority stays: most jobs have it."""
    claim_ranges = ranges_of("a", more=[ClaimRange("a", 10), ClaimRange("a", 20)])
    assert {
        claim_range.priority for claim_range in claim_ranges.next_to_check(claim_ranges.whole_scope(["a"]).ranges)
    } == {10, 20}
    claim_ranges.forget([ClaimRange("a", 20)])
    assert frontiers(claim_ranges, "a").keys() == {("a", 0), ("a", 10)}
    claim_ranges.learn([ClaimRange("a", 20)])
    assert frontiers(claim_ranges, "a").keys() == {("a", 0), ("a", 10), ("a", 20)}


def test_ranges_are_checked_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of any number is checked; a claim checks few, and a claim directly after it checks none."""
    now = [1000.0]
    monkeypatch.setattr(frontier, "monotonic", lambda: now[0])
    many = {(f"t{number}", priority) for number in range(10) for priority in (*range(-50, 0), *range(1, 51))}
    claim_ranges = ranges_of(
        "rare", *{name for name, _ in many}, more=[ClaimRange(*claim_range) for claim_range in many]
    )
    wanted: set[tuple[str, int]] = set()
    names = [f"t{number}" for number in range(10)]
    for _ in range(-(-len(many) // CHECKED_MAX)):
        checked = claim_ranges.next_to_check(claim_ranges.whole_scope(names).ranges)
        assert len(checked) <= CHECKED_MAX
        assert not claim_ranges.next_to_check(claim_ranges.whole_scope(["rare"]).ranges)
        wanted |= {(claim_range.task_type, claim_range.priority) for claim_range in checked}
        now[0] += CHECK_GAP_S
        assert not claim_ranges.next_to_check(claim_ranges.whole_scope(["rare"]).ranges)
        now[0] += CHECK_GAP_S
    assert wanted == many


def crowded() -> tuple[ClaimFrontier, list[str]]:
    """Return the ranges of ten types with more ranges than one claim reads, and their names."""
    names = [f"t{number}" for number in range(10)]
    more = [ClaimRange(name, priority) for name in names for priority in range(1, RANGES_MAX // 4)]
    return ranges_of(*names, more=more), names


def test_a_round_reads_every_range() -> None:
    """A claim reads few, and the next one follows at once until each was read; so does the next round."""
    claim_ranges, names = crowded()
    known = {(claim_range.task_type, claim_range.priority) for claim_range in claim_ranges.whole_scope(names).ranges}
    plan = plan_of(*names)
    for _ in range(2):
        seen: set[tuple[str, int]] = set()
        follows = True
        while follows:
            scope = claim_ranges.scope(names)
            assert len(scope.ranges) < RANGES_MAX + len(names)
            here = {(claim_range.task_type, claim_range.priority) for claim_range in scope.ranges}
            assert {key for key in known if key[0] in scope.whole or not key[1]} == here
            seen |= here
            follows = claim_ranges.note(plan, scope, ClaimedJobs([], NOW_S, None, READ_S, []))
        assert seen == known


def test_a_round_skips_types_without_room() -> None:
    """The types of a claim change from one to the next."""
    claim_ranges, names = crowded()
    seen: set[str] = set(claim_ranges.scope(names).whole)
    while len(seen) < 9:
        found = claim_ranges.scope(names[:9]).whole
        assert found
        seen |= found & set(names[:9])
    assert claim_ranges.scope([names[0]]).whole == {names[0]}


def test_ranges_with_recent_jobs_are_read_by_every_claim() -> None:
    """However many other ranges there are: used ranges are not slower for them."""
    claim_ranges, names = crowded()
    for number in range(PRODUCTIVE_MAX + 1):
        rows = [row("t0" if number < 100 else "t1" if number < 200 else "t2", NOW_S, 1 + number % 100)]
        claim_ranges.note(plan_of(*names), claim_ranges.scope(names), ClaimedJobs([*rows], NOW_S, None, READ_S, []))
    for _ in range(10):
        here = {(claim_range.task_type, claim_range.priority) for claim_range in claim_ranges.scope(names).ranges}
        assert {("t0", 2), ("t0", 100), ("t1", 1), ("t1", 100), ("t2", 57)} <= here
        assert {(name, 0) for name in names} <= here
    claim_ranges.forget([ClaimRange("t0", 2)])
    assert all(
        claim_range != ClaimRange("t0", 2) for _ in range(10) for claim_range in claim_ranges.scope(names).ranges
    )


def test_the_next_due_instant_is_that_of_the_whole_round() -> None:
    """A later claim of the round, in other ranges, does not reset what an earlier one found."""
    claim_ranges, names = crowded()
    dues = iter([None, NOW_S + 5.0, NOW_S + 9.0])
    follows = True
    while follows:
        scope = claim_ranges.scope(names)
        follows = claim_ranges.note(plan_of(*names), scope, ClaimedJobs([], NOW_S, next(dues, None), READ_S, []))
    assert claim_ranges.next_due_s == NOW_S + 5.0
    claim_ranges.scope(names)
    assert claim_ranges.next_due_s is None


def test_a_range_that_was_not_read_keeps_its_bound() -> None:
    """Jobs that were inserted there meanwhile have not been read."""
    claim_ranges, names = crowded()
    slow_down(claim_ranges)
    scope = claim_ranges.scope(names)
    claim_ranges.note(plan_of(*names), scope, ClaimedJobs([], NOW_S, None, READ_S, []))
    was_read = {(claim_range.task_type, claim_range.priority) for claim_range in scope.ranges}
    assert {due_s for key, due_s in frontiers(claim_ranges, *names).items() if key in was_read} == {BEHIND_NOW_S}
    assert {due_s for key, due_s in frontiers(claim_ranges, *names).items() if key not in was_read} == {HEAD}


def test_a_range_that_another_claim_forgot_is_known_again_with_its_jobs() -> None:
    """A type gets a rate while a claim for it is under way: its next claim is of the other kind."""
    claim_ranges = ranges_of("a", more=[ClaimRange("a", 10)])
    scope = claim_ranges.scope(["a"])
    claim_ranges.forget([ClaimRange("a", 10)])
    rows = [row("a", NOW_S, 10)]
    assert claim_ranges.note(ClaimPlan(("a",), (1,), 1), scope, ClaimedJobs([*rows], NOW_S, None, READ_S, []))
    assert frontiers(claim_ranges, "a")["a", 10] == NOW_S


def test_a_sweep_reads_unlimited_types_and_resets_the_bounds_of_limited_ones() -> None:
    """Two claims at once could exceed a limit: the claim itself reads a limited type, without its bound."""
    claim_ranges = ranges_of("a", "few", limited={"few"})
    slow_down(claim_ranges)
    note(claim_ranges, {"a": 1, "few": 1}, row("a", 10.0), row("few", 20.0))
    claim_ranges._swept_s = float("-inf")
    assert claim_ranges.sweep_due(ClaimPlan(("few", "a"), (3, 7), 1000)) == {"a"}
    assert frontiers(claim_ranges, "a", "few") == {("a", 0): 10.0, ("few", 0): HEAD}


def test_limited_types_alone_need_no_sweep() -> None:
    """Only their bound is reset."""
    claim_ranges = ranges_of("few", limited={"few"})
    claim_ranges._swept_s = float("-inf")
    assert not claim_ranges.sweep_due(plan_of("few"))


def test_sweeps_are_bounded_in_their_share_of_time() -> None:
    """A sweep that took long is not repeated at once: it takes at most a twentieth of the time."""
    claim_ranges = ranges_of("a")
    claim_ranges._swept_s = float("-inf")
    assert claim_ranges.sweep_due(plan_of("a"))
    assert not claim_ranges.sweep_due(plan_of("a"))
    claim_ranges.swept(took_s=3600.0)
    claim_ranges._swept_s -= 3600.0
    assert not claim_ranges.sweep_due(plan_of("a"))


def test_a_range_that_a_full_claim_did_not_reach_has_no_bound() -> None:
    """The upper priority filled the claim: the ranges below were not read, whatever their bound was before."""
    claim_ranges = ranges_of("a", "b", more=[ClaimRange("a", 10)])
    note(claim_ranges, {"a": 3, "b": 1}, row("b", 7.0))  # beside a drain of the other type
    assert frontiers(claim_ranges, "a") == {("a", 10): BEHIND_NOW_S, ("a", 0): BEHIND_NOW_S}
    note(claim_ranges, {"a": 1}, row("a", 60.0, priority=10))
    assert frontiers(claim_ranges, "a") == {("a", 10): 60.0, ("a", 0): HEAD}


def test_slow_claims_make_discovery_of_ranges_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times its duration passes before the next one; without slow claims every claim discovers ranges."""
    now = [1000.0]
    monkeypatch.setattr(frontier, "monotonic", lambda: now[0])
    claim_ranges = ClaimFrontier(lambda _: False)
    claim_ranges.discovered(0.2)
    assert claim_ranges.may_discover()
    for _ in range(DRAG_CLAIMS):
        claim_ranges.watch(took_s=2 * DRAG_CLAIM_S, rows=0, ranges=1)
    assert not claim_ranges.may_discover()
    now[0] += SWEEP_SHARE * 0.2 - 0.1
    assert not claim_ranges.may_discover()
    now[0] += 0.2
    assert claim_ranges.may_discover()
