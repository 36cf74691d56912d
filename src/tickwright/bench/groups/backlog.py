"""``tickwright bench groups``: ten thousand groups in which one job runs at a time, and one of them has a million jobs.

One worker drains all jobs of one type. The jobs of the other groups fall due meanwhile; their handler says how late it
starts. A worker drains jobs without groups for comparison.
"""

import argparse
import time
from collections.abc import Callable, Sequence

from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.jobs import CHECK_S, drain
from tickwright.bench.jobs import SQL as JOBS
from tickwright.bench.report import Figures, median, quantile, run_bench
from tickwright.store.queries import load

SQL = {name: "\n".join(text.splitlines()[1:]) for name, text in load("tickwright.bench.sql", "groups.sql").items()}
BARS = {"others_p99_ms": "≤ 50", "drain_per_s": "≥ 0.5 of drain_plain_per_s"}
TYPE = "noop.grouped"
PROGRAM = "tickwright.bench.groups.program"
AHEAD_S = 2.0
DRAINED_WITHIN_S = 1200


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--groups", type=int, default=10_000, help="groups, the one with the backlog among them")
        parser.add_argument("--backlog", type=int, default=1_000_000, help="jobs of that one, due from the start")
        parser.add_argument("--others", type=int, default=20_000, help="jobs of all others together")
        parser.add_argument("--span", type=float, default=10.0, help="seconds over which these fall due")
        parser.add_argument("--plain", type=int, default=200_000, help="jobs of a drain without groups")
        parser.add_argument("--runs", type=int, default=1, help="runs of each kind; the median counts")

    return run_bench("groups", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    samples: dict[str, list[float]] = {}
    for number in range(options.runs):
        measured = {"drain_plain_per_s": drain(ground, options.plain, workers=1, keep=False)}
        say(f"run {number + 1}: drain_plain_per_s {measured['drain_plain_per_s']:,.0f}")
        measured |= _drain_groups(ground, options, say)
        for name, value in measured.items():
            samples.setdefault(name, []).append(value)
        say(f"run {number + 1}: {', '.join(f'{name} {value:,.1f}' for name, value in measured.items())}")
    return {name: median(samples[name]) for name in ("others_p99_ms", "drain_per_s", "drain_plain_per_s")}


def _drain_groups(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    ground.clear()
    ground.run("TRUNCATE tickwright.job_groups, tickwright.job_group_hints")
    ground.start(keep=False, program=PROGRAM)
    ground.pause(TYPE)
    ground.run(SQL["fill_backlog"], options.backlog)
    ground.run(JOBS["settle"])
    ground.run("CHECKPOINT")
    say(f"{options.backlog:,} jobs of one group are due")
    first, last = ground.row(SQL["ends"])
    ground.enable(TYPE)
    wait_until(lambda: not ground.one(JOBS["is_pending"], first), 60, "the first claim", check_s=CHECK_S)
    started = time.perf_counter()
    ground.run(SQL["fill_others"], AHEAD_S, options.span / options.others, options.groups - 1, options.others)
    wait_until(lambda: not ground.one(JOBS["is_there"], last), DRAINED_WITHIN_S, "the last job", check_s=CHECK_S)
    wait_until(lambda: ground.left(TYPE) == 0, DRAINED_WITHIN_S, "the drain", check_s=CHECK_S)
    took_s = time.perf_counter() - started
    ground.stop()
    late = sorted(float(event[2]) for event in ground.events() if event[0] == "G")
    if len(late) != options.others:
        raise RuntimeError(f"{len(late)} of {options.others} jobs of other groups ran")
    say(f"others: p50 {quantile(late, 0.5):.1f} ms, p99 {quantile(late, 0.99):.1f} ms, max {late[-1]:.1f} ms")
    return {"others_p99_ms": quantile(late, 0.99), "drain_per_s": (options.backlog + options.others) / took_s}
