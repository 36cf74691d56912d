"""``tickwright bench gather``: fan-out / gather reports through RabbitMQ, Redis and a folder of objects.

``listeners``: four of 2, 1, 1 and 0.5 seconds, 10,000 rows each, joined; seen from the request to the record that says
finished. ``join``: a million rows of one database with three million of another, streamed, joined and written as CSV.
``crowd``: two hundred reports at once. API, relay and listener are the real programs, each in a process of its own.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
import uvloop

from tickwright.bench.gather_client import ReportClient, Seen, open_client
from tickwright.bench.gather_program import LISTENERS
from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.report import Figures, run_bench
from tickwright.bench.servers import Servers, fanout_servers
from tickwright.store.queries import load

BARS = {
    "ready_ms": "≤ 2,300 (sum of the listeners: 4,500)",
    "last_part_to_file_ms": "≤ 500",
    "join_s": "≤ 30",
    "join_rss_bytes": "≤ 536,870,912",
    "reports_done": "200",
    "reports_failed": "0",
    "redis_peak_bytes": "bounded",
}
PARTS = ("listeners", "join", "crowd")
SECONDS = (2.0, 1.0, 1.0, 0.5)
ROWS = 10_000
RUNS = 5
CROWD, CROWD_ROWS = 200, 500
IDLE_S = 5.0
MEMORY_CHECK_S = 0.1
_SQL = load("tickwright.bench.sql", "gather.sql")

Say = Callable[[str], None]
_details: dict[str, Any] = {}


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""
    return run_bench("gather", arguments, _measure, options=_options, bars=BARS, details=_details)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    parser.add_argument("--users", type=int, default=1_000_000, help="rows of the join's smaller side")
    parser.add_argument("--reports", type=int, default=CROWD, help="of the crowd")


def _measure(ground: Ground, options: argparse.Namespace, say: Say) -> Figures:
    with fanout_servers(ground.folder) as servers:
        return uvloop.run(_parts(ground, servers, options, say))


async def _parts(ground: Ground, servers: Servers, options: argparse.Namespace, say: Say) -> Figures:
    wanted = options.only or PARTS
    if "join" in wanted:
        say(f"making {options.users} users and {3 * options.users} withdrawals")
        ground.run(_SQL["people"], options.users)
        ground.run(_SQL["withdrawals"], options.users, 3 * options.users)
    environment = _environment(ground, servers)
    ground.launch("relay", environment=environment)
    listener = ground.launch("report-listener", "--app", "tickwright.bench.gather_program:app", environment=environment)
    figures: Figures = {}
    try:
        async with open_client(ground, environment) as client:
            wait_until(lambda: ground.one(_SQL["listening"]) == 1, 60, "the listener")
            await client.ask("gather", {"seconds": [0, 0, 0, 0], "rows": 10})
            if "listeners" in wanted:
                figures |= await _listeners(client, say)
            if "crowd" in wanted:
                figures |= await _crowd(client, servers, listener.pid, options.reports, say)
            if "join" in wanted:
                figures |= await _join(client, listener.pid, options.users, say)
    finally:
        ground.stop()
    return figures


def _environment(ground: Ground, servers: Servers) -> dict[str, str]:
    config = ground.folder / "bench.toml"
    config.write_text(
        "".join(f'[sources.{name}]\nurl = "${{env:BENCH_SOURCE}}"\n' for name in ("plt_user", "plt_fund"))
    )
    return {
        **servers.environment(),
        "TICKWRIGHT_REPORT_PREFIX": servers.prefix,
        "TICKWRIGHT_HOME": str(ground.folder / "reports-home"),
        "TICKWRIGHT_CONFIG": str(config),
        "TICKWRIGHT_LOG_LEVEL": "warning",
        "BENCH_SOURCE": ground.reader_url(),
    }


async def _listeners(client: ReportClient, say: Say) -> Figures:
    """Return the slowest of five runs: from the request to the file, and from the last part to it."""
    runs = [await _finished(client, "gather", {"seconds": SECONDS, "rows": ROWS, "run": run}) for run in range(RUNS)]
    ready_ms = [one.after_s * 1000 for one in runs]
    after_ms = [1000 * _between_s(one, "last_part_at", "finished_at") for one in runs]
    lines = await client.lines(runs[-1].record["id"])
    if lines != ROWS + 1:
        raise RuntimeError(f"the file has {lines} lines")
    _details["ready_ms"] = [round(one) for one in ready_ms]
    _details["last_part_to_file_ms"] = [round(one) for one in after_ms]
    say(f"ready, and after the last part: {_details}")
    return {"ready_ms": max(ready_ms), "last_part_to_file_ms": max(after_ms)}


async def _join(client: ReportClient, pid: int, users: int, say: Say) -> Figures:
    """Return how long the join took after the last part, and what the processes held at most, streaming included."""
    peak = asyncio.create_task(_peak_bytes(pid))
    seen = await _finished(client, "join", {})
    peak.cancel()
    if (rows := seen.record["rows"]) != 3 * users:
        raise RuntimeError(f"the file has {rows} rows")
    merged_s = _between_s(seen, "last_part_at", "finished_at")
    say(f"{rows} rows, {seen.record['bytes']} bytes: {merged_s:.1f} s after the last part, {seen.after_s:.1f} s in all")
    return {"join_s": merged_s, "join_all_s": seen.after_s, "join_rss_bytes": await peak}


async def _crowd(client: ReportClient, servers: Servers, pid: int, reports: int, say: Say) -> Figures:
    """Return how many of a crowd were made, what Redis held at most, and what the idle process takes afterwards."""
    with redis.Redis.from_url(servers.redis_url) as store:
        store.config_resetstat()
        conditions = [{"seconds": [0, 0, 0, 0], "rows": CROWD_ROWS, "run": run} for run in range(reports)]
        seen = await client.ask_many("gather", conditions)
        peak = int(store.info("memory")["used_memory_peak"])
    done = sum(one.record["status"] == "finished" for one in seen)
    whole = sum(one.record["rows"] == CROWD_ROWS for one in seen)
    if whole != done:
        raise RuntimeError(f"{done} are done, {whole} of them whole")
    last_s = max(one.after_s for one in seen)
    before_s, began_s = _cpu_s(pid), time.monotonic()
    wait_until(lambda: time.monotonic() - began_s >= IDLE_S, IDLE_S + 1, "the time to pass", check_s=0.5)
    idle = (_cpu_s(pid) - before_s) / (time.monotonic() - began_s)
    say(f"{done} of {reports} done within {last_s:.1f} s, {len(LISTENERS) * reports} parts; idle cpu share {idle:.3f}")
    return {
        "reports_done": done,
        "reports_failed": len(seen) - done,
        "crowd_s": last_s,
        "idle_cpu_ratio": idle,
        "redis_peak_bytes": peak,
    }


async def _finished(client: ReportClient, kind: str, conditions: dict[str, Any]) -> Seen:
    seen = await client.ask(kind, conditions)
    if seen.record["status"] != "finished":
        raise RuntimeError(f"{kind}: {seen.record['error']}")
    return seen


def _between_s(seen: Seen, first: str, second: str) -> float:
    from datetime import datetime

    one, other = (datetime.fromisoformat(seen.record[name]) for name in (first, second))
    return (other - one).total_seconds()


async def _peak_bytes(pid: int) -> int:
    """Return, when cancelled, what a process and its children held at most together; sampled ten times a second."""
    peak = 0
    try:
        while True:
            peak = max(peak, sum(map(_held_bytes, _family(pid))))
            await asyncio.sleep(MEMORY_CHECK_S)
    except asyncio.CancelledError:
        return peak


def _family(pid: int) -> list[Path]:
    """Return the folders in ``/proc`` of a process and its children."""
    folders = [Path(f"/proc/{pid}")]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                folders.append(stat.parent)
    return folders


def _held_bytes(process: Path) -> int:
    """Return what a process holds, with its share of what it shares."""
    with suppress(OSError):
        lines = (process / "smaps_rollup").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return 0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
