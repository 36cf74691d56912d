"""Alert rules run every 15 s: the rows that each reads do not grow with the ledger, nor with the waiting rows."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from kit.alerts import RULES
from kit.fix_plans import Planner

PARTNERS = 100
QUIET = """{"quiet": "22:00-06:00 Europe/Berlin"}"""
FILL = f"""
INSERT INTO tickwright.partners (name, promised_since, settings)
SELECT 'p' || n, now() - interval '9 days', CASE WHEN n % 2 = 0 THEN '{QUIET}' ELSE '{{}}' END::jsonb
  FROM generate_series(1, {PARTNERS}) AS n;
INSERT INTO tickwright.poll_wheels VALUES (120, 0), (10, 120);
INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, polled, loads)
SELECT at, w.first_slot_id + date_part('epoch', at)::bigint / 60 % w.interval_minutes, p, w.interval_minutes,
       100, 90, '{{1,2,3,4,5,6}}'
  FROM generate_series(0, 999) AS m, generate_series(1, {PARTNERS}) AS p, tickwright.poll_wheels AS w,
       LATERAL (SELECT date_trunc('minute', now()) - m * interval '1 minute' AS at) AS minute;
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids)
SELECT now() - n * interval '1 second', n / 60, p, ARRAY[n], ARRAY[1], ARRAY['x']
  FROM generate_series(1, 400) AS n, generate_series(1, {PARTNERS}) AS p;
INSERT INTO tickwright.scheduler_outbox
       (release_at, due_at, slot_id, partner_no, shard, ids, account_nos, external_ids, batch_no)
SELECT now() - n * interval '1 second', now(), 0, 1, n % 3, ARRAY[n], ARRAY[1], ARRAY['x'],
       CASE WHEN n > 39990 THEN 1 END
  FROM generate_series(1, 40000) AS n;
INSERT INTO tickwright.polling_schedule_config (account_id) SELECT 'a' || n FROM generate_series(1, 2000) AS n;
INSERT INTO tickwright.account_freshness
SELECT account_no, 1440, now() - d * interval '1 day', now() + interval '1 day', 1000, 1000, 1
  FROM tickwright.polling_schedule_config, generate_series(1, 31) AS d;
INSERT INTO tickwright.account_lags (account_no, interval_minutes, due_at, stale_since, polls, fresh, lag)
SELECT account_no, 120, now(), CASE WHEN account_no % 100 = 0 THEN now() END, 100,
       CASE WHEN account_no % 100 = 0 THEN 90 ELSE 100 END, 1
  FROM tickwright.polling_schedule_config;
"""


@pytest.fixture(scope="module")
def crowded(module_url: str) -> Iterator[Planner]:
    """Two wheels of a hundred partners, a ledger of 200,000 rows, and many waiting rows."""
    planner = Planner(module_url)
    planner.prepare_rules("")
    planner.run(FILL)
    planner.run("ANALYZE")
    yield planner
    planner.close()


def bounds_of(name: str) -> tuple[timedelta | int, ...]:
    """Return the arguments of a rule's query."""
    return next(rule.bounds for rule in RULES if rule.name == name)


def test_missed_polls_are_searched_in_the_slices_of_an_hour(crowded: Planner) -> None:
    """Sixty minutes of two wheels and a hundred partners, of a ledger of a thousand: a probe a minute, no scan."""
    plan = crowded.explain("rule_missed_previous_poll", *bounds_of("missed_previous_poll"))
    assert plan.scans_of("poll_slices") == {"poll_slices_pkey"}, plan.text
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in plan.nodes if node.get("Alias") == "s")
    assert 0 < read <= 2 * 60 * PARTNERS, plan.text
    assert plan.root["Actual Rows"] >= PARTNERS / 2


def test_waiting_polls_are_read_at_the_head_of_each_partner(crowded: Planner) -> None:
    """One row per partner, however many wait."""
    plan = crowded.explain("rule_polls_wait", *bounds_of("polls_wait"))
    assert plan.scans_of("poll_queue") == {"poll_queue_waiting"}, plan.text
    assert plan.blocks < 10 * PARTNERS, plan.text


def test_a_stalled_relay_is_detected_at_the_head_of_each_shard(crowded: Planner) -> None:
    """Three shards with thirteen thousand rows each, after an outage: a few pages, and the frozen batch."""
    plan = crowded.explain("rule_poll_relay_stalled", *bounds_of("poll_relay_stalled"))
    assert plan.scans_of("scheduler_outbox") == {"scheduler_outbox_waiting", "scheduler_outbox_batch"}, plan.text
    assert plan.blocks < 100, plan.text


def test_budgets_are_computed_for_lagging_accounts_only(crowded: Planner) -> None:
    """The month's rows of twenty accounts; those of the other 1,980 are not read."""
    plan = crowded.explain("rule_freshness_budget", *bounds_of("freshness_budget"))
    assert "account_freshness_pkey" in plan.scans_of("account_freshness"), plan.text
    assert plan.root["Actual Rows"] == 0  # 31 good days pay for two bad hours
    month = [node for node in plan.nodes if node.get("Index Name") == "account_freshness_pkey"]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in month) <= 20 * 60, plan.text


def test_an_unknown_type_costs_a_probe_per_range_until_it_is_found(planner: Planner) -> None:
    """Of 100 ranges of each of four types: all where none is due, one where the type is known or late."""
    planner.prepare_rules("unknown_task_type")
    planner.run("INSERT INTO tickwright.task_types (name, target) VALUES ('known', 'python:x')")
    planner.run(
        "INSERT INTO tickwright.scheduled_tasks (task_type, execute_at, priority) "
        "SELECT name, now() + interval '1 hour' * CASE name WHEN 'idle' THEN 1 ELSE -1 END, p "
        "FROM unnest(ARRAY['idle', 'known', 'late', 'z']) AS name, generate_series(1, 100) AS p, generate_series(1, 40)"
    )
    plan = planner.explain_rule("unknown_task_type")
    assert plan.root["Actual Rows"] == 2
    assert plan.scans_of("scheduled_tasks") == {"scheduled_tasks_due"}, plan.text
    assert plan.rows_of("scheduled_tasks") <= 100 + 4, plan.text
