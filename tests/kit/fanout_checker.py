"""What may be said of a fan-out's history: F1 and F2 as a pure function of what its witnesses wrote.

The witnesses are the processes' own logs (what was called when, what was dropped, what was missed) and the list of
successes that the ledger took, in its order. A call is *effective* if its end was taken: the consumer was told so, or
the ledger has its fence, where the consumer was killed before it could tell.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


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
    """A time in which something was done to schedulers or to what they need, by the database's clock."""

    from_s: float
    to_s: float


@dataclass
class History:
    """All that the witnesses say.

    Attributes:
        expected: What has to run, or to be accounted for.
        confirmed: Ends that a consumer was told were taken: task and fence.
        dropped: Tasks whose message a consumer dropped, and said so.
        missed: Tasks that a scheduler has not seen published when their window was over, and said so.
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
    """Return every broken promise in words; nothing means that F1 and F2 hold."""
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
        if newest.get(call.task[:2], 0) < call.task.window_s  # it may go past one that it heard of late
    ]
    ran = {call.task for call in effective} | {win.task for win in history.wins}
    struck = {task for task in history.missed if _struck(task, history)}
    accounted = ran | set(history.dropped) | struck
    return found + [f"F2 broken: {task} is lost" for task in history.expected if task not in accounted]


def _struck(task: Task, history: History) -> bool:
    """Whether something was done to the publishing side while the task's window was under way."""
    end_s = task.window_s + history.lengths_s[task.task_type]
    return any(strike.from_s < end_s and strike.to_s > task.window_s for strike in history.strikes)
