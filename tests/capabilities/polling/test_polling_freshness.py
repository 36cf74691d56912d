"""Freshness of accounts: judged once, by the polls that were made, and only where a poll was promised."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.wheels import Wheels, open_wheels
from tickwright.capabilities.polling.trackers import freshness as freshness_loop
from tickwright.capabilities.polling.trackers.accounts import Accounts
from tickwright.capabilities.polling.trackers.freshness import Freshness, FreshnessJudge, read_freshness
from tickwright.capabilities.polling.trackers.requests import AccountRequest
from tickwright.ports.caller import Caller, Role
from tickwright.store.paging import Cursors

MINUTES = 10
POLLED = """
INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
SELECT t.place / 60, turn.at, t.partner_no, turn.at + $1::float8 * interval '1 second', ARRAY[t.id]
  FROM tickwright.trackers t
  JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60
  JOIN tickwright.poll_wheels w USING (interval_minutes)
 CROSS JOIN LATERAL (SELECT (date_part('epoch', clock_timestamp()) / 60)::bigint AS minute) AS now
 CROSS JOIN LATERAL generate_series(0, 2) AS back
 CROSS JOIN LATERAL (
   SELECT to_timestamp(60 * (minute - (minute - (s.slot_id - w.first_slot_id)) % w.interval_minutes
                             - back * w.interval_minutes))
          + t.place % 60 * interval '1 second' AS at) AS turn
 WHERE t.id % $3 < $2
"""


@pytest.fixture
async def wheels(database_url: str) -> AsyncIterator[Wheels]:
    """A hundred trackers that have been polled every ten minutes since yesterday."""
    async with open_wheels(database_url) as wheels:
        await wheels.account("a", MINUTES)
        await wheels.register(100)
        await wheels.pool.execute("UPDATE tickwright.trackers SET created_at = now() - interval '1 day'")
        for table in ("polling_schedule_config", "partners"):
            await wheels.pool.execute(f"UPDATE tickwright.{table} SET promised_since = now() - interval '1 day'")
        yield wheels


async def polled(wheels: Wheels, *, late_s: float = 1.0, of_ten: int = 10) -> None:
    """Write into the ledger that ``of_ten`` of ten trackers were polled in their last three intervals."""
    await wheels.pool.execute(POLLED, late_s, of_ten, 10)


async def judge(wheels: Wheels, *, again: bool = False) -> Freshness:
    """Judge a whole interval, the last one whose time is over."""
    lease = await wheels.lease("freshness")
    if not again:
        await wheels.pool.execute("UPDATE tickwright.poll_wheels SET judged_until = now() - interval '1 day'")
    judge = FreshnessJudge()
    while await judge.round(lease) == 0.0:
        pass
    await lease.release()
    return await freshness(wheels)


async def freshness(wheels: Wheels) -> Freshness:
    """Return the freshness of the account."""
    return await read_freshness(wheels.pool, 1)


async def test_polls_within_a_tenth_of_the_interval_are_fresh(wheels: Wheels) -> None:
    """Each tracker counts once an interval, and the lag shows how late the latest poll was."""
    await polled(wheels, late_s=30)
    found = await judge(wheels)
    assert (found.month.polls, found.month.fresh) == (100, 100)
    assert (found.recent.share, found.error_budget_left) == (1.0, 1.0)
    assert found.lag_ratio == pytest.approx(1.05)


async def test_polls_after_a_tenth_of_the_interval_are_stale(wheels: Wheels) -> None:
    """A poll that is made too late for the promise is stale."""
    await polled(wheels, late_s=61)
    found = await judge(wheels)
    assert (found.month.polls, found.month.fresh) == (100, 0)
    assert found.lag_ratio == pytest.approx(1 + 61 / 600)
    assert found.stale_since is not None


@pytest.mark.parametrize("gone", ["not selected", "not polled"])
async def test_what_was_not_polled_is_stale_whatever_the_reason(wheels: Wheels, gone: str) -> None:
    """The judge reads the ledger alone: a tenth is missing from it, so the month's budget is overdrawn tenfold."""
    if gone == "not polled":
        await wheels.select_until(MINUTES)
    await polled(wheels, of_ten=9)
    found = await judge(wheels)
    assert (found.month.polls, found.month.fresh) == (100, 90)
    assert found.error_budget_left == pytest.approx(1 - 0.1 / 0.01)


async def test_a_slots_minute_is_judged_once(wheels: Wheels) -> None:
    """FRS-1: the next holder of the lease goes on where the last one was, and judges nothing again."""
    await polled(wheels)
    first = await judge(wheels)
    second = await judge(wheels, again=True)
    assert second.month.polls <= first.month.polls + MINUTES * 2, "a minute may have passed"


@pytest.mark.parametrize(
    "exempt",
    [
        "UPDATE tickwright.trackers SET created_at = now() - interval '5 minutes'",
        "UPDATE tickwright.trackers SET skip_until = now() + interval '1 hour'",
        "UPDATE tickwright.trackers SET last_polled_at = now()",
        "UPDATE tickwright.trackers SET tracking_until = now() - interval '1 hour'",
        "UPDATE tickwright.polling_schedule_config SET paused_at = now()",
        "UPDATE tickwright.trackers SET placed_at = now()",
        "UPDATE tickwright.polling_schedule_config SET polls_per_slice_max = 1000",
        "UPDATE tickwright.partners SET paused_at = now()",
        """UPDATE tickwright.partners SET settings = '{"quiet": ["00:00-24:00 UTC"]}'""",
    ],
)
async def test_trackers_without_a_promised_poll_are_not_judged(wheels: Wheels, exempt: str) -> None:
    """New and postponed trackers, and what is paused, quiet or just changed: not polled, and not late."""
    await wheels.pool.execute(exempt)
    found = await judge(wheels)
    assert (found.recent.polls, found.recent.share, found.error_budget_left) == (0, None, None)


async def test_one_missing_poll_of_several_is_no_lag(wheels: Wheels) -> None:
    """A single missing poll spends budget; the account lags when more are missing."""
    await polled(wheels)
    await wheels.pool.execute(
        "DELETE FROM tickwright.poll_done WHERE ids = ARRAY[(SELECT min(id) FROM tickwright.trackers)]"
    )
    found = await judge(wheels)
    assert (found.month.polls, found.month.fresh) == (100, 99)
    assert found.stale_since is None
    assert found.lag_ratio is not None
    assert found.lag_ratio > 100, "it has not been polled since yesterday"


async def test_slices_become_days_and_days_are_forgotten(wheels: Wheels) -> None:
    """Nothing is lost when a slice is folded into its day, and the table does not grow for ever."""
    await wheels.pool.execute(
        """INSERT INTO tickwright.account_freshness (account_no, minutes, from_at, keep_until, polls, fresh, lag)
           SELECT 1, 5, date_bin('5 minutes', now(), 'epoch') - n * interval '5 minutes', now() - interval '1 s',
                  10, 9, 1
             FROM generate_series(25, 60) AS n
            UNION ALL
           SELECT 1, 1440, date_bin('1 day', now(), 'epoch') - interval '40 days', now() - interval '9 days', 7, 7, 1"""
    )
    found = await judge(wheels, again=True)
    assert (found.month.polls, found.month.fresh) == (360, 324)
    assert found.recent.polls == 0
    days = await wheels.pool.fetch("SELECT minutes, count(*) AS n FROM tickwright.account_freshness GROUP BY 1")
    assert {row["minutes"] for row in days} == {1440}
    assert sum(row["n"] for row in days) <= 2


async def test_a_deferred_poll_is_not_fresh(wheels: Wheels) -> None:
    """A cap that is too small for the account shows in its freshness, not only in its settings."""
    await wheels.pool.execute("UPDATE tickwright.polling_schedule_config SET polls_per_slice_max = 10")
    await wheels.select_until(MINUTES)
    deferred: Any = await wheels.pool.fetchval("SELECT sum(deferred) FROM tickwright.poll_slices")
    assert deferred > 0
    found = await judge(wheels)
    assert found.recent.fresh == 0


async def test_an_account_lags_when_half_of_it_is_never_polled(wheels: Wheels) -> None:
    """Also where a minute has a tracker or two: what counts is the whole interval, not each minute of it."""
    await wheels.pool.execute("DELETE FROM tickwright.trackers WHERE id > 20")
    await polled(wheels, of_ten=5)
    found = await judge(wheels)
    assert (found.month.polls, found.month.fresh) == (20, 10)
    assert found.stale_since is not None


async def test_a_poll_that_is_missed_after_one_with_an_event_is_stale(wheels: Wheels) -> None:
    """A poll with an event wrote the tracker's row; that excuses no later poll."""
    await polled(wheels)
    await wheels.pool.execute(
        """WITH last AS (DELETE FROM tickwright.poll_done d USING tickwright.poll_slots s
                          WHERE s.slot_id = d.slot_id AND d.due_at > now() - interval '12 minutes'
                         RETURNING d.ids[1] AS id, d.due_at)
           UPDATE tickwright.trackers t SET last_polled_at = d.due_at - interval '10 minutes' + interval '3 seconds'
             FROM (SELECT id, min(due_at) AS due_at FROM last GROUP BY id) AS d WHERE d.id = t.id"""
    )
    found = await judge(wheels)
    assert found.month.polls == 100
    assert found.month.fresh <= 20
    assert found.lag_ratio is not None
    assert 1.09 < found.lag_ratio < 2.2


async def test_settings_that_stay_the_same_excuse_nothing(wheels: Wheels) -> None:
    """An account that is written again every few minutes is judged all the same."""
    accounts = Accounts(wheels.pool, Cursors(wheels.pool))
    await accounts.put("a", AccountRequest(polling_interval_minutes=MINUTES), caller=Caller("test", Role.ADMIN))
    found = await judge(wheels)
    assert (found.month.polls, found.month.fresh) == (100, 0)


async def test_what_was_enabled_is_judged_from_its_next_selection_on(wheels: Wheels) -> None:
    """A minute is selected before it comes: an account that was paused then was not selected, and is not late."""
    await wheels.pool.execute("UPDATE tickwright.polling_schedule_config SET paused_at = now()")
    await wheels.pool.execute("UPDATE tickwright.polling_schedule_config SET paused_at = NULL")
    assert (await judge(wheels)).recent.polls == 0


@pytest.mark.parametrize(
    ("guard", "instead"),
    [
        ("FILTER (WHERE j.took_s <= 6 * $3) AS fresh", "FILTER (WHERE j.took_s IS NOT NULL) AS fresh"),
        ("AND (done.id IS NOT NULL\n          OR (", "AND (done.id IS NOT NULL\n          AND ("),
    ],
    ids=["a late poll is fresh", "a tracker that was not polled does not count"],
)
async def test_a_judge_that_is_too_lenient_is_found(
    wheels: Wheels, monkeypatch: pytest.MonkeyPatch, guard: str, instead: str
) -> None:
    """The mutants: nine tenths are late and a tenth is missing; one counts the late as fresh, one omits the missing."""
    assert guard in freshness_loop._SQL["judge"]
    monkeypatch.setitem(freshness_loop._SQL, "judge", freshness_loop._SQL["judge"].replace(guard, instead))
    await polled(wheels, late_s=61, of_ten=9)
    found = await judge(wheels)
    assert (found.month.polls, found.month.fresh) != (100, 0)
