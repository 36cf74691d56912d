"""S2: secrets of an installation at work, in which everything fails, appear nowhere but where they are kept."""

import base64
import html
import json
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, quote_plus, urlencode

import aiohttp
import pytest
from aiohttp import web
from redis.asyncio import Redis
from yarl import URL

from kit.cli import environment, tickwright
from kit.consumers import http_of_url, seed
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.rabbit_queues import Queues
from kit.servers import RabbitServer, RedisServer
from kit.traces import Collector
from kit.waiting import eventually_async
from tickwright.store.pool import Pool, open_pool

ROLES = (
    "worker", "scheduler", "relay", "api", "poll-consumer", "fanout-consumer", "report-listener", "campaign-consumer"
)  # fmt: skip
PROGRAM = Path(__file__).parents[2] / "kit" / "secrets_program.py"
KEPT = {
    "api_keys.hash": "a hash that opens nothing",
    "task_type_secrets.secret": "signing secrets are kept here, for the owner of the schema",
    "message_keys.key": "the key of fan-out's signatures, for the owner of the schema",
}
COMMANDS = (
    "jobs list", "dead-letters list", "audit", "doctor", "partners list", "entities show A", "task-types list",
    "workers list",
)  # fmt: skip
ENDED = """SELECT count(*) FROM tickwright.scheduled_tasks
            WHERE task_type = ANY ($1::text[]) AND status IN ('failed', 'completed')"""
DUE = """INSERT INTO tickwright.scheduled_tasks (task_type, payload, execute_at, max_attempts)
         VALUES ($1, '{}', now(), 1)"""
COLUMNS = """SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
              WHERE c.relnamespace = 'tickwright'::regnamespace AND c.relkind IN ('r', 'p')
                AND a.attnum > 0 AND NOT a.attisdropped"""


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """An external server that refuses, and repeats what it was sent: headers and body."""

    async def refuse(request: web.Request) -> web.Response:
        told = {"headers": dict(request.headers), "body": await request.text(), "path": str(request.rel_url)}
        return web.Response(
            status=500, text=json.dumps(told), headers={"x-echo": request.headers.get("authorization", "")}
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.timeout(200)
async def test_no_secret_appears_where_it_is_not_kept(
    database_url: str, rabbit_server: RabbitServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Logs, metrics, tables, RabbitMQ, Redis, spans, dead letters, audit, every route, page and commands are swept."""
    token = f'canary-"&+ ü-{secrets.token_urlsafe(24)}'  # with characters that every encoder changes
    header = token.replace("ü", "=")  # headers are ASCII
    binds = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    log = tmp_path / "log"
    shutil.copy(PROGRAM, tmp_path)  # beside the kit it would find the kit's modules instead of libraries
    prefix = f"t{secrets.token_hex(4)}"
    async with echoing() as elsewhere, Collector() as collector:
        env = environment(
            DATABASE_URL=database_url,
            AMQP_URL=rabbit_server.url,
            REDIS_URL=redis_server.url,
            APP="secrets_program:app",
            ALLOW_TARGETS="127.0.0.1",
            API_BIND=binds[0],
            METRICS_BIND=binds[1],
            AMQP_PREFIX=prefix,
            REDIS_PREFIX=prefix,
            TRACES="on",
            SECRET_TOKEN=token,
            SECRET_HOSTS_TOKEN="http://127.0.0.1",
            SECRET_HEADER=header,
            SECRET_HOSTS_HEADER="http://127.0.0.1",
        )
        more = {
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        child = spawn([sys.executable, "-m", "tickwright", "run", *ROLES], log, env | more)
        pool = await open_pool(database_url, max_size=2)
        try:
            await eventually_async(lambda: _is_known(pool), 60, what=f"the program registers its types ({log})")
            canaries = {
                "the declared secret": token,
                "the secret of a header": header,
                "the database's password": database_url.split(":")[2].split("@", maxsplit=1)[0],
            }
            canaries |= await _set_up(pool, env, elsewhere)
            await eventually_async(lambda: _have_failed(pool), 60, what=f"everything has failed ({log})")
            places = await _everything(pool, binds, canaries["an admin's key"], env)
            places |= await _brokers(rabbit_server, redis_server, prefix)
            await eventually_async(lambda: [one for one in collector.spans if one.failed], 30, what="spans of failures")
        finally:
            kill_group(child)
            pool.terminate()
    places["spans"] = collector.raw.decode("latin1")
    places["log"] = log.read_text(errors="replace")
    assert "fanout.function_raised" in places["log"], "the log has nothing of all this"
    leaks = found(places, canaries)
    assert not leaks, "\n".join(leaks)


def found(places: dict[str, str], canaries: dict[str, str]) -> list[str]:
    """Return where a secret is, as it is or in a usual spelling."""
    return [
        f"{name} as {spelling!r} in {place}"
        for name, secret in canaries.items()
        for spelling in _spelled(secret)
        for place, text in places.items()
        if spelling in text
    ]


def _spelled(secret: str) -> set[str]:
    """Return a secret as programs write it; written out, so that the product does not judge itself."""
    as_json = json.dumps(secret)[1:-1]
    encoded = [encode(secret.encode()).decode() for encode in (base64.b64encode, base64.urlsafe_b64encode)]
    return {
        secret,
        secret[-24:],
        repr(secret)[1:-1],
        as_json,
        json.dumps(as_json)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        as_json.replace("&", "\\u0026"),
        html.escape(secret),
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        str(URL("http://host/").with_query(k=secret)).partition("=")[2],
        *(one.rstrip("=") for one in encoded),
    }


def test_the_sweep_finds_a_secret_in_each_spelling() -> None:
    """A secret as it is, in base64, in JSON, in HTML and in URLs."""
    secret = 'a "secret" & ü'
    as_json = json.dumps({"k": secret})
    texts = (f"a {secret} b", base64.b64encode(secret.encode()).decode(), as_json, json.dumps(as_json))
    more = (quote(secret), urlencode({"q": secret}), html.escape(secret), str(URL("http://h/").with_query(q=secret)))
    assert all(found({"log": text}, {"x": secret}) for text in (*texts, *more))
    assert not found({"log": "nothing"}, {"x": secret})


async def _is_known(pool: Pool) -> bool:
    return bool(await pool.fetchval("SELECT count(*) FROM tickwright.task_types WHERE name = 'tells'"))


async def _set_up(pool: Pool, env: dict[str, str], elsewhere: str) -> dict[str, str]:
    """Let every capability that holds secrets do something that fails; return the secrets that were made."""
    key = tickwright("keys", "create", "sweep", "--role", "admin", env=env).out.strip()
    made = tickwright(
        "task-types", "put", "hook", "--target", f"{elsewhere}/hook", "--max-attempts", "1", "--json", env=env
    ).json
    tickwright("task-types", "pause", "hook", env=env)
    tickwright("task-types", "enable", "hook", env=env)
    for task_type in ("keeps", "tells", "returns", "hook"):
        await pool.execute(DUE, task_type)
    http = {**http_of_url(f"{elsewhere}/{{external_id}}"), "headers": {"Authorization": "Bearer ${env:HEADER}"}}
    await seed(pool, 3, rate="100/s", http=http)
    await seed(pool, 1, name="function", rate="100/s")
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(f"http://{env['TICKWRIGHT_API_BIND']}", headers=headers) as client:
        for path, body in (("/v1/reports", {"type": "numbers"}), ("/v1/batches/months.close/start", None)):
            async with client.post(path, json=body) as answer:
                assert answer.status < 300, await answer.text()
    party = json.dumps({"url": f"{elsewhere}/ocpi", "token": "${env:TOKEN}"})
    insert = "INSERT INTO tickwright.entities (code, party, polling_enabled_modules) VALUES ('A', $1, 'LOCATIONS')"
    await pool.execute(insert, party)
    return {
        "an admin's key": key,
        "a signing secret": made["secret"],
        "its bytes": made["secret"].removeprefix("whsec_"),
    }


async def _have_failed(pool: Pool) -> bool:
    jobs = await pool.fetchval(ENDED, ["keeps", "tells", "returns", "hook"])
    runs = await pool.fetchval("SELECT count(*) FROM tickwright.fanout_cursors WHERE failures > 0")
    partners = await pool.fetchval("SELECT count(*) FROM tickwright.partner_states WHERE last_error IS NOT NULL")
    parts = await pool.fetchval("SELECT count(*) FROM tickwright.report_parts WHERE error IS NOT NULL")
    batches = await pool.fetchval("SELECT count(*) FROM tickwright.executions WHERE error_message IS NOT NULL")
    return bool(jobs == 4 and runs and partners == 2 and parts and batches)


async def _everything(pool: Pool, binds: list[str], key: str, env: dict[str, str]) -> dict[str, str]:
    """Return the text of every table, page, route and command that people may read."""
    places = {f"the table {name}": text for name, text in (await _tables(pool)).items()}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client:
        for bind, path in ((binds[1], "/metrics"), (binds[1], "/readyz"), (binds[0], "/")):
            places[path] = await _text(client, f"http://{bind}{path}")
        document = json.loads(await _text(client, f"http://{binds[0]}/v1/openapi.json"))
        for path, item in document["paths"].items():
            if "get" in item and path not in {"/v1/stream", "/v1/jobs/{job_id}/events"}:
                places[path] = await _text(client, f"http://{binds[0]}{_filled(path)}")
        places["/v1/stream"] = await _event(client, f"http://{binds[0]}/v1/stream")
    for command in COMMANDS:
        said = tickwright(*command.split(), env=env)
        places[command] = said.out + said.err
    return places


async def _brokers(rabbit: RabbitServer, redis: RedisServer, prefix: str) -> dict[str, str]:
    """Return every message of our queues and every key of Redis that is ours."""
    queues, places = Queues(rabbit.url), {}
    for queue in rabbit.control("list_queues", "--quiet", "--no-table-headers", "name").split():
        if queue.startswith(prefix):
            places[f"the queue {queue}"] = str([(one.header, one.body) for one in await queues.all_in(queue)])
    async with Redis.from_url(redis.url) as client:
        async for key in client.scan_iter(f"{prefix}*"):
            is_hash = await client.type(key) == b"hash"
            places[f"Redis {key!r}"] = str(await (client.hgetall(key) if is_hash else client.get(key)))
    assert {place.split()[0] for place in places} == {"the", "Redis"}, "neither has anything of ours"
    return places


def _filled(path: str) -> str:
    for name, value in (("{name}", "hook"), ("{code}", "A"), ("{account_id}", "shop")):
        path = path.replace(name, value)
    while "{" in path:
        path = path[: path.index("{")] + "1" + path[path.index("}") + 1 :]
    return path


async def _text(client: aiohttp.ClientSession, url: str) -> str:
    async with client.get(url) as answer:
        return await answer.text(errors="replace")


async def _event(client: aiohttp.ClientSession, url: str) -> str:
    """Return the first event of a stream."""
    async with client.get(url) as answer:
        while not (line := await answer.content.readline()).startswith(b"data: "):
            assert line, "the stream has ended"
        return line.decode()


async def _tables(pool: Pool) -> dict[str, str]:
    """Return every column of every table as text, but what is kept there on purpose."""
    columns = await pool.fetch(COLUMNS)
    texts: dict[str, str] = {}
    for table, column in columns:
        if f"{table}.{column}" not in KEPT:
            query = f'SELECT string_agg("{column}"::text, chr(10)) FROM tickwright."{table}"'
            texts[f"{table}.{column}"] = await pool.fetchval(query) or ""
    return texts
