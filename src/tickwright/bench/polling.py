"""``tickwright bench polling``: ten million trackers at couriers, in parts, or all of it at once with ``--end-to-end``.

In parts: trackers on wheels, selected through whole intervals as fast as the database allows; one consumer against
couriers; one relay; one scheduler that is killed. Kafka takes part where ``TICKWRIGHT_KAFKA_BOOTSTRAP`` is set.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence

import uvloop

from tickwright.bench.end_to_end import END_TO_END_BARS, end_to_end
from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.poll_consumers import consumer_rates
from tickwright.bench.poll_relay import relay_rate
from tickwright.bench.poll_world import World
from tickwright.bench.report import Figures, quantile, run_bench
from tickwright.store.pool import open_pool

BARS = {
    "step_p99_ms": "≤ 200",
    "step_max_ms": "≤ 500",
    "select_minute_s": "≤ 0.2 (10 M trackers)",
    "select_minute_wal_bytes": "≤ 10,000,000 (10 M trackers)",
    "flatness_steady": "≤ 1.02",
    "flatness_partner": "≤ 1.02",
    "flatness_1000": "≤ 1.05",
    "flatness_10s": "≤ 1.10",
    "small_buckets_over": "0",
    "flatness_after_import": "≤ 1.05",
    "import_per_s": "≥ 16,667 (a million in a minute)",
    "disk_bytes": "≤ 2,500,000,000 (10 M trackers)",
    "disk_growth_ratio": "1 (no growth from interval 10 to 50)",
    "detect_stopped_s": "< 90",
    "relay_per_s": "≥ 60,000",
    "polls_per_s": "≥ 2,500 (one process; from Kafka where there is one)",
    "polls_per_s_pg": "≥ 2,500 (from the queue in PostgreSQL)",
    **END_TO_END_BARS,
}


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""
    return run_bench("polling", arguments, _measure, options=_options, bars=BARS)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trackers", type=int, default=1_000_000, help="how many")
    parser.add_argument(
        "--intervals", type=int, default=50, help="two-hour intervals over which growth is measured; 0: not at all"
    )
    parser.add_argument("--polls", type=int, default=100_000, help="polls that one consumer carries out, each time")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    parser.add_argument("--end-to-end", action="store_true", help="all roles at once in real time, and nothing else")
    parser.add_argument("--minutes", type=int, default=10, help="how long, with --end-to-end")
    parser.add_argument("--interval-minutes", type=int, default=120, help="of every tracker, with --end-to-end")
    parser.add_argument(
        "--kill-every", type=int, default=0, metavar="SECONDS",
        help="with --end-to-end: two replicas of each role, of which one is killed once in so many seconds",
    )  # fmt: skip


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    bootstrap = os.environ.get("TICKWRIGHT_KAFKA_BOOTSTRAP")
    options.kafka = bootstrap is not None  # a parameter of the report
    if bootstrap is None:
        say("TICKWRIGHT_KAFKA_BOOTSTRAP is not set: polls go through PostgreSQL")
    if options.end_to_end:
        return end_to_end(ground, bootstrap, options, say)
    figures: Figures = {}
    for name, part in PARTS.items():
        if name in (options.only or PARTS):
            figures |= part(ground, bootstrap, options, say)
    return figures


Part = Callable[[Ground, str | None, argparse.Namespace, Callable[[str], None]], Figures]


def _turns(ground: Ground, _bootstrap: str | None, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    return uvloop.run(_turn(ground, options, say))


async def _turn(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    pool = await open_pool(ground.url, max_size=4)
    try:
        world = World(pool)
        await world.prepare()
        figures = {"import_per_s": await world.add(options.trackers)}
        say(f"registered and placed: {figures['import_per_s']:,.0f}/s")
        ground.run("VACUUM ANALYZE tickwright.trackers, tickwright.tracker_intake")  # autovacuum would, within a minute
        ground.run("CHECKPOINT")
        figures["disk_bytes"] = await world.disk_bytes()
        figures["select_minute_s"], figures["select_minute_wal_bytes"] = await world.select_minutes(5)
        say(f"a minute selected in {figures['select_minute_s']:.3f} s")
        await world.end(0.3)
        ground.run("VACUUM ANALYZE tickwright.trackers")
        return figures | await _levelled(world, options, say)
    finally:
        pool.terminate()


async def _levelled(world: World, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """Select polls after a third of the trackers has ended, after an import, and for as long as growth is measured."""
    since = await world.transaction_id()
    await world.go_round(2)
    steps_ms = world.steps_ms
    figures: Figures = {"step_p99_ms": quantile(steps_ms, 0.99), "step_max_ms": steps_ms[-1]}
    figures |= await world.flatness()
    figures["levelled_share"] = await world.moved_since(since) / options.trackers
    say(f"after a third ended: {figures}; slowest steps in ms: {world.slowest()}")
    await world.add(options.trackers // 5)
    await world.go_round(1)
    figures["flatness_after_import"] = (await world.flatness())["flatness_steady"]
    return figures | (await world.grow(options.intervals, say) if options.intervals else {})


def _consumers(
    ground: Ground, bootstrap: str | None, options: argparse.Namespace, say: Callable[[str], None]
) -> Figures:
    return consumer_rates(ground, bootstrap, options.polls, say)


def _relay(ground: Ground, bootstrap: str | None, _options: argparse.Namespace, _say: Callable[[str], None]) -> Figures:
    return {} if bootstrap is None else {"relay_per_s": relay_rate(ground, bootstrap)}


def _detect(
    ground: Ground, _bootstrap: str | None, _options: argparse.Namespace, _say: Callable[[str], None]
) -> Figures:
    """Return the seconds from the end of the only scheduler to its alert."""
    ground.run("UPDATE tickwright.poll_slots SET next_due_at = now() + interval '1 hour'")
    scheduler = ground.launch("scheduler", environment={"TICKWRIGHT_LOG_LEVEL": "error"})
    held = "SELECT count(*) FROM tickwright.job_config WHERE job_name = 'selector' AND running"
    wait_until(lambda: ground.one(held), 30, "the selector")
    ground.start()
    scheduler.kill()
    scheduler.wait()
    started = time.perf_counter()
    firing = "SELECT count(*) FROM tickwright.alerts WHERE rule = 'scheduler_stopped' AND state = 'firing'"
    wait_until(lambda: ground.one(firing), 180, "the alert", check_s=0.2)
    took_s = time.perf_counter() - started
    ground.stop()
    return {"detect_stopped_s": took_s}


PARTS: dict[str, Part] = {"turns": _turns, "consumers": _consumers, "relay": _relay, "detect": _detect}
