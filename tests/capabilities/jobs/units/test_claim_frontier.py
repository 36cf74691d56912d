"""Where a worker looks next: what claims brought moves the lanes' bounds, and never over what nobody looked at."""

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
LOOKED_S = NOW_S - 5.0  # a claim on a stalled host
HEAD = 0.0
BEHIND_NOW_S = LOOKED_S - LOOKBACK_S


def book_of(*names: str, limited: Collection[str] = (), lanes: Collection[ClaimRange] = ()) -> ClaimFrontier:
    """Return a book that knows the default lane of each type, and ``lanes``."""
    book = ClaimFrontier(limited=lambda name: name in limited)
    book.learn(lanes)
    book.whole_scope(names)
    return book


def row(task_type: str, due_s: float, priority: int = 0) -> ClaimedRow:
    """Return a claimed row, as far as a book looks at it."""
    return ClaimedRow(1, task_type, "{}", priority, 1, 3, 1, None, None, due_s, None, None)


def note(
    book: ClaimFrontier, asked: Mapping[str, int], *rows: ClaimedRow, total_max: int = 1000, new_ranges: Any = ()
) -> bool:
    """Note a claim that asked for so many rows of each type and brought ``rows``."""
    plan = ClaimPlan(tuple(asked), tuple(asked.values()), total_max)
    return book.note(plan, book.scope(asked), ClaimedJobs(list(rows), NOW_S, None, LOOKED_S, list(new_ranges)))


def frontiers(book: ClaimFrontier, *names: str) -> dict[tuple[str, int], float]:
    """Return the bound of every known lane of some types."""
    return {(lane.task_type, lane.priority): lane.frontier_s for lane in book.whole_scope(names).ranges}


def frontier_of(book: ClaimFrontier, name: str) -> float:
    """Return the bound of a type's default lane."""
    return frontiers(book, name)[name, 0]


def drag(book: ClaimFrontier) -> None:
    """Make unbounded claims look slow."""
    for _ in range(DRAG_CLAIMS):
        book.watch(took_s=1.0, rows=0, ranges=1)
    assert book.dragging


def plan_of(*names: str) -> ClaimPlan:
    """Return a plan that asks for ten of each."""
    return ClaimPlan(names, (10,) * len(names), 1000)


def test_a_type_that_had_more_to_give_goes_on_at_the_last_claimed_instant() -> None:
    """Its rows need not come in order: the bound is the latest of them."""
    book = book_of("a")
    assert note(book, {"a": 3}, row("a", 5.0), row("a", 9.0), row("a", 7.0))
    assert book.hot == {"a"}
    assert frontier_of(book, "a") == 9.0


def test_a_bound_behind_now_goes_back_to_the_last_claimed_instant() -> None:
    """A claim without the bound may fill up with old rows; what is due between them and the old bound was not seen."""
    book = book_of("a", "b")
    note(book, {"a": 1, "b": 5}, row("a", 10.0))
    assert frontier_of(book, "b") == BEHIND_NOW_S
    note(book, {"b": 2}, row("b", 50.0), row("b", 60.0))
    assert frontier_of(book, "b") == 60.0


def test_each_lane_has_a_bound_of_its_own() -> None:
    """What is due in one priority says nothing of another, and a lane without rows was perhaps not looked at."""
    book = book_of("a", lanes=[ClaimRange("a", 10), ClaimRange("a", 20)])
    note(book, {"a": 3}, row("a", 9.0, 20), row("a", 5.0, 10), row("a", 4.0, 10))
    assert frontiers(book, "a") == {("a", 20): 9.0, ("a", 10): 5.0, ("a", 0): HEAD}


def test_types_that_were_not_asked_keep_what_is_known_of_them() -> None:
    """Hot stays hot, no bound moves, and who was never asked gets none, whatever a claim of another type brings."""
    book = book_of("hot", "cold", "fresh", "other")
    note(book, {"hot": 1, "cold": 5}, row("hot", 10.0))
    assert not note(book, {"other": 5})
    assert note(book, {"other": 1}, row("other", 70.0))
    assert not note(book, {"other": 5}, row("other", 80.0))
    assert book.hot == {"hot"}
    assert frontiers(book, "hot", "cold", "fresh") == {("hot", 0): 10.0, ("cold", 0): BEHIND_NOW_S, ("fresh", 0): HEAD}


def test_beside_a_hot_type_an_exhausted_one_is_looked_at_from_a_little_behind_now() -> None:
    """Its rows are claimed up to now; from the head each claim of the drain would walk their dead rows again."""
    book = book_of("hot", "a", "b", lanes=[ClaimRange("b", 10)])
    assert note(book, {"hot": 1, "a": 5, "b": 5}, row("hot", 10.0), row("a", 90.0))
    assert frontiers(book, "hot", "a", "b") == {
        ("hot", 0): 10.0, ("a", 0): BEHIND_NOW_S, ("b", 0): BEHIND_NOW_S, ("b", 10): BEHIND_NOW_S,
    }  # fmt: skip


def test_without_a_drain_everybody_is_looked_at_from_the_head() -> None:
    """When nobody has more to give, no bound is left of what the drain has set."""
    book = book_of("a", "b")
    note(book, {"a": 1, "b": 5}, row("a", 10.0))
    assert not note(book, {"a": 5, "b": 5}, row("a", 11.0), row("b", 90.0))
    assert book.hot == frozenset()
    assert set(frontiers(book, "a", "b").values()) == {HEAD}


def test_the_end_of_one_drain_leaves_the_bound_of_another() -> None:
    """Two types drain; the one that is exhausted gets its bound behind now, the other keeps its own."""
    book = book_of("a", "b")
    note(book, {"a": 1, "b": 1}, row("a", 10.0), row("b", 20.0))
    assert note(book, {"a": 5, "b": 1}, row("a", 11.0), row("b", 21.0))
    assert book.hot == {"b"}
    assert frontiers(book, "a", "b") == {("a", 0): BEHIND_NOW_S, ("b", 0): 21.0}


def test_a_claim_that_is_full_in_all_leaves_no_type_with_rows_exhausted() -> None:
    """The whole claim's bound cuts a type off below its own."""
    book = book_of("a", "b")
    assert note(book, {"a": 5, "b": 5}, row("a", 10.0), row("a", 11.0), total_max=2)
    assert book.hot == {"a"}
    assert frontier_of(book, "a") == 11.0


def test_a_claim_goes_on_only_where_a_type_of_its_plan_had_more_to_give() -> None:
    """A claim of cold types looks from the head, also during another type's drain."""
    book = book_of("hot", "cold")
    assert not book.follows(plan_of("hot", "cold"))
    note(book, {"hot": 1, "cold": 5}, row("hot", 10.0))
    assert book.follows(plan_of("hot"))
    assert book.follows(plan_of("cold", "hot"))
    assert not book.follows(plan_of("cold"))


def test_the_next_claim_follows_at_once_when_a_priority_was_found() -> None:
    """A new lane may have rows that this claim had no room for, though no type was full."""
    book = book_of("a")
    assert note(book, {"a": 5}, new_ranges=[ClaimRange("a", 10)])
    assert frontiers(book, "a") == {("a", 0): HEAD, ("a", 10): HEAD}
    assert not note(book, {"a": 5})


def test_a_lane_that_is_found_again_keeps_its_bound() -> None:
    """A sweep and a claim may find the same priority; the second one to tell forgets nothing."""
    book = book_of("a", lanes=[ClaimRange("a", 10)])
    note(book, {"a": 1}, row("a", 10.0, 10))
    book.learn([ClaimRange("a", 10)])
    assert frontiers(book, "a")["a", 10] == 10.0


def test_a_limited_type_is_drained_from_the_head() -> None:
    """No sweep may look behind its bound, so it has none."""
    book = book_of("few", limited={"few"})
    assert note(book, {"few": 1}, row("few", 10.0))
    assert book.hot == {"few"}
    assert frontier_of(book, "few") == HEAD


@pytest.mark.parametrize("limited", [(), ("a",)], ids=["free", "limited"])
def test_during_a_drag_every_type_is_bounded(limited: tuple[str, ...]) -> None:
    """While dead rows crowd the head, nobody starts there: neither in a drain nor after it."""
    book = book_of("a", limited=limited)
    drag(book)
    note(book, {"a": 1}, row("a", 10.0))
    assert frontier_of(book, "a") == 10.0
    note(book, {"a": 5})
    assert frontier_of(book, "a") == BEHIND_NOW_S


def test_quick_claims_are_no_drag() -> None:
    """One slow claim happens, and a big one may take its time."""
    book = book_of("a")
    for _ in range(DRAG_CLAIMS):
        book.watch(took_s=1.0, rows=0, ranges=1)
        book.watch(took_s=0.001, rows=0, ranges=1)
        book.watch(took_s=0.1, rows=2000, ranges=1)
    assert not book.dragging


def test_claims_of_many_lanes_may_take_longer() -> None:
    """Two looks into the index for each are no sign of dead rows."""
    book = book_of("a")
    for _ in range(DRAG_CLAIMS):
        book.watch(took_s=0.3, rows=0, ranges=10_000)
    assert not book.dragging


def test_an_empty_lane_is_forgotten_and_found_again() -> None:
    """That of the default priority stays: most jobs have it."""
    book = book_of("a", lanes=[ClaimRange("a", 10), ClaimRange("a", 20)])
    assert {lane.priority for lane in book.next_to_check(book.whole_scope(["a"]).ranges)} == {10, 20}
    book.forget([ClaimRange("a", 20)])
    assert frontiers(book, "a").keys() == {("a", 0), ("a", 10)}
    book.learn([ClaimRange("a", 20)])
    assert frontiers(book, "a").keys() == {("a", 0), ("a", 10), ("a", 20)}


def test_lanes_are_doubted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, each is asked for; a claim asks for few, and the next one at once for none."""
    now = [1000.0]
    monkeypatch.setattr(frontier, "monotonic", lambda: now[0])
    many = {(f"t{number}", priority) for number in range(10) for priority in (*range(-50, 0), *range(1, 51))}
    book = book_of("rare", *{name for name, _ in many}, lanes=[ClaimRange(*lane) for lane in many])
    asked: set[tuple[str, int]] = set()
    names = [f"t{number}" for number in range(10)]
    for _ in range(-(-len(many) // CHECKED_MAX)):
        checked = book.next_to_check(book.whole_scope(names).ranges)
        assert len(checked) <= CHECKED_MAX
        assert not book.next_to_check(book.whole_scope(["rare"]).ranges)
        asked |= {(lane.task_type, lane.priority) for lane in checked}
        now[0] += CHECK_GAP_S
        assert not book.next_to_check(book.whole_scope(["rare"]).ranges)
        now[0] += CHECK_GAP_S
    assert asked == many


def crowded() -> tuple[ClaimFrontier, list[str]]:
    """Return a book of ten types with more lanes than one claim looks at, and their names."""
    names = [f"t{number}" for number in range(10)]
    lanes = [ClaimRange(name, priority) for name in names for priority in range(1, RANGES_MAX // 4)]
    return book_of(*names, lanes=lanes), names


def test_a_round_looks_into_every_lane() -> None:
    """A claim looks into few, and the next one follows at once until each had its turn; so does the next round."""
    book, names = crowded()
    known = {(lane.task_type, lane.priority) for lane in book.whole_scope(names).ranges}
    plan = plan_of(*names)
    for _ in range(2):
        seen: set[tuple[str, int]] = set()
        follows = True
        while follows:
            look = book.scope(names)
            assert len(look.ranges) < RANGES_MAX + len(names)
            here = {(lane.task_type, lane.priority) for lane in look.ranges}
            assert {key for key in known if key[0] in look.whole or not key[1]} == here
            seen |= here
            follows = book.note(plan, look, ClaimedJobs([], NOW_S, None, LOOKED_S, []))
        assert seen == known


def test_a_round_passes_over_types_that_have_no_room() -> None:
    """Which types a claim asks for changes from one to the next."""
    book, names = crowded()
    seen: set[str] = set(book.scope(names).whole)
    while len(seen) < 9:
        found = book.scope(names[:9]).whole
        assert found
        seen |= found & set(names[:9])
    assert book.scope([names[0]]).whole == {names[0]}


def test_lanes_that_brought_jobs_last_are_looked_into_by_every_claim() -> None:
    """However many others there are: what is used is not slower for them."""
    book, names = crowded()
    for number in range(PRODUCTIVE_MAX + 1):
        rows = [row("t0" if number < 100 else "t1" if number < 200 else "t2", NOW_S, 1 + number % 100)]
        book.note(plan_of(*names), book.scope(names), ClaimedJobs([*rows], NOW_S, None, LOOKED_S, []))
    for _ in range(10):
        here = {(lane.task_type, lane.priority) for lane in book.scope(names).ranges}
        assert {("t0", 2), ("t0", 100), ("t1", 1), ("t1", 100), ("t2", 57)} <= here
        assert {(name, 0) for name in names} <= here
    book.forget([ClaimRange("t0", 2)])
    assert all(lane != ClaimRange("t0", 2) for _ in range(10) for lane in book.scope(names).ranges)


def test_the_next_due_instant_is_that_of_the_whole_round() -> None:
    """What one claim of it saw is not lost by the next one, which looked elsewhere."""
    book, names = crowded()
    dues = iter([None, NOW_S + 5.0, NOW_S + 9.0])
    follows = True
    while follows:
        look = book.scope(names)
        follows = book.note(plan_of(*names), look, ClaimedJobs([], NOW_S, next(dues, None), LOOKED_S, []))
    assert book.next_due_s == NOW_S + 5.0
    book.scope(names)
    assert book.next_due_s is None


def test_a_lane_that_was_not_looked_into_keeps_its_bound() -> None:
    """Nobody saw what came in there meanwhile."""
    book, names = crowded()
    drag(book)
    look = book.scope(names)
    book.note(plan_of(*names), look, ClaimedJobs([], NOW_S, None, LOOKED_S, []))
    looked = {(lane.task_type, lane.priority) for lane in look.ranges}
    assert {due_s for key, due_s in frontiers(book, *names).items() if key in looked} == {BEHIND_NOW_S}
    assert {due_s for key, due_s in frontiers(book, *names).items() if key not in looked} == {HEAD}


def test_a_lane_that_another_claim_forgot_brings_jobs() -> None:
    """A type gets a rate while a claim for it is under way: its next claim is of the other kind."""
    book = book_of("a", lanes=[ClaimRange("a", 10)])
    look = book.scope(["a"])
    book.forget([ClaimRange("a", 10)])
    rows = [row("a", NOW_S, 10)]
    assert book.note(ClaimPlan(("a",), (1,), 1), look, ClaimedJobs([*rows], NOW_S, None, LOOKED_S, []))
    assert frontiers(book, "a")["a", 10] == NOW_S


def test_a_sweep_takes_the_free_types_and_sends_the_limited_ones_to_the_head() -> None:
    """Two claims at once could exceed a limit: a limited type is looked at by the claim itself, without its bound."""
    book = book_of("a", "few", limited={"few"})
    drag(book)
    note(book, {"a": 1, "few": 1}, row("a", 10.0), row("few", 20.0))
    book._swept_s = float("-inf")
    assert book.sweep_due(ClaimPlan(("few", "a"), (3, 7), 1000)) == {"a"}
    assert frontiers(book, "a", "few") == {("a", 0): 10.0, ("few", 0): HEAD}


def test_a_sweep_of_limited_types_only_is_none() -> None:
    """Their bound is gone, that is all they need."""
    book = book_of("few", limited={"few"})
    book._swept_s = float("-inf")
    assert not book.sweep_due(plan_of("few"))


def test_one_sweep_follows_another_after_a_while_only() -> None:
    """A sweep that took long is not repeated at once: it takes at most a twentieth of the time."""
    book = book_of("a")
    book._swept_s = float("-inf")
    assert book.sweep_due(plan_of("a"))
    assert not book.sweep_due(plan_of("a"))
    book.swept(took_s=3600.0)
    book._swept_s -= 3600.0
    assert not book.sweep_due(plan_of("a"))


def test_a_lane_that_a_full_claim_did_not_reach_has_no_bound() -> None:
    """The upper priority filled the claim: below it nobody has looked, whatever the lane's bound was before."""
    book = book_of("a", "b", lanes=[ClaimRange("a", 10)])
    note(book, {"a": 3, "b": 1}, row("b", 7.0))  # beside a drain of the other type
    assert frontiers(book, "a") == {("a", 10): BEHIND_NOW_S, ("a", 0): BEHIND_NOW_S}
    note(book, {"a": 1}, row("a", 60.0, priority=10))
    assert frontiers(book, "a") == {("a", 10): 60.0, ("a", 0): HEAD}


def test_a_drag_makes_looks_around_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times as long as one took passes before the next; without a drag every claim looks."""
    now = [1000.0]
    monkeypatch.setattr(frontier, "monotonic", lambda: now[0])
    book = ClaimFrontier(lambda _: False)
    book.discovered(0.2)
    assert book.may_discover()
    for _ in range(DRAG_CLAIMS):
        book.watch(took_s=2 * DRAG_CLAIM_S, rows=0, ranges=1)
    assert not book.may_discover()
    now[0] += SWEEP_SHARE * 0.2 - 0.1
    assert not book.may_discover()
    now[0] += 0.2
    assert book.may_discover()
