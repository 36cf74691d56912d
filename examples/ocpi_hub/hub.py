"""An OCPI hub: four providers, one of them slow, asked for what is new of their locations by three consumers."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientSession
from providers import PROVIDERS, TOKEN, TOKEN_HOSTS, TOKEN_VARIABLE, serve

from tickwright import EntityTask, Tickwright

app = Tickwright()
CONSUMERS = 3


@app.module("LOCATIONS", every="30s", timeout="20s")
async def locations(task: EntityTask) -> None:
    """Fetch what has changed since the last run that succeeded, page after page."""
    since = task.last_executed_at
    print(f"{task.entity_code} asked for {'everything' if since is None else 'what is new'}", flush=True)
    headers = {"authorization": f"Token {task.resolve(task.party['token'])}"}
    async with ClientSession(headers=headers) as session:
        found = await fetch(session, task.party["locations"], since)
    print(f"{task.entity_code} done, {len(found)} locations", flush=True)


async def fetch(session: ClientSession, url: str, since: datetime | None) -> list[Any]:
    """Follow the pages as OCPI has them: the header `Link` names the next one until there is none."""
    found: list[Any] = []
    page: str | None = url
    params = {} if since is None else {"date_from": since.isoformat()}
    while page is not None:
        async with session.get(page, params=params, raise_for_status=True) as answer:
            found += (await answer.json())["data"]
            page, params = str(answer.links["next"]["url"]) if "next" in answer.links else None, {}
    return found


@asynccontextmanager
async def consumers(lines: "asyncio.Queue[str]") -> AsyncIterator[None]:
    """Run three consumer processes, each of which does one task at a time; return when all of them are there."""
    words = ["-m", "tickwright", "run", "fanout-consumer", "--app", "hub:app"]
    env = {**os.environ, "TICKWRIGHT_CONCURRENCY": "1", "TICKWRIGHT_METRICS_BIND": "127.0.0.1:0"}
    env["TICKWRIGHT_LOG_LEVEL"] = "warning"
    here = Path(__file__).parent
    started = [
        await asyncio.create_subprocess_exec(sys.executable, *words, cwd=here, env=env, stdout=asyncio.subprocess.PIPE)
        for _ in range(CONSUMERS)
    ]
    readers = [asyncio.create_task(tell(number, one.stdout, lines)) for number, one in enumerate(started, 1)]
    try:
        while await ready({one.pid for one in started}) < CONSUMERS:
            assert all(one.returncode is None for one in started), "a consumer ended; it has said why"
            await asyncio.sleep(0.1)
        yield
    finally:
        for one in started:
            if one.returncode is None:
                one.terminate()
        await asyncio.gather(*(one.wait() for one in started), *readers)


async def ready(pids: set[int]) -> int:
    """Return how many of these processes work."""
    found = await app.operations.workers()
    return sum(one.alive and int(one.name.rpartition(":")[2]) in pids for one in found)


async def tell(number: int, stream: asyncio.StreamReader | None, lines: "asyncio.Queue[str]") -> None:
    """Pass on the output of a consumer."""
    assert stream is not None
    async for line in stream:
        await lines.put(f"consumer {number}: {line.decode().strip()}")


async def main() -> None:
    """Start everything, and print what consumers report, until each provider was done once."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    os.environ.setdefault(TOKEN_VARIABLE, "only-for-this-example")
    os.environ.setdefault(TOKEN_HOSTS, "http://127.0.0.1")
    async with app, serve(PROVIDERS) as addresses, consumers(lines):
        for code, address in addresses.items():
            party = {"locations": address, "token": f"${{env:{TOKEN}}}"}
            await app.entities.put(code, party=party, modules="LOCATIONS")
        scheduler = asyncio.create_task(app.run_worker(roles=["scheduler"]))
        waiting = set(PROVIDERS)
        line = await lines.get()
        began_s = monotonic()
        while True:
            print(f"{monotonic() - began_s:4.1f} s  {line}", flush=True)
            waiting -= {code for code in waiting if f" {code} done" in line}
            if not waiting:
                break
            line = await lines.get()
        scheduler.cancel()
        await asyncio.wait([scheduler])
    print("done", "to go on by hand:", f"export PROVIDERS_PORT={urlsplit(addresses['DE.SLO']).port}", sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
