"""``tickwright bench fanout``: one message per entity, module and window, through RabbitMQ and Redis.

``hub``: four providers, one of them slow, on three consumers of one slot. ``many``: a thousand entities of which one in
twenty is slow, on three consumers of a hundred slots. ``publish``: three schedulers that race for the same windows.
Schedulers and consumers are the real programs. RabbitMQ and Redis are the bench's own, unless ``TICKWRIGHT_AMQP_URL``
or ``TICKWRIGHT_REDIS_URL`` names one; there it uses names of its own and removes them.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

from tickwright.bench.fanout_hub import hub, many
from tickwright.bench.fanout_publish import Race, publish
from tickwright.bench.fanout_queue import open_queue
from tickwright.bench.ground import Ground
from tickwright.bench.report import Figures, run_bench
from tickwright.bench.servers import Servers, fanout_servers

BARS = {
    "before_done_ms": "5,300: what one aggregate message takes",
    "fast_done_ms": "≤ 300",
    "all_done_ms": "≤ 5,200",
    "fast_p99_ratio": "≤ 2",
    "publish_per_s": "≥ 5,000",
    "published_twice": "0",
    "lost": "0",
    "queries_per_tick": "0",
}
PARTS = ("hub", "many", "publish")

Say = Callable[[str], None]
_details: dict[str, Any] = {}


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""
    return run_bench("fanout", arguments, _measure, options=_options, bars=BARS, details=_details)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    parser.add_argument("--entities", type=int, default=10_000, help="of the race of schedulers")


def _measure(ground: Ground, options: argparse.Namespace, say: Say) -> Figures:
    with fanout_servers(ground.folder) as servers:
        return uvloop.run(_parts(ground, servers, options, say))


async def _parts(ground: Ground, servers: Servers, options: argparse.Namespace, say: Say) -> Figures:
    figures: Figures = {}
    wanted = options.only or PARTS
    async with open_queue(servers.amqp_url, servers.prefix) as queue:
        if "hub" in wanted:
            figures |= await hub(ground, servers, queue, say, _details)
        if "many" in wanted:
            figures |= await many(ground, servers, queue, say)
        if "publish" in wanted:
            figures |= await publish(ground, servers, queue, Race(options.entities), say)
    return figures
