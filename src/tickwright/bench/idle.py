"""``tickwright bench idle``: what one worker with all its loops costs the database while there is nothing to do."""

import argparse
import time
from collections.abc import Callable, Sequence

from tickwright.bench.ground import Ground
from tickwright.bench.jobs import SQL
from tickwright.bench.report import Figures, run_bench

BARS = {"transactions_per_s": "≤ 1.5"}
SETTLE_S = 15


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seconds", type=int, default=60, help="how long to watch")

    return run_bench("idle", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    ground.start()
    say(f"settling for {SETTLE_S} s, then watching for {options.seconds} s")
    time.sleep(SETTLE_S)
    before = ground.one(SQL["transactions"])
    time.sleep(options.seconds)
    after = ground.one(SQL["transactions"])
    ground.stop()
    return {"transactions_per_s": (after - before - 1) / options.seconds}
