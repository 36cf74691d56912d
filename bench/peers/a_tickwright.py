"""Tickwright's adapter for a comparison of schedulers that gives each the same work.

Commands, as every adapter there: ``setup | enqueue --n N --mode bulk|single --kind noop|late|sleep
[--start T --span S] | work --concurrency C``. Environment: ``PGDSN``, ``BENCH_LOG`` (a folder).
"""

import argparse
import asyncio
import json
import os
import random
import time
from datetime import UTC, datetime

import uvloop

from tickwright import Job, Tickwright
from tickwright.store.migrate import migrate

DSN = os.environ["PGDSN"]
app = Tickwright(DSN, concurrency=int(os.environ.get("TW_CONCURRENCY", "256")), metrics_bind="127.0.0.1:0")
_file = -1


def note(tag: str, number: int, due_s: float) -> None:
    """Write one line at once: it survives ``kill -9``."""
    global _file  # noqa: PLW0603
    if _file < 0:
        path = os.path.join(os.environ["BENCH_LOG"], f"{os.getpid()}.log")
        _file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_file, f"{tag} {number} {due_s:.6f} {time.time():.6f}\n".encode())


@app.job("job", keep_history=os.environ.get("TW_KEEP") == "1")
async def handle(_job: Job, i: int, due: float, kind: str) -> None:
    """Do what the kind says."""
    if kind == "noop":
        return
    note("S", i, due)
    if kind == "sleep":
        await asyncio.sleep(0.05)
    note("E", i, due)


async def enqueue(n: int, mode: str, kind: str, start: float, span: float) -> None:
    """Schedule the plan and say how long it took."""
    rng = random.Random(7)
    plan = [(i, start + rng.random() * span if kind == "late" else None) for i in range(n)]
    async with app:
        begun = time.perf_counter()
        jobs = [
            app.new_job(
                "job",
                {"i": i, "due": due or 0.0, "kind": kind},
                at=None if due is None else datetime.fromtimestamp(due, UTC),
            )
            for i, due in plan
        ]
        if mode == "bulk":
            await app.schedule_bulk(jobs)
        else:
            for job in jobs:
                await app.schedule_many([job])
        seconds = time.perf_counter() - begun
    print(json.dumps({"n": n, "seconds": seconds, "ended": time.time()}), flush=True)


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["setup", "enqueue", "work"])
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--mode", default="bulk")
    parser.add_argument("--kind", default="noop")
    parser.add_argument("--start", type=float, default=0)
    parser.add_argument("--span", type=float, default=0)
    parser.add_argument("--concurrency", type=int, default=50)
    given = parser.parse_args()
    if given.command == "setup":
        migrate(DSN)
    elif given.command == "enqueue":
        uvloop.run(enqueue(given.n, given.mode, given.kind, given.start, given.span))
    else:
        uvloop.run(work())


async def work() -> None:
    """Run a worker until stopped."""
    async with app:
        await app.run_worker()


if __name__ == "__main__":
    main()
