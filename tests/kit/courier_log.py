"""A courier in a process of its own, and what its log says afterwards: the independent witness of calls."""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kit.processes import kill_group, spawn
from kit.waiting import eventually_async

_PROGRAM = Path(__file__).with_name("courier_process.py")


@dataclass(frozen=True, slots=True)
class Call:
    """One request, by the system's monotonic clock.

    Attributes:
        came_s: It did not come before: the courier looked then.
        began_s: When the courier read it.
        ended_s: Endless, if it never did.
    """

    name: str
    came_s: float
    began_s: float
    ended_s: float


class CourierLog:
    """A courier that runs elsewhere."""

    def __init__(self, url: str, log: Path) -> None:
        self.url, self._log = url, log

    def calls(self) -> list[Call]:
        """Return every request that has begun, in order."""
        begun: list[tuple[str, float, float]] = []
        ends: dict[str, list[float]] = {}
        for line in self._log.read_text(encoding="utf-8").splitlines():
            what, at, unread_s, name = line.split(" ", 3)
            if what == "b":
                begun.append((name, float(at) - float(unread_s), float(at)))
            else:
                ends.setdefault(name, []).append(float(at))
        return [Call(*one, ends[one[0]].pop(0) if ends.get(one[0]) else float("inf")) for one in begun]


@asynccontextmanager
async def courier_process(folder: Path, delay_s: float) -> AsyncIterator[CourierLog]:
    """Run a courier for the length of the block."""
    log, url = folder / "courier.calls", folder / "courier.url"
    log.touch()
    words = [sys.executable, str(_PROGRAM), str(log), str(url), str(delay_s)]
    child = spawn(words, folder / "courier.log")
    try:
        await eventually_async(url.exists, 20, what="the courier answers")
        yield CourierLog(url.read_text(encoding="utf-8"), log)
    finally:
        kill_group(child)


def check_contract(calls: Sequence[Call], *, per_s: int, concurrency: int) -> None:
    """P4: in every second at most so many calls come, and at no instant are more of them under way.

    Calls that one look of a busy courier found may have come at any instant since the look before: what counts is what
    came within a second for certain.
    """
    most = most_within(calls, 1.0)
    assert most <= per_s, f"P4 broken: {most} calls in one second, {per_s} are allowed"
    steps = sorted([(call.began_s, 1) for call in calls] + [(call.ended_s, -1) for call in calls])
    running = most_running = 0
    for _, step in steps:
        running += step
        most_running = max(most_running, running)
    assert most_running <= concurrency, f"P4 broken: {most_running} calls at once, {concurrency} are allowed"


def most_within(calls: Sequence[Call], window_s: float) -> int:
    """Return the most calls of which any window of ``window_s`` holds all that is known of when they came."""
    most = 0
    by_end = sorted(calls, key=lambda call: call.began_s)
    for first in by_end:
        inside = [c for c in by_end if c.came_s >= first.came_s and c.began_s < first.came_s + window_s]
        most = max(most, len(inside))
    return most


def repeated(calls: Sequence[Call]) -> int:
    """Return how many calls asked for something that was asked for before."""
    return sum(times - 1 for times in Counter(call.name for call in calls).values())
