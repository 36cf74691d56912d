"""The slots of the queues of one worker: how many more attempts of a queue may start, and how many a claim may take.

A queue has reserved slots, which no other queue takes, and all queues share the rest; see ``pools``. Any type may hang
at once. So a type takes at most three quarters of what the other types leave, as in a worker without pools, except that
the only type of a queue may have all of its reserved slots.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from tickwright.capabilities.jobs.model import allot, type_slots_max
from tickwright.capabilities.jobs.worker.pools import SHARED, WorkerScope


class QueueSlots:
    """The slots of one queue in one worker.

    Attributes:
        reserved: Slots that only this queue takes.
        running: Attempts that have a slot of this queue; those above ``reserved`` have shared ones.
        of_type: How many of them each type has; a type that has moved to another queue still has some here.
        type_max: How many of them one type may have.
    """

    __slots__ = ("of_type", "pools", "reserved", "running", "type_max")

    def __init__(self, pools: "SlotPools", reserved: int) -> None:
        self.pools, self.reserved = pools, reserved
        self.running, self.of_type = 0, Counter[str]()
        self.type_max = reserved + pools.shared

    @property
    def slots(self) -> int:
        """The most slots that the queue can have."""
        return self.reserved + self.pools.shared

    @property
    def free(self) -> int:
        """How many more attempts may start."""
        return max(0, self.reserved - self.running) + self.pools.shared - self.pools.shared_taken

    def take(self, name: str) -> None:
        """Take a slot for an attempt of a type, a reserved one where there is one."""
        self.running += 1
        self.of_type[name] += 1
        if self.running > self.reserved:
            self.pools.shared_taken += 1

    def release(self, name: str) -> None:
        """Release a slot, a shared one where the queue has one."""
        self.of_type[name] -= 1
        if self.running > self.reserved:
            self.pools.shared_taken -= 1
        self.running -= 1


class SlotPools:
    """The slots of all queues of one worker.

    Attributes:
        shared_taken: Shared slots that are taken.
    """

    def __init__(self, scope: WorkerScope) -> None:
        self.shared, self.shared_taken = scope.shared or 0, 0
        self._queues = {name: QueueSlots(self, reserved) for name, reserved in scope.queues.items()}

    def of(self, queue: str) -> QueueSlots:
        """Return the slots of a queue; one without a reserve has the shared ones."""
        if queue not in self._queues:
            self._queues[queue] = QueueSlots(self, 0)
        return self._queues[queue]

    def full(self) -> list[str]:
        """Return the queues that have a reserve and no free slot, and ``*`` where the shared slots are taken."""
        names = [name for name, queue in self._queues.items() if queue.reserved and queue.free <= 0]
        return [*names, *([SHARED] if self.shared and self.shared_taken >= self.shared else [])]

    def limit_types(self, types: Mapping[str, int]) -> None:
        """Set how many slots one type may have: of the reserved and of the shared ones, not the last ones.

        Args:
            types: How many types that may run each queue has here.
        """
        shared = type_slots_max(self.shared, types=sum(types.values()))
        for name, queue in self._queues.items():
            queue.type_max = type_slots_max(queue.reserved, types=types.get(name, 0)) + shared

    def shares(self, used: Mapping[str, int], queue_of: Mapping[str, str], hot: AbstractSet[str]) -> dict[str, int]:
        """Return how many jobs of each type a claim may take for the free slots of its queue.

        Types with more due jobs (``hot``) get even parts of what is free, so that a claim takes no more of a queue than
        may run there. Each other type gets one where a slot is free, so that a claim finds its jobs, too.

        Args:
            used: The slots of each type, including those of jobs that are claimed and wait.
            queue_of: The queue of each type.
            hot: Types that had more due jobs than the last claim took.
        """
        taken = Counter[str]()
        for name, count in used.items():
            taken[queue_of[name]] += count
        over = {queue: max(0, count - self.of(queue).reserved) for queue, count in taken.items()}
        own = {queue: max(0, self.of(queue).reserved - count) for queue, count in taken.items()}
        shared = max(0, self.shared - sum(over.values()))
        kinds = Counter(queue_of[name] for name in used)
        wanting = {name for name in used if name in hot and used[name] < self.of(queue_of[name]).type_max}
        eager = Counter(queue_of[name] for name in wanting)
        rows = {}
        for name, count in used.items():
            queue = queue_of[name]
            if kinds[queue] > 1:
                free = allot(own[queue] + shared, count, all_free=own[queue] + shared)
            else:
                free = own[queue] + (allot(shared, over[queue], all_free=shared) if len(used) > 1 else shared)
            sharing = own[queue] // (eager[queue] or kinds[queue]), shared // (len(wanting) or len(used))
            part = sum(sharing) if name in wanting else sharing[0] * (not eager[queue]) + sharing[1] * (not wanting)
            rows[name] = min(free, max(1, part))
        return rows
