"""Rows that a rule leaves out, however many there are, hide no rows that the rule is about."""

import asyncpg
import pytest

from kit.alerts import RULES
from kit.alerts import RULES_SQL as SQL
from tickwright.capabilities.operations.alerts import alerting
from tickwright.engine.outbox.table import lane_heads
from tickwright.observe.alerts import AlertRule


def rules_of(name: str) -> list[AlertRule]:
    """Return the rules of all plugins with one name."""
    return [rule for rule in RULES if rule.name == name]


MODULES = """
INSERT INTO tickwright.modules (name, interval_seconds, timeout_ms) VALUES ('LIVE', 900, 30000), ('PAUSED', 900, 30000);
UPDATE tickwright.modules SET paused_at = now() WHERE name = 'PAUSED';
INSERT INTO tickwright.entities (code, polling_enabled_modules)
SELECT 'E' || n, 'PAUSED,LIVE' FROM generate_series(1, 10000) AS n;
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, failures, last_error, last_error_at)
SELECT 'E' || n, 'PAUSED', 50, 'it is down', now() - interval '1 day' FROM generate_series(1, 10000) AS n;
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, failures, last_error, last_error_at)
SELECT 'E' || n, 'LIVE', 20, 'HTTP 50' || n, now() + n * interval '1 second' FROM generate_series(1, 3) AS n;
"""
RANGES = """
INSERT INTO tickwright.task_types (name, target) SELECT 'a' || n, 'python:a' FROM generate_series(1, 5) AS n;
INSERT INTO tickwright.scheduled_tasks (task_type, execute_at, priority)
SELECT 'a' || n, now() - interval '1 hour', p FROM generate_series(1, 5) AS n, generate_series(-100, 100) AS p;
INSERT INTO tickwright.scheduled_tasks (task_type, execute_at, priority)
SELECT 'zzz', now() + interval '1 hour' * p, p FROM generate_series(-1, 1) AS p;
"""
NOT_DUE = """
INSERT INTO tickwright.scheduled_tasks (task_type, execute_at, priority)
SELECT 'a' || n, now() + interval '1 year', p FROM generate_series(1, 5) AS n, generate_series(-100, 100) AS p;
INSERT INTO tickwright.scheduled_tasks (task_type, execute_at, priority)
SELECT 'zzz', now() + p * interval '1 hour', -p FROM generate_series(-1, 1) AS p;
"""
REPORTS = """
INSERT INTO tickwright.reports (type, query_key, requester, plan, deadline_at, status, checksum, finished_at, error)
SELECT 'sales', repeat('0', 64), 'ann', '{}', now(), CASE n WHEN 0 THEN 'failed' ELSE 'finished' END,
       CASE WHEN n > 0 THEN 'x' END, now() - interval '5 minutes' + n * interval '1 millisecond', 'it is broken'
  FROM generate_series(0, 10000) AS n;
"""
BATCHES = """
INSERT INTO tickwright.batches (name, kind, type)
SELECT 'b' || n, 'program', 'MANUAL' FROM generate_series(1, 1001) AS n;
"""
EXECUTIONS = f"""{BATCHES}
INSERT INTO tickwright.executions (batch_id, slot_at, status, finished_at, error_message)
SELECT id, now() + n * interval '1 second', CASE WHEN id = 1 AND n = 0 THEN 'EXCEPTION_OCCURRED' ELSE 'FINISHED' END,
       now() - interval '3 hours' + n * interval '1 second', 'it is broken'
  FROM tickwright.batches, generate_series(0, 10) AS n;
"""
STALLED = f"""{BATCHES}
INSERT INTO tickwright.executions (batch_id, slot_at, status, started_at, planned_at, due_at, chunks, paused_at)
SELECT id, now(), 'IN_PROGRESS', ago.at, ago.at, ago.at, 2, CASE WHEN id <= 1000 THEN now() END
  FROM tickwright.batches, (SELECT now() - interval '1 hour' AS at) AS ago ORDER BY id;
INSERT INTO tickwright.execution_chunks (execution_id, number, value) SELECT id, 0, '{{}}' FROM tickwright.executions;
"""


@pytest.mark.parametrize(
    ("rule", "crowd", "subject", "fact"),
    [
        ("fanout_failing", MODULES, "LIVE", '"entity": "E3", "count": 3, "error": "HTTP 503"'),
        ("unknown_task_type", RANGES, "zzz", "{}"),
        ("unknown_task_type", NOT_DUE, "zzz", "{}"),
        ("report_failed", REPORTS, "sales", '"count": 1'),
        ("execution_failed", EXECUTIONS, "b1", '"count": 1'),
        ("execution_stalled", STALLED, "b1001", '"done": 0'),
    ],
)
async def test_rows_that_a_rule_leaves_out_hide_no_others(
    pool: asyncpg.Pool, rule: str, crowd: str, subject: str, fact: str
) -> None:
    """Paused modules, registered types, jobs that are not due and the like are left out before the bound applies."""
    await pool.execute(crowd)
    rows = await pool.fetch(SQL[rule], *next(one.bounds for one in RULES if one.name == rule))
    assert [row["subject"] for row in rows] == [subject]
    assert all(part in rows[0]["facts"] for part in fact.split(", "))


LOWEST = """
INSERT INTO tickwright.outbox (destination, payload)
SELECT name, '{}' FROM (SELECT 'kafka:t' || n AS name FROM generate_series(1, 100000) AS n) AS made_up
 ORDER BY hashtextextended(name, 0) LIMIT 1100
"""


async def test_arbitrary_destinations_hide_no_waiting_message(pool: asyncpg.Pool) -> None:
    """A thousand destinations are read by hash, and those of the oldest messages beside them."""
    await pool.execute(
        "INSERT INTO tickwright.outbox (destination, payload, created_at) "
        "SELECT 'https://h' || n || '.example/x', '{}', now() - interval '1 hour' FROM generate_series(1, 50) AS n"
    )
    oldest, many = rules_of("outbox_oldest"), rules_of("outbox_many_destinations")
    async with pool.acquire() as connection:
        assert await alerting._query(connection, many) == []
        await connection.execute(LOWEST)
        findings = await alerting._query(connection, oldest)
        heads = await lane_heads(connection)
        [queried] = await alerting._query(connection, many)
    assert {finding.subject for finding in findings} == {f"https://h{n}.example/…" for n in range(1, 51)}
    assert len(heads) == 1000
    assert (queried.subject, queried.facts) == ("destinations", {"count": 1000})


TRIED = """
INSERT INTO tickwright.outbox (destination, payload, created_at, attempts, next_at)
SELECT $1, '{}', now() - make_interval(secs => $3), 1, now() + make_interval(secs => $4)
  FROM generate_series(1, $2::integer)
"""


@pytest.mark.parametrize(("others", "before"), [(0, 15_000), (15_000, 1000)])
async def test_younger_retried_messages_hide_no_waiting_message(pool: asyncpg.Pool, others: int, before: int) -> None:
    """The oldest one was tried last: it is among the oldest of all, or among the thousands that are read of a lane."""
    destination, oldest = "https://shop.example/x", rules_of("outbox_oldest")
    await pool.execute(TRIED, "pg:other", others, 0, 0)
    await pool.execute(TRIED, destination, 1, 3600, 1200)
    await pool.execute(TRIED, destination, before, 0, 1)
    async with pool.acquire() as connection:
        [found] = await alerting._query(connection, oldest)
        heads = {head["destination"]: head["age_s"] for head in await lane_heads(connection)}
    assert found.subject == "https://shop.example/…"
    assert heads.keys() == {destination} | ({"pg:other"} if others else set())
    assert heads[destination] >= 3600


DEAD = """
INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts, died_at)
SELECT $1::integer + n, $3, '{}', '{}', now(), 1, now() - make_interval(mins => $4)
  FROM generate_series(1, $2::integer) AS n
"""


async def test_many_dead_letters_hide_no_others(pool: asyncpg.Pool) -> None:
    """Ten thousand newer ones hide none; if there are more than are read, the alert says so and resolves nothing."""
    letters, many = rules_of("dead_letters"), rules_of("dead_letters_many")
    await pool.execute(DEAD, 0, 50, "pg:quiet", 10)
    await pool.execute(DEAD, 100, 10_000, "pg:noise", 0)
    async with pool.acquire() as connection:
        found = await alerting._query(connection, letters)
        assert {finding.subject for finding in found} == {"pg:quiet", "pg:noise"}
        assert not found.cut
        assert await alerting._query(connection, many) == []
        await connection.execute(DEAD, 100_000, 30_000, "pg:noise", 0)
        assert (await alerting._query(connection, letters)).cut
        assert [finding.subject for finding in await alerting._query(connection, many)] == ["letters"]
