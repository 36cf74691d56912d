"""``tickwright bench pickup``: a plain INSERT, due now or soon, until its handler starts on an idle worker."""

import argparse
import random
import time
from collections.abc import Callable, Sequence

from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.lateness import lateness_figures
from tickwright.bench.report import Figures, run_bench

BARS = {
    "p50_ms": "≤ 3",
    "p99_ms": "≤ 10",
    "quiet_p99_ms": "≤ 1,100",
    "insert_16_of_no_trigger": "≥ 0.80",
}
RATE_PER_S = 20
CONNECTIONS = 16
INSERT = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
    "VALUES (clock_timestamp() + make_interval(secs => %s), 'late')"
)


INSERT_UNKNOWN = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) VALUES (now(), 'unknown', '{}');"
)
EACH = 3000


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=400, help="inserts, twenty a second")
        parser.add_argument("--seed", type=int, default=7, help="of the due instants")

    return run_bench("pickup", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    figures = _one_run(ground, options, {})
    say(f"with notifications: {figures}")
    quiet = _one_run(ground, options, {"TICKWRIGHT_NOTIFICATIONS": "off"})
    figures["quiet_p99_ms"] = quiet["p99_ms"]
    say("sixteen connections insert, with the trigger and without")
    figures |= _trigger_cost(ground)
    return figures


def _one_run(ground: Ground, options: argparse.Namespace, environment: dict[str, str]) -> Figures:
    ground.clear()
    ground.start(environment=environment)
    rng = random.Random(options.seed)
    begin = time.monotonic()
    for number in range(options.jobs):
        ground.run(INSERT, rng.choice([0.0, rng.random() * 0.5]))
        time.sleep(max(0.0, begin + (number + 1) / RATE_PER_S - time.monotonic()))
    wait_until(lambda: ground.left() == 0, 20, "every job to finish")
    ground.stop()
    figures = lateness_figures(ground, options.jobs)
    return {name: figures[name] for name in ("p50_ms", "p99_ms", "max_ms", "early", "lost", "duplicates")}


def _trigger_cost(ground: Ground) -> Figures:
    """Rows a second from sixteen connections beside an idle worker, due now: with and without the trigger."""
    ground.clear()
    ground.start()
    with_trigger = [_insert_rate(ground) for _ in range(3)]
    ground.run("ALTER TABLE tickwright.scheduled_tasks DISABLE TRIGGER scheduled_tasks_inserted")
    without = [_insert_rate(ground) for _ in range(3)]
    ground.run("ALTER TABLE tickwright.scheduled_tasks ENABLE TRIGGER scheduled_tasks_inserted")
    ground.stop()
    return {
        "insert_16_per_s": sorted(with_trigger)[1],
        "insert_16_no_trigger_per_s": sorted(without)[1],
        "insert_16_of_no_trigger": sorted(with_trigger)[1] / sorted(without)[1],
    }


def _insert_rate(ground: Ground) -> float:
    """Rows of an unknown type, so that only the inserts are measured."""
    rate = ground.pgbench(INSERT_UNKNOWN, clients=CONNECTIONS, transactions=EACH)
    ground.run("DELETE FROM ONLY tickwright.scheduled_tasks WHERE task_type = 'unknown'")
    return rate
