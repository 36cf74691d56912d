"""Producers that race for the same occurrences without any lease between them, the worst that a lost lease can do.

First all occurrences of all campaigns are due and five processes begin at the same moment. Then the campaigns lose
their progress, and all producers begin again: that must add nothing.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tickwright.bench.campaigns_world import SQL
from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.report import Figures

PRODUCERS = 5
READY_WITHIN_S = 60.0
DONE_WITHIN_S = 600.0

Say = Callable[[str], None]


class Race(NamedTuple):
    """How many campaigns have how many occurrences without an execution, 1 to 1,000 of them."""

    campaigns: int = 1_000
    occurrences: int = 100


def race(ground: Ground, size: Race, say: Say) -> Figures:
    """Return how many executions there are, how many occurrences have two or none, and what the race took."""
    campaigns, occurrences = size
    made = ground.row(SQL["put_campaigns"], campaigns, occurrences)[0]
    expected = made * occurrences
    took_s, counts = _once(ground)
    say(f"{PRODUCERS} producers made {counts} executions in {took_s:.2f} s")
    ground.run(SQL["forget_slots"])
    _, again = _once(ground)
    say(f"and {again} when they began again")
    executions, occupied, twice = ground.row(SQL["slots"])
    return {
        "executions": executions,
        "executions_missing": expected - occupied,
        "executions_twice": max(twice, sum(counts) + sum(again) - expected),
        "race_s": took_s,
    }


def _once(ground: Ground) -> tuple[float, list[int]]:
    """Let all of them begin at the same moment; the seconds until the last has ended, and what each has made."""
    with _producers(ground) as producers:
        wait_until(lambda: ground.row(SQL["waiting"])[0] == PRODUCERS, READY_WITHIN_S, "the producers")
        began_s = time.monotonic()
        ground.row(SQL["let_start"])
        said = [producer.communicate(timeout=DONE_WITHIN_S)[0] for producer in producers]
        took_s = time.monotonic() - began_s
    if failed := [producer.returncode for producer in producers if producer.returncode]:
        raise RuntimeError(f"{len(failed)} producers failed")
    return took_s, [int(one.split()[0]) for one in said]


@contextmanager
def _producers(ground: Ground) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start them; they wait for a lock that this process holds."""
    environment = {**os.environ, "BENCH_DATABASE_URL": ground.url}
    command = [sys.executable, "-m", "tickwright.bench.campaigns_producer"]
    ground.row(SQL["hold_start"])
    producers = [
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        for _ in range(PRODUCERS)
    ]
    try:
        yield producers
    finally:
        ground.row(SQL["unlock_all"])
        for producer in producers:
            producer.kill()
            producer.wait()
