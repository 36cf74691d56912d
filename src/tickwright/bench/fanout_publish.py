"""Three schedulers that race for every window of 10,000 entities and four modules.

All have the lists in memory when a window begins; the rate is that from the window's first instant, by the database's
clock, to the last message in the queue. The rounds before it, of their start, are raced as well; then the whole queue
is read back and ids are counted.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from tickwright.bench.fanout_queue import TaskQueue, until
from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.report import Figures
from tickwright.bench.servers import Servers
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "fanout.sql")
SCHEDULERS = 3
MODULES = 4
OTHERS = ("alerting", "upkeep", "fanout-upkeep", "report-upkeep")
"""Leases of rounds that read the tables of fan-out as well, whatever the schedulers do."""

WINDOW_S = 60
QUIET_S = 3.0
QUIET_TRIES = 4
WITHIN_S = 120.0
REPORTED_S = 11.0
"""After which every connection has reported its work to the server's statistics."""

_CHECK_S = 0.02

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Race:
    """How many entities are listed for each module, and the length of all windows in seconds."""

    entities: int
    window_s: int = WINDOW_S


async def publish(ground: Ground, servers: Servers, queue: TaskQueue, race: Race, say: Say) -> Figures:
    """Return the rate, what was published twice or not at all, and how often the database was used meanwhile.

    Raises:
        TimeoutError: The messages did not come, or the machine never became quiet before a window.
    """
    each = race.entities * MODULES
    ground.row(SQL["put_entities"], race.entities)
    ground.row(SQL["set_modules"], race.window_s)
    ground.row(SQL["hold_leases"], list(OTHERS))
    schedulers = _start(ground, servers)
    begin_s, before = await _quiet_beginning(ground, queue, race.window_s, say)
    touches, used_s = _touches(ground), _used_s(schedulers, servers)
    await _full(queue, before + each)
    took_s = ground.now_s() - begin_s
    used = {name: round(after - used_s[name], 2) for name, after in _used_s(schedulers, servers).items()}
    say(f"{each:,} messages in {took_s:.2f} s; seconds of processor time: {used}")
    await asyncio.sleep(REPORTED_S)
    touched = _touches(ground) - touches
    say(f"tables that were read or written meanwhile: {dict(touched)}")
    ground.stop()
    ground.row(SQL["release_leases"])
    found = await queue.read_back()
    measured = [message_id for message_id in found if message_id.endswith(f":{begin_s}")]
    return {
        "publish_per_s": each / took_s,
        "published_twice": float(found.total() - len(found)),
        "lost": float(each - len(measured)),
        "queries_per_tick": float(touched.total()),
    }


async def _quiet_beginning(ground: Ground, queue: TaskQueue, window_s: int, say: Say) -> tuple[int, int]:
    """Wait for a window before which all schedulers are idle; return its beginning and how many messages wait."""
    wait_until(lambda: ground.row(SQL["schedulers"])[0] == SCHEDULERS, WITHIN_S, "the schedulers")
    ready_s = ground.now_s() + REPORTED_S + QUIET_S
    begin_s = ceil(ready_s / window_s) * window_s
    for _ in range(QUIET_TRIES):
        say(f"the next window begins in {begin_s - ground.now_s():.0f} s")
        await asyncio.sleep(max(0.0, begin_s - ground.now_s() - QUIET_S))
        earlier, _ = await queue.waiting()
        await asyncio.sleep(max(0.0, begin_s - ground.now_s() - 0.5))
        now, _ = await queue.waiting()
        if now == earlier > 0 and ground.now_s() < begin_s:
            return begin_s, now
        begin_s += window_s
    raise TimeoutError("schedulers are still busy with a window when the next one begins: the machine is too slow")


def _start(ground: Ground, servers: Servers) -> dict[str, int]:
    """Start the schedulers; return their names and process ids."""
    environment = {**servers.environment(), "TICKWRIGHT_LOG_LEVEL": "warning"}
    return {f"scheduler{n}": ground.launch("scheduler", environment=environment).pid for n in range(SCHEDULERS)}


async def _full(queue: TaskQueue, messages: int) -> None:
    async def full() -> bool:
        return (await queue.waiting())[0] >= messages

    await until(full, WITHIN_S, f"{messages:,} messages in the queue", check_s=_CHECK_S)


def _touches(ground: Ground) -> Counter[str]:
    return Counter(ground.row(SQL["touches"])[0])


def _used_s(schedulers: Mapping[str, int], servers: Servers) -> dict[str, float]:
    """Return the processor time of each process so far, where the system reports it."""
    pids = {**schedulers, "rabbitmq": servers.rabbit_pid, "redis": servers.redis_pid}
    return {name: _processor_s(pid) for name, pid in pids.items() if pid is not None}


def _processor_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
