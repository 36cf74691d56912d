"""A storm over fan-out: schedulers and consumers are killed and stopped, Redis is flushed, connections are reset."""

import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from redis.asyncio import Redis

from kit.fanout import TERMS, FanoutWorld
from kit.fanout_worlds import told, wins
from kit.forks import Child
from kit.processes import kill_group
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async

# The check of a fan-out's history: F1 and F2 as a pure function of the witnesses' records.
#
# The witnesses are the processes' own logs (what was called when, what was dropped, what was missed) and the list of
# successes that the ledger took, in its order. A call is *effective* if its end was taken: the consumer logged so, or
# the ledger has its fence, where the consumer was killed before it could log.


class Task(NamedTuple):
    """One window of one entity and module."""

    entity_code: str
    task_type: str
    window_s: int


class Call(NamedTuple):
    """One call of a function, by the system's monotonic clock; without an end it was cut, or failed."""

    task: Task
    fence: int
    began_s: float
    ended_s: float | None


class Win(NamedTuple):
    """A success that the ledger took."""

    task: Task
    fence: int


class Strike(NamedTuple):
    """A time during which a fault struck schedulers or a server that they need, by the database's clock."""

    from_s: float
    to_s: float


@dataclass
class History:
    """The records of all witnesses.

    Attributes:
        expected: The tasks that have to run, or to be accounted for.
        confirmed: Ends that a consumer logged as taken: task and fence.
        dropped: Tasks whose message a consumer dropped and logged.
        missed: Tasks that a scheduler had not seen published at the end of their window, and logged.
    """

    expected: Collection[Task]
    calls: Sequence[Call]
    wins: Sequence[Win]
    confirmed: Collection[tuple[Task, int]] = ()
    dropped: Collection[Task] = ()
    missed: Collection[Task] = ()
    strikes: Sequence[Strike] = ()
    lengths_s: dict[str, int] = field(default_factory=dict)


def complaints(history: History) -> list[str]:
    """Return a text for each broken promise; an empty list means that F1 and F2 hold."""
    effective = _effective(history)
    return [*_twice(effective), *_overlapping(effective), *_backward(history.wins), *_lost(history, effective)]


def _effective(history: History) -> list[Call]:
    taken = {*history.confirmed, *((win.task, win.fence) for win in history.wins)}
    return [call for call in history.calls if call.ended_s is not None and (call.task, call.fence) in taken]


def _twice(effective: Iterable[Call]) -> list[str]:
    counts = Counter(call.task for call in effective)
    return [f"F1 broken: {task} ran {count} times with effect" for task, count in counts.items() if count > 1]


def _overlapping(effective: Iterable[Call]) -> list[str]:
    found = []
    keys: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in effective:
        keys[call.task[:2]].append(call)
    for calls in keys.values():
        for one, other in pairwise(sorted(calls, key=lambda call: call.began_s)):
            if other.began_s < (one.ended_s or 0.0):
                found.append(f"F1 broken: {one.task} and {other.task} overlap")
    return found


def _backward(wins: Iterable[Win]) -> list[str]:
    keys: dict[tuple[str, str], list[int]] = defaultdict(list)
    for win in wins:
        keys[win.task[:2]].append(win.task.window_s)
    return [
        f"F1 broken: {key} went from window {one} to {other}"
        for key, windows in keys.items()
        for one, other in pairwise(windows)
        if other <= one
    ]


def _lost(history: History, effective: Sequence[Call]) -> list[str]:
    newest: dict[tuple[str, str], int] = {}
    for win in history.wins:
        newest[win.task[:2]] = max(win.task.window_s, newest.get(win.task[:2], 0))
    found = [
        f"F2 broken: {call.task} ran, and the ledger does not know"
        for call in effective
        if newest.get(call.task[:2], 0) < call.task.window_s  # it may continue past one that it noticed late
    ]
    ran = {call.task for call in effective} | {win.task for win in history.wins}
    struck = {task for task in history.missed if _struck(task, history)}
    accounted = ran | set(history.dropped) | struck
    return found + [f"F2 broken: {task} is lost" for task in history.expected if task not in accounted]


def _struck(task: Task, history: History) -> bool:
    """Whether a fault struck the publishing side while the task's window was under way."""
    end_s = task.window_s + history.lengths_s[task.task_type]
    return any(strike.from_s < end_s and strike.to_s > task.window_s for strike in history.strikes)


LENGTHS_S = {"LOCATIONS": 3, "TARIFFS": 2}
CODES = [f"E{number}" for number in range(60)]
SCHEDULERS, CONSUMERS = 2, 3
STRIKE_EVERY_S = 2.5
SLEEP_S = 1.5 * TERMS.ttl.total_seconds()
NOW = "SELECT date_part('epoch', clock_timestamp())"
UNDER_WAY = "SELECT count(*) FROM tickwright.fanout_cursors WHERE owner IS NOT NULL"


class FanoutStorm:
    """Two schedulers and three consumers as processes; a killed process is replaced.

    Args:
        seed_number: Seed of the random choices, shown when a test fails.
    """

    def __init__(self, world: FanoutWorld, proxy: TcpProxy, folder: Path, seed_number: int) -> None:
        self.world, self.proxy, self._folder = world, proxy, folder
        self.chance = random.Random(seed_number)
        self._children: dict[str, Child] = {}
        self._logs: list[Path] = []
        self.strikes: list[Strike] = []
        self.from_s = self.to_s = 0.0

    @asynccontextmanager
    async def raging(self) -> AsyncIterator[None]:
        """Run all processes; none is left at the end."""
        for name, length_s in LENGTHS_S.items():
            await self.world.put_module(name, interval_s=length_s, timeout_ms=1500)
        await self.world.put_entities(CODES, ",".join(LENGTHS_S))
        try:
            for number in range(SCHEDULERS):
                self._start(f"scheduler{number}")
            for number in range(CONSUMERS):
                self._start(f"consumer{number}")
            await eventually_async(lambda: len(self._logged("done")) > len(CODES), 40, what="all processes work")
            self.from_s = await self.now_s()
            yield
        finally:
            for child in self._children.values():
                kill_group(child)

    def _start(self, name: str) -> None:
        log = self._folder / f"{name}.log"
        if log not in self._logs:
            self._logs.append(log)
        variables: dict[str, str] = {"FANOUT_SLOTS": "8", "FANOUT_TAKES_S": "0.05", "FANOUT_FAILS": "0.03"}
        variables["FANOUT_MODULES"] = ",".join(LENGTHS_S)
        if name.endswith("0"):
            variables["FANOUT_AMQP"] = self.proxy.rewrite(self.world.queues.url)
        self._children[name] = self.world.spawn(name.rstrip("0123456789"), log, **variables)

    async def now_s(self) -> float:
        """Return the database's clock."""
        now: float = await self.world.pool.fetchval(NOW)
        return now

    # ------------------------------------------------------------------ what happens

    async def strike(self, what: str) -> None:
        """Cause one fault, and let the storm continue for a while."""
        before = await self.now_s()
        if what == "flush":
            client = Redis.from_url(self.world.redis_url or "")
            await client.flushall()
            await client.aclose()
        elif what == "reset":
            self.proxy.reset()
        elif what == "zombie":
            await self._suspend(self.chance.choice([one for one in self._children if one.startswith("consumer")]))
        else:
            await self._strike_down(self.chance.choice([one for one in self._children if one.startswith(what)]))
        if what not in {"consumer", "zombie"}:
            self.strikes.append(Strike(before, await self.now_s() + STRIKE_EVERY_S))
        await self._until(before + STRIKE_EVERY_S)

    async def _strike_down(self, name: str) -> None:
        """Kill one process, and wait until another one works in its place, so that one is healthy all the time."""
        kill_group(self._children[name])
        self._start(name)
        pid, log = self._children[name].pid, self._folder / f"{name}.log"
        await eventually_async(lambda: any(one["pid"] == pid for one in told(log, "reached")), 40, what="it works")

    async def _suspend(self, name: str) -> None:
        """Stop one for longer than its session lives; it continues among runs that are no longer its own."""
        child = self._children[name]
        child.send_signal(signal.SIGSTOP)
        try:
            await self._until(await self.now_s() + SLEEP_S)
        finally:
            child.send_signal(signal.SIGCONT)

    async def _until(self, at_s: float) -> None:
        async def reached() -> bool:
            return await self.now_s() >= at_s

        await eventually_async(reached, 30, what="the storm continues")

    async def calm_down(self) -> None:
        """Let no new task begin, and wait until all that began are over."""
        await self._until(await self.now_s() + max(LENGTHS_S.values()))
        self.to_s = await self.now_s()
        await self.world.pool.execute("UPDATE tickwright.entities SET is_polling_enabled = false")
        await self._until(self.to_s + 2 * max(LENGTHS_S.values()))

        async def nothing_left() -> bool:
            left = await self.world.pool.fetchval(UNDER_WAY) + await self.world.queues.count(self.world.queue)
            return bool(left == 0)

        await eventually_async(nothing_left, 30, what="nothing is left")
        for name, child in self._children.items():
            assert child.poll() is None, f"{name} ended by itself with {child.returncode}"

    # ------------------------------------------------------------------ results

    def _logged(self, what: str) -> list[dict[str, Any]]:
        return [fact for log in self._logs for fact in told(log, what)]

    async def history(self) -> History:
        """Return the witnesses' records of the windows in the storm."""
        ends = {(task_of(one["done"]), one["fence"]): one["at_s"] for one in self._logged("done")}
        calls = [
            Call(task_of(one["run"]), one["fence"], one["at_s"], ends.get((task_of(one["run"]), one["fence"])))
            for one in self._logged("run")
        ]
        confirmed = {
            (task_of(one["task"]), one["fence"]) for one in self._logged("reached") if one["reached"] == "fanout.ended"
        }
        return History(
            expected=self.expected(),
            calls=calls,
            wins=[Win(Task(*win[:3]), win[3]) for win in await wins(self.world)],
            confirmed=confirmed,
            dropped={task_of(one["acked"]) for one in self._logged("acked") if one["why"] != "succeeded"},
            missed={task_of(one["missed"]) for one in self._logged("missed")},
            strikes=self.strikes,
            lengths_s=LENGTHS_S,
        )

    def expected(self) -> set[Task]:
        """Return the tasks of all windows that are wholly in the storm."""
        return {
            Task(code, name, start_s)
            for name, length_s in LENGTHS_S.items()
            for start_s in range(int(self.from_s // length_s + 1) * length_s, int(self.to_s - length_s), length_s)
            for code in CODES
        }


def task_of(message_id: str) -> Task:
    """Return the task that a message id names."""
    _, code, name, start = message_id.split(":")
    return Task(code.replace("%2E", "."), name, int(start))
