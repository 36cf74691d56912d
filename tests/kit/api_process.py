"""The API as a separate process, to be killed, paused and drained."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from kit.cli import environment
from kit.forks import Child
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async


@asynccontextmanager
async def api_process(url: str, folder: Path, port: int | None = None) -> AsyncIterator[tuple[str, Child]]:
    """Yield the address of an API that answers, and its process."""
    address = f"127.0.0.1:{port or free_port()}"
    env = environment(DATABASE_URL=url, API_BIND=address, METRICS_BIND=f"127.0.0.1:{free_port()}")
    child = spawn([sys.executable, "-m", "tickwright", "run", "api"], folder / f"api-{address}.log", env)
    try:
        await eventually_async(lambda: _answers(address), 40, what="the API answers")
        yield f"http://{address}", child
    finally:
        kill_group(child)


async def _answers(address: str) -> bool:
    try:
        async with aiohttp.ClientSession() as client, client.get(f"http://{address}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
