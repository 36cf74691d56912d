"""``tickwright bench dashboard``: what the operators' dashboard costs its viewer and, above all, the rest of the work.

In parts, on one crowded database: ``page`` (how much a browser loads, and when it can be used), ``reads`` (every read
of the API that the page makes), ``open`` (what one open overview asks of PostgreSQL) and ``drain`` (whether work is
slower while ten clients look). API and worker are the real programs, each in a process of its own.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

from tickwright.bench.dashboard_cost import open_cost
from tickwright.bench.dashboard_drain import drain_ratio
from tickwright.bench.dashboard_page import first_views, script_bytes
from tickwright.bench.dashboard_reads import read_times
from tickwright.bench.dashboard_world import Site, build_site
from tickwright.bench.ground import Ground
from tickwright.bench.report import Figures, run_bench

BARS = {
    "first_view_ms": "≤ 1,000 (local, nothing cached; the median)",
    "js_gzip_bytes": "≤ 250,000 (of the first view)",
    "read_p95_ms": "≤ 100 (of the slowest read)",
    "statements_per_s": "≤ 5 (one open overview)",
    "db_cpu_ms_per_s": "≤ 20 (one open overview)",
    "drain_ratio": "≥ 0.95 (ten streams against none)",
}

Say = Callable[[str], None]
Part = Callable[[Site, argparse.Namespace, Say, dict[str, Any]], Figures]
_details: dict[str, Any] = {}


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""
    return run_bench("dashboard", arguments, _measure, options=_options, bars=BARS, details=_details)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="live and finished ones together")
    parser.add_argument("--trackers", type=int, default=1_000_000, help="how many, in 200 accounts")
    parser.add_argument("--loads", type=int, default=5, help="cold loads of the page")
    parser.add_argument("--rounds", type=int, default=100, help="how often each read is asked")
    parser.add_argument("--seconds", type=int, default=60, help="how long one overview is open")
    parser.add_argument("--pairs", type=int, default=5, help="drains with ten streams, each beside one without")
    parser.add_argument("--drain", type=int, default=400_000, help="jobs of a drain")


def _measure(ground: Ground, options: argparse.Namespace, say: Say) -> Figures:
    site = uvloop.run(build_site(ground, options.jobs, options.trackers, say))
    figures: Figures = {}
    for name, part in PARTS.items():
        if name in (options.only or PARTS):
            figures |= part(site, options, say, _details)
    return figures


def _page(site: Site, options: argparse.Namespace, say: Say, details: dict[str, Any]) -> Figures:
    figures = script_bytes(details)
    return figures | first_views(site, options.loads, say, details)


def _reads(site: Site, options: argparse.Namespace, say: Say, details: dict[str, Any]) -> Figures:
    return read_times(site, options.rounds, say, details)


def _open(site: Site, options: argparse.Namespace, say: Say, details: dict[str, Any]) -> Figures:
    return open_cost(site, options.seconds, say, details)


def _drain(site: Site, options: argparse.Namespace, say: Say, details: dict[str, Any]) -> Figures:
    return drain_ratio(site, options.pairs, options.drain, say, details)


PARTS: dict[str, Part] = {"page": _page, "reads": _reads, "open": _open, "drain": _drain}
