"""``tickwright bench periodic``: ten thousand schedules, and three schedulers of which one is killed again and again.

Which occurrences there are is counted here by arithmetic, not by the code that is measured. ``twice`` are all jobs
beyond one per occurrence.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.report import Figures, run_bench
from tickwright.domain.calendars.occurrences import spread_offset
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "periodic.sql")
BARS = {"missing": "0", "twice": "0"}
SCHEDULERS = 3
LEASE = "5s"
"""So short that another process takes over many times in a run."""
STEPS_S = (60, 120, 60, 90, 15)
"""Of the five kinds of schedules; all begin at multiples since 1970, since the zones differ from UTC by whole hours."""
SPREAD = timedelta(seconds=60)
KILL_AFTER_S = (0.5, 4.0)
CAUGHT_UP_WITHIN_S = 120
DETAILS: dict[str, float] = {}


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seconds", type=int, default=300, help="how long schedulers are killed")
        parser.add_argument("--schedules", type=int, default=10_000)
        parser.add_argument("--seed", type=int, default=7, help="of the kills")

    return run_bench("periodic", arguments, _measure, options=options, bars=BARS, details=DETAILS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    dice = random.Random(options.seed)
    ground.run(SQL["put_type"])
    ground.row(SQL["put_schedules"], options.schedules)
    for _ in range(SCHEDULERS):
        _launch(ground)
    end_s, kills, behind_max_s = time.monotonic() + options.seconds, 0, 0.0
    while time.monotonic() < end_s:
        time.sleep(dice.uniform(*KILL_AFTER_S))
        if (behind_s := _behind_s(ground)) is not None:
            behind_max_s = max(behind_max_s, behind_s)
        ground.kill_one(dice.choice(ground.workers))
        _launch(ground)
        kills += 1
    say(f"{kills} kills; waiting until what is due is decided")
    wait_until(lambda: _is_caught_up(ground), CAUGHT_UP_WITHIN_S, "the producer to catch up")
    until_us = int(ground.now_s() * 1_000_000)
    ground.stop()
    DETAILS.update(kills=kills, behind_max_s=round(behind_max_s, 3))
    return _judge(ground, until_us)


def _launch(ground: Ground) -> None:
    ground.launch("scheduler", environment={"TICKWRIGHT_LOCK_AT_MOST_FOR": LEASE})


def _behind_s(ground: Ground) -> float | None:
    """Return by how much the producer is late; ``None`` while it has not read every schedule once."""
    late_s, has_new = ground.row(SQL["behind_s"])
    return None if has_new else float(late_s)


def _is_caught_up(ground: Ground) -> bool:
    behind_s = _behind_s(ground)
    return behind_s is not None and behind_s < 1


def _judge(ground: Ground, until_us: int) -> Figures:
    """Compare the jobs that are due until an instant with the occurrences."""
    wanted: set[tuple[str, int]] = set()
    for name, kind, from_us in ground.connection.execute(SQL["schedules"].encode()):
        step_us = STEPS_S[kind] * 1_000_000
        offset_us = spread_offset(name, SPREAD) // timedelta(microseconds=1)
        first = -(-(from_us - offset_us) // step_us)
        last = (until_us - offset_us) // step_us
        wanted |= {(name, number * step_us + offset_us) for number in range(first, last + 1)}
    jobs = Counter(
        (name, at_us) for name, at_us in ground.connection.execute(SQL["jobs"].encode()) if at_us <= until_us
    )
    return {
        "occurrences": len(wanted),
        "missing": len(wanted - jobs.keys()),
        "twice": sum(jobs.values()) - len(wanted & jobs.keys()),
    }
