"""Each alert fires during its fault and is resolved after it; a lasting fault is one alert."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from kit.alerts import RULES, RULES_SQL
from kit.engine import connect
from kit.fix_app_roles import AppRole
from kit.leases import LONG
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.operations.alerts import alerting as module
from tickwright.capabilities.operations.alerts.alerting import Alerting, ClockWatch, RuleSchedule
from tickwright.capabilities.polling.relay import batches as relay_store
from tickwright.engine.leases import Lease, Leases
from tickwright.observe.alerts import CLOCK_JUMP, OWN_RULES, RULE_FAILED, AlertFinding, AlertRule, summary_of
from tickwright.ports.polls import Committed, PartitionOffsets
from tickwright.process.plugins import PLUGINS

WINDOWS = {
    "dead_letters",
    "freshness_budget",
    "missed_previous_poll",
    "partner_breaker_open",
    "possible_data_loss",
    "session_lost",
    "workflow_failed",
}


def quick(rule: AlertRule) -> AlertRule:
    """Return a rule that does not wait: ages of zero and one dead row; windows keep their length."""
    if rule.name in WINDOWS:
        return rule
    return replace(rule, bounds=tuple(timedelta() if isinstance(bound, timedelta) else 1 for bound in rule.bounds))


QUICK = tuple(quick(rule) for rule in RULES)
JOB = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (clock_timestamp() - interval '1 s', '{}')"
TYPE = "INSERT INTO tickwright.task_types (name, target) VALUES ('known', 'python:known')"
DUE = JOB.format("known")
WORKER = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts) "
    "VALUES (7, 'w', '{worker}', '1', clock_timestamp() + interval '1 hour', '{}')"
)
PARTNER = "INSERT INTO tickwright.partners (name) VALUES ('dhl')"
WHEEL = (
    "INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id) VALUES (1, 0); "
    "INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at) VALUES (0, 1, now())"
)
SLOT = "UPDATE tickwright.poll_slots SET next_due_at = now() + interval '{}'"
MISSED = (
    "UPDATE tickwright.partners SET promised_since = now() - interval '1 day'; "
    "INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id) VALUES (2, 7); "
    "INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, polled) "
    "SELECT at, 7 + date_part('epoch', at)::bigint / 60 % 2, 1, 2, 10, 8 "
    "FROM date_trunc('minute', now() - interval '5 minutes') AS at"
)
ACCOUNT = "INSERT INTO tickwright.polling_schedule_config (account_id) VALUES ('a')"
LAGGING = (
    "INSERT INTO tickwright.account_lags (account_no, interval_minutes, due_at, polls, fresh, lag, stale_since) "
    "SELECT account_no, 120, now(), 100, 90, 2.1, now() FROM tickwright.polling_schedule_config"
)
MONTH = (
    "INSERT INTO tickwright.account_freshness (account_no, minutes, from_at, keep_until, polls, fresh, lag) "
    "SELECT account_no, 1440, now() - interval '3 days', now() + interval '1 day', 1000, 900, 2 "
    "FROM tickwright.polling_schedule_config"
)
SELECTING = (
    "INSERT INTO tickwright.job_config (job_name, running, owner, version, lease_until) "
    "VALUES ('selector', true, 'w', 1, now() + interval '1 minute')"
)
FINISHED = (
    "INSERT INTO tickwright.batches (name, kind, type) VALUES ('b', 'program', 'MANUAL'); "
    "INSERT INTO tickwright.executions (batch_id, slot_at, status, finished_at, chunks, chunks_done) "
    "SELECT id, now(), 'FINISHED', now(), 1, 1 FROM tickwright.batches; "
    "INSERT INTO tickwright.execution_chunks (execution_id, number, value, state, done_at) "
    "SELECT id, 0, '{}', 'done', now() FROM tickwright.executions"
)
POLLER = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "VALUES (8, 'c', '{poll-consumer}', '0', now() + interval '1 hour')"
)
NO_JOBS = "DELETE FROM ONLY tickwright.scheduled_tasks"


@dataclass(frozen=True)
class Fault:
    """A rule, the SQL that causes its fault, the subject, and the SQL that ends it."""

    rule: str
    subject: str
    cause: str
    cure: str


FAULTS = [
    Fault(
        "unknown_task_type",
        "unserved",
        JOB.format("unserved"),
        "INSERT INTO tickwright.task_types (name, target) VALUES ('unserved', 'python:unserved')",
    ),
    Fault(
        "task_type_gone",
        "known",
        f"{TYPE}; UPDATE tickwright.task_types SET gone_at = now()",
        "UPDATE tickwright.task_types SET gone_at = NULL",
    ),
    Fault(
        "dead_letters",
        "known",
        f"{DUE}; UPDATE tickwright.scheduled_tasks SET status = 'failed'",
        "DELETE FROM tickwright.scheduled_tasks_dead",
    ),
    Fault("lateness", "known", f"{TYPE}; {WORKER}; {DUE}", NO_JOBS),
    Fault(
        "not_served",
        "known",
        f"""{TYPE}; {WORKER}; {DUE}; UPDATE tickwright.workers SET facts = '{{"scope": {{"queues": ["critical"]}}}}'""",
        "UPDATE tickwright.task_types SET queue = 'critical'",
    ),
    Fault("no_live_worker", "workers", f"{TYPE}; {DUE}", WORKER),
    Fault(
        "outbox_oldest",
        "pg:slow",
        "INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:slow', '{}')",
        "DELETE FROM tickwright.outbox",
    ),
    Fault(
        "outbox_unknown_scheme",
        "test:***",
        "INSERT INTO tickwright.outbox (destination, payload, error_message) "
        "VALUES ('test:x', '{}', 'unknown_scheme: x')",
        "DELETE FROM tickwright.outbox",
    ),
    Fault(
        "database_slow",
        "w #7",
        f"""{WORKER}; UPDATE tickwright.workers SET facts = '{{"exchange_ms": 3001}}'""",
        "UPDATE tickwright.workers SET facts = '{}'",
    ),
    Fault(
        "session_lost",
        "w #7",
        f"{WORKER}; UPDATE tickwright.workers SET lost_at = clock_timestamp()",
        "UPDATE tickwright.workers SET lost_at = clock_timestamp() - interval '11 minutes'",
    ),
    Fault(
        "schedule_late",
        "nightly",
        "INSERT INTO tickwright.schedules (name, task_type, cron, misfire_grace) "
        "VALUES ('nightly', 't', '@daily', '0')",
        "UPDATE tickwright.schedules SET due_at = now() + interval '1 hour'",
    ),
    Fault(
        "schedule_failing",
        "nightly",
        "INSERT INTO tickwright.schedules (name, task_type, cron) VALUES ('nightly', 't', '0 0 31 2 *'); "
        "UPDATE tickwright.schedules SET problem = 'it never fires', due_at = now() + interval '1 hour'",
        "UPDATE tickwright.schedules SET problem = NULL",
    ),
    Fault(
        "workflow_blocked",
        "order #1",
        "INSERT INTO tickwright.workflows (id, root_id, last_id, name, nodes, open) VALUES (1, 1, 3, 'order', 2, 1)",
        "UPDATE tickwright.workflows SET ended_at = clock_timestamp(), state = 'completed'",
    ),
    Fault(
        "workflow_failed",
        "order",
        "INSERT INTO tickwright.workflows (id, root_id, last_id, name, state, ended_at) "
        "VALUES (1, 1, 3, 'order', 'failed', clock_timestamp())",
        "UPDATE tickwright.workflows SET ended_at = clock_timestamp() - interval '61 minutes'",
    ),
    Fault(
        "threads_stuck",
        "w #7",
        f"""{WORKER}; UPDATE tickwright.workers SET facts = '{{"threads_stuck": 2}}'""",
        "UPDATE tickwright.workers SET facts = '{}'",
    ),
    Fault(
        "report_calls_stuck",
        "w #7",
        f"""{WORKER}; UPDATE tickwright.workers SET facts = '{{"report_calls_stuck": 2}}'""",
        "UPDATE tickwright.workers SET facts = '{}'",
    ),
    Fault(
        "scheduler_stopped",
        "selector",
        f"{WHEEL}; {SLOT.format('30 seconds')}",
        f"{SLOT.format('2 minutes')}; {SELECTING}",
    ),
    Fault(
        "scheduler_stopped",
        "registrar",
        "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner) VALUES ('a', 'dhl')",
        SELECTING.replace("selector", "registrar"),
    ),
    Fault(
        "scheduler_stopped",
        "campaign-producer",
        "INSERT INTO tickwright.batches (name, kind, type, status, next_slot_at) "
        "VALUES ('b', 'program', 'AUTOMATIC', 'SCHEDULED', now())",
        "UPDATE tickwright.batches SET next_slot_at = now() + interval '1 hour'",
    ),
    Fault(
        "scheduler_stopped",
        "campaign-checker",
        FINISHED,
        SELECTING.replace("selector", "campaign-checker"),
    ),
    Fault(
        "partner_not_callable",
        "dhl",
        f"{PARTNER}; {POLLER}; "
        "INSERT INTO tickwright.poll_places (partner_no, interval_minutes, taken) VALUES (1, 2, 1); "
        "INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected) "
        "VALUES (now() - interval '1 minute', 0, 1, 2, 1)",
        'UPDATE tickwright.workers SET facts = \'{"partners": ["dhl"]}\'',
    ),
    Fault(
        "config_time_miss",
        "registrar",
        "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner) VALUES ('a', 'dhl')",
        "DELETE FROM tickwright.tracker_intake",
    ),
    Fault(
        "missed_previous_poll",
        "dhl",
        f"{PARTNER}; {MISSED}",
        "UPDATE tickwright.poll_slices SET polled = 10",
    ),
    Fault(
        "account_lag",
        "a",
        f"{ACCOUNT}; {LAGGING}",
        "UPDATE tickwright.account_lags SET stale_since = NULL",
    ),
    Fault(
        "poll_relay_stalled",
        "0",
        "INSERT INTO tickwright.scheduler_outbox "
        "(release_at, due_at, slot_id, partner_no, ids, account_nos, external_ids) "
        "VALUES (now(), now(), 0, 1, '{1}', '{1}', '{x}')",
        "DELETE FROM tickwright.scheduler_outbox",
    ),
    Fault(
        "polls_wait",
        "dhl",
        f"{PARTNER}; INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids) "
        "VALUES (now(), 0, 1, '{1}', '{1}', '{x}')",
        "UPDATE tickwright.poll_queue SET owner = 1",
    ),
    Fault(
        "poll_group_lag",
        "polls",
        "INSERT INTO tickwright.poll_ends VALUES ('polls', 0, 0, 9, now(), '{9}', ARRAY[now()])",
        "INSERT INTO tickwright.poll_reads VALUES ('polls', 0, 9, 9, now())",
    ),
    Fault(
        "partner_breaker_open",
        "dhl",
        f"{PARTNER}; INSERT INTO tickwright.partner_states (partner_no, breaker) VALUES (1, 'open')",
        "UPDATE tickwright.partner_states SET breaker = 'closed'",
    ),
    Fault(
        "freshness_budget",
        "a",
        f"{ACCOUNT}; {MONTH}; {LAGGING}",
        "UPDATE tickwright.account_lags SET stale_since = NULL",
    ),
    Fault(
        "freshness_unknown",
        "judge",
        f"{WHEEL}; UPDATE tickwright.poll_wheels SET judged_until = now() - interval '2 minutes'",
        "UPDATE tickwright.poll_wheels SET judged_until = now()",
    ),
]


SAID_TWICE = {"dead_letters", "outbox_oldest", "outbox_unknown_scheme", "config_time_miss", "poll_relay_stalled"}


@pytest.fixture
async def lease(pool: asyncpg.Pool) -> Lease:
    """The lease of the alerting loop."""
    lease = await Leases(pool, owner="test", terms=LONG).take("alerting")
    assert lease is not None
    return lease


def alerting(pool: asyncpg.Pool) -> Alerting:
    """An alerting loop with bounds of zero."""
    return Alerting(Leases(pool, owner="test"), rules=QUICK)


async def states(pool: asyncpg.Pool, rule: str) -> list[tuple[str, str]]:
    """Return subject and state of a rule's alerts, oldest first."""
    rows = await pool.fetch("SELECT subject, state FROM tickwright.alerts WHERE rule = $1 ORDER BY id", rule)
    return [(row["subject"], row["state"]) for row in rows]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.rule for fault in FAULTS])
async def test_an_alert_fires_once_and_clears(pool: asyncpg.Pool, lease: Lease, fault: Fault) -> None:
    """No alert, then firing, still one row in the next round, then resolved."""
    loop = alerting(pool)
    await loop.round(lease)
    assert await states(pool, fault.rule) == []
    await pool.execute(fault.cause)
    await loop.round(lease)
    await loop.round(lease)
    assert await states(pool, fault.rule) == [(fault.subject, "firing")]
    summary = await pool.fetchval("SELECT summary FROM tickwright.alerts WHERE rule = $1", fault.rule)
    assert "?" not in summary.replace("autovacuum stopped, or a transaction open?", "")
    await pool.execute(fault.cure)
    await loop.round(lease)
    assert await states(pool, fault.rule) == [(fault.subject, "resolved")]


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.rule in SAID_TWICE], ids=lambda fault: fault.rule)
async def test_a_recurring_fault_is_a_second_alert(pool: asyncpg.Pool, lease: Lease, fault: Fault) -> None:
    """The first one stays resolved: the list shows when it ended, and that the fault recurred."""
    loop = alerting(pool)
    for change in (fault.cause, fault.cure, fault.cause):
        await pool.execute(change)
        await loop.round(lease)
    assert await states(pool, fault.rule) == [(fault.subject, "resolved"), (fault.subject, "firing")]


@dataclass(frozen=True)
class Excuse:
    """A condition under which a fault raises no alert."""

    rule: str
    cause: str
    excuse: str
    over: str


SINCE_YESTERDAY = "UPDATE tickwright.partners SET promised_since = now() - interval '1 day'"
DAY_LONG = f"""UPDATE tickwright.partners SET settings = '{{"quiet": ["00:00-24:00 UTC"]}}'; {SINCE_YESTERDAY}"""
AWAKE = f"UPDATE tickwright.partners SET settings = '{{}}'; {SINCE_YESTERDAY}"
PAUSED = f"UPDATE tickwright.partners SET paused_at = now(); {SINCE_YESTERDAY}"
RESUMED = f"UPDATE tickwright.partners SET paused_at = NULL; {SINCE_YESTERDAY}"
STATE = "UPDATE tickwright.partner_states SET changed_at = now() - interval '1 day'"
WAITS = next(fault.cause for fault in FAULTS if fault.rule == "polls_wait")
OPENED = next(fault.cause for fault in FAULTS if fault.rule == "partner_breaker_open")
OVERDRAWN = next(fault.cause for fault in FAULTS if fault.rule == "freshness_budget")
LAGS = next(fault.cause for fault in FAULTS if fault.rule == "account_lag")
EXCUSES = {
    "quiet": Excuse("polls_wait", WAITS, DAY_LONG, AWAKE),
    "paused": Excuse("polls_wait", WAITS, PAUSED, RESUMED),
    "silent": Excuse(
        "polls_wait",
        f"{WAITS}; INSERT INTO tickwright.partner_states (partner_no) VALUES (1)",
        "UPDATE tickwright.partner_states SET blocked_until = now() + interval '1 hour'",
        "UPDATE tickwright.partner_states SET blocked_until = now() - interval '1 hour'",
    ),
    "failing": Excuse(
        "polls_wait",
        f"{WAITS}; INSERT INTO tickwright.partner_states (partner_no) VALUES (1)",
        "UPDATE tickwright.partner_states SET breaker = 'open', open_until = now() + interval '1 minute'",
        "UPDATE tickwright.partner_states SET open_until = now() - interval '1 minute'",
    ),
    "missed in quiet hours": Excuse("missed_previous_poll", f"{PARTNER}; {MISSED}", DAY_LONG, AWAKE),
    "missed by a paused one": Excuse("missed_previous_poll", f"{PARTNER}; {MISSED}", PAUSED, RESUMED),
    "missed before it was changed": Excuse(
        "missed_previous_poll",
        f"{PARTNER}; {MISSED}",
        "UPDATE tickwright.partners SET promised_since = now()",
        SINCE_YESTERDAY,
    ),
    "a breaker without waiting polls": Excuse(
        "partner_breaker_open", OPENED, STATE, "UPDATE tickwright.partner_states SET open_until = now()"
    ),
    "a budget within the objective of the month": Excuse(
        "freshness_budget",
        OVERDRAWN,
        "UPDATE tickwright.account_freshness SET polls = 10000, fresh = 9990 WHERE minutes = 1440",
        "UPDATE tickwright.account_freshness SET fresh = 9000 WHERE minutes = 1440",
    ),
    "a wheel without slots": Excuse(
        "freshness_unknown",
        "INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id, judged_until) "
        "VALUES (1, 0, now() - interval '2 days')",
        "SELECT",
        "INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at) VALUES (0, 1, now())",
    ),
    "a wheel within its time": Excuse(
        "freshness_unknown",
        WHEEL,
        "UPDATE tickwright.poll_wheels SET judged_until = now() - interval '68 seconds'",
        "UPDATE tickwright.poll_wheels SET judged_until = now() - interval '73 seconds'",
    ),
    "an account that is no longer judged": Excuse(
        "account_lag",
        LAGS,
        "UPDATE tickwright.account_lags SET due_at = now() - interval '155 minutes'",
        "UPDATE tickwright.account_lags SET due_at = now() - interval '150 minutes'",
    ),
}


@pytest.mark.parametrize("excuse", EXCUSES.values(), ids=EXCUSES.keys())
async def test_an_excused_condition_raises_no_alert(pool: asyncpg.Pool, lease: Lease, excuse: Excuse) -> None:
    """No alert fires while the excuse holds, such as an intended setting; without it the alert fires."""
    await pool.execute(f"{excuse.cause}; {excuse.excuse}")
    await alerting(pool).round(lease)
    assert await states(pool, excuse.rule) == []
    await pool.execute(excuse.over)
    await alerting(pool).round(lease)
    assert [state for _, state in await states(pool, excuse.rule)] == ["firing"]


async def test_the_age_of_waiting_polls_counts_from_the_end_of_quiet_hours(pool: asyncpg.Pool, lease: Lease) -> None:
    """Quiet hours have just ended: the polls waited through them as intended, and the consumers have only begun."""
    rule = next(rule for rule in RULES if rule.name == "polls_wait")
    clock = "to_char(now() AT TIME ZONE 'UTC' - interval '{}', 'HH24:MI')"
    quiet_to = f"""UPDATE tickwright.partners
      SET settings = jsonb_build_object('quiet', {clock.format("8 hours")} || '-' || {clock} || ' UTC');
      {SINCE_YESTERDAY}"""
    long_ago = WAITS.replace("VALUES (now(),", "VALUES (now() - interval '8 hours',")
    await pool.execute(f"{long_ago}; {quiet_to.format('0')}")
    loop = Alerting(Leases(pool, owner="test"), rules=[rule])
    await loop.round(lease)
    assert await states(pool, "polls_wait") == []
    await pool.execute(quiet_to.format("3 minutes"))
    await loop.round(lease)
    assert await states(pool, "polls_wait") == [("dhl", "firing")]


async def test_relays_are_checked_one_by_one(pool: asyncpg.Pool, lease: Lease) -> None:
    """The alert names the stalled shard, whether its polls wait or are frozen into a batch, and no other."""
    await pool.execute(
        """INSERT INTO tickwright.scheduler_outbox
                  (release_at, due_at, slot_id, partner_no, shard, ids, account_nos, external_ids, batch_no)
           SELECT now() + late * interval '1 second', now(), 0, 1, shard, '{1}', '{1}', '{x}', batch_no
             FROM (VALUES (0, 60, NULL), (1, -60, 7), (1, 60, NULL), (2, -60, NULL), (2, 60, NULL), (5, -1, NULL))
                  AS rows (shard, late, batch_no)"""
    )
    await alerting(pool).round(lease)
    assert {subject for subject, _ in await states(pool, "poll_relay_stalled")} == {"1", "2", "5"}


async def published(pool: asyncpg.Pool, number: int, first_offset: int, last_offset: int) -> None:
    """Mark a batch of shard 0 as a relay does, in one partition of the topic."""
    places = Committed(partitions=1, places=[PartitionOffsets(0, first_offset, last_offset)])
    async with pool.acquire() as connection:
        await relay_store.mark_published(connection, 0, number, "polls", places)


async def test_a_recreated_topic_without_a_reader_has_a_lag(pool: asyncpg.Pool, lease: Lease) -> None:
    """The group's position in the earlier topic no longer counts; the position of a reader of the new one stays."""
    await pool.execute("INSERT INTO tickwright.poll_relays (shard, batch_no) VALUES (0, 9)")
    await published(pool, 1, 900_000, 999_999)
    await pool.execute("INSERT INTO tickwright.poll_reads VALUES ('polls', 0, 1000500, 1000500, now())")
    await published(pool, 2, 1_000_000, 1_000_099)
    assert await pool.fetchval("SELECT position FROM tickwright.poll_reads") == 1_000_500, "the other polls are read"
    await alerting(pool).round(lease)
    assert await states(pool, "poll_group_lag") == []
    await published(pool, 3, 0, 999)
    await published(pool, 4, 1000, 1999)
    await alerting(pool).round(lease)
    assert await states(pool, "poll_group_lag") == [("polls", "firing")]
    assert await pool.fetchval("SELECT lag FROM tickwright.poll_lags") == 2000
    await pool.execute("INSERT INTO tickwright.poll_reads VALUES ('polls', 0, 500, 500, now())")
    await published(pool, 5, 0, 699)
    assert await pool.fetchval("SELECT position FROM tickwright.poll_reads") == 500


async def test_a_long_open_transaction_is_named_by_its_pid(pool: asyncpg.Pool, lease: Lease, database_url: str) -> None:
    """The session that keeps dead rows alive is named, so that an operator can end it; the alert ends with it."""
    loop = alerting(pool)
    other = await asyncpg.connect(database_url)
    transaction = other.transaction(isolation="repeatable_read")
    await transaction.start()
    pid = await other.fetchval("SELECT pg_backend_pid() FROM tickwright.installation")
    await loop.round(lease)
    assert (f"pid {pid}", "firing") in await states(pool, "old_snapshot")
    await transaction.rollback()
    await loop.round(lease)
    assert (f"pid {pid}", "resolved") in await states(pool, "old_snapshot")
    await other.close()


async def test_a_transaction_that_only_holds_a_lock_is_named_too(
    pool: asyncpg.Pool, lease: Lease, app_role: AppRole
) -> None:
    """It has no snapshot and no number, but keeps migrations waiting; a transaction that holds nothing is not named."""
    loop = alerting(pool)
    holder, idle = await connect(app_role.url), await connect(app_role.url)
    await idle.execute("BEGIN")
    await holder.execute("BEGIN; PREPARE p AS SELECT FROM tickwright.api_keys")
    await loop.round(lease)
    found = await states(pool, "old_snapshot")
    assert (f"pid {holder.get_server_pid()}", "firing") in found
    assert f"pid {idle.get_server_pid()}" not in dict(found)
    await holder.execute("ROLLBACK")
    await loop.round(lease)
    assert (f"pid {holder.get_server_pid()}", "resolved") in await states(pool, "old_snapshot")
    await holder.close()
    await idle.close()


async def test_a_session_that_waits_for_a_lock_without_a_right_is_named(
    pool: asyncpg.Pool, lease: Lease, app_role: AppRole, other: asyncpg.Connection
) -> None:
    """Its pid, its role and the table; not the owner that waits as well. It ends when neither waits any more."""
    loop = alerting(pool)
    holder, asker = await connect(app_role.url), await connect(app_role.url)
    await holder.execute("BEGIN; PREPARE p AS SELECT FROM tickwright.api_keys")
    rule = "CREATE RULE r AS ON INSERT TO tickwright.api_keys DO NOTHING"
    asking = [asyncio.create_task(asker.execute(rule))]
    asking.append(asyncio.create_task(other.execute("ALTER TABLE tickwright.api_keys ADD COLUMN a integer")))
    waiting = "SELECT count(*) = 2 FROM pg_locks WHERE relation = 'tickwright.api_keys'::regclass AND NOT granted"
    await eventually_async(lambda: pool.fetchval(waiting), what="both wait")
    await loop.round(lease)
    assert await states(pool, "table_lock") == [(f"pid {asker.get_server_pid()}", "firing")]
    summary = await pool.fetchval("SELECT summary FROM tickwright.alerts WHERE rule = 'table_lock'")
    assert f"of role {app_role.name} waits with AccessExclusiveLock of api_keys" in summary
    await holder.execute("ROLLBACK")
    await asyncio.gather(*asking, return_exceptions=True)
    await loop.round(lease)
    assert await states(pool, "table_lock") == [(f"pid {asker.get_server_pid()}", "resolved")]
    await holder.close()
    await asker.close()


async def test_a_late_type_is_found_behind_thousands_of_unknown_ones(pool: asyncpg.Pool, lease: Lease) -> None:
    """Names that sort before its own, each with a due job."""
    loop = alerting(pool)
    await pool.execute(WORKER)
    await pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('work', 'python:work')")
    await pool.execute(
        "INSERT INTO tickwright.scheduled_tasks (task_type, execute_at) "
        "SELECT 't' || n, now() - interval '1 hour' FROM generate_series(1, 3000) AS n"
    )
    await loop.round(lease)
    assert await states(pool, "lateness") == []
    await pool.execute(
        "INSERT INTO tickwright.scheduled_tasks (task_type, execute_at, priority) "
        "SELECT 'work', now() - interval '1 hour', p FROM generate_series(-3, 3) AS p"
    )
    await loop.round(lease)
    assert await states(pool, "lateness") == [("work", "firing")]


async def test_dead_letters_of_many_names_are_few_alerts(pool: asyncpg.Pool, lease: Lease) -> None:
    """Names with many letters have their own, the rest share one, which stays while names come and go."""
    loop = alerting(pool)
    add = (
        "INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts, died_at) "
        "SELECT $1 + n, CASE WHEN n % 10 = 0 THEN 'pg:often' ELSE 'pg:x' || $1 + n END, '{}', '{}', now(), 1, now() "
        "FROM generate_series(1, 3000) AS n"
    )
    for start in (0, 10_000, 20_000):
        await pool.execute(add, start)
        await loop.round(lease)
    assert sorted(await states(pool, "dead_letters")) == [("many others", "firing"), ("pg:often", "firing")]


async def test_dead_letters_of_arbitrary_names_resolve_no_other_alert(pool: asyncpg.Pool, lease: Lease) -> None:
    """A name below a hundredth may still have its letters: its alert ends when names are no longer folded."""
    loop = alerting(pool)
    await pool.execute(f"{DUE}; UPDATE tickwright.scheduled_tasks SET status = 'failed'")
    await loop.round(lease)
    await pool.execute(
        "INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts, died_at) "
        "SELECT n, 'pg:made-up' || n % 101, '{}', '{}', now(), 1, now() FROM generate_series(1, 505) AS n"
    )
    await loop.round(lease)
    assert await states(pool, "dead_letters") == [("known", "firing"), ("many others", "firing")]
    await pool.execute("DELETE FROM tickwright.outbox_dead; DELETE FROM tickwright.scheduled_tasks_dead")
    await loop.round(lease)
    assert await states(pool, "dead_letters") == [("known", "resolved"), ("many others", "resolved")]


async def test_dead_letters_of_an_address_without_a_path_name_its_host_and_port(
    pool: asyncpg.Pool, lease: Lease
) -> None:
    """Whole, so that two hosts or ports are two alerts; a longer address is cut after them."""
    bare = ["https://hooks1", "https://hooks2", "https://shop1.example:8443"]
    await pool.execute(
        "INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts, died_at) "
        "SELECT row_number() OVER (), d, '{}', '{}', now(), 1, now() FROM unnest($1::text[]) AS d",
        [*bare, *(f"https://shop2.example:8443{rest}" for rest in ("/a", "?b", "#c", "/", "/a\nb"))],
    )
    await alerting(pool).round(lease)
    subjects = [subject for subject, _ in await states(pool, "dead_letters")]
    assert sorted(subjects) == [*bare, "https://shop2.example:8443/…"]


async def test_dead_letters_of_one_host_are_one_alert_with_the_host_only(pool: asyncpg.Pool, lease: Lease) -> None:
    """The path, or a user before the host, may be a credential: neither row, message nor log has it."""
    loop = alerting(pool)
    await pool.execute("INSERT INTO tickwright.alert_receivers (name, url) VALUES ('ops', 'https://x.example/')")
    await pool.execute("DELETE FROM tickwright.outbox_dead")
    add = (
        "INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts, died_at) "
        "SELECT row_number() OVER (), d, '{}', '{}', now(), 1, now() FROM unnest($1::text[]) AS d"
    )
    urls = [f"https://hooks.example/T0/c4n4ry{number}?token=c4n4ry" for number in range(150)]
    users = [f"https://{'c4n4ry' * 50}:c4n4ry@hooks.example/x", "odd:c4n4ry", "odd:c4n4ry/2", "pg:mine"]
    await pool.execute(add, urls + users)
    await pool.execute(f"{DUE.replace('known', 'a:b')}; UPDATE tickwright.scheduled_tasks SET status = 'failed'")
    with capture_logs() as logs:
        for _ in range(2):
            await loop.round(lease)
        await pool.execute("DELETE FROM tickwright.outbox_dead")
        await loop.round(lease)
    rows = await pool.fetch("SELECT * FROM tickwright.alerts WHERE rule = 'dead_letters'")
    assert {(row["subject"], row["state"], json.loads(row["facts"])["count"]) for row in rows} == {
        ("https://hooks.example/…", "resolved", 151),
        ("odd:***", "resolved", 2),
        ("pg:mine", "resolved", 1),
        ("a:b", "firing", 1),
    }
    assert len(rows) == 4
    sent = await pool.fetch("SELECT key, payload FROM tickwright.outbox WHERE destination = 'alert:ops'")
    assert len([one for one in sent if one["key"] == "dead_letters/https://hooks.example/…"]) == 2
    assert "c4n4ry" not in f"{sent}{rows}{logs}"


async def test_a_session_that_keeps_notifications_is_named(pool: asyncpg.Pool, database_url: str) -> None:
    """It listens inside an open transaction; the bound is zero here, as a real one takes gigabytes."""
    other = await connect(database_url)
    await other.execute("LISTEN mine")
    transaction = other.transaction()
    await transaction.start()
    pid = await other.fetchval("SELECT pg_backend_pid()")
    await pool.execute("SELECT pg_notify('mine', repeat('x', 7900) || n) FROM generate_series(1, 20) AS n")
    rows = await pool.fetch(RULES_SQL["notifications_pile_up"].replace("> $1::integer", ">= $1::integer"), 0)
    await transaction.rollback()
    await other.close()
    assert [row["subject"] for row in rows] == [f"pid {pid}"]


async def test_dead_rows_fire_and_clear_with_a_vacuum(pool: asyncpg.Pool, lease: Lease) -> None:
    """A table with more dead than live rows is named."""
    loop = alerting(pool)
    await pool.execute("ALTER TABLE tickwright.outbox SET (autovacuum_enabled = false)")
    await pool.execute(
        "INSERT INTO tickwright.outbox (destination, payload) SELECT 'pg:x', '{}' FROM generate_series(1, 50)"
    )
    await pool.execute("DELETE FROM tickwright.outbox")

    async def named(state: str) -> object:
        await pool.execute("SELECT pg_stat_force_next_flush()")
        await loop.round(lease)
        return ("outbox", state) in await states(pool, "dead_rows")

    async def firing() -> Any:
        return await named("firing")

    async def resolved() -> Any:
        return await named("resolved")

    await eventually_async(firing)
    await pool.execute("VACUUM tickwright.outbox")
    await eventually_async(resolved)


async def test_a_jump_of_the_databases_clock_fires_and_clears(pool: asyncpg.Pool, lease: Lease) -> None:
    """The database's clock against the monotonic one: a jump of an hour is an alert for five minutes."""
    loop = alerting(pool)
    await loop.round(lease)
    assert await states(pool, CLOCK_JUMP.name) == []
    loop.clock.sample(0.0, 0.0, 0.0)
    await loop.round(lease)
    assert await states(pool, CLOCK_JUMP.name) == [("database", "firing")]
    loop.clock = ClockWatch()
    await loop.round(lease)
    assert await states(pool, CLOCK_JUMP.name) == [("database", "resolved")]


def test_a_slow_answer_is_no_jump() -> None:
    """A difference that the answer's duration explains is no jump."""
    watch = ClockWatch()
    watch.sample(1000.0, 0.0, 0.0)
    watch.sample(1010.0, 10.0, 15.0)
    assert watch.findings(15.0) == []
    watch.sample(1018.0, 15.0, 15.0)
    assert watch.findings(15.0) != []
    assert watch.findings(15.0 + 301) == []


async def test_an_evaluator_that_lost_the_lease_writes_nothing(pool: asyncpg.Pool, lease: Lease) -> None:
    """Without the lease a loop changes no alert."""
    await pool.execute(FAULTS[0].cause)
    await Leases(pool, owner="operator").break_lease("alerting")
    await alerting(pool).round(lease)
    assert await states(pool, FAULTS[0].rule) == []


async def test_of_the_loops_of_all_roles_one_evaluates(pool: asyncpg.Pool) -> None:
    """Of three loops one evaluates; when that one stops another does."""
    loops = [alerting(pool) for _ in range(3)]
    tasks = [asyncio.create_task(loop.run()) for loop in loops]
    await eventually_async(lambda: sum(loop.lease is not None for loop in loops) == 1)
    for loop in loops:
        await loop.quiesce()
        await loop.stop()
    await asyncio.gather(*tasks)


async def test_two_changes_to_one_timeline_are_two_alerts(pool: asyncpg.Pool, lease: Lease) -> None:
    """Two restores, or a move to another server and back: the same timeline twice; later rules are still evaluated."""
    await pool.execute(
        "INSERT INTO tickwright.timelines (no, system_id, timeline, fence_floor) "
        "SELECT t.last + g, 42 + g, '00000007', 0 "
        "FROM (SELECT max(no) AS last FROM tickwright.timelines) AS t, generate_series(1, 2) AS g"
    )
    await pool.execute(f"{TYPE}; UPDATE tickwright.task_types SET gone_at = now()")
    await alerting(pool).round(lease)
    found = await states(pool, "possible_data_loss")
    assert len(found) == len(set(found)) == 2
    assert all(subject.startswith("timeline 00000007 #") for subject, _ in found)
    assert await states(pool, "task_type_gone") == [("known", "firing")]
    assert await states(pool, RULE_FAILED.name) == []


@contextmanager
def queries(loop: module.Alerting, **other: str) -> Iterator[None]:
    """Run these queries instead of the rules' own."""
    own = dict(loop._rules)
    loop._rules.update({name: [replace(own[name][0], sql=sql)] for name, sql in other.items()})
    yield
    loop._rules.update(own)


async def test_a_subject_that_a_rule_finds_twice_is_one_alert(pool: asyncpg.Pool, lease: Lease) -> None:
    """Also for two subjects that are cut to the same text: the first one counts."""
    facts = "jsonb_build_object('gone_at', g)::text AS facts"
    long = f"SELECT repeat('x', 200 + g) AS subject, {facts} FROM generate_series(1, 2) AS g"
    loop = alerting(pool)
    with queries(loop, task_type_gone=long):
        await loop.round(lease)
    assert await states(pool, "task_type_gone") == [("x" * 200, "firing")]
    assert await pool.fetchval("SELECT facts ->> 'gone_at' FROM tickwright.alerts") == "1"


async def check_failing_rule(pool: asyncpg.Pool, lease: Lease, patch: pytest.MonkeyPatch) -> None:
    """A rule whose query fails is itself an alert; its own alerts stay, and those of the others are evaluated."""
    loop = alerting(pool)
    await pool.execute(TYPE)
    await pool.execute(DUE.replace("known", "unknown"))
    await loop.round(lease)
    assert await states(pool, "unknown_task_type") == [("unknown", "firing")]
    await pool.execute("TRUNCATE tickwright.scheduled_tasks; UPDATE tickwright.task_types SET gone_at = now()")
    failing = {"unknown_task_type": "SELECT 1 / 0, $1::interval", "session_lost": "SELECT nothing, $1::interval"}
    with queries(loop, **failing):
        for _ in range(2):
            await loop.round(lease)
            assert await states(pool, "task_type_gone") == [("known", "firing")]
            assert await states(pool, "unknown_task_type") == [("unknown", "firing")], "it stays as it is"
            failed = await states(pool, RULE_FAILED.name)
            assert sorted(failed) == [("session_lost", "firing"), ("unknown_task_type", "firing")]
    await loop.round(lease)
    assert {state for _, state in await states(pool, RULE_FAILED.name)} == {"resolved"}
    assert await states(pool, "unknown_task_type") == [("unknown", "resolved")]


async def test_a_rule_that_fails_stops_no_other(
    pool: asyncpg.Pool, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure of one rule is reported, and does not affect the others."""
    await check_failing_rule(pool, lease, monkeypatch)


async def test_a_rule_that_is_too_slow_stops_no_other(
    pool: asyncpg.Pool, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled after its own timeout and is itself an alert; its own alerts stay until it is fast again."""
    loop = alerting(pool)
    await pool.execute(TYPE)
    await pool.execute(DUE.replace("known", "unknown"))
    await loop.round(lease)
    await pool.execute("TRUNCATE tickwright.scheduled_tasks; UPDATE tickwright.task_types SET gone_at = now()")
    monkeypatch.setattr(module, "RULE_S", 1.0)
    sleeps_s = "CASE current_setting('statement_timeout') WHEN '1s' THEN 3600 ELSE 0 END"
    late = f"SELECT pg_sleep({sleeps_s})::text AS subject, '{{}}' AS facts, $1::interval"
    with queries(loop, unknown_task_type=late):
        await loop.round(lease)
        assert await states(pool, "task_type_gone") == [("known", "firing")]
        assert ("unknown_task_type", "firing") in await states(pool, RULE_FAILED.name)
        assert await states(pool, "unknown_task_type") == [("unknown", "firing")], "it stays as it is"

    async def all_are_evaluated() -> bool:
        await loop.round(lease)
        return {state for _, state in await states(pool, RULE_FAILED.name)} == {"resolved"}

    await eventually_async(all_are_evaluated)
    assert await states(pool, "unknown_task_type") == [("unknown", "resolved")]


async def test_rules_that_a_long_round_skips_come_first_in_the_next_one(
    pool: asyncpg.Pool, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With time for one rule per round each one has its round; a failing one is named and delays no other."""
    monkeypatch.setattr(module, "ROUND_S", 0.0)
    await pool.execute(f"{TYPE}; UPDATE tickwright.task_types SET gone_at = now(); {WORKER}")
    await pool.execute("UPDATE tickwright.workers SET lost_at = clock_timestamp()")
    names = ("unknown_task_type", "task_type_gone", "session_lost")
    rules = [next(one for one in QUICK if one.name == name) for name in names]
    rules[0] = replace(rules[0], sql="SELECT 1 / 0, $1::interval")
    loop = Alerting(Leases(pool, owner="test"), rules=rules)
    await loop.round(lease)
    assert await states(pool, "task_type_gone") == [("known", "firing")]
    assert await states(pool, "session_lost") == [], "left out"
    for _ in names:
        await loop.round(lease)
    assert await states(pool, "session_lost") == [("w #7", "firing")]
    assert await states(pool, RULE_FAILED.name) == [("unknown_task_type", "firing")]


LATE = "INSERT INTO tickwright.scheduled_tasks (task_type, execute_at) SELECT {}, now() - interval '1 hour'"
MANY = LATE.format("'a{}x' || n") + " FROM generate_series(1, 1000) AS n"


async def test_a_truncated_answer_resolves_nothing_and_opens_a_bounded_number(pool: asyncpg.Pool, lease: Lease) -> None:
    """A type whose jobs wait behind a thousand others keeps its alert, which ends once all rows are read."""
    loop = alerting(pool)
    await pool.execute(LATE.format("'zzz'"))
    await loop.round(lease)
    for crowd in (3, 2, 1):
        await pool.execute(MANY.format(crowd))
        await loop.round(lease)
    found = await states(pool, "unknown_task_type")
    assert found[0] == ("zzz", "firing")
    assert len(found) == module.FIRING_MAX
    await pool.execute(f"{NO_JOBS} WHERE task_type <> 'zzz'")
    await loop.round(lease)
    assert [one for one in await states(pool, "unknown_task_type") if one[1] == "firing"] == [("zzz", "firing")]


async def test_a_missing_savepoint_is_detected(
    pool: asyncpg.Pool, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its own savepoint a failing rule rolls back the whole round."""
    mutate(monkeypatch, Alerting._evaluate, "connection.transaction() if isolated else nullcontext()", "nullcontext()")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await check_failing_rule(pool, lease, monkeypatch)


def test_a_rule_with_a_longer_period_runs_again_in_a_repeated_round() -> None:
    """The first attempt of a round has no effect: its transaction was rolled back."""
    schedule, rule = RuleSchedule(), AlertRule("r", "info", "", every=timedelta(minutes=1))
    assert schedule.is_due(rule, 5.0)
    assert schedule.is_due(rule, 5.0)
    assert not schedule.is_due(rule, 20.0)


def test_a_summary_never_fails_for_a_missing_fact() -> None:
    """A rule's text and its query may differ; the alert is still written."""
    rule = AlertRule("r", "info", "{subject} {nothing}")
    assert summary_of(rule, AlertFinding("s", {})) == "s ?"


def test_names_are_unique() -> None:
    """A rule's name identifies it in the table; rules of several plugins with one name differ only in their query."""
    kept: dict[str, tuple[object, ...]] = {}
    for rule in (*RULES, *OWN_RULES):
        settings = (rule.severity, rule.summary, rule.hold, rule.every)
        assert kept.setdefault(rule.name, settings) == settings, rule.name
    for plugin in PLUGINS:
        names = [rule.name for rule in plugin.alert_rules()]
        assert len(names) == len(set(names)), plugin.name
