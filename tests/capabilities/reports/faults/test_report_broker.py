"""RabbitMQ and reports: a redelivered message, a killed broker, a missing exchange."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiormq
import pytest
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pydantic import SecretStr

from kit.rabbit_queues import raw_channel
from kit.report_faults import AGAIN_S, ask, functions, is_clean, is_made
from kit.reports import ReportWorld, functions_of, report_world
from kit.servers import RabbitServer, RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.reports.handlers import ReportRequest
from tickwright.capabilities.reports.requests.store import Routes
from tickwright.plugin import Registrations
from tickwright.plugin.settings import Bind, Settings
from tickwright.process.node import open_node
from tickwright.transports.rabbitmq.topology import report_exchanges, report_names


class Calls:
    """Counts the calls of listeners, and holds ``rights`` while its gate is closed."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()

    async def wait(self, name: str, request: ReportRequest) -> None:
        """Count, and wait."""
        self.asked[f"{name} {request.report_id}"] += 1
        if name == "rights":
            await self.gate.wait()


@asynccontextmanager
async def node(
    url: str, rabbit: RabbitServer, redis: RedisServer, folder: Path, calls: Calls
) -> AsyncIterator[ReportWorld]:
    """Run a process with the relay and both listeners, wired as usual; yield its world."""
    prefix = prefix_of(url)
    settings = Settings(
        database_url=SecretStr(url), home=folder, amqp_url=SecretStr(rabbit.url), amqp_prefix=prefix,
        lease=timedelta(seconds=2),
        redis_url=SecretStr(redis.url), redis_prefix=prefix, report_prefix=prefix, metrics_bind=Bind("127.0.0.1", 0),
    )  # fmt: skip
    names = report_exchanges(prefix)
    routes = Routes(f"amqp:{names.broadcast}/", names.exchange)
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(
            report_world(url, folder, redis.url, routes=routes, redis_prefix=prefix)
        )
        registrations = Registrations(functions_of(functions(calls.wait)))
        made = await stack.enter_async_context(
            open_node(settings, ("relay", "report-listener"), registrations=registrations, any_port=True)
        )
        running = asyncio.create_task(made.run(signals=False))
        try:
            await both_consumed(rabbit, prefix)
            yield world
        finally:
            made.supervisor.request_stop()
            await running


def prefix_of(url: str) -> str:
    """Return what exchanges, queues and keys of a test begin with."""
    return f"reports-{url.rpartition('/')[2]}"


async def both_consumed(rabbit: RabbitServer, prefix: str) -> None:
    """Wait until the queues of both listeners have consumers."""

    async def consumed() -> bool:
        try:
            async with raw_channel(rabbit.url) as channel:
                for name in ("lefts", "rights"):
                    found = await channel.queue_declare(report_names(prefix, name).queue, passive=True)
                    if not found.consumer_count:
                        return False
        except (OSError, aiormq.exceptions.AMQPError):
            return False
        return True

    await eventually_async(consumed, AGAIN_S, what="both queues have consumers")


async def test_a_message_that_is_delivered_four_times_is_one_part(
    database_url: str, rabbit_server: RabbitServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Redelivered while the part runs and after its end: it counts once and runs once."""
    calls = Calls()
    calls.gate.clear()
    async with (
        node(database_url, rabbit_server, redis_server, tmp_path, calls) as world,
        raw_channel(rabbit_server.url) as channel,
    ):
        names = report_exchanges(prefix_of(database_url))
        spy = (await channel.queue_declare(exclusive=True)).queue or ""
        await channel.queue_bind(spy, names.broadcast)
        report = await ask(world)

        async def announced() -> DeliveredMessage | None:
            found = await channel.basic_get(spy, no_ack=True)
            return found if isinstance(found.delivery, Basic.GetOk) else None

        message = await eventually_async(announced, what="the message arrives")
        assert message is not None
        await eventually_async(lambda: calls.asked[f"rights {report}"] == 1, what="it runs")
        await one_is_counted(world, report)

        async def redeliver() -> None:
            for name in ("lefts", "rights"):
                for _ in range(3):
                    await channel.basic_publish(
                        message.body, exchange=names.exchange, routing_key=name, properties=message.header.properties
                    )

        await redeliver()
        calls.gate.set()
        row = await is_made(world, report)
        await redeliver()
        await is_made(world, await ask(world))  # its messages come after them in every queue
        assert calls.asked[f"lefts {report}"] == calls.asked[f"rights {report}"] == 1
        parts = [await world.part(report, name) for name in ("lefts", "rights")]
        assert [part["attempts"] for part in parts] == [1, 1]
        assert row["epoch"] == 1
        await is_clean(world, report)


async def one_is_counted(world: ReportWorld, report: int) -> None:
    """Wait until the hash counts the part that is done, once."""

    async def one() -> bool:
        return (await world.hash(report)).get("queryDoneCount") == "1"

    await eventually_async(one, what="one is counted")


async def test_a_missing_exchange_costs_seconds_and_no_report(
    database_url: str, rabbit_server: RabbitServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """No announcement arrives: the parts are claimed from the table after their grace."""
    async with node(database_url, rabbit_server, redis_server, tmp_path, Calls()) as world:
        names = report_exchanges(prefix_of(database_url))
        async with raw_channel(rabbit_server.url) as channel:
            for exchange in (names.broadcast, names.exchange):
                await channel.exchange_delete(exchange)
        report = await ask(world)
        await is_made(world, report)
        await is_clean(world, report)


@pytest.mark.storm
@pytest.mark.timeout(180)
async def test_a_broker_that_is_killed_and_restarted_costs_no_report(
    database_url: str, mortal_rabbit: RabbitServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """A running report goes on, one requested meanwhile finishes without it, and messages announce later ones."""
    calls = Calls()
    calls.gate.clear()
    async with node(database_url, mortal_rabbit, redis_server, tmp_path, calls) as world:
        first = await ask(world)
        await eventually_async(lambda: calls.asked[f"rights {first}"] == 1, AGAIN_S, what="it runs")
        await asyncio.to_thread(mortal_rabbit.sync_definitions)
        await asyncio.to_thread(mortal_rabbit.kill9)
        meanwhile = await ask(world)
        calls.gate.set()
        await is_made(world, first)
        await is_made(world, meanwhile)
        await asyncio.to_thread(mortal_rabbit.start)
        await both_consumed(mortal_rabbit, prefix_of(database_url))
        after = await ask(world)
        await is_made(world, after)
        assert {*calls.asked.values()} == {1}
        for report in (first, meanwhile, after):
            await is_clean(world, report)
