"""``tickwright bench lateness``: how late jobs start that are due in the future, as their handlers see it."""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence

from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.jobs import SQL
from tickwright.bench.report import Figures, quantile, run_bench
from tickwright.domain.time_texts import parse_duration

BARS = {
    "p50_ms": "≤ 2 (with a span)",
    "p99_ms": "≤ 10 (with a span)",
    "max_ms": "≤ 100 (all at once: ≤ 2,000)",
    "early": "0",
    "lost": "0",
    "duplicates": "0",
}
AHEAD_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=100_000, help="jobs in all")
        parser.add_argument("--span", default="60s", help="time over which they fall due; 0s: all in one instant")

    return run_bench("lateness", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    span_s = parse_duration(options.span).total_seconds()
    ground.start()
    ground.run(SQL["fill_spread"], AHEAD_S, span_s, "late", options.jobs)
    say(f"{options.jobs:,} jobs fall due over {options.span}")
    wait_until(lambda: ground.left() == 0, AHEAD_S + span_s + 60, "every job to finish")
    ground.stop()
    return lateness_figures(ground, options.jobs)


def lateness_figures(ground: Ground, jobs: int) -> Figures:
    """Return the figures from what the handlers wrote."""
    events = [event for event in ground.events() if event[0] == "L"]
    runs = Counter(event[1] for event in events)
    late = sorted(float(event[2]) for event in events)
    return {
        "p50_ms": quantile(late, 0.50),
        "p99_ms": quantile(late, 0.99),
        "max_ms": late[-1],
        "early": sum(value < 0 for value in late),
        "lost": jobs - len(runs),
        "duplicates": sum(count - 1 for count in runs.values()),
    }
