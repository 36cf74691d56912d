"""A consumer of the example's hub: one slot, in a process of its own (``python -m tickwright.demo.hub_consumer``).

It is told everything by its environment, and ends when its standard input is closed, so it cannot outlive ``up`` even
when that is killed.
"""

import asyncio
import gc
import sys

from aiohttp import ClientSession

from tickwright.app import Tickwright
from tickwright.capabilities.fanout.handlers import EntityTask
from tickwright.process.logging import start_logging
from tickwright.process.node import run_node
from tickwright.process.settings import load_settings

app = Tickwright()


@app.module("LOCATIONS", every="10s", timeout="20s")
async def locations(task: EntityTask) -> None:
    """Ask a provider what is new."""
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
    work = asyncio.create_task(run_node(settings, ["fanout-consumer"], brought=app.brought))
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
    gc.freeze()  # at the end of the process the collector would walk every module once more: a second of waiting
    asyncio.run(_work())
