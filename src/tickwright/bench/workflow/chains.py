"""``tickwright bench workflow``: chains, of which each job releases the next one, and one job that waits for many."""

import argparse
import time
from collections.abc import Callable, Sequence

from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.report import Figures, median, run_bench
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "workflow.sql")
BARS = {"jobs_per_s": "≥ 10,000", "fan_in_ms": "≤ 1,000"}
WITHIN_S = 300
CHECK_S = 0.05
DETAILS: dict[str, float] = {}


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--chains", type=int, default=1000)
        parser.add_argument("--length", type=int, default=100, help="jobs per chain")
        parser.add_argument("--predecessors", type=int, default=100_000, help="of the job that waits for many")
        parser.add_argument("--workers", type=int, default=1)
        parser.add_argument("--runs", type=int, default=3, help="runs of each kind; the median counts")

    return run_bench("workflow", arguments, _measure, options=options, bars=BARS, details=DETAILS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    for _ in range(options.workers):
        ground.start(environment={"TICKWRIGHT_CONCURRENCY": "1000"})
    rates, fan_ins, jobs = [], [], options.chains * options.length
    for number in range(options.runs):
        chains = _run(ground, "add_chains", options.chains, options.length)
        rates.append(jobs / _seconds(ground, chains))
        fan_in = _run(ground, "add_fan_in", options.predecessors)
        _seconds(ground, fan_in)
        fan_ins.append(float(ground.row(SQL["fan_in_ms"], fan_in)[0]))
        say(f"run {number + 1}: {rates[-1]:,.0f} jobs/s, fan-in {fan_ins[-1]:,.1f} ms")
    ground.stop()
    return {"jobs_per_s": median(rates), "fan_in_ms": median(fan_ins)}


def _run(ground: Ground, query: str, *values: int) -> int:
    """Add a workflow while its type is paused, let it run to its end, and return its id."""
    ground.pause("noop")
    began_s = time.perf_counter()
    workflow = int(ground.row(SQL[query], *values)[0])
    DETAILS[f"{query}_s"] = round(time.perf_counter() - began_s, 2)
    ground.run(SQL["settle"])
    ground.run("CHECKPOINT")
    ground.enable("noop")
    wait_until(lambda: ground.row(SQL["has_ended"], workflow)[0], WITHIN_S, "the end of the workflow", check_s=CHECK_S)
    return workflow


def _seconds(ground: Ground, workflow: int) -> float:
    state, seconds = ground.row(SQL["ran"], workflow)
    if state != "completed":
        raise RuntimeError(f"the workflow is {state}")
    return float(seconds)
