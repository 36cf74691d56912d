"""How much each type may claim: within every bound, and no type waits for ever."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tickwright.capabilities.jobs.model import COLD_ROWS, ClaimPlan, allot, plan_claim

COUNTS = st.integers(0, 5000)
NAMES = st.text("abcdef", min_size=1, max_size=3)
ALLOWANCES = st.dictionaries(NAMES, st.integers(0, 300), min_size=1, max_size=12)


@given(COUNTS, COUNTS, COUNTS)
def test_an_allotment_is_within_what_is_free_and_leaves_others_a_quarter(free: int, used: int, all_free: int) -> None:
    """A type never gets more than is free, nor more than three quarters (rounded up) of what others leave."""
    rows = allot(free, used, all_free=all_free)
    assert 0 <= rows <= free
    if rows:
        assert used + rows <= -(-3 * (all_free + used) // 4)


@given(st.integers(1, 5000))
def test_a_single_type_never_takes_the_last_slot(slots: int) -> None:
    """From four slots on, one type alone leaves room for another; below, it may take all that is free."""
    taken = allot(slots, 0, all_free=slots)
    assert 1 <= taken <= slots
    if slots >= 4:
        assert taken < slots


@given(ALLOWANCES, st.sets(NAMES), st.integers(-5, 2000), st.integers(0, 10_000))
def test_a_plan_is_within_budget_and_allowances(
    allowance: Mapping[str, int], hot: set[str], budget: int, turn: int
) -> None:
    """Every type that may have rows is asked for at least one, none for more than it may have."""
    plan = plan_claim(allowance, frozenset(hot), budget, turn)
    wanted = {name for name, rows in allowance.items() if rows > 0}
    if not wanted or budget <= 0:
        assert plan is None
        return
    assert plan is not None
    assert plan.total_max == budget
    assert sorted(plan.types) == sorted(wanted)
    for name, rows in zip(plan.types, plan.rows_max, strict=True):
        assert 1 <= rows <= allowance[name]
        assert rows <= max(budget, COLD_ROWS)


def _claim(plan: ClaimPlan, waiting: Counter[str]) -> Counter[str]:
    """Do what the claim's SQL does: types in order, each up to its rows, all up to the total."""
    taken: Counter[str] = Counter()
    for name, rows in zip(plan.types, plan.rows_max, strict=True):
        taken[name] = min(rows, waiting[name], plan.total_max - taken.total())
    waiting.subtract(taken)
    return taken


@given(st.dictionaries(NAMES, st.integers(1, 3000), min_size=1, max_size=10), st.integers(1, 1000), st.integers(0, 99))
def test_no_type_starves_over_a_round(backlog: Mapping[str, int], budget: int, turn: int) -> None:
    """However long the others' queues are, each type is served within one round."""
    waiting = Counter({name: 10**9 if number % 2 else rows for number, (name, rows) in enumerate(backlog.items())})
    allowance = dict.fromkeys(backlog, budget)
    hot: frozenset[str] = frozenset()
    served: Counter[str] = Counter()
    for step in range(len(backlog)):
        plan = plan_claim(allowance, hot, budget, turn + step)
        assert plan is not None
        taken = _claim(plan, waiting)
        assert taken.total() <= budget
        asked = dict(zip(plan.types, plan.rows_max, strict=True))
        hot = frozenset(n for n, rows in taken.items() if rows and (rows >= asked[n] or taken.total() >= budget))
        served += taken
    assert set(served) == set(backlog)
