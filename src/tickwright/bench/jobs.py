"""``tickwright bench jobs``: how many no-op jobs a second go in and come out, against bare SQL in the same run."""

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources

import asyncpg
import uvloop

from tickwright import Tickwright
from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.http.rest import enqueue_rest
from tickwright.bench.report import Figures, median, run_bench
from tickwright.store.queries import load

_SQL = load("tickwright.bench.sql", "jobs.sql")
SQL = {name: "\n".join(text.splitlines()[1:]) for name, text in _SQL.items()}
BARS = {
    "drain_1p_per_s": "≥ 0.60 of limit_2p",
    "drain_2p_per_s": "≥ 0.70 of limit_2p",
    "drain_1p_history_per_s": "≥ 0.50 of limit_2p",
    "enqueue_bulk_per_s": "≥ 150,000",
    "enqueue_single_per_s": "≥ 30,000",
    "enqueue_rest_per_s": "≥ 8,000",
}
CALLERS = 16
STATEMENTS = 3000
CHECK_S = 0.01


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=100_000, help="jobs per run")
        parser.add_argument("--runs", type=int, default=3, help="runs of each kind; the median counts")

    return run_bench("jobs", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    samples: dict[str, list[float]] = {}
    cases: dict[str, Callable[[], float]] = {
        "limit_1p_per_s": lambda: limit(ground, options.jobs, clients=1),
        "limit_2p_per_s": lambda: limit(ground, options.jobs, clients=2),
        "drain_1p_per_s": lambda: drain(ground, options.jobs, workers=1, keep=False),
        "drain_2p_per_s": lambda: drain(ground, options.jobs, workers=2, keep=False),
        "drain_1p_history_per_s": lambda: drain(ground, options.jobs, workers=1, keep=True),
        "drain_2p_history_per_s": lambda: drain(ground, options.jobs, workers=2, keep=True),
        "limit_single_per_s": lambda: uvloop.run(limit_single(ground)),
        "enqueue_bulk_per_s": lambda: uvloop.run(enqueue_bulk(ground, options.jobs)),
        "enqueue_single_per_s": lambda: uvloop.run(enqueue_single(ground, options.jobs)),
        "enqueue_rest_per_s": lambda: enqueue_rest(ground),
    }
    for number in range(options.runs):
        for name, case in cases.items():
            value = case()
            samples.setdefault(name, []).append(value)
            say(f"run {number + 1}: {name} {value:,.0f}")
    figures = {name: median(values) for name, values in samples.items()}
    for name in ("drain_1p", "drain_2p", "drain_1p_history", "drain_2p_history"):
        figures[f"{name}_of_limit_2p"] = figures[f"{name}_per_s"] / figures["limit_2p_per_s"]
    return figures


def limit(ground: Ground, jobs: int, *, clients: int) -> float:
    """Return what pgbench drains from a bare table: HOT claim and DELETE in batches of 1,000."""
    ground.run("DROP TABLE IF EXISTS lean")
    ground.run(SQL["make_limit"])
    ground.run(SQL["index_limit"])
    ground.run(SQL["fill_limit"], jobs)
    ground.run("VACUUM ANALYZE lean")
    ground.run("CHECKPOINT")
    script = resources.files("tickwright.bench.sql").joinpath("limit.sql").read_text("utf-8")
    return 1000 * ground.pgbench(script, clients=clients, transactions=jobs // (1000 * clients), variables=("ids={}",))


async def limit_single(ground: Ground) -> float:
    """Return what collected single enqueues could reach: sixteen rows a statement into the bare table, nothing else."""
    ground.run("DROP TABLE IF EXISTS lean")
    ground.run(SQL["make_limit"])
    ground.run(SQL["index_limit"])
    dues, payloads = [datetime.now(UTC)] * CALLERS, ['{"shipment_id": 12}'] * CALLERS
    connection = await asyncpg.connect(ground.url)
    try:
        started = time.perf_counter()
        for _ in range(STATEMENTS):
            await connection.fetch(SQL["insert_limit"], dues, payloads)
        return STATEMENTS * CALLERS / (time.perf_counter() - started)
    finally:
        await connection.close()


def drain(ground: Ground, jobs: int, *, workers: int, keep: bool) -> float:
    """Return jobs a second from the first seen completion to the last."""
    ground.clear()
    for _ in range(workers):
        ground.start(keep=keep)
    ground.pause("noop")
    ground.run(SQL["fill_due"], "noop", jobs)
    ground.run(SQL["settle"])
    ground.run("CHECKPOINT")
    rate = let_drain(ground, jobs)
    ground.stop()
    return rate


def let_drain(ground: Ground, jobs: int, task_type: str = "noop", within_s: float = 120) -> float:
    """Let a paused type go on; return jobs a second from its first claim to its last completion.

    The instrument must not be part of what it measures: it reads single rows by their key, and counts the
    table only when the job that is due last has gone. Counting all the time took a tenth of two cores.
    """
    first, last = ground.one(SQL["due_first"], task_type), ground.one(SQL["due_last"], task_type)
    ground.enable(task_type)
    wait_until(lambda: not ground.one(SQL["is_pending"], first), within_s, "the first claim", check_s=CHECK_S)
    started = time.perf_counter()
    wait_until(lambda: not ground.one(SQL["is_there"], last), within_s, "the job that is due last", check_s=CHECK_S)
    wait_until(lambda: ground.left(task_type) == 0, within_s, "the drain", check_s=CHECK_S)
    return jobs / (time.perf_counter() - started)


async def enqueue_bulk(ground: Ground, jobs: int) -> float:
    """Return jobs a second through ``schedule_bulk``; the jobs are made beforehand, as a caller has them."""
    ground.clear()
    app = Tickwright(ground.url)
    app.job("noop")(_noop)
    due = datetime.now(UTC) + timedelta(hours=1)
    made = [
        app.new_job("noop", {"shipment_id": n, "carrier": "dhl"}, at=due + timedelta(milliseconds=n))
        for n in range(jobs)
    ]
    async with app:
        started = time.perf_counter()
        await app.schedule_bulk(made)
        return jobs / (time.perf_counter() - started)


async def enqueue_single(ground: Ground, jobs: int) -> float:
    """Return jobs a second by sixteen callers that each wait for their own commit."""
    ground.clear()
    app = Tickwright(ground.url)
    app.job("noop")(_noop)
    due = datetime.now(UTC) + timedelta(hours=1)
    each = jobs // CALLERS // 2

    async def caller() -> None:
        for number in range(each):
            await app.schedule("noop", {"shipment_id": number}, at=due)

    async with app:
        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return each * CALLERS / (time.perf_counter() - started)


async def _noop(_job: object, shipment_id: int) -> None:
    """Replace a handler; nothing runs here."""
