"""Whether jobs are done as fast while ten clients watch: drains with the streams and without, alternately.

Drains of one worker beside all that the database holds. The drains of a pair follow each other, the order within a pair
alternates, and the median of their ratios counts: what else the machine does affects both.
"""

from collections.abc import Callable
from typing import Any

from tickwright.bench.dashboard_streams import watching
from tickwright.bench.dashboard_world import Site
from tickwright.bench.ground import Ground
from tickwright.bench.jobs import SQL as JOBS
from tickwright.bench.jobs import let_drain
from tickwright.bench.report import Figures, median

CLIENTS = 10
WITHIN_S = 300.0

Say = Callable[[str], None]


def drain_ratio(site: Site, pairs: int, jobs: int, say: Say, details: dict[str, Any]) -> Figures:
    """Return the median ratio of drains with ten streams to those without, and both rates."""
    ground = site.ground
    ground.start(keep=False)
    with site.api() as url:
        drained(ground, jobs)  # everything has been run once before it counts
        rates: dict[int, list[float]] = {0: [], CLIENTS: []}
        for number in range(pairs):
            for clients in (0, CLIENTS) if number % 2 else (CLIENTS, 0):
                rates[clients].append(_drained_before(site, url, clients, jobs, details))
            say(f"pair {number + 1}: {rates[CLIENTS][-1]:,.0f}/s with streams, {rates[0][-1]:,.0f}/s without")
    ground.stop()
    ratios = [watched / alone for watched, alone in zip(rates[CLIENTS], rates[0], strict=True)]
    details["drain_ratios"] = [round(one, 3) for one in ratios]
    return {
        "drain_ratio": median(ratios),
        "drain_streams_per_s": median(rates[CLIENTS]),
        "drain_alone_per_s": median(rates[0]),
    }


def _drained_before(site: Site, url: str, clients: int, jobs: int, details: dict[str, Any]) -> float:
    if not clients:
        return drained(site.ground, jobs)
    with watching(url, site.key, clients) as watchers:
        rate = drained(site.ground, jobs)
        details.setdefault("drain_snapshots", []).append(watchers.least())
    return rate


def drained(ground: Ground, jobs: int) -> float:
    """Return jobs a second of one drain by the worker that runs; other jobs stay where they are."""
    ground.pause("noop")
    ground.run(JOBS["fill_due"], "noop", jobs)
    ground.run(JOBS["settle"])
    ground.run("CHECKPOINT")
    return let_drain(ground, jobs, within_s=WITHIN_S)
