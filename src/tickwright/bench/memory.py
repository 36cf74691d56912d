"""``tickwright bench memory``: what a worker holds while a million jobs wait for a later day."""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tickwright.bench.ground import Ground
from tickwright.bench.jobs import SQL
from tickwright.bench.report import Figures, run_bench

BARS = {"rss_growth_bytes": "flat", "rss_bytes": "< 200,000,000"}
WATCH_S = 20
HOUR_S = 3600.0


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=1_000_000, help="pending jobs")

    return run_bench("memory", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    worker = ground.start()
    time.sleep(5)
    before = _rss_bytes(worker.pid)
    say(f"the worker holds {before:,} bytes; now {options.jobs:,} jobs come in")
    ground.run(SQL["fill_spread"], HOUR_S, HOUR_S, "noop", options.jobs)
    most = before
    for _ in range(WATCH_S):
        time.sleep(1)
        most = max(most, _rss_bytes(worker.pid))
    ground.stop()
    return {"rss_growth_bytes": most - before, "rss_bytes": most}


def _rss_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
