"""PAR-1 to PAR-4: decisions of the partner contract, for any settings, processes and order of exchanges."""

import math
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.partners import most_in_window
from tickwright.partners.model import (
    BREAKER,
    EXCHANGE_MAX_S,
    LATE_S,
    BreakerEvent,
    ExchangeContext,
    Report,
    SharedState,
    advance,
    ahead_s,
    decide,
    share_of,
    step_of,
    valid_s,
)
from tickwright.partners.quiet import parse_quiet, quiet_until
from tickwright.partners.settings import BreakerSettings, PartnerSettings
from tickwright.store.pool import Exchanges

NOW_S = 1_800_000_000.0
BUDGETS = st.lists(
    st.tuples(st.integers(1, 40).map(float), st.sampled_from([1, 2, 5, 60])), min_size=1, max_size=3
).map(tuple)


LATER = st.sampled_from([0.0, 0.15, 0.25]) | st.floats(0, 2)
WANTED = st.just(60) | st.integers(0, 60)
LATE = st.sampled_from([0.0, LATE_S])
USED = st.just(1.0) | st.floats(0, 1)
"""A process that stops wanting calls returns the rest of its instants."""

FAR = st.sampled_from([0.0, 0.4, EXCHANGE_MAX_S, 9.0])
"""How long the exchanges of a process take."""

Exchange = tuple[float, int, int, float, float, float]
EXCHANGES = st.lists(st.tuples(LATER, st.integers(1, 3), WANTED, LATE, USED, FAR), min_size=1, max_size=40)
STEADY = [(0.25, n % 2, 60, LATE_S if n == 0 else 0.0, 1.0, 0.0) for n in range(12)]
"""One late call, then all in time: the case for the slack."""
OVERTAKEN = [(0.0, 1, 60, 0.0, 0.5, 0.0), *([(0.25, 2, 60, 0.0, 1.0, 0.0), (0.0, 1, 60, 0.0, 0.5, 0.0)] * 8)]
"""Another process has taken the instants after those that are returned."""
NEAR_AND_FAR = [(0.25, n % 2, 60, 0.0, 1.0, EXCHANGE_MAX_S * (n % 2)) for n in range(12)]
"""One process is far, and is granted instants further ahead than those of the other one."""


@example(((40.0, 1),), STEADY)
@example(((40.0, 1),), OVERTAKEN)
@example(((40.0, 1),), NEAR_AND_FAR)
@given(BUDGETS, EXCHANGES)
def test_every_budget_holds_in_every_window_for_any_exchanges_and_late_calls(
    budgets: tuple[tuple[float, int], ...], run: list[Exchange]
) -> None:
    """PAR-1: all processes together keep every budget, however late calls begin and whichever return instants."""
    terms = PartnerSettings(budgets=budgets)
    shared, now_s, calls, left = SharedState(next_free_s=NOW_S), NOW_S, list[float](), dict[int, Report]()
    for later_s, mine, wanted, late_s, used, exchange_s in run:
        now_s += later_s
        context = ExchangeContext(mine, {}, paused=False, now_s=now_s)
        shared, _, _ = decide(shared, left.pop(mine, Report()), terms, context)
        wish = Report(waiting=wanted, wanted=wanted, exchange_s=exchange_s)
        shared, grant, _ = decide(shared, wish, terms, context)
        given = [grant.first_s + n * grant.step_s for n in range(grant.instants or 0)]
        taken = math.ceil(len(given) * used)
        calls += [at + late_s for at in given[:taken]]
        if taken < len(given):
            left[mine] = Report(unused_from_s=given[taken], unused_to_s=given[-1] + grant.step_s)
    for count, window_s in budgets:
        assert most_in_window(calls, window_s) <= count


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 60)), min_size=1, max_size=60))
def test_shares_never_sum_up_to_more_than_the_limit(limit: int, run: list[tuple[int, int]]) -> None:
    """PAR-4: whichever processes ask, in any order, also while the remainder rotates."""
    shares: dict[int, int] = {}
    for mine, turn in run:
        shares[mine] = share_of(limit, shares, mine, turn)
        assert sum(shares.values()) <= limit


LIMITED = st.integers(1, 12)
SIDES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12), st.booleans(), st.booleans()), max_size=60)
SHRINKING = [(1, 12, True, True), (1, 0, True, True), (1, 2, True, True), (2, 12, True, True)]
"""A has all, holds few, and begins more during the exchange that makes its share smaller."""


@example(10, [(1, 10, True, True), (1, 10, False, True), (2, 10, True, True), (2, 10, True, True)])
@example(12, SHRINKING)
@given(LIMITED, SIDES)
def test_running_calls_keep_the_limit_also_while_a_share_shrinks(
    limit: int, run: list[tuple[int, int, bool, bool]]
) -> None:
    """PAR-4: each process begins calls by its old share until it learns of the new one, if it ever does."""
    terms = PartnerSettings(concurrency=limit)
    shared, rows = SharedState(next_free_s=NOW_S), dict[int, int]()
    lanes, running = dict[int, int | None](), Counter[int]()
    for number, (mine, wanted, waiting, learned) in enumerate(run):
        now_s = NOW_S + number
        running[mine] = min(running[mine], wanted)  # some calls have ended
        report = Report(waiting=wanted * waiting, held=running[mine], share=lanes.get(mine))
        shared, grant, written = decide(
            shared, report, terms, ExchangeContext(mine, dict(rows), paused=False, now_s=now_s)
        )
        running[mine] = max(running[mine], lanes.get(mine) or 0)  # begun meanwhile, by the old share
        rows.pop(mine, None)
        rows |= {} if written is None else {mine: written}
        lanes[mine] = grant.share if learned else lanes.get(mine)
        running[mine] = max(running[mine], lanes[mine] or 0)  # and by the new one
        assert running.total() <= limit


@given(st.floats(-100, 100_000), st.sampled_from([0.0, 0.02, 1.1]))
def test_a_future_instant_of_a_slower_budget_or_another_clock_stops_no_process(left_s: float, idle_s: float) -> None:
    """PAR-1, the converse: whatever the row says, a call begins after a step and ``ahead_s`` at most."""
    terms = PartnerSettings(budgets=((50.0, 1),))
    shared, now_s, first_s = SharedState(next_free_s=NOW_S + left_s), NOW_S + idle_s, list[float]()
    most_s = ahead_s(EXCHANGE_MAX_S)
    while now_s < NOW_S + idle_s + most_s + 2 * step_of(terms) and not first_s:
        context = ExchangeContext(1, {}, paused=False, now_s=now_s)
        shared, grant, _ = decide(shared, Report(waiting=1, wanted=1), terms, context)
        first_s += [grant.first_s] if grant.instants else []
        now_s += 0.01
    assert first_s
    assert first_s[0] <= NOW_S + idle_s + most_s + step_of(terms) + 1e-3


@given(st.integers(1, 5), st.integers(2, 8))
def test_a_limit_below_the_number_of_processes_reaches_each_of_them(limit: int, processes: int) -> None:
    """PAR-4: no share stays zero for ever."""
    shares = dict.fromkeys(range(processes), 0)
    had = set()
    for turn in range(processes * 2):
        for _ in range(2):  # the first round releases, the second one takes
            for mine in shares:
                shares[mine] = share_of(limit, shares, mine, turn)
        had |= {mine for mine, share in shares.items() if share}
    assert had == set(shares)


@given(st.lists(st.sampled_from(list(BreakerEvent)), max_size=30), st.floats(0, 1000))
def test_a_breaker_follows_its_table_and_pauses_within_its_bounds(events: list[BreakerEvent], later_s: float) -> None:
    """No event leads outside the table; a pause lasts from ``open`` to ``open_max``."""
    terms = PartnerSettings(breaker=BreakerSettings(open=timedelta(seconds=5), open_max=timedelta(minutes=5)))
    shared, now_s = SharedState(next_free_s=NOW_S), NOW_S
    for event in events:
        now_s += later_s
        after = advance(shared, event, terms, now_s)
        assert after.breaker == BREAKER.get((shared.breaker, event), shared.breaker)
        if after.breaker == "open" and shared.breaker != "open":
            assert 5 <= after.open_until_s - now_s <= 300
        shared = after


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0, 30)), min_size=2, max_size=30))
def test_a_half_open_breaker_has_one_trial_at_a_time(run: list[tuple[int, float]]) -> None:
    """PAR-3: until the trial is reported or has expired, no other process calls."""
    terms = PartnerSettings(timeout=timedelta(seconds=2))
    shared, now_s = SharedState(next_free_s=NOW_S, breaker="half_open"), NOW_S
    ends_s = 0.0
    for mine, later_s in run:
        now_s += later_s
        context = ExchangeContext(mine, {}, paused=False, now_s=now_s)
        shared, grant, _ = decide(shared, Report(waiting=50, wanted=50), terms, context)
        assert grant.instants in ({1} if grant.trial else {0})
        if grant.trial:
            assert now_s >= ends_s
            ends_s = now_s + 2


BLOCKED_BY = st.sampled_from(["paused", "quiet", "retry_after", "breaker_open"])


@given(BLOCKED_BY, st.integers(1, 100))
def test_nothing_is_granted_while_the_partner_is_blocked(by: str, wanted: int) -> None:
    """PAR-2: pause, quiet hours, Retry-After and an open breaker each stop every call."""
    shared = SharedState(next_free_s=NOW_S)
    terms = PartnerSettings(quiet=(parse_quiet("00:00-24:00 UTC"),) if by == "quiet" else ())
    if by == "retry_after":
        shared = replace(shared, blocked_until_s=NOW_S + 1)
    if by == "breaker_open":
        shared = replace(shared, breaker="open", open_until_s=NOW_S + 1)
    context = ExchangeContext(1, {}, paused=by == "paused", now_s=NOW_S)
    _, grant, _ = decide(shared, Report(waiting=wanted, wanted=wanted), terms, context)
    assert (grant.why, grant.instants, grant.trial) == (by, 0, False)


@given(st.integers(-4000, 0), st.sampled_from(["UTC", "Europe/Berlin"]), st.booleans(), FAR)
@example(-1, "UTC", True, EXCHANGE_MAX_S)
@example(round(-valid_s(0) * 1000), "UTC", False, 0.0)
def test_a_grant_ends_where_quiet_hours_begin(before_ms: int, zone: str, limited: bool, exchange_s: float) -> None:
    """PAR-2: no process uses in quiet hours what was granted just before them."""
    begins_s = 1_774_562_400.0  # a full hour of both zones
    quiet = (parse_quiet(f"{datetime.fromtimestamp(begins_s, ZoneInfo(zone)):%H}:00-24:00 {zone}"),)
    terms = PartnerSettings(budgets=((40.0, 1),) if limited else (), quiet=quiet)
    context = ExchangeContext(1, {}, paused=False, now_s=begins_s + before_ms / 1000)
    wish = Report(waiting=9, wanted=9, exchange_s=exchange_s)
    _, grant, _ = decide(SharedState(next_free_s=context.now_s), wish, terms, context)
    if context.now_s < begins_s:
        assert grant.valid_until_s == min(begins_s, context.now_s + valid_s(exchange_s))
        assert grant.why is None
    else:
        assert grant.why == "quiet"


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 23),
    st.integers(0, 23),
    st.integers(1, 400),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata"]),
)
def test_a_days_budget_holds_in_every_24_hours_also_over_a_clock_change(
    begins: int, ends: int, per_day: int, zone: str
) -> None:
    """PAR-1 over days: three of them around the change to summer time, called as often as allowed."""
    quiet = (parse_quiet(f"{begins:02}:00-{(ends + (begins == ends)) or 24:02}:00 {zone}"),)
    terms = PartnerSettings(budgets=((float(per_day), 86_400),), quiet=quiet)
    now_s, calls = 1_774_558_800.0, list[float]()  # 26 March 2026, Berlin's clocks change on the 29th
    while now_s < 1_774_558_800.0 + 5 * 86_400:
        if (until_s := quiet_until(now_s, quiet)) is not None:
            now_s = until_s
            continue
        calls.append(now_s)
        now_s += step_of(terms)
    assert most_in_window(calls, 86_400) <= per_day


@given(st.integers(0, 1), st.integers(0, 200_000))
def test_quiet_hours_end_at_the_returned_instant(minute: int, later_s: int) -> None:
    """The instant from ``quiet_until`` is not quiet any more, and everything before it was."""
    windows = (parse_quiet(f"22:0{minute}-06:30 Europe/Berlin"), parse_quiet("sat 00:00-24:00 America/New_York"))
    now_s = 1_774_558_800.0 + later_s
    until_s = quiet_until(now_s, windows)
    if until_s is not None:
        assert quiet_until(until_s, windows) is None
        assert quiet_until((now_s + until_s) / 2, windows) == until_s


@given(st.floats(0, 100), st.floats(0, 2), st.integers(1, 60))
def test_a_grant_is_still_usable_on_arrival_unless_the_database_is_too_far(
    exchange_s: float, free_in_s: float, wanted: int
) -> None:
    """After one exchange its first instant is still ahead and it is valid; no grant lasts longer than 3 s."""
    terms, context = PartnerSettings(budgets=((50.0, 1),)), ExchangeContext(1, {}, paused=False, now_s=NOW_S)
    wish = Report(waiting=wanted, wanted=wanted, exchange_s=exchange_s)
    _, grant, _ = decide(SharedState(next_free_s=NOW_S + free_in_s), wish, terms, context)
    assert grant.valid_until_s <= NOW_S + Exchanges.SLOW_MS / 1000 + 1e-6
    if exchange_s <= EXCHANGE_MAX_S:
        assert grant.valid_until_s > NOW_S + exchange_s
        assert not grant.instants or grant.first_s > NOW_S + exchange_s - 1e-6
        assert grant.instants or grant.wait_until_s < NOW_S + free_in_s - exchange_s, "it asks too late"
