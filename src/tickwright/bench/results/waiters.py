"""Callers that wait for results, and a worker in another process.

A thousand callers of one process each schedule a job, wait for its value, and begin again; a worker in another process
runs the handlers, which take random times. The handler returns the instant of its end; both processes read the same
clock. Before, while no worker runs and all callers wait, the connections of the database are counted.
"""

import argparse
import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import uvloop

from tickwright import Tickwright
from tickwright.bench.ground import Ground
from tickwright.bench.report import Figures, run_bench
from tickwright.capabilities.jobs.results import JobResults
from tickwright.process.settings import load_settings
from tickwright.store.pool import IDLE_S
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "results.sql")
BARS = {"p50_ms": "", "p99_ms": "≤ 20", "connections": "≤ 1"}
PATIENCE = timedelta(minutes=2)


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--waiters", type=int, default=1000, help="callers that wait at once")
        parser.add_argument("--rounds", type=int, default=10, help="jobs of each caller")
        parser.add_argument("--seconds", type=float, default=4.0, help="the longest handler; the shortest takes none")
        parser.add_argument("--seed", type=int, default=7, help="of the handlers' times")

    return run_bench("results", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    from tickwright.bench.program import app

    ground.clear()
    os.environ.pop("BENCH_LOG", None)
    return uvloop.run(_wait_for_all(app.using(load_settings(database_url=ground.url)), ground, options, say))


async def _wait_for_all(
    app: Tickwright, ground: Ground, options: argparse.Namespace, say: Callable[[str], None]
) -> Figures:
    async with app:
        results = app._open.of(JobResults)  # noqa: SLF001  to count those that wait
        rng = random.Random(options.seed)
        first = [asyncio.create_task(_one(app, 0.0)) for _ in range(options.waiters)]
        say(f"{options.waiters} callers wait, and no worker runs")
        await asyncio.sleep(IDLE_S + 3)  # the pool has closed its idle connections by then
        (connections,) = await asyncio.to_thread(ground.row, SQL["connections"])
        if results.waiting != options.waiters:
            raise RuntimeError(f"{results.waiting} of {options.waiters} callers wait")
        await asyncio.to_thread(ground.start, environment={"TICKWRIGHT_CONCURRENCY": str(options.waiters)})
        await asyncio.gather(*first)
        say(f"{options.rounds} rounds of each caller")

        async def caller() -> list[float]:
            return [await _one(app, rng.random() * options.seconds) for _ in range(options.rounds)]

        took = await asyncio.gather(*(caller() for _ in range(options.waiters)))
        after = sorted(1000 * one for each in took for one in each)
        await asyncio.to_thread(ground.stop)
    return {
        "p50_ms": after[len(after) // 2],
        "p99_ms": after[len(after) * 99 // 100],
        "connections": connections,
    }


async def _one(app: Tickwright, seconds: float) -> float:
    """Return the seconds from the end of a handler to its value."""
    job = await app.schedule("answer", {"seconds": seconds})
    ended_s = await job.result(PATIENCE)
    return time.time() - float(ended_s)
