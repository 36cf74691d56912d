"""Requeued dead letters: each has its idempotency key again, unless another job has it by now."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg

from kit.api import running_api
from kit.engine import Engine, policy, running_engine
from kit.waiting import eventually_async
from tickwright import Fail, Job
from tickwright.capabilities.jobs.admin import search
from tickwright.capabilities.jobs.retention import SQL

ONCE = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) VALUES (now(), $2, $1)
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING id
"""
AGED = "UPDATE tickwright.job_keys SET created_at = created_at - $1::interval"
HOLD = search.QUERIES["hold_keys"]
KINDS = {"t": policy("t")}


async def _handler(job: Job) -> None:
    if job.payload.get("fails"):
        raise Fail("no")


async def _age(pool: Any, days: float) -> None:
    await pool.execute(AGED, timedelta(days=days))


async def _dead(engine: Engine, key: str | None = None) -> int:
    columns = {} if key is None else {"idempotency_key": key}
    job_id = await engine.insert("t", payload={"fails": True}, **columns)
    await engine.until(job_id, "failed", within_s=30)
    return job_id


async def _expire_keys(pool: Any) -> None:
    await _age(pool, 8)
    await pool.execute(SQL["delete_keys"], timedelta(days=7), 1000)
    assert await pool.fetchval("SELECT count(*) FROM tickwright.job_keys") == 0


async def test_a_requeued_dead_letter_has_its_key_again(database_url: str) -> None:
    """KEY-2 for a dead letter that is older than its key: it holds the key again, also after its end."""
    async with running_api(database_url) as api, running_engine(database_url, {"t": _handler}, kinds=KINDS) as engine:
        job_id = await _dead(engine, "k")
        await _expire_keys(engine.pool)
        assert (await api.admin.send("POST", f"/v1/jobs/{job_id}/retry", {})).status == 200
        assert await engine.pool.fetchval("SELECT job_id FROM tickwright.job_keys WHERE key = 'k'") == job_id
        assert await engine.pool.fetchval(ONCE, "k", "t") is None
        await engine.until(job_id, "failed", within_s=30)
        assert await engine.pool.fetchval(ONCE, "k", "t") is None, "KEY-2 broken: a second job"


async def test_a_retry_holds_a_key_that_retention_is_deleting(database_url: str, pool: asyncpg.Pool) -> None:
    """KEY-2: the retry waits for retention, or the other way round; afterwards the key is there."""
    async with running_engine(database_url, {"t": _handler}, kinds=KINDS) as engine:
        job_id = await _dead(engine, "k")
        await _age(pool, 8)
    other = await asyncpg.connect(database_url)
    transaction = other.transaction()
    await transaction.start()
    held = await other.fetch(HOLD, [job_id], ["k"], [None])
    assert [row["job_id"] for row in held] == [job_id]
    forgetting = asyncio.create_task(pool.execute(SQL["delete_keys"], timedelta(days=7), 1000))
    await eventually_async(lambda: other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"), what="it waits")
    await transaction.commit()
    assert await forgetting == "DELETE 0"
    await other.close()


async def test_a_dead_letter_whose_key_was_used_again_stays_and_the_others_are_requeued(database_url: str) -> None:
    """KEY-3: 409 for a single one; a bulk requeue takes the others, and the answer lists it."""
    async with running_api(database_url) as api, running_engine(database_url, {"t": _handler}, kinds=KINDS) as engine:
        stays = await _dead(engine, "k")
        await _expire_keys(engine.pool)
        later = await engine.insert("t", at="now() + interval '1 day'", idempotency_key="k")
        one = await api.admin.send("POST", f"/v1/jobs/{stays}/retry", {})
        one.says(409, "key_reused")
        for path, body in (
            ("/v1/dead-letters/requeue", {"kind": "job", "subject": "t"}),
            ("/v1/jobs:retry", {"task_type": "t"}),
        ):
            others = [await _dead(engine) for _ in range(3)]
            answer = await api.admin.send("POST", path, body)
            assert answer.status == 200, answer.body
            assert (answer.json["ids"], answer.json["key_reused"]) == (others, [stays])
            for job_id in others:
                await engine.until(job_id, "failed", within_s=30)
            await engine.pool.execute("DELETE FROM tickwright.scheduled_tasks_dead WHERE id = ANY ($1)", others)
        assert (await engine.job(later))["status"] == "pending"
        assert (await engine.job(stays))["status"] == "failed"


async def test_of_two_dead_letters_with_one_key_one_is_requeued(database_url: str) -> None:
    """KEY-3: the one that the key belongs to, else the older one."""
    async with running_api(database_url) as api, running_engine(database_url, {"t": _handler}, kinds=KINDS) as engine:
        first = await _dead(engine, "k")
        await _expire_keys(engine.pool)
        second = await _dead(engine, "k")
        body = {"kind": "job", "subject": "t"}
        answer = await api.admin.send("POST", "/v1/dead-letters/requeue", body)
        assert (answer.json["ids"], answer.json["key_reused"]) == ([second], [first])
        await engine.until(second, "failed", within_s=30)
        await _expire_keys(engine.pool)
        answer = await api.admin.send("POST", "/v1/dead-letters/requeue", body)
        assert (answer.json["ids"], answer.json["key_reused"]) == ([first], [second])


async def test_requeueing_continues_after_a_page_of_dead_letters_that_stay(database_url: str) -> None:
    """KEY-3: a page of which none is requeued is not the last one."""
    async with running_api(database_url) as api, running_engine(database_url, {"t": _handler}, kinds=KINDS) as engine:
        stays = await _dead(engine, "k")
        await _expire_keys(engine.pool)
        await engine.insert("t", at="now() + interval '1 day'", idempotency_key="k")
        other = await _dead(engine)
        body = {"kind": "job", "subject": "t", "limit": 1}
        first = (await api.admin.send("POST", "/v1/dead-letters/requeue", body)).json
        assert (first["ids"], first["key_reused"], first["more"]) == ([], [stays], True)
        second = (await api.admin.send("POST", "/v1/dead-letters/requeue", {**body, "cursor": first["next"]})).json
        assert (second["ids"], second["key_reused"]) == ([other], [])
