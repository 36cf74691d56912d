"""A worker process for the benches: the product's engine with handlers that do nothing, wait, or take the time.

Every event is one line, written with one ``write`` to a file opened for appending, so it survives ``kill -9``.
"""

import asyncio
import gc
import os
import signal
import sys
import time

import uvloop

from tickwright.capabilities.jobs.handlers import HandlerRegistry, make_handler
from tickwright.capabilities.jobs.model import Job, TaskType
from tickwright.capabilities.jobs.types_store import register_handler
from tickwright.capabilities.jobs.worker import JobWorker
from tickwright.runtime.session import WorkerSession
from tickwright.store.pool import open_pool

WORK_S = 0.05


class Log:
    """An append-only file of start and end lines."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, line: str) -> None:
        """Write one line."""
        os.write(self._file, line.encode())


def make_handlers(log: Log, *, keep_history: bool) -> HandlerRegistry:
    """Return the handlers ``noop``, ``late`` and ``work``."""
    registry = HandlerRegistry()

    async def noop(_job: Job, shipment_id: int) -> None:
        """Do nothing with a typed argument."""

    async def late(job: Job) -> None:
        """Say how late the start was, by the clock of the database's host."""
        log.write(f"L {job.id} {(time.time() - job.due_s) * 1000:.3f}\n")  # noqa: TID251  the same host's clock

    async def work(job: Job) -> None:
        """Take 50 ms."""
        log.write(f"S {job.id}\n")
        await asyncio.sleep(WORK_S)
        log.write(f"E {job.id}\n")

    for handler in (noop, late, work):
        kind = TaskType(handler.__name__, f"python:{handler.__name__}", keep_history=keep_history)
        registry.add(make_handler(kind, handler))
    return registry


async def main(url: str, log_path: str, *, keep_history: bool, notifications: bool) -> None:
    """Work until a SIGTERM."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    pool = await open_pool(url, min_size=4, max_size=8)
    handlers = make_handlers(Log(log_path), keep_history=keep_history)
    async with pool.acquire() as connection:
        for handler in handlers.all():
            await register_handler(connection, handler.defaults)
    session = WorkerSession(pool, name=f"bench:{os.getpid()}", roles=["worker"], version="bench")
    await session.open()
    worker = JobWorker(pool, session, handlers, {}, direct_url=url if notifications else None)
    tasks = [asyncio.create_task(session.run()), asyncio.create_task(worker.run())]
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await stopping.wait()
    await worker.quiesce()
    await worker.stop()
    await session.stop()
    await asyncio.gather(*tasks)
    await pool.close()


if __name__ == "__main__":
    uvloop.run(
        main(
            sys.argv[1],
            sys.argv[2],
            keep_history="forget" not in sys.argv[3:],
            notifications="quiet" not in sys.argv[3:],
        )
    )
