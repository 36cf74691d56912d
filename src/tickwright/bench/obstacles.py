"""``tickwright bench obstacles``: a good type's drain and lateness beside what makes other schedulers stall.

Beside it wait a hundred thousand due jobs each of a saturated, a paused and an unknown type; or another
transaction has been open since before the first job, so that no dead row can be removed.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.jobs import SQL, let_drain
from tickwright.bench.lateness import lateness_figures
from tickwright.bench.report import Figures, median, run_bench

BARS = {
    "drain_beside_blocked_ratio": "≥ 0.80",
    "drain_old_snapshot_ratio": "≥ 0.80",
    "p99_beside_blocked_ms": "as p99_free_ms",
    "p99_old_snapshot_ms": "as p99_free_ms",
}
BLOCKED = ("noop.saturated", "noop.paused", "unknown.type")
RATE_PER_S = 2000
FEED_S = 0.5
AHEAD_S = 2.0


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=100_000, help="jobs of each type")
        parser.add_argument("--runs", type=int, default=3, help="drains of each kind; the median counts")
        parser.add_argument(
            "--seconds", type=int, default=60, help="how long 2,000 jobs a second run under an old snapshot"
        )

    return run_bench("obstacles", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    figures: Figures = {}
    free = [_drain(ground, options.jobs, blocked=0) for _ in range(options.runs)]
    beside = [_drain(ground, options.jobs, blocked=options.jobs) for _ in range(options.runs)]
    figures["drain_free_per_s"], figures["drain_beside_blocked_per_s"] = median(free), median(beside)
    figures["drain_beside_blocked_ratio"] = median(beside) / median(free)
    say(f"drain: {figures}")
    figures["p50_free_ms"], figures["p99_free_ms"], figures["max_free_ms"] = _late(ground, 20, blocked=0)
    figures["p50_beside_blocked_ms"], figures["p99_beside_blocked_ms"], figures["max_beside_blocked_ms"] = _late(
        ground, 20, blocked=options.jobs
    )
    say("an old snapshot from here on")
    ground.clear()
    with _old_snapshot(ground):
        late = _late(ground, options.seconds, blocked=0, clear=False)
        figures["p50_old_snapshot_ms"], figures["p99_old_snapshot_ms"], figures["max_old_snapshot_ms"] = late
        old = [_drain(ground, options.jobs, blocked=0, clear=False) for _ in range(options.runs)]
    figures["drain_old_snapshot_per_s"] = median(old)
    figures["drain_old_snapshot_ratio"] = median(old) / median(free)
    return figures


@contextmanager
def _old_snapshot(ground: Ground) -> Iterator[None]:
    with psycopg.connect(ground.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        yield


def _block(ground: Ground, jobs: int) -> None:
    ground.pause("noop.paused")
    for name in BLOCKED if jobs else ():
        ground.run(SQL["fill_due"], name, jobs)


def _drain(ground: Ground, jobs: int, *, blocked: int, clear: bool = True) -> float:
    if clear:
        ground.clear()
    ground.start(keep=False)
    ground.pause("noop")
    _block(ground, blocked)
    ground.run(SQL["fill_due"], "noop", jobs)
    ground.run(SQL["settle"])
    ground.run("CHECKPOINT")
    rate = let_drain(ground, jobs)
    ground.kill9()
    ground.run("UPDATE tickwright.workers SET lease_until = '-infinity'")
    return rate


def _late(ground: Ground, seconds: int, *, blocked: int, clear: bool = True) -> tuple[float, float, float]:
    if clear:
        ground.clear()
    ground.log().unlink(missing_ok=True)
    ground.start(keep=False)  # a drain after it finds the types as this worker declared them
    _block(ground, blocked)
    _feed(ground, seconds)
    last = ground.one(SQL["due_last"], "late")
    wait_until(lambda: not ground.one(SQL["is_there"], last), 60, "the job that is due last")
    wait_until(lambda: ground.left("late") == 0, 60, "the good type's jobs")
    ground.kill9()
    ground.run("UPDATE tickwright.workers SET lease_until = '-infinity'")
    figures = lateness_figures(ground, seconds * RATE_PER_S)
    return figures["p50_ms"], figures["p99_ms"], figures["max_ms"]


def _feed(ground: Ground, seconds: int) -> None:
    """Schedule jobs as a working system does, all the time and a little ahead.

    All of them at once, in one transaction, are visible only when the first ones are long late.
    """
    started = time.monotonic()
    for number in range(round(seconds / FEED_S)):
        time.sleep(max(0.0, started + number * FEED_S - time.monotonic()))
        ground.run(SQL["fill_spread"], AHEAD_S, FEED_S, "late", round(RATE_PER_S * FEED_S))
