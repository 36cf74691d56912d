"""The example's OCPI hub: four entities, their providers in the receiver's process, three consumers of one slot each.

It runs if RabbitMQ answers. Otherwise its entities are paused.
"""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import ClientSession
from rich.console import RenderableType
from rich.text import Text

from tickwright.app import Tickwright
from tickwright.capabilities.fanout.handlers import EntityTask
from tickwright.capabilities.fanout.plugin import declare_modules
from tickwright.demo.receiver import PROVIDERS, TOKEN_HOSTS, TOKEN_VARIABLE
from tickwright.domain.errors import TickwrightError
from tickwright.plugin.settings import Settings
from tickwright.ports.ids import random_token
from tickwright.process.logging import start_logging
from tickwright.process.node import run_node
from tickwright.process.settings import load_settings
from tickwright.store.pool import Pool
from tickwright.store.queries import load
from tickwright.transports.rabbitmq.plugin import RabbitSettings
from tickwright.transports.rabbitmq.tasks import RabbitTaskTransport

CONSUMERS = 3
CONSUMER = "tickwright.demo.hub"
END_S = 8.0
_SQL = load("tickwright.demo.sql", "world.sql")


class Provider(NamedTuple):
    """One provider in the ledger; seconds ago, ``None`` for never."""

    code: str
    running_s: float | None
    asked_s: float | None
    failures: int


async def find_hub(settings: Settings) -> tuple[bool, str]:
    """Return whether the hub can run, and the reason as text."""
    url = settings.part(RabbitSettings).amqp_url
    if url is None:
        return False, "set TICKWRIGHT_AMQP_URL, and an OCPI hub comes to the example: entity fan-out through RabbitMQ"
    try:
        await RabbitTaskTransport(url.get_secret_value(), settings.amqp_prefix).prepare()
    except TickwrightError as error:
        return False, f"no OCPI hub in the example: {error.message}"
    return True, f"an OCPI hub: {len(PROVIDERS)} providers, {CONSUMERS} consumer processes"


def hub_environment() -> dict[str, str]:
    """Return the secrets that only providers and consumers share."""
    return {TOKEN_VARIABLE: random_token(16), TOKEN_HOSTS: "http://127.0.0.1"}


async def register_hub(pool: Pool, port: int) -> None:
    """Register the providers' current addresses, and poll them."""
    await declare_modules(pool, app.registrations, {})
    for code in PROVIDERS:
        await pool.execute(_SQL["put_entity"], code, f"http://127.0.0.1:{port}/hub/{code}/locations", TOKEN_VARIABLE)


async def pause_hub(pool: Pool) -> None:
    """Pause the entities of an earlier start, because no provider runs."""
    await pool.execute(_SQL["pause_entities"], list(PROVIDERS))


@asynccontextmanager
async def open_consumers(database_url: str, environment: Mapping[str, str], log: int | None) -> AsyncIterator[None]:
    """Run the consumers, which end when this process ends, however that ends.

    They share ``environment`` with the providers. ``log`` is the descriptor of their log, ``None`` for our standard
    error.
    """
    env = {
        **os.environ,
        **environment,
        "TICKWRIGHT_DATABASE_URL": database_url,
        "TICKWRIGHT_CONCURRENCY": "1",
        "TICKWRIGHT_DRAIN": "1s",
        "TICKWRIGHT_METRICS_BIND": "127.0.0.1:0",
        "TICKWRIGHT_LOG_LEVEL": "warning",
    }
    command, pipe = (sys.executable, "-m", CONSUMER), asyncio.subprocess.PIPE
    started: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(CONSUMERS):
            started.append(  # noqa: PERF401  started ones are ended when the next one cannot start
                await asyncio.create_subprocess_exec(*command, env=env, stdin=pipe, stderr=log, start_new_session=True)
            )
        yield
    finally:
        await asyncio.gather(*(_end(process) for process in started))


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def read_hub(pool: Pool) -> Sequence[Provider]:
    """Return the current state of the providers."""
    rows: Sequence[Any] = await pool.fetch(_SQL["providers"], list(PROVIDERS))
    return [Provider(*row) for row in rows]


def hub_line(providers: Sequence[Provider]) -> str:
    """Return when each provider was called, in one line."""
    return "hub: " + " · ".join(f"{provider.code} {_when(provider)}" for provider in providers)


def draw_hub(providers: Sequence[Provider]) -> RenderableType:
    """Return the same for a terminal."""
    parts = [("hub          ", "dim")]
    for provider in providers:
        colour = "red" if provider.failures else "cyan" if provider.running_s is not None else "green"
        parts += [(f"{provider.code} ", ""), (f"{_when(provider)}   ", colour)]
    return Text.assemble(*parts)


def _when(provider: Provider) -> str:
    if provider.failures:
        return f"failed {provider.failures} times"
    if provider.running_s is not None:
        return f"is asked for {provider.running_s:.1f} s"
    return "not asked yet" if provider.asked_s is None else f"asked {provider.asked_s:.0f} s ago"


# A consumer of the example's hub: one slot, in a process of its own (``python -m tickwright.demo.hub``).
#
# Its environment configures it. It ends when its standard input is closed, so it cannot outlive ``up``, even if that is
# killed.

app = Tickwright()


@app.module("LOCATIONS", every="10s", timeout="20s")
async def locations(task: EntityTask) -> None:
    """Ask a provider for changes."""
    since = task.last_executed_at
    params = {} if since is None else {"date_from": since.isoformat()}
    headers = {"authorization": f"Token {task.resolve(task.party['token'])}"}
    async with ClientSession(headers=headers) as session:
        await session.get(task.party["locations"], params=params, raise_for_status=True)


async def _work() -> None:
    """Work until standard input is closed."""
    settings = load_settings()
    start_logging(settings)
    closed = asyncio.create_task(_standard_input_closed())
    work = asyncio.create_task(run_node(settings, ["fanout-consumer"], registrations=app.registrations))
    await asyncio.wait({closed, work}, return_when=asyncio.FIRST_COMPLETED)
    closed.cancel()
    work.cancel()
    await asyncio.wait({work})
    if not work.cancelled():
        work.result()


async def _standard_input_closed() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    gc.freeze()  # otherwise the collector walks every module at exit, for a second
    asyncio.run(_work())
