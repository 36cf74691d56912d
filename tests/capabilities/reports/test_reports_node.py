"""Reports with the wiring of real processes: RabbitMQ, Redis, sources of the TOML file, functions of a program."""

import csv
import secrets
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiormq
import msgspec
from pydantic import SecretStr

from kit import nodes
from kit.nodes import running
from kit.rabbit_queues import raw_channel
from kit.servers import RabbitServer, RedisServer
from kit.waiting import eventually_async
from tickwright import ReportRequest
from tickwright.app.declarations import Declarations
from tickwright.capabilities.reports.requests.views import ReportRequestBody
from tickwright.capabilities.reports.service import ReportsService
from tickwright.plugin.settings import Settings
from tickwright.ports.caller import Caller, Role
from tickwright.process.node import Node

ME = Caller("me", Role.OPERATOR)


class Program(Declarations):
    """A user's program with one function and one report; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

        @self.listener("scores")
        async def scores(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
            self.asked["scores"] += 1
            yield {"user_id": 1, "score": request.conditions["least"]}
            yield {"user_id": 2, "score": 99}

        tables = {"scores": {}, "users": {"source": "plt_user", "sql": "SELECT id, name FROM users WHERE id >= :least"}}
        self.report("scored", listeners=tables)(lambda: "SELECT name, score FROM users JOIN scores ON user_id = id")


def settings_of(url: str, folder: Path, **more: Any) -> Settings:
    """Return settings of a process with a source of its own, an SQLite file."""
    database = folder / "users.sqlite"
    with sqlite3.connect(database) as users:
        users.execute("CREATE TABLE IF NOT EXISTS users (id integer, name text)")
        users.execute("DELETE FROM users")
        users.executemany("INSERT INTO users VALUES (?, ?)", [(1, "ann"), (2, "ben")])
    users.close()
    return nodes.settings_of(url, folder, f'[sources.plt_user]\nurl = "sqlite://{database}"\n', **more)


async def ask(node: Node, least: int) -> int:
    """Ask for the report, as the API does."""
    body = {"type": "scored", "conditions": {"least": least}}
    made = await node.installation.of(ReportsService).records.request(msgspec.convert(body, ReportRequestBody), ME)
    return made.id


async def finished(node: Node, report: int, folder: Path) -> list[list[str]]:
    """Wait for the file and return its rows."""

    async def over() -> Any:
        row = await node.installation.pool.fetchrow("SELECT * FROM tickwright.reports WHERE id = $1", report)
        return row if row["finished_at"] is not None else None

    row = await eventually_async(over, 40, what="the report has ended")
    assert row["status"] == "finished", row["error"]
    text = (folder / "objects" / row["file_key"]).read_text()
    return sorted(list(csv.reader(text.splitlines()))[1:])


async def test_a_function_and_a_query_in_two_processes_over_rabbitmq_and_redis(
    database_url: str, rabbit_server: RabbitServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Each process fetches what it serves; the announcement reaches both, and its copies change nothing."""
    prefix = f"t{secrets.token_hex(5)}"
    settings = settings_of(
        database_url, tmp_path, amqp_url=SecretStr(rabbit_server.url), amqp_prefix=prefix,
        redis_url=SecretStr(redis_server.url), redis_prefix=prefix, report_prefix=prefix,
    )  # fmt: skip
    program = Program()
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running(settings, program, "relay", "report-listener"))
        await stack.enter_async_context(running(settings, program, "report-listener"))

        async def both_consume() -> bool:
            async with raw_channel(rabbit_server.url) as channel:
                try:
                    for name in ("scores", "users"):
                        found = await channel.queue_declare(f"{prefix}.reports.{name}", passive=True)
                        if found.consumer_count != 2:
                            return False
                except aiormq.exceptions.ChannelNotFoundEntity:
                    return False
            return True

        await eventually_async(both_consume, 40, what="both processes consume the calls of both listeners")
        report = await ask(node, 1)
        assert await finished(node, report, tmp_path) == [["ann", "1"], ["ben", "99"]]
        assert program.asked["scores"] == 1
        attempts = await node.installation.pool.fetch(
            "SELECT attempts, place FROM tickwright.report_parts WHERE report_id = $1", report
        )
        assert [tuple(row) for row in attempts] == [(1, "redis")] * 2
        second = await ask(node, 2)
        payload = await node.installation.pool.fetchval("SELECT count(*) FROM tickwright.outbox")
        assert payload <= 1
        assert await finished(node, second, tmp_path) == [["ben", "99"]]
        assert program.asked["scores"] == 2


async def test_without_redis_and_rabbitmq_a_report_has_the_same_rows(database_url: str, tmp_path: Path) -> None:
    """PostgreSQL alone: wake-up notifications instead of the exchange, the ledger instead of the hash."""
    program = Program()
    async with running(settings_of(database_url, tmp_path), program, "report-listener") as node:
        report = await ask(node, 1)
        assert await finished(node, report, tmp_path) == [["ann", "1"], ["ben", "99"]]
        places = await node.installation.pool.fetch(
            "SELECT place FROM tickwright.report_parts WHERE report_id = $1", report
        )
        assert [row["place"] for row in places] == ["postgres"] * 2


async def test_an_unavailable_broker_costs_seconds_and_no_report(database_url: str, tmp_path: Path) -> None:
    """Due parts are claimed from the table when no message comes."""
    settings = settings_of(database_url, tmp_path, amqp_url=SecretStr("amqp://guest:guest@127.0.0.1:9/%2F"))
    program = Program()
    async with running(settings, program, "report-listener") as node:
        assert await finished(node, await ask(node, 1), tmp_path) == [["ann", "1"], ["ben", "99"]]


async def test_the_queue_of_a_service_has_the_call_before_its_first_connection(
    database_url: str, rabbit_server: RabbitServer, tmp_path: Path
) -> None:
    """A service in another language: its queue is made when its report type is set, and a call waits in it."""
    prefix = f"t{secrets.token_hex(5)}"
    settings = settings_of(database_url, tmp_path, amqp_url=SecretStr(rabbit_server.url), amqp_prefix=prefix)
    program = Program()
    program.report("by_hand", listeners={"ledger": {"service": True, "columns": {"id": "BIGINT"}}})(lambda: None)
    async with running(settings, program, "relay", "report-listener") as node:

        async def queue_exists() -> bool:
            async with raw_channel(rabbit_server.url) as channel:
                try:
                    await channel.queue_declare(f"{prefix}.reports.ledger", passive=True)
                except aiormq.exceptions.ChannelNotFoundEntity:
                    return False
            return True

        await eventually_async(queue_exists, 60, what="the service's queue")
        made = await node.installation.of(ReportsService).records.request(
            msgspec.convert({"type": "by_hand"}, ReportRequestBody), ME
        )

        async def called() -> bytes | None:
            async with raw_channel(rabbit_server.url) as channel:
                try:
                    found = await channel.basic_get(f"{prefix}.reports.ledger", no_ack=True)
                except aiormq.exceptions.ChannelNotFoundEntity:
                    return None
                return bytes(found.body) or None

        body = await eventually_async(called, 40, what="the call")
        assert body is not None
        call = msgspec.json.decode(body)
        assert (call["report_id"], call["epoch"], call["listeners"]) == (made.id, 1, ["ledger"])
