"""A worker process for kill tests: a handler, ``work``, that logs when it starts and ends, and one with steps.

``ENGINE_QUEUES`` are its queues with their slots.
``ENGINE_FEW`` is the concurrency of a second type, ``few``, with the same handler. Of ``grouped``, one job of a group
runs at a time, of ``ordered`` those of a group in their order.
Every line is one ``write`` to a file opened for appending, so it survives ``kill -9``.
"""

import asyncio
import os
import signal
import time
from datetime import timedelta

from tickwright.capabilities.jobs.handlers import HandlerRegistry, make_handler
from tickwright.capabilities.jobs.metrics import WorkerCounters
from tickwright.capabilities.jobs.model import Job, TaskType
from tickwright.capabilities.jobs.task_types import register_handler
from tickwright.capabilities.jobs.worker.pools import read_scope
from tickwright.capabilities.jobs.worker.worker import JobWorker, WorkerLimits
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.store.pool import open_pool

LOG = os.open(os.environ["ENGINE_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
WORK_S = float(os.environ["ENGINE_WORK_S"])


def note(tag: str, job: Job) -> None:
    """Write one line."""
    os.write(LOG, f"{tag} {job.id} {job.attempt} {job.fence} {job.due_s:.6f} {time.time():.6f}\n".encode())


async def work(job: Job) -> None:
    """Log the start and the end, and take a while between."""
    note("S", job)
    await asyncio.sleep(WORK_S)
    note("E", job)


async def poison(job: Job) -> None:
    """Kill the whole process."""
    note("S", job)
    os._exit(9)


async def steps(job: Job) -> int:
    """Do a step (``A``), note that it is kept (``B``), wait, and do another step (``C``)."""
    first = await job.step("first", log_step, "A", job)
    note("B", job)
    await asyncio.sleep(WORK_S)
    await job.step("second", log_step, "C", job)
    return first


async def log_step(tag: str, job: Job) -> int:
    """Log a step, and end it after ``ENGINE_STEP_S``."""
    note(tag, job)
    await asyncio.sleep(float(os.environ.get("ENGINE_STEP_S", "0")))
    return job.attempt


HANDLERS = {"work": work, "poison": poison, "steps": steps}


async def main() -> None:
    """Work until a SIGTERM."""
    url = os.environ["ENGINE_URL"]
    pool = await open_pool(url, max_size=8)
    registry = HandlerRegistry()
    kinds = {name: TaskType(name, f"python:{name}") for name in HANDLERS}
    kinds["grouped"] = TaskType("grouped", "python:grouped", group_limit=1)
    kinds["ordered"] = TaskType("ordered", "python:ordered", group_order="stop")
    if "ENGINE_FEW" in os.environ:
        kinds["few"] = TaskType("few", "python:few", concurrency=int(os.environ["ENGINE_FEW"]))
    for name, kind in kinds.items():
        registry.add(make_handler(kind, HANDLERS.get(name, work)))
        async with pool.acquire() as connection:
            await register_handler(connection, kind)
    ttl_s = float(os.environ["ENGINE_LEASE_S"])
    terms = LeaseTerms(timedelta(seconds=ttl_s), timedelta(seconds=ttl_s / 5))
    direct = DirectConnection(url)
    session = WorkerSession(pool, name=f"test:{os.getpid()}", roles=["worker"], version="0", terms=terms, direct=direct)
    scope = read_scope(os.environ.get("ENGINE_QUEUES", ""))
    limits = WorkerLimits(concurrency=int(os.environ["ENGINE_CONCURRENCY"]), threads=2)
    worker = JobWorker(pool, session, registry, {}, direct=direct, limits=limits, scope=scope)
    counted = WorkerCounters(worker)
    session.facts["counters"] = lambda: {"jobs": counted.jobs(), "types": counted.types()}
    await session.open()
    tasks = [asyncio.create_task(service.run()) for service in (direct, session, worker)]
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await stopping.wait()
    await worker.quiesce()
    await worker.stop()
    await session.stop()
    await direct.stop()
    await asyncio.gather(*tasks)
    await pool.close()


asyncio.run(main())
