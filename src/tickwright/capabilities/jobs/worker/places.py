"""The places of groups in one worker: the jobs of a place run one after another.

A claim gives each job of a group with a limit its place; see :mod:`.groups`. Here the first one of a place goes to the
runner, and each end continues the next. In an ordered group, a job that did not complete may stop those behind it,
which are released then: another claim takes them again, in their order.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from tickwright.capabilities.jobs.model import Job


class Place(NamedTuple):
    """A place of a group: its jobs run one after another."""

    task_type: str
    group: str
    number: int


@dataclass(frozen=True, slots=True)
class FreedPlaces:
    """Freed places of one type, for a claim.

    Attributes:
        places: They have ended, or have room for more jobs.
        running: The latter of them, each with the id of the job whose turn it is.
        unfinished: Those of groups with more jobs, as far as the worker knows.
    """

    places: AbstractSet[Place] = frozenset()
    running: Mapping[Place, int] = field(default_factory=dict)
    unfinished: AbstractSet[Place] = frozenset()


@dataclass(slots=True, eq=False)
class _Queue:
    """The jobs of one place here: the one whose turn it is, and those behind it."""

    place: Place
    current: Job
    waiting: deque[Job]
    low: int = -1
    """With so many jobs left, more are claimed."""
    seen: Job | None = None
    """Whose turn it was when :meth:`PlaceQueues.held_up` was called last."""


class PlaceQueues:
    """The claimed jobs of one worker that have places of groups.

    Attributes:
        known: Those whose attempts have not ended.
        behind: How many wait for others, by type.
        put: Takes a job whose turn it is.
        release: Releases a job that must not run now, because one before it in its ordered group has not completed.
        freed: Places that have ended, and whose results are written, or that have room; for the next claim.
        freed_some: Called when there is one.
    """

    def __init__(self) -> None:
        self.known: dict[Job, _Queue] = {}
        self.behind: Counter[str] = Counter()
        self._queues: dict[Place, _Queue] = {}
        self.put: Callable[[Job], None] = lambda _: None
        self.release: Callable[[Job], None] = lambda _: None
        self.freed: set[Place] = set()
        self.freed_some: Callable[[], None] = lambda: None
        self.ended: set[Place] = set()
        """Places that have ended; some results may be unwritten."""
        self._unfinished: set[Place] = set()
        """Places of groups of which the last claim left some jobs."""

    def __len__(self) -> int:
        return len(self.known) - len(self._queues)

    def __iter__(self) -> Iterator[Job]:
        """Iterate over those that wait for others."""
        return chain.from_iterable(queue.waiting for queue in self._queues.values())

    def enter(
        self, jobs: Iterable[Job], places: Mapping[int, Place], unfinished: AbstractSet[str], depth: int
    ) -> list[Job]:
        """Take claimed jobs, in the order in which they run; return those that may start.

        The places of ``unfinished`` groups count as freed while they have less than half of ``depth`` jobs.
        """
        able = []
        for job in jobs:
            if (place := places.get(job.id)) is None:
                able.append(job)
                continue
            queue = self._queues.get(place)
            if queue is None:
                queue = self._queues[place] = _Queue(place, job, deque())
                able.append(job)
            else:
                queue.waiting.append(job)
                self.behind[place.task_type] += 1
            self.known[job] = queue
        for place in set(places.values()):
            (self._unfinished.add if place.group in unfinished else self._unfinished.discard)(place)
            if (queue := self._queues.get(place)) is None:  # none of its jobs runs: they have expired, for example
                self.ended.add(place)
                continue
            queue.low = depth // 2 - 1 if place.group in unfinished else -1
            if len(queue.waiting) <= queue.low:
                self.freed.add(place)
        return able

    def leave(self, job: Job, outcome: str) -> None:
        """Continue the place of a job whose attempt has ended, with this outcome."""
        if (queue := self.known.pop(job, None)) is None:
            return
        if job is not queue.current:
            queue.waiting.remove(job)
            self.behind[queue.place.task_type] -= 1
            return
        if queue.waiting and not _stops(job.type_state.task_type.group_order, outcome):
            queue.current = queue.waiting.popleft()
            self.behind[queue.place.task_type] -= 1
            self.put(queue.current)
            if len(queue.waiting) == queue.low:
                self.freed.add(queue.place)
                self.freed_some()
            return
        del self._queues[queue.place]
        self.ended.add(queue.place)
        if queue.low < 0 or job.type_state.task_type.group_order is not None:
            self.freed.discard(queue.place)
        else:  # it is free for this worker, also before the results are written
            self.freed.add(queue.place)
            self.freed_some()
        self.behind[queue.place.task_type] -= len(queue.waiting)
        for other in queue.waiting:
            del self.known[other]
            self.release(other)

    def held_up(self) -> set[Job]:
        """Return the jobs that wait for one whose turn it has been since the last call, where others may run at once.

        Their group has more places, here or in other workers. With a limit of 1, or in order, they must wait.
        """
        found = set[Job]()
        for queue in self._queues.values():
            if queue.waiting and queue.current is queue.seen:
                kind = queue.current.type_state.task_type
                if kind.group_order is None and kind.group_limit != 1:
                    found.update(queue.waiting)
            queue.seen = queue.current
        return found

    def take_ended(self) -> set[Place]:
        """Take the places that have ended; free them (:meth:`free`) once the results until now are written."""
        ended, self.ended = self.ended, set()
        return ended

    def free(self, places: Iterable[Place]) -> None:
        """Let the next claim use places that have ended."""
        self.freed.update(place for place in places if place not in self._queues)
        self.freed_some()

    def take_freed(self, task_type: str) -> FreedPlaces:
        """Take the freed places of a type, for a claim."""
        freed = {place for place in self.freed if place.task_type == task_type}
        running = {place: self._queues[place].current.id for place in freed & self._queues.keys()}
        taken = FreedPlaces(freed, running, freed & self._unfinished)
        self.freed -= freed
        self._unfinished -= freed - running.keys()
        return taken

    def give_back(self, freed: FreedPlaces) -> None:
        """Give freed places back, after a claim that failed."""
        self.freed |= freed.places
        self._unfinished |= freed.unfinished

    def types_left_over(self) -> set[str]:
        """Return the types with freed places whose groups have more jobs, as far as this worker knows."""
        return {place.task_type for place in self.freed & self._unfinished}

    def remove(self, jobs: AbstractSet[Job]) -> None:
        """Forget those of these jobs that wait for others; the caller ends them."""
        for queue in self._queues.values():
            removed = [job for job in queue.waiting if job in jobs]
            if removed:
                queue.waiting = deque(job for job in queue.waiting if job not in jobs)
                self.behind[queue.place.task_type] -= len(removed)
                for job in removed:
                    del self.known[job]


def _stops(order: str | None, outcome: str) -> bool:
    """Whether the jobs behind one with this outcome must not run now."""
    if order is None or outcome in {"completed", "cancel", "expired"}:
        return False
    if outcome == "failed":
        return order == "stop"
    return order != "continue" or outcome not in {"retried", "snoozed"}
