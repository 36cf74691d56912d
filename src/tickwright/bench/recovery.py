"""``tickwright bench recovery``: kill -9 of a worker in the middle of its work, and a restart with default settings."""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.jobs import SQL
from tickwright.bench.report import Figures, run_bench

BARS = {"seconds_to_done": "≤ 15", "lost": "0", "ran_twice": "≤ in_flight_at_kill"}


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=5000, help="jobs of 50 ms")

    return run_bench("recovery", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    ground.start()
    ground.run(SQL["fill_due"], "work", options.jobs)
    wait_until(lambda: _ended(ground) >= options.jobs * 3 // 10, 60, "a third of the work")
    ground.kill9()
    killed = time.monotonic()
    started = {event[1] for event in ground.events() if event[0] == "S"}
    recorded = int(ground.one("SELECT count(*) FROM tickwright.scheduled_tasks WHERE status = 'completed'"))
    in_flight = len(started) - recorded
    say(f"killed with {recorded} recorded and {in_flight} started but not recorded")
    ground.start()
    wait_until(lambda: ground.left() == 0, 60, "every job to finish")
    took_s = time.monotonic() - killed
    ground.stop()
    runs = Counter(event[1] for event in ground.events() if event[0] == "S")
    done = {event[1] for event in ground.events() if event[0] == "E"}
    return {
        "seconds_to_done": took_s,
        "lost": options.jobs - len(done),
        "ran_twice": sum(count > 1 for count in runs.values()),
        "in_flight_at_kill": in_flight,
    }


def _ended(ground: Ground) -> int:
    return sum(event[0] == "E" for event in ground.events())
