"""The program that the benches' workers run: handlers that do nothing, say how late they are, or take 50 ms.

Every event is one line, written with one ``write`` to a file opened for appending, so it survives ``kill -9``.
"""

import asyncio
import os
import time

from tickwright import Job, Tickwright

WORK_S = 0.05

app = Tickwright()
_keep = os.environ.get("BENCH_KEEP", "1") == "1"
EVENTS = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND) if "BENCH_LOG" in os.environ else -1


@app.job("noop", keep_history=_keep)
async def noop(_job: Job, shipment_id: int) -> None:
    """Do nothing, with a typed argument."""


@app.job("noop.paused", keep_history=_keep)
async def paused(_job: Job) -> None:
    """Wait until an operator resumes it: the benches pause this type."""


@app.job("noop.saturated", concurrency=1, keep_history=_keep)
async def saturated(_job: Job) -> None:
    """Keep the type's only slot for as long as the bench runs."""
    await asyncio.sleep(3600)


@app.job("late")
async def late(job: Job) -> None:
    """Say how late the start was, and where and when; the clock is the database's, on the same host."""
    at_s = time.time()
    os.write(EVENTS, b"L %d %.3f %d %d %.6f\n" % (job.id, (at_s - job.due_s) * 1000, os.getpid(), job.attempt, at_s))


@app.job("work", timeout="60s")
async def work(job: Job) -> None:
    """Take 50 ms."""
    os.write(EVENTS, b"S %d\n" % job.id)
    await asyncio.sleep(WORK_S)
    os.write(EVENTS, b"E %d\n" % job.id)


@app.job("answer", timeout="60s")
async def answer(_job: Job, seconds: float) -> float:
    """Take so long, and return the instant of the end."""
    await asyncio.sleep(seconds)
    return time.time()
