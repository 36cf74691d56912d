"""Queries of the overview read bounded rows beside 200,000 jobs, 50,000 trackers and an outbox of 20,000."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.fanout.overview import SQL as FANOUT
from tickwright.capabilities.jobs.overview import LATEST_JOBS
from tickwright.capabilities.jobs.overview import SQL as JOBS
from tickwright.capabilities.operations.overview import SESSIONS_MAX
from tickwright.capabilities.operations.overview import SQL as OPERATIONS
from tickwright.capabilities.polling.overview import ACCOUNTS_SHOWN
from tickwright.capabilities.polling.overview import SQL as POLLING
from tickwright.plugin.overview import COUNT_MAX

PARTNERS, TYPES = 20, 10
FILL = f"""
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type)
SELECT now() + interval '1 second' * CASE WHEN n % 2 = 0 THEN -n ELSE 3600 + n END, 'type' || n / 2 % {TYPES}
  FROM generate_series(1, 200000) AS n;
INSERT INTO tickwright.partners (name, promised_since, settings)
SELECT 'p' || n, now(), '{{}}' FROM generate_series(1, {PARTNERS}) AS n;
INSERT INTO tickwright.polling_schedule_config (account_id) SELECT 'a' || n FROM generate_series(1, 200) AS n;
INSERT INTO tickwright.account_lags (account_no, interval_minutes, due_at, polls, fresh, lag)
SELECT account_no, 120, now(), 100, 90, 1 FROM tickwright.polling_schedule_config;
INSERT INTO tickwright.poll_wheels VALUES (120, 0);
INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, polled, loads)
SELECT at, date_part('epoch', at)::bigint / 60 % 120, p, 120, 100, 90, '{{1,2,3,4,5,6}}'
  FROM generate_series(0, 1439) AS m, generate_series(1, {PARTNERS}) AS p,
       LATERAL (SELECT date_trunc('minute', now()) - m * interval '1 minute' AS at) AS minute;
INSERT INTO tickwright.trackers (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
SELECT n, now(), now() + interval '1 day', 1 + n % 200, n % 7200, 1 + n % {PARTNERS}, 's', 'x' || n
  FROM generate_series(1, 50000) AS n;
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids)
SELECT now() - n * interval '1 second', n % 120, p, ARRAY[n], ARRAY[1], ARRAY['x']
  FROM generate_series(1, 1000) AS n, generate_series(1, {PARTNERS}) AS p;
INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, shard, ids, account_nos, external_ids)
SELECT now() + (n - 300) * interval '1 second', now(), 0, 1, n % 3, ARRAY[n], ARRAY[1], ARRAY['x']
  FROM generate_series(1, 10000) AS n;
INSERT INTO tickwright.outbox (destination, payload) SELECT 'amqp:' || n % 5, '1' FROM generate_series(1, 20000) AS n;
INSERT INTO tickwright.alerts (rule, subject, severity, summary, state)
SELECT 'r', 's' || n, 'info', 'x', CASE WHEN n % 1000 = 0 THEN 'firing' ELSE 'resolved' END
  FROM generate_series(1, 20000) AS n;
INSERT INTO tickwright.job_config (job_name) SELECT 'j' || n FROM generate_series(1, 50) AS n;
INSERT INTO tickwright.entities (code, is_polling_enabled, polling_enabled_modules)
SELECT 'e' || n, true, 'LOCATIONS,TARIFFS' FROM generate_series(1, 20000) AS n;
INSERT INTO tickwright.workers (id, name, roles, version, lease_until)
SELECT n, 'w' || n, '{{worker}}', '0', now() + interval '1 hour' FROM generate_series(1, 20) AS n;
"""
AFTER = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def crowded(module_url: str) -> Iterator[Planner]:
    """Full tables, read with the settings of a process."""
    planner = Planner(module_url)
    for room, queries in {"jobs": JOBS, "polling": POLLING, "fanout": FANOUT, "operations": OPERATIONS}.items():
        for name, sql in queries.items():
            planner.prepare(f"{room}_{name}", sql)
    planner.run(FILL)
    planner.run("VACUUM ANALYZE")
    yield planner
    planner.close()


@pytest.mark.parametrize(("due_max", "waiting_max"), [(COUNT_MAX, COUNT_MAX), (0, COUNT_MAX), (0, 0)])
def test_the_overview_of_jobs_counts_up_to_its_bounds(crowded: Planner, due_max: int, waiting_max: int) -> None:
    """A bounded range per claim range and the head of each; counting no rows costs nothing."""
    plan = crowded.explain("jobs_now", due_max, waiting_max, LATEST_JOBS)
    indexes = plan.scans_of("scheduled_tasks")  # those of the days among them, for the youngest jobs
    assert {name for name in indexes if not name.endswith("_pkey")} == {"scheduled_tasks_due"}, plan.text
    assert plan.rows_of("scheduled_tasks") <= due_max + waiting_max + 4 * TYPES + LATEST_JOBS + 10, plan.text


def test_sessions_and_keys_are_probes(crowded: Planner) -> None:
    """A row per session of a day, and an index for each key and each signed-in browser."""
    plan = crowded.explain("operations_now", AFTER, SESSIONS_MAX, [1], [1])
    assert plan.scans_of("workers") <= {"workers_pkey", "seq"}, plan.text  # a row per session of a day
    assert plan.scans_of("api_keys") <= {"api_keys_pkey"}, plan.text
    assert "seq" not in plan.scans_of("sessions"), plan.text


def test_gauges_by_type_read_a_bounded_range_of_each_claim_range(crowded: Planner) -> None:
    """Due and future jobs of ten types, at most ten thousand of each."""
    plan = crowded.explain("jobs_gauges", 500)
    assert plan.scans_of("scheduled_tasks") == {"scheduled_tasks_due"}, plan.text
    assert plan.rows_of("scheduled_tasks") <= 3 * 500 * TYPES + 2 * TYPES + 10, plan.text


def test_blocked_messages_and_dead_letters_are_counted_up_to_the_bound(crowded: Planner) -> None:
    """Half of the outbox is enough; leases are few."""
    plan = crowded.explain("operations_status", COUNT_MAX)
    assert plan.rows_of("outbox") <= COUNT_MAX, plan.text
    assert plan.blocks < 500, plan.text
    plan = crowded.explain("jobs_dead_letters", COUNT_MAX)
    assert plan.scans_of("scheduled_tasks_dead") <= {"scheduled_tasks_dead_pkey", "scheduled_tasks_dead_at"}, plan.text
    assert plan.blocks < 500, plan.text


def test_firing_alerts_are_found_among_resolved_ones(crowded: Planner) -> None:
    """Twenty of twenty thousand, and the newest five."""
    plan = crowded.explain("operations_alerts")
    assert plan.scans_of("alerts") <= {"alerts_firing", "alerts_pkey"}, plan.text
    assert plan.rows_of("alerts") <= 20 + 20_000 / 4 + 10, plan.text


def test_polls_read_a_range_of_each_shard_and_probe_each_partner(crowded: Planner) -> None:
    """A minute of the polls to be released, whatever is overdue; the head of each partner's queue."""
    plan = crowded.explain("polling_polls", COUNT_MAX)
    assert plan.scans_of("scheduler_outbox") == {"scheduler_outbox_waiting"}, plan.text
    assert plan.rows_of("scheduler_outbox") <= 62 + 10, plan.text
    assert plan.scans_of("poll_queue") == {"poll_queue_waiting"}, plan.text
    assert plan.rows_of("poll_queue") <= COUNT_MAX + PARTNERS, plan.text
    assert plan.scans_of("trackers") <= {"trackers_pkey", "trackers_place", "trackers_account"}, plan.text


def test_figures_of_partners_read_ten_minutes_of_the_ledger(crowded: Planner) -> None:
    """Of a ledger of a day."""
    plan = crowded.explain("polling_partners")
    assert plan.scans_of("poll_slices") == {"poll_slices_pkey"}, plan.text
    assert plan.rows_of("poll_slices") <= 12 * PARTNERS, plan.text


def test_fan_out_counts_entities_up_to_the_bound(crowded: Planner) -> None:
    """And reads from one list of modules to the next different one."""
    plan = crowded.explain("fanout_overview", COUNT_MAX)
    assert plan.scans_of("entities") == {"entities_polled"}, plan.text
    assert plan.rows_of("entities") <= COUNT_MAX + 5, plan.text


def test_small_tables_are_read_whole(crowded: Planner) -> None:
    """A row per account, a row per partition."""
    assert crowded.explain("polling_freshness", ACCOUNTS_SHOWN).blocks < 100
    assert crowded.explain("polling_poll_lags").blocks < 100
