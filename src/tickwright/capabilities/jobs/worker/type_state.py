"""A worker's state of a task type: its limits, its call, its counters."""

import asyncio
from bisect import bisect_left

from tickwright.capabilities.jobs.handlers import Call
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.worker.queue_slots import QueueSlots
from tickwright.observe.metrics import LATENESS_BUCKETS_S
from tickwright.plugin.lifespan import Around
from tickwright.ports.ids import monotonic

TIMER_S = 0.001
SLOT_WAIT_S = 1.0
SLACK_S = 0.05
"""How much a rate-limited start may be early after the one before it: timers are not exact."""


class EndedAttempts:
    """Attempts that have ended since the last count, and their total time."""

    __slots__ = ("count", "mean_s", "took_s")

    def __init__(self) -> None:
        self.count, self.took_s = 0, 0.0
        self.mean_s: float | None = None
        """How long one took, when the rate was last taken."""

    def take_rate(self, within_s: float, *, at_once: int) -> float:
        """Return how many ended per second since the last call, ``within_s`` ago, and reset the counters.

        Attempts that began together end together. They do not show that the next ones end faster than attempts of their
        length can end while ``at_once`` run.
        """
        count, within_s = self.count, max(within_s, self.took_s / at_once)
        if count:
            self.mean_s = self.took_s / count
        self.count, self.took_s = 0, 0.0
        return count / within_s


class TypeState:
    """One task type that this worker can run now.

    Attributes:
        held: Attempts that this worker has claimed and that have not ended.
        running: Those of them that have slots.
        stuck: Attempts that have ended while their synchronous handlers still run.
        threads: Threads of its attempts in this worker, including stuck ones.
        granted: How many of the type's concurrency this worker may hold; ``None`` without a limit.
        rate_limited_until_s: A rate-limited type is not claimed before this time (monotonic).
        rate_limited_more: More jobs of this rate-limited type may wait.
        limited_claims: How many claims there were for this rate-limited type.
        free_from_s: The starts of a rate-limited type are taken up to this time (monotonic).
        groups_again_s: When to claim jobs with groups again without a notification (monotonic); 0 is at once.
        grace_s: A call that keeps its own deadline is stopped only this much after it.
        around: The program's middleware, or ``None``.
        queue: The slots of its queue; ``None`` where all queues share all slots.
        is_plain: Whether ``call`` returns what the attempt waits for: it is asynchronous, and without middleware.
    """

    __slots__ = (
        "around", "call", "counts", "ended", "free_from_s", "grace_s", "granted", "groups_again_s", "held", "is_async",
        "is_plain",
        "late_counts", "late_sum_s", "limited_claims", "queue", "rate_limited_more", "rate_limited_until_s", "running",
        "stuck", "task_type", "threads", "timeout_s",
    )  # fmt: skip

    def __init__(
        self,
        task_type: TaskType,
        call: Call,
        *,
        is_async: bool,
        grace_s: float = 0.0,
        around: Around | None = None,
        queue: QueueSlots | None = None,
    ) -> None:
        self.task_type = task_type
        self.call = call
        self.around = around
        self.is_async = is_async
        self.queue = queue
        self.is_plain = is_async and around is None
        self.timeout_s = task_type.timeout.total_seconds()
        self.held = 0
        self.running = 0
        self.stuck = 0
        self.threads = 0
        self.ended = EndedAttempts()
        self.granted: int | None = 0 if task_type.concurrency is not None else None
        self.rate_limited_until_s = 0.0
        self.rate_limited_more = False
        self.limited_claims = 0
        self.free_from_s = 0.0
        self.groups_again_s = 0.0
        self.grace_s = grace_s
        self.late_counts = [0] * (len(LATENESS_BUCKETS_S) + 1)
        self.late_sum_s = 0.0
        self.counts: dict[str, int] = {}

    def update_from(self, other: "TypeState") -> None:
        """Take over changed settings of the type in place: running attempts count down on this object.

        A change of the rate or of ``waits`` also resets the starts that are taken: at the former rate they may reach
        hours ahead, and those of released attempts are free.
        """
        rate = other.task_type.rate_per_s
        if rate != self.task_type.rate_per_s or other.task_type.waits != self.task_type.waits:
            self.rate_limited_until_s = 0.0
            self.free_from_s = min(self.free_from_s, monotonic() + 1 / rate) if rate else 0.0
        self.task_type, self.call, self.is_async = other.task_type, other.call, other.is_async
        self.around, self.is_plain = other.around, other.is_plain
        self.timeout_s, self.grace_s, self.queue = other.timeout_s, other.grace_s, other.queue
        if other.granted is None or self.granted is None:
            self.granted = other.granted

    async def wait_for_start(self) -> bool:
        """Wait for a start of a rate-limited type; an attempt that misses its start takes the next one.

        Returns:
            ``False`` where the wait would be long, and once the type waits for an operator.
        """
        start_s = 0.0
        while not self.task_type.waits and (start_s := self.reserve_start(now := monotonic(), start_s)) > now + TIMER_S:
            if start_s - now > SLOT_WAIT_S:
                self.free_from_s = min(self.free_from_s, start_s)  # another attempt may have this start
                return False
            await asyncio.sleep(start_s - now)
        return not self.task_type.waits

    @property
    def slots_taken(self) -> int:
        """How many slots, and of a synchronous type threads, its attempts take in this worker."""
        return self.held + self.stuck

    @property
    def running_in_queue(self) -> int:
        """Those of its running attempts that have slots of its queue; the others started before it moved there."""
        return self.running if self.queue is None else self.queue.of_type[self.task_type.name]

    @property
    def in_use(self) -> bool:
        """Whether it has attempts, threads, or a taken start that is not over."""
        return self.held > 0 or self.stuck > 0 or self.threads > 0 or self.free_from_s > monotonic()

    def free(self, held: int) -> int | None:
        """Return how many attempts the type's concurrency lets this worker hold beside ``held``."""
        return None if self.granted is None else max(0, self.granted - held)

    def reserve_start(self, now_s: float, reserved_s: float) -> float:
        """Reserve a start for a due attempt and return it; late starts of a rate-limited type keep their distance, too.

        Args:
            now_s: The monotonic clock; the database's may be corrected in between.
            reserved_s: The result of an earlier call for this attempt, or 0. It is lost when it is over for longer than
                the slack, or when the rate has changed since.
        """
        rate = self.task_type.rate_per_s
        if rate is None:
            return now_s
        if now_s - SLACK_S <= reserved_s < self.free_from_s:
            return reserved_s
        start_s = max(self.free_from_s, now_s - SLACK_S)
        self.free_from_s = start_s + 1 / rate
        return start_s

    def note_start(self, late_s: float) -> None:
        """Count one start that was ``late_s`` after its due time."""
        self.late_counts[bisect_left(LATENESS_BUCKETS_S, late_s)] += 1
        self.late_sum_s += late_s
