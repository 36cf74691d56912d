"""``tickwright bench campaigns``: a million clients are filtered, consumers are killed, producers race.

``filter``: one consumer process and then two, from an execution that is ``NEW`` to ``FINISHED`` with an action recorded
for each selected client; the same where the expression is judged row
by row, and where all are selected. ``kills``: the same while the consumer is killed ten times,
until every action has left. ``race``: five producers without a lease between them.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from tickwright.bench.campaigns_race import Race, race
from tickwright.bench.campaigns_world import EXPRESSION, ROW_BY_ROW, SQL, Ran, World, campaign_world
from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.report import Figures, run_bench

BARS = {
    "filter_1m_s": "≤ 60",
    "filter_1m_two_s": "≤ 45",
    "rss_growth_bytes": "flat",
    "row_by_row_s": "≤ 60",
    "row_by_row_rss_growth_bytes": "flat",
    "all_s": "≤ 60",
    "all_rss_growth_bytes": "flat",
    "actions_missing": "0",
    "actions_wrong": "0",
    "actions_twice": "0",
    "chunks_redone": "≤ 20: two at a time, killed ten times",
    "executions": "100,000",
    "executions_missing": "0",
    "executions_twice": "0",
}
PARTS = ("filter", "kills", "race")
CLIENTS = 1_000_000
KILLS = 10
LEFT_WITHIN_S = 600.0

Say = Callable[[str], None]
_details: dict[str, Any] = {}


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""
    return run_bench("campaigns", arguments, _measure, options=_options, bars=BARS, details=_details)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="of the audience")
    parser.add_argument("--campaigns", type=int, default=1_000, help="of the race")
    parser.add_argument("--occurrences", type=int, default=100, help="of each of them, at most 1,000")


def _measure(ground: Ground, options: argparse.Namespace, say: Say) -> Figures:
    wanted = options.only or PARTS
    figures: Figures = {}
    if wanted != ["race"]:
        say(f"making {options.clients:,} clients")
        with campaign_world(ground, options.clients) as world:
            if "filter" in wanted:
                figures |= filtering(world, say)
            if "kills" in wanted:
                figures |= killing(world, KILLS, say)
    if "race" in wanted:
        figures |= race(ground, Race(options.campaigns, options.occurrences), say)
    return figures


def filtering(world: World, say: Say) -> Figures:
    """Return what an execution takes with one consumer and with two, and what they hold; all records are checked."""
    world.create("bench.some")
    world.create("bench.all", "true")
    world.create("bench.row_by_row", ROW_BY_ROW)
    one, held = _run(world, "bench.some", 1, world.expected(), say)
    two, _ = _run(world, "bench.some", 2, world.expected(), say)
    all_clients, held_all = _run(world, "bench.all", 1, world.expected("all_clients"), say)
    by_row, held_by_row = _run(world, "bench.row_by_row", 1, world.expected(), say)
    return {
        "filter_1m_s": one.seconds,
        "filter_1m_two_s": two.seconds,
        "rss_growth_bytes": held,
        "selected": one.selected,
        "row_by_row_s": by_row.seconds,
        "row_by_row_rss_growth_bytes": held_by_row,
        "all_s": all_clients.seconds,
        "all_rss_growth_bytes": held_all,
    }


def _run(world: World, name: str, consumers: int, expected: set[str], say: Say) -> tuple[Ran, int]:
    world.settle()
    processes = [world.consumer() for _ in range(consumers)]
    execution_id = world.start(name)
    ran, memory = world.over(execution_id)
    for process in processes:
        world.ground.stop_one(process)
    if any(found := world.recorded(execution_id, expected)) or ran.actions != len(expected):
        raise RuntimeError(f"{name}: of {len(expected)} actions {found}, counted {ran.actions}")
    say(f"{name}, {consumers} at work: {ran}; memory grew by {memory.growth_bytes:,} bytes: {memory}")
    _details[f"{name}_{consumers}"] = ran._asdict()
    return ran, memory.growth_bytes


def killing(world: World, kills: int, say: Say, **fields: Any) -> Figures:
    """Return what is there once and left once when the consumer was killed again and again, and what was redone.

    The first kill comes while the audience is cut, the others spread over the chunks. ``fields`` are the campaign's.
    """
    world.create("bench.killed", EXPRESSION, **fields)
    world.settle()
    world.ground.run("TRUNCATE public.bench_left")
    world.ground.launch("scheduler", environment=world.environment)
    consumer = world.consumer()
    execution_id = world.start("bench.killed")
    killed = 0
    for number in range(kills):
        if not _reached(world, execution_id, number / kills):
            break
        world.ground.kill_one(consumer)
        killed += 1
        consumer = world.consumer()
    ran, _ = world.over(execution_id)
    redone = world.ground.row(SQL["redone"], execution_id)[0]
    say(f"killed {killed} times: {ran}; {redone} chunks begun again")
    left_s = _let_leave(world, execution_id)
    world.ground.stop()
    expected = world.expected()
    records, messages = world.recorded(execution_id, expected), world.left(execution_id, expected)
    say(f"records: {records}; messages, all gone {left_s:.1f} s after the end: {messages}")
    return {
        "kills": killed,
        "killed_s": ran.seconds,
        "actions_missing": max(records.missing, messages.missing),
        "actions_wrong": max(records.wrong, messages.wrong),
        "actions_twice": max(records.twice, messages.twice),
        "chunks_redone": redone,
        "left_s": left_s,
    }


def _reached(world: World, execution_id: int, share: float) -> bool:
    """Wait until an execution is being cut, or has done a share of its chunks; false where it has ended."""

    def there() -> bool:
        now = world.progress(execution_id)
        if now.status not in {"NEW", "IN_PROGRESS"}:
            return True
        return now.status == "IN_PROGRESS" and (not share or (now.is_planned and now.chunks_done >= share * now.chunks))

    wait_until(there, LEFT_WITHIN_S, f"{share:.0%} of the chunks", check_s=0.005)
    return world.progress(execution_id).status == "IN_PROGRESS"


def _let_leave(world: World, execution_id: int) -> float:
    """Take messages until the last one has left; the seconds until then."""
    began_s = time.monotonic()

    def gone() -> bool:
        released = not world.ground.row(SQL["unreleased"], execution_id)[0]  # first: a chunk may be released after it
        return not world.ground.row(SQL["take_messages"])[0] and released

    wait_until(gone, LEFT_WITHIN_S, "the actions to leave")
    return time.monotonic() - began_s
