"""The example's jobs and trackers.

Of the jobs one succeeds, one is slow and is cancelled, one needs two attempts, one always fails. The trackers are
twenty thousand shipments of forty accounts at three couriers, polled every few minutes.
"""

import asyncio
import json
from contextlib import suppress
from datetime import timedelta

from tickwright.app import Tickwright
from tickwright.capabilities.jobs.model import Job
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Pool
from tickwright.store.queries import load

CALLBACK_TYPE = "example.callback"


def add_handlers(app: Tickwright) -> None:
    """Register the example's handlers."""

    @app.job("example.greet", timeout="5s")
    async def greet(_job: Job, name: str) -> str:
        return f"hello, {name}"

    @app.job("example.report", timeout="30s", concurrency=2)
    async def report(job: Job, pages: int) -> None:
        for page in range(pages):
            await job.progress({"page": page + 1, "of": pages})
            await asyncio.sleep(0.3)

    @app.job("example.flaky", timeout="5s", retry={"base": "1s", "cap": "2s"})
    async def flaky(job: Job) -> None:
        if job.attempt == 1:
            raise RuntimeError("the other side was busy")

    @app.job("example.broken", timeout="5s", max_attempts=2, retry={"base": "1s", "cap": "1s"})
    def broken(_job: Job) -> None:
        raise ValueError("this one never works")

    @app.job("example.endless", timeout="1m")
    async def endless(job: Job) -> None:
        while not job.cancelled:  # noqa: ASYNC110  shows how to read the flag
            await asyncio.sleep(1)


async def keep_scheduling(app: Tickwright) -> None:
    """Schedule the example's jobs a few seconds ahead, repeatedly, until cancelled."""
    second = 0
    endless: dict[int, int] = {}  # by the second in which it is cancelled
    while True:
        await _schedule_some(app, second)
        if second % 15 == 4:
            endless[second + 6] = (await app.schedule("example.endless", delay=timedelta(seconds=1))).id
        if (job_id := endless.pop(second, None)) is not None:
            with suppress(Rejected):  # the machine slept, and the job's minute is over
                await app.cancel(job_id)
        second += 1
        await asyncio.sleep(1)


async def _schedule_some(app: Tickwright, second: int) -> None:
    await app.schedule("example.greet", {"name": f"number {second}"}, delay=timedelta(seconds=2))
    if second % 2 == 0:
        await app.schedule(CALLBACK_TYPE, {"turn": second}, delay=timedelta(seconds=3))
    if second % 5 == 1:
        await app.schedule("example.report", {"pages": 4}, delay=timedelta(seconds=2))
    if second % 8 == 2:
        await app.schedule("example.flaky", delay=timedelta(seconds=2))
    if second % 20 == 3:
        await app.schedule("example.broken", delay=timedelta(seconds=2))


_WORLD = load("tickwright.demo.sql", "world.sql")
TRACKERS = 20_000
ACCOUNTS = 40
INTERVALS_MINUTES = (4, 5, 6, 10)
COURIERS = {"slow": 3, "strict": 1, "moody": 2}
"""How many of six shipments each courier carries."""

TERMS = {
    "slow": {"rate": "60/s", "concurrency": 40, "timeout": "5s"},
    "strict": {"rate": "20/s", "concurrency": 10, "timeout": "2s"},
    "moody": {"rate": "60/s", "concurrency": 20, "timeout": "2s", "breaker": {"open": "2s", "open_max": "10s"}},
}


async def register_trackers(pool: Pool, port: int) -> None:
    """Register the couriers' current addresses and, once, the shipments."""
    for name, terms in TERMS.items():
        http = {"url": f"http://127.0.0.1:{port}/couriers/{name}/{{external_id}}", "status": "status"}
        await pool.execute(_WORLD["put_partner"], name, json.dumps({**terms, "http": http}))
    if await pool.fetchval(_WORLD["has_trackers"]):
        return
    for number in range(ACCOUNTS):
        minutes = INTERVALS_MINUTES[number % len(INTERVALS_MINUTES)]
        await pool.execute(_WORLD["put_account"], f"account-{number:02}", minutes)
    names = [name for name, share in COURIERS.items() for _ in range(share)]
    await pool.execute(_WORLD["register"], ACCOUNTS, names, TRACKERS)
