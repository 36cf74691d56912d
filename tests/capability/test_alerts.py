"""Each alert fires in its fault and clears after it; the same trouble is one alert."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from kit.leases import LONG
from kit.waiting import eventually_async
from tickwright.observe.alerts import CLOCK_JUMP, RULES, AlertRule, Finding, summary_of
from tickwright.runtime.alerting import Alerting, ClockWatch
from tickwright.runtime.leases import Lease, Leases
from tickwright.store.pool import open_pool

WINDOWS = {"dead_letters", "session_lost"}


def quick(rule: AlertRule) -> AlertRule:
    """Return a rule that does not wait: ages of nothing and one dead row; windows stay as long as they are."""
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
NO_JOBS = "DELETE FROM ONLY tickwright.scheduled_tasks"


@dataclass(frozen=True)
class Fault:
    """What brings a rule about, its subject, and what ends it."""

    rule: str
    subject: str
    cause: str
    cure: str


FAULTS = [
    Fault(
        "unknown_task_type",
        "nobody",
        JOB.format("nobody"),
        "INSERT INTO tickwright.task_types (name, target) VALUES ('nobody', 'python:nobody')",
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
    Fault("no_live_worker", "workers", f"{TYPE}; {DUE}", WORKER),
    Fault(
        "outbox_oldest",
        "pg:slow",
        "INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:slow', '{}')",
        "DELETE FROM tickwright.outbox",
    ),
    Fault(
        "outbox_unknown_scheme",
        "test:x",
        "INSERT INTO tickwright.outbox (destination, payload, error_message) "
        "VALUES ('test:x', '{}', 'unknown_scheme: x')",
        "DELETE FROM tickwright.outbox",
    ),
    Fault(
        "session_lost",
        "w #7",
        f"{WORKER}; UPDATE tickwright.workers SET lost_at = clock_timestamp()",
        "UPDATE tickwright.workers SET lost_at = clock_timestamp() - interval '11 minutes'",
    ),
    Fault(
        "threads_stuck",
        "w #7",
        f"""{WORKER}; UPDATE tickwright.workers SET facts = '{{"threads_stuck": 2}}'""",
        "UPDATE tickwright.workers SET facts = '{}'",
    ),
]


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool as production opens it."""
    pool = await open_pool(database_url, max_size=6)
    yield pool
    pool.terminate()


@pytest.fixture
async def lease(pool: asyncpg.Pool) -> Lease:
    """The lease of the alerting loop."""
    lease = await Leases(pool, owner="test", terms=LONG).take("alerting")
    assert lease is not None
    return lease


def alerting(pool: asyncpg.Pool) -> Alerting:
    """A loop with bounds of nothing."""
    return Alerting(Leases(pool, owner="test"), rules=QUICK)


async def states(pool: asyncpg.Pool, rule: str) -> list[tuple[str, str]]:
    """Return subject and state of a rule's alerts, oldest first."""
    rows = await pool.fetch("SELECT subject, state FROM tickwright.alerts WHERE rule = $1 ORDER BY id", rule)
    return [(row["subject"], row["state"]) for row in rows]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.rule for fault in FAULTS])
async def test_an_alert_fires_once_and_clears(pool: asyncpg.Pool, lease: Lease, fault: Fault) -> None:
    """Nothing, then firing, still one row on the next look, then resolved; a second fault is a second alert."""
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


async def test_a_long_open_transaction_is_named_by_its_pid(pool: asyncpg.Pool, lease: Lease, database_url: str) -> None:
    """Who keeps dead rows alive is said so that an operator can end it; it clears when the transaction ends."""
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
    """The database's clock against the monotonic one: an hour's jump is an alert for five minutes."""
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
    """What the way of an answer may explain is not the clock's doing."""
    watch = ClockWatch()
    watch.sample(1000.0, 0.0, 0.0)
    watch.sample(1010.0, 10.0, 15.0)
    assert watch.findings(15.0) == []
    watch.sample(1018.0, 15.0, 15.0)
    assert watch.findings(15.0) != []
    assert watch.findings(15.0 + 301) == []


async def test_an_overtaken_evaluator_writes_nothing(pool: asyncpg.Pool, lease: Lease) -> None:
    """Two loops never argue: the one without the lease changes no alert."""
    await pool.execute(FAULTS[0].cause)
    await Leases(pool, owner="operator").break_lease("alerting")
    await alerting(pool).round(lease)
    assert await states(pool, FAULTS[0].rule) == []


async def test_every_role_may_carry_the_loop_and_one_of_them_evaluates(pool: asyncpg.Pool) -> None:
    """Started three times it is evaluated by one; when that one stops another goes on."""
    loops = [alerting(pool) for _ in range(3)]
    tasks = [asyncio.create_task(loop.run()) for loop in loops]
    await eventually_async(lambda: sum(loop.leading for loop in loops) == 1)
    for loop in loops:
        await loop.quiesce()
        await loop.stop()
    await asyncio.gather(*tasks)


def test_a_summary_never_fails_for_a_missing_fact() -> None:
    """A rule's text and its query may drift apart; the alert is still written."""
    rule = AlertRule("r", "info", "{subject} {nothing}")
    assert summary_of(rule, Finding("s", {})) == "s ?"


def test_names_are_unique() -> None:
    """A rule's name is its identity in the table."""
    names = [rule.name for rule in (*RULES, CLOCK_JUMP)]
    assert len(names) == len(set(names))
