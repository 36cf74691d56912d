"""Nothing of an encrypted job is in plain text anywhere: tables, logs at every level, broker messages, answers."""

import asyncio
import json
import sys
from pathlib import Path
from uuid import uuid4

import aio_pika
import aiohttp
import asyncpg

from kit.api import ADMIN, Client
from kit.cli import environment
from kit.engine import insert
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.rabbit_queues import Queues
from kit.receivers import HttpReceiver
from kit.remote import ended, register
from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright.capabilities.operations.keys import ApiKeys
from tickwright.domain.envelopes import Purpose
from tickwright.engine.payload_keys import PayloadKeys
from tickwright.ports.caller import Role
from tickwright.store.pool import open_pool

MARKER, SHOWN = "4111-SECRET-MARKER-1111", "this-one-is-not-secret"
RAW = bytes(range(32))
KEYS = PayloadKeys([("k", RAW)])
TABLES = """
    SELECT format('SELECT count(*) FROM ONLY %s t WHERE t::text LIKE $1', c.oid::regclass) AS sql, c.relname AS name
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'tickwright' AND c.relkind = 'r'
"""
COMPLETED = "SELECT min(id) FROM tickwright.scheduled_tasks WHERE status = 'completed' AND task_type = 'charge'"
ENDED = "SELECT count(*) FROM tickwright.scheduled_tasks WHERE status IN ('pending', 'processing') AND retry_at IS NULL"
PATHS = (
    "/v1/jobs", "/v1/jobs?text=4111", "/v1/dead-letters", "/v1/schedules", "/v1/schedules/nightly", "/v1/audit",
    "/v1/overview", "/v1/alerts", "/v1/outbox", "/v1/workers", "/v1/task-types", "/v1/task-types:figures",
    "/v1/payload-keys", "/metrics",
)  # fmt: skip


async def tables_with(pool: asyncpg.Pool, text: str) -> set[str]:
    """Return the tables that have a text in any column of a row."""
    found = await pool.fetch(TABLES)
    return {row["name"] for row in found if await pool.fetchval(row["sql"], f"%{text}%")}


async def test_no_plain_text_of_an_encrypted_job_is_anywhere(
    database_url: str, tmp_path: Path, rabbit_server: RabbitServer
) -> None:
    """Processes at the level debug, jobs that end in every way, a broker, a callback, a remote worker."""
    queue = f"q-{uuid4().hex}"
    async with await aio_pika.connect(rabbit_server.url) as connection, connection.channel() as channel:
        await channel.declare_queue(queue, durable=True)
    address = f"127.0.0.1:{free_port()}"
    given = environment(
        DATABASE_URL=database_url, API_BIND=address, METRICS_BIND=f"127.0.0.1:{free_port()}", LOG_LEVEL="debug",
        ALLOW_TARGETS="127.0.0.1", AMQP_URL=rabbit_server.url, PAYLOAD_KEYS="k=env:THE_KEY",
        APP="kit.encrypted_program:app",
    )  # fmt: skip
    log = tmp_path / "process.log"
    pool = await open_pool(database_url)
    async with HttpReceiver() as receiver, aiohttp.ClientSession() as http:
        command = [sys.executable, "-m", "tickwright", "run", "worker", "api", "scheduler"]
        child = spawn(command, log, {**given, "THE_KEY": RAW.hex()})
        try:
            key = (await ApiKeys(pool).create("admin", Role.ADMIN, caller=ADMIN)).key
            client = Client(http, f"http://{address}", key)
            await eventually_async(lambda: _ready(client), 60, what="the process answers")
            await _work(client, pool, receiver, queue)
            queues = Queues(rabbit_server.url)
            await queues.counted(queue, 1)
            [message] = await queues.all_in(queue)
            ids = [row["id"] for row in await pool.fetch("SELECT id FROM tickwright.scheduled_tasks")]
            paths = [*PATHS, *(f"/v1/jobs/{one}{more}" for one in ids for more in ("", "/explain", "?wait=10ms"))]
            answers = {path: await client.get(path) for path in paths}
            completed = await pool.fetchval(COMPLETED)
            streamed = await _stream(http, client, completed)
        finally:
            kill_group(child)
    assert not await tables_with(pool, MARKER)
    assert await tables_with(pool, SHOWN)  # the search finds what is there
    assert KEYS.open(message.body.decode(), Purpose.PAYLOAD, "broker") == json.dumps({"card": MARKER})
    assert b"$encrypted" in streamed
    assert MARKER.encode() not in message.body + str(message.header).encode() + streamed
    assert not [path for path, answer in answers.items() if MARKER.encode() in answer.body]
    assert {answer.status for answer in answers.values()} == {200}
    text = log.read_text()
    assert "jobs.payload_unreadable" in text
    assert MARKER not in text
    assert RAW.hex() not in text
    assert json.loads(receiver.received[0].body) == {"card": MARKER}
    await pool.close()


async def _ready(client: Client) -> bool:
    try:
        return (await client.get("/readyz")).status == 200
    except aiohttp.ClientError:
        return False


async def _work(client: Client, pool: asyncpg.Pool, receiver: HttpReceiver, queue: str) -> None:
    """Run jobs that complete and fail in every way, until all have ended or wait for a retry."""
    card = {"card": MARKER}
    receiver.status, receiver.body = 500, f"echo {MARKER}".encode()
    targets = {"call": receiver.url, "broker": f"amqp:/{queue}", "far": "remote:shop"}
    for name, target in targets.items():
        body = {"target": target, "encrypted": True, "max_attempts": 1}
        assert (await client.send("PUT", f"/v1/task-types/{name}", body)).status == 201
    ways = ("", "raises", "exits", "retries", "snoozes", "no json")
    jobs = [{"task_type": "charge", "payload": {**card, "how": how}} for how in ways]
    names = ("charge.sync", "charge.many", "charge.many", *targets)
    jobs += [{"task_type": name, "payload": card} for name in names]
    jobs += [{"task_type": "charge", "payload": {"card": [MARKER]}}, {"task_type": "open", "payload": {"card": SHOWN}}]
    for number, job in enumerate(jobs):
        answer = await client.post(
            "/v1/jobs", {**job, "idempotency_key": f"k{number}", "max_attempts": 2 - bool(number)}
        )
        assert answer.status == 201, answer.body
    assert (await client.post("/v1/jobs", {**jobs[1], "idempotency_key": "k0"})).status == 409
    changed = json.loads(KEYS.seal(json.dumps(card), Purpose.PAYLOAD, "another"))
    await insert(pool, "charge", payload=changed)
    await insert(
        pool, "charge", payload=json.loads(PayloadKeys([("x", RAW[::-1])]).seal("{}", Purpose.PAYLOAD, "charge"))
    )
    schedule = {"task_type": "charge", "payload": card, "every": "1h"}
    assert (await client.send("PUT", "/v1/schedules/nightly", schedule)).status == 201
    assert (await client.post("/v1/schedules/nightly/run-now")).status == 201
    worker = await register(client, "far")
    [job] = await worker.claim(wait="30s")
    assert job["payload"] == card
    await worker.said("progress", {"jobs": [{"id": job["id"], "fence": job["fence"], "progress": card}]})
    await worker.results(ended(job, "fail", message=MARKER, code="broke", final=True))
    await eventually_async(lambda: _all_ended(pool), 60, what="all jobs ended")
    await client.post("/v1/dead-letters/requeue", {"kind": "job", "subject": "charge.sync"})
    await eventually_async(lambda: _all_ended(pool), 60, what="they ended again")


async def _all_ended(pool: asyncpg.Pool) -> bool:
    return not await pool.fetchval(ENDED)


async def _stream(http: aiohttp.ClientSession, client: Client, job_id: int) -> bytes:
    """Return the events of a job that has ended."""
    headers = {"Authorization": f"Bearer {client.key}"}
    async with asyncio.timeout(30), http.get(f"{client.base}/v1/jobs/{job_id}/events", headers=headers) as answer:
        return await answer.read()
