"""``bench polling --end-to-end``: every role as a process of its own, real time, couriers that answer in 50 ms.

All trackers have one interval and were placed just before, so every minute carries its share of them. What was due is
counted from the trackers of each time slot and from what was selected, what is done from the ledger, in SQL: nothing
here keeps a tracker in memory. The couriers' figures come from their own logs.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import cycle
from pathlib import Path
from subprocess import Popen

import uvloop

from tickwright.bench.couriers import Couriers, running_couriers
from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.poll_kafka import borrowed_kafka, kafka_environment
from tickwright.bench.poll_world import PARTNERS, World
from tickwright.bench.report import Figures
from tickwright.domain.errors import Rejected
from tickwright.store.pool import open_pool
from tickwright.store.queries import load
from tickwright.transports.kafka.config import KafkaConfig

SQL = load("tickwright.bench.sql", "end_to_end.sql")
END_TO_END_BARS = {
    "polls_done_per_s": "as polls_due_per_s (10 M trackers at 120 min: 1,389)",
    "fresh_share": "≥ 0.999",
    "early": "0",
    "turns_missed": "0",
    "lag_end_s": "a few",
    "fallen_behind": "0",
    "calls_busiest_ratio": "about 1",
    "calls_per_poll": "1; a little more with --kill-every",
}
ROLES = ("relay", "poll-consumer", "scheduler")
FRESH_SHARE = 0.1
CHECK_S = 2.0
KILL_CHECK_S = 0.25
LEAD_S = 15.0
READY_WITHIN_S = 60.0
SETTLE_MAX_S = 120.0
TAIL_CHARS = 2000

Say = Callable[[str], None]


@dataclass(frozen=True)
class Window:
    """The measured time.

    Attributes:
        begin: A whole minute; nothing is due before it.
        end: What is due from then on does not count.
        fresh_s: A poll is fresh when its effect is written so many seconds after its due second, or sooner.
    """

    begin: datetime
    end: datetime
    fresh_s: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.begin).total_seconds()


def end_to_end(ground: Ground, bootstrap: str | None, options: argparse.Namespace, say: Say) -> Figures:
    """Run everything for so many minutes and return what was due, what was done, and how late.

    Raises:
        Rejected: ``bench_too_long``, the ledger does not keep so many due minutes of a slot. Permanent.
        RuntimeError: A process ended by itself.
    """
    if options.minutes > 2 * options.interval_minutes:
        raise Rejected("bench_too_long", "the ledger keeps three turns: --minutes is at most twice --interval-minutes")
    uvloop.run(_import(ground, options, say))
    with running_couriers(ground.folder) as couriers, ExitStack() as stack:
        terms = None if bootstrap is None else stack.enter_context(borrowed_kafka(ground, bootstrap))
        crew = Crew(ground, _environment(ground, couriers, terms), replicas=2 if options.kill_every else 1)
        window = _start(ground, crew, terms, options)
        waiting = _watch(ground, crew, window, options.kill_every, say)
        _settle(ground, crew, window)
        crew.say_cpu(say)
        say(crew.complaints() or "no process complained")
        ground.stop()
        return _figures(ground, window, waiting, say) | _calls(ground, couriers, window)


async def _import(ground: Ground, options: argparse.Namespace, say: Say) -> None:
    pool = await open_pool(ground.url, max_size=4)
    try:
        world = World(pool, ((options.interval_minutes, 20),))
        await world.prepare()
        say(f"registered and placed: {await world.add(options.trackers):,.0f}/s")
    finally:
        pool.terminate()
    ground.run("VACUUM ANALYZE tickwright.trackers, tickwright.tracker_intake")
    ground.run(SQL["make_records"])
    ground.run("CHECKPOINT")


def _environment(ground: Ground, couriers: Couriers, terms: KafkaConfig | None) -> dict[str, str]:
    config = couriers.config(ground.folder / "couriers.toml", [name for name, _ in PARTNERS])
    return {
        "TICKWRIGHT_CONFIG": str(config),
        "TICKWRIGHT_ALLOW_TARGETS": "127.0.0.1/32",
        "TICKWRIGHT_LOG_LEVEL": "error",
        **(kafka_environment(terms) if terms is not None else {}),
    }


# ---------------------------------------------------------------------- processes


@dataclass
class _Member:
    process: "Popen[bytes]"
    out: Path


class Crew:
    """The replicas of every role: started, killed one after the other, and never ended by themselves."""

    def __init__(self, ground: Ground, environment: Mapping[str, str], *, replicas: int) -> None:
        self._ground, self._environment, self.replicas = ground, environment, replicas
        self._members: dict[tuple[str, int], _Member] = {}
        self._victims = cycle([(role, number) for number in range(replicas) for role in ROLES])
        self._outs: list[Path] = []
        self.killed = 0

    def start(self, role: str) -> None:
        """Start every replica of a role."""
        for number in range(self.replicas):
            self._launch((role, number))

    def _launch(self, place: tuple[str, int]) -> None:
        process = self._ground.launch(place[0], environment=self._environment)
        out = self._ground.folder / f"worker{self._ground.started}.out"
        self._outs.append(out)
        self._members[place] = _Member(process, out)

    def kill_next(self) -> None:
        """``kill -9`` a replica and start it again: one of each role, and then the next replica of each role.

        So the replica that took over from the killed one is the next of its role to be killed.
        """
        place = next(self._victims)
        self._ground.kill_one(self._members[place].process)
        self.killed += 1
        self._launch(place)

    def check(self) -> None:
        """Refuse to measure what is not running.

        Raises:
            RuntimeError: A process ended by itself.
        """
        for (role, number), member in self._members.items():
            if member.process.poll() is not None:
                raise RuntimeError(f"{role} {number} ended by itself:\n{member.out.read_text()[-TAIL_CHARS:]}")

    def complaints(self) -> str:
        """Return the last of what processes wrote, which is errors only."""
        return "\n".join(text[-TAIL_CHARS:] for out in self._outs if (text := out.read_text().strip()))

    def say_cpu(self, say: Say) -> None:
        """Print how much processor time each living replica took, where the system reports it."""
        tick = os.sysconf("SC_CLK_TCK")
        for (role, number), member in self._members.items():
            with suppress(OSError):
                words = Path(f"/proc/{member.process.pid}/stat").read_text().rpartition(")")[2].split()
                say(f"{role} {number}: {(int(words[11]) + int(words[12])) / tick:.1f} s of processor time")


def _start(ground: Ground, crew: Crew, terms: KafkaConfig | None, options: argparse.Namespace) -> Window:
    """Start the roles, the scheduler last, shortly before the first poll is due."""
    ready = SQL["ready"]
    crew.start("relay")
    wait_until(lambda: ground.row(ready, crew.replicas)[0], READY_WITHIN_S, "the relay", check_s=KILL_CHECK_S)
    crew.start("poll-consumer")
    wait_until(lambda: ground.row(ready, 2 * crew.replicas)[0], READY_WITHIN_S, "consumers", check_s=KILL_CHECK_S)
    if terms is not None:
        wait_until(lambda: ground.row(SQL["assigned"])[0], READY_WITHIN_S, "partitions", check_s=KILL_CHECK_S)
    begin = ground.row(SQL["soon"], LEAD_S)[0]
    uvloop.run(_begin_turns(ground, begin))
    ground.run(SQL["note_first_turns"])
    crew.start("scheduler")
    wait_until(lambda: ground.row(SQL["selecting"])[0], READY_WITHIN_S, "the selector", check_s=KILL_CHECK_S)
    interval = timedelta(minutes=options.interval_minutes)
    return Window(begin, begin + timedelta(minutes=options.minutes), interval.total_seconds() * FRESH_SHARE)


async def _begin_turns(ground: Ground, begin: datetime) -> None:
    pool = await open_pool(ground.url, max_size=1)
    try:
        await World(pool).begin_turns(begin)
    finally:
        pool.terminate()


def _watch(ground: Ground, crew: Crew, window: Window, kill_every_s: int, say: Say) -> list[int]:
    """Record until the end, kill replicas as ``--kill-every`` says; return the backlog of polls, every ``CHECK_S``."""
    waiting: list[int] = []
    checked_s = killed_s = time.monotonic()
    between_s = kill_every_s / len(ROLES)
    while (left_s := ground.row(SQL["seconds_until"], window.end)[0]) > 0:
        crew.check()
        now_s = time.monotonic()
        if now_s - checked_s >= CHECK_S:
            checked_s += CHECK_S
            ground.run(SQL["note_outbox"])
            if left_s <= window.seconds:
                waiting.append(ground.row(SQL["backlog"], window.begin)[0])
        if kill_every_s and left_s <= window.seconds and now_s - killed_s >= between_s:
            killed_s = now_s
            crew.kill_next()
        time.sleep(min(KILL_CHECK_S, left_s))
    say(f"backlog every {CHECK_S:.0f} s: {waiting}; {crew.killed} killed")
    return waiting


def _settle(ground: Ground, crew: Crew, window: Window) -> None:
    """Let polls that were due before the end be done, as long as they would count as fresh."""
    deadline = time.monotonic() + min(window.fresh_s, SETTLE_MAX_S)
    due = ground.row(SQL["due"], window.begin, window.end)[0]
    while time.monotonic() < deadline and ground.row(SQL["done"], window.begin, window.end, window.fresh_s)[0] < due:
        crew.check()
        ground.run(SQL["note_outbox"])
        time.sleep(1.0)


# ---------------------------------------------------------------------- figures


def _figures(ground: Ground, window: Window, waiting: list[int], say: Say) -> Figures:
    due, missed, missed_at = ground.row(SQL["due"], window.begin, window.end)
    done, fresh, early, p50_s, p99_s, max_s = ground.row(SQL["done"], window.begin, window.end, window.fresh_s)
    written = ground.row(SQL["done_between"], window.begin, window.end)[0]
    unseen = ground.row(SQL["unseen"], window.begin, window.end)[0]
    if unseen:
        say(f"{unseen} polls were selected that the bench has not recorded: lag_end_s and fallen_behind are too good")
    oldest = ground.row(SQL["oldest_undone"], window.begin, window.end)[0]
    undone = [at for at in (oldest, missed_at) if at is not None]
    return {
        "polls_due_per_s": due / window.seconds,
        "polls_done_per_s": written / window.seconds,
        "fresh_share": fresh / due,
        "undone": float(due - done),
        "late_p50_s": p50_s,
        "late_p99_s": p99_s,
        "late_max_s": max_s,
        "early": float(early),
        "turns_missed": float(missed),
        "lag_end_s": (window.end - min(undone)).total_seconds() if undone else 0.0,
        "fallen_behind": float(fallen_behind(waiting, due / window.seconds)),
    }


def fallen_behind(waiting: list[int], per_s: float) -> int:
    """Return by how many polls a backlog has grown, beyond one second's.

    A backlog that keeps up comes back to its low mark, also after a kill: so the lowest of the last quarter is
    compared with the lowest of the second. The first one is the start.

    Args:
        waiting: The backlog, at equal intervals.
        per_s: Polls that are due in a second.
    """
    quarter = len(waiting) // 4
    if quarter == 0:
        return 0
    before, after = min(waiting[quarter : 2 * quarter]), min(waiting[-quarter:])
    return max(0, round(after - before - per_s))


def _calls(ground: Ground, couriers: Couriers, window: Window) -> Figures:
    """Return what the couriers saw: calls a second, the busiest second over the mean, calls for each effect."""
    seconds = couriers.calls_by_second(window.begin.timestamp(), window.end.timestamp())
    calls = sum(seconds.values())
    written = ground.row(SQL["done_between"], window.begin, window.end)[0]
    return {
        "calls_per_s": calls / window.seconds,
        "calls_busiest_ratio": max(seconds.values(), default=0) * window.seconds / max(1, calls),
        "calls_per_poll": calls / max(1, written),
    }
