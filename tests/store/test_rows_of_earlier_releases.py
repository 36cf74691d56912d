"""Rows of an earlier release that break a rule of today hold up no others: they stay, are listed, and can be moved."""

from typing import Any

import asyncpg
import pytest

from kit.api import RunningApi, running_api
from kit.engine import insert
from tickwright.store.pool import Pool

LONG = "1e131071"
"""Ten bytes as jsonb, 131,072 as text: releases up to the one before migration 0022 took it."""
TYPE = "INSERT INTO tickwright.task_types (name, target) VALUES ('t', 'python:nothing')"
OLD = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload)
VALUES (now() + interval '1 day', 't', $1::text::jsonb) RETURNING id
"""
CHANGE = "UPDATE tickwright.scheduled_tasks SET payload = '[1e131070]' WHERE id = $1"
ONES = "to_jsonb(array_fill(1, ARRAY[9000]))"
LONGER_ONES = "to_jsonb(array_fill(round(1::numeric, 16383), ARRAY[9000]))"
"""Equal numbers for jsonb, and 147 MB as text."""
DEAD = """
INSERT INTO tickwright.scheduled_tasks_dead (id, execute_at, task_type, payload, status, attempts, completed_at)
OVERRIDING SYSTEM VALUE
VALUES (nextval('tickwright.scheduled_tasks_id_seq'), now(), 't', $1::text::jsonb, 'failed', 3, now()) RETURNING id
"""
DEAD_MESSAGE = """
INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts)
SELECT count(*) + 1, 'amqp:t', $1::text::jsonb, '{}', now(), 3 FROM tickwright.outbox_dead RETURNING id
"""


async def _old_job(pool: Pool) -> int:
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")  # no triggers
        job_id: int = await connection.fetchval(OLD, LONG)
        return job_id


async def _ask(api: RunningApi, path: str, body: dict[str, Any]) -> Any:
    answer = await api.admin.send("POST", path, body)
    assert answer.status == 200, answer.body
    return answer.json


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/jobs:reschedule", {"task_type": "t", "delay": "2h"}), ("/v1/jobs:run-now", {"task_type": "t"})],
)
async def test_a_job_with_an_old_payload_is_moved_with_the_others(database_url: str, path: str, body: Any) -> None:
    """A move leaves the payload as it is, so that it is not checked."""
    async with running_api(database_url) as api:
        await api.pool.execute(TYPE)
        ids = [await insert(api.pool, "t", at="now() + interval '1 day'"), await _old_job(api.pool)]
        assert (await _ask(api, path, body))["ids"] == ids
        await _ask(api, f"/v1/jobs/{ids[1]}/reschedule", {"delay": "1h"})
        await _ask(api, f"/v1/jobs/{ids[1]}/run-now", {})


async def test_a_payload_that_is_changed_is_checked(pool: Pool) -> None:
    """The rule of new payloads holds for an UPDATE by plain SQL, of a job of this release and of an earlier one."""
    for job_id in (await insert(pool, "t", at="now() + interval '1 day'"), await _old_job(pool)):
        with pytest.raises(asyncpg.CheckViolationError, match="payload") as refused:
            await pool.execute(CHANGE, job_id)
        assert refused.value.constraint_name == "scheduled_tasks_payload"


async def test_an_equal_payload_that_is_longer_as_text_is_checked(pool: Pool) -> None:
    """Only the same bytes are a payload that stays: a large one that is written again is none that changes."""
    job_id = await insert(pool, "t", at="now() + interval '1 day'")
    await pool.execute(f"UPDATE tickwright.scheduled_tasks SET payload = {ONES} WHERE id = $1", job_id)
    change = "UPDATE tickwright.scheduled_tasks SET payload = {} WHERE id = $1"
    with pytest.raises(asyncpg.CheckViolationError, match="payload"):
        await pool.execute(change.format(LONGER_ONES), job_id)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(change.format(LONGER_ONES), job_id)
    for same in ("payload", LONGER_ONES):
        await pool.execute(change.format(same), job_id)
    await pool.execute("UPDATE tickwright.scheduled_tasks SET priority = 1 WHERE id = $1", job_id)


async def test_a_dead_letter_with_an_old_payload_stays_and_the_others_go_back(database_url: str) -> None:
    """409 for the one; of many the others go back, and the answer lists it."""
    async with running_api(database_url) as api:
        stays = await api.pool.fetchval(DEAD, LONG)
        (await api.admin.send("POST", f"/v1/jobs/{stays}/retry", {})).says(409, "job_unfit")
        for path, body in (
            ("/v1/dead-letters/requeue", {"kind": "job", "subject": "t"}),
            ("/v1/jobs:retry", {"task_type": "t"}),
        ):
            others = [await api.pool.fetchval(DEAD, "{}") for _ in range(2)]
            answer = await _ask(api, path, body)
            assert (answer["ids"], answer["unfit"], answer["key_reused"]) == (others, [stays], [])
        assert await api.pool.fetchval("SELECT array_agg(id) FROM tickwright.scheduled_tasks_dead") == [stays]


async def test_a_dead_message_with_an_old_payload_stays_and_the_others_go_back(database_url: str) -> None:
    """The same for the outbox; a page in which none goes back is not the last one."""
    async with running_api(database_url) as api:
        stays, goes = [await api.pool.fetchval(DEAD_MESSAGE, payload) for payload in (LONG, "{}")]
        body = {"kind": "outbox", "subject": "amqp:t", "limit": 1}
        first = await _ask(api, "/v1/dead-letters/requeue", body)
        assert (first["ids"], first["unfit"], first["more"]) == ([], [stays], True)
        second = await _ask(api, "/v1/dead-letters/requeue", {**body, "cursor": first["next"]})
        assert (second["ids"], second["unfit"]) == ([goes], [])


async def test_a_move_that_breaks_another_rule_says_which(database_url: str) -> None:
    """Not that the time is out of range."""
    async with running_api(database_url) as api:
        job_id = await _old_job(api.pool)
        async with api.pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute("UPDATE tickwright.scheduled_tasks SET priority = 1000 WHERE id = $1", job_id)
        for path, body in (
            ("/v1/jobs:reschedule", {"task_type": "t", "delay": "2h"}),
            (f"/v1/jobs/{job_id}/reschedule", {"delay": "2h"}),
            (f"/v1/jobs/{job_id}/run-now", {}),
        ):
            answer = await api.admin.send("POST", path, body)
            answer.says(409, "job_unfit")
            assert "priority" in answer.body.decode()
