"""How many polls a second one consumer carries out: read, asked of a courier that answers in 50 ms, effect written.

The consumer is the real program with its default settings, alone in its process. Its polls wait when it starts, in the
topic or in the queue inside PostgreSQL, put there by the real relay. The ledger says when which effect was written.
"""

from collections.abc import Callable, Mapping

import uvloop

from tickwright.bench.couriers import Couriers, running_couriers
from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.poll_kafka import borrowed_kafka, kafka_environment
from tickwright.bench.poll_world import PARTNERS, World
from tickwright.bench.report import Figures
from tickwright.store.pool import open_pool
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "polling.sql")
TRACKERS_PER_POLL = 5
"""Of a world that is made for this alone."""

CHECK_S = 0.25
RELAYED_WITHIN_S = 120.0
DONE_WITHIN_S = 300.0

Say = Callable[[str], None]


def consumer_rates(ground: Ground, bootstrap: str | None, polls: int, say: Say) -> Figures:
    """Return the rates from the queue inside PostgreSQL and, where there is a Kafka, from there."""
    if not ground.one("SELECT EXISTS (SELECT FROM tickwright.trackers)"):
        uvloop.run(_trackers(ground.url, polls * TRACKERS_PER_POLL))
    with running_couriers(ground.folder) as couriers:
        own = {**_environment(ground, couriers), "TICKWRIGHT_LOG_LEVEL": "error"}
        figures = {"polls_per_s_pg": _rate(ground, own, polls, minutes_ago=2)}
        say(f"polls a second of one consumer, from PostgreSQL: {figures['polls_per_s_pg']:,.0f}")
        figures["polls_per_s"] = figures["polls_per_s_pg"]
        if bootstrap is not None:
            with borrowed_kafka(ground, bootstrap) as terms:
                figures["polls_per_s"] = _rate(ground, own | kafka_environment(terms), polls, minutes_ago=1)
            say(f"from Kafka: {figures['polls_per_s']:,.0f}")
    return figures


def _environment(ground: Ground, couriers: Couriers) -> dict[str, str]:
    config = couriers.config(ground.folder / "couriers.toml", [name for name, _ in PARTNERS])
    return {"TICKWRIGHT_CONFIG": str(config), "TICKWRIGHT_ALLOW_TARGETS": "127.0.0.1/32"}


async def _trackers(url: str, count: int) -> None:
    pool = await open_pool(url, max_size=4)
    try:
        world = World(pool)
        await world.prepare()
        await world.add(count)
        await pool.execute("VACUUM ANALYZE tickwright.trackers")
    finally:
        pool.terminate()


def _rate(ground: Ground, environment: Mapping[str, str], polls: int, *, minutes_ago: int) -> float:
    """Return the polls a second from the first effect to the last.

    Raises:
        RuntimeError: Not each poll was done once.
    """
    ground.run("TRUNCATE tickwright.scheduler_outbox, tickwright.poll_queue")
    filled = ground.row(SQL["fill_polls"], polls, minutes_ago)
    relay = ground.launch("relay", environment=environment)
    wait_until(lambda: ground.row(SQL["relayed"])[0], RELAYED_WITHIN_S, "the relay", check_s=CHECK_S)
    ground.stop_one(relay)
    consumer = ground.launch("poll-consumer", environment=environment)
    wait_until(
        lambda: ground.row(SQL["done_of"], filled[1])[0] >= filled[0], DONE_WITHIN_S, "the polls", check_s=CHECK_S
    )
    ground.stop_one(consumer)
    done, seconds = ground.row(SQL["done_of"], filled[1])
    if done != filled[0]:
        raise RuntimeError(f"{done} polls were done of {filled[0]}")
    return float(done / seconds)
