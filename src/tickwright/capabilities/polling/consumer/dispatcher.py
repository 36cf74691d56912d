"""The dispatcher of one partner: its polls in order, a call for each permit, and failed polls again later.

Each partner has a dispatcher of its own, so a slow partner cannot delay another. A poll that fails or is throttled is
kept: it waits, longer each time, until it succeeds or its tracker's next poll is due. Other polls go before it.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import structlog

from tickwright.capabilities.polling.consumer.courier import Answer, Courier, Poll, Result
from tickwright.capabilities.polling.consumer.result_writer import BACKLOG_MAX, GroupWork, ResultWriter
from tickwright.capabilities.polling.polls import poll_id
from tickwright.domain.retries import RetryPolicy
from tickwright.engine.remote.calls import Postponed
from tickwright.engine.tasks import cancel_safe, end_task, is_final_cancel, is_set_within
from tickwright.observe import traces
from tickwright.observe.logs import without_secrets
from tickwright.partners.contract import PartnerContract
from tickwright.partners.outcomes import ANSWERED, Answered, Failed, Throttled, raised, returned
from tickwright.partners.permits import Permit
from tickwright.ports.ids import monotonic

RETRY = RetryPolicy(base=timedelta(seconds=1), cap=timedelta(minutes=5))
HELD_MAX = 5000
AHEAD_S = 5.0
GROUP_POLLS = 1000
ROOM_S = 0.05

_log = structlog.get_logger("tickwright.polls")


class QueuedPoll(NamedTuple):
    """One poll of a group; ``failures`` counts its calls that failed or were throttled."""

    work: GroupWork
    tracker_id: int
    external_id: str
    account_id: str
    failures: int = 0


class PartnerDispatcher:
    """Makes the calls of one partner.

    Args:
        calls_max: Calls at once in this process, whatever the partner allows.
        on_room: Called when more polls can be taken.
    """

    def __init__(
        self,
        partner_no: int,
        name: str,
        contract: PartnerContract,
        writer: ResultWriter,
        *,
        calls_max: int,
        on_room: Callable[[], None],
    ) -> None:
        self.partner_no, self.name = partner_no, name
        self._writer, self._calls_max, self._on_room = writer, calls_max, on_room
        self.permits = contract.permits_of(partner_no, name)
        self.courier: Courier | None = None
        self.timeout = timedelta(seconds=10)
        self.terminal: frozenset[str] = frozenset()
        self._queue: deque[QueuedPoll] = deque()
        self._later: list[tuple[float, int, QueuedPoll]] = []
        self._order = itertools.count()
        self._running: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopping = False
        self._group_polls = float(GROUP_POLLS)
        self._begun_s = monotonic()
        self._ended = 0
        self._per_s = 0.0
        self._dispatcher: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ room

    @property
    def held(self) -> int:
        """Polls that wait or run here."""
        return len(self._queue) + len(self._later) + len(self._running)

    def room(self) -> int:
        """Return how many groups to take."""
        if self._stopping or self.courier is None or self._writer.backlog > BACKLOG_MAX:
            return 0
        wanted = self._polls_ahead()
        waiting = len(self._queue) + len(self._running)
        if waiting >= wanted or self.held >= HELD_MAX:
            return 0
        return max(1, min(100, round((wanted - waiting) / self._group_polls)))

    def _polls_ahead(self) -> int:
        """Return polls for a few seconds at the present pace, and no more than the partner's budget allows."""
        now = monotonic()
        if now - self._begun_s >= 1.0:
            self._per_s = self._ended / (now - self._begun_s)
            self._begun_s, self._ended = now, 0
        at_once = self._calls_max if self.permits.share is None else min(self._calls_max, self.permits.share)
        wanted = 2 * at_once + 2 * self._per_s
        rate_per_s = self.permits.settings.rate_per_s
        if rate_per_s is not None:
            wanted = min(wanted, AHEAD_S * rate_per_s)
        return max(1, min(HELD_MAX, int(wanted)))

    def note_group(self, polls: int) -> None:
        """Note how large groups are."""
        self._group_polls += (polls - self._group_polls) / 8

    # ------------------------------------------------------------------ polls in and out

    def put(self, items: list[QueuedPoll]) -> None:
        """Queue polls, in their order."""
        self._queue.extend(items)
        self._changed.set()

    def waiting(self) -> set[int]:
        """Return the trackers of all waiting polls."""
        return {item.tracker_id for item in self._all_waiting()}

    def drop(self, unwanted: Callable[[QueuedPoll], bool]) -> None:
        """Drop these waiting polls, and count them as dropped; running calls may end."""
        dropped = [item for item in self._all_waiting() if unwanted(item)]
        self._remove(unwanted)
        for item in dropped:
            work = item.work
            work.left -= 1
            work.dropped += 1
            if work.left == len(work.answers):
                self._writer.write_soon(work)

    def _all_waiting(self) -> list[QueuedPoll]:
        return [*self._queue, *(item for _, _, item in self._later)]

    def _remove(self, unwanted: Callable[[QueuedPoll], bool]) -> None:
        self._queue = deque(item for item in self._queue if not unwanted(item))
        self._later = [entry for entry in self._later if not unwanted(entry[2])]
        heapq.heapify(self._later)
        self.permits.expected = min(self.permits.expected, len(self._queue))

    def forget_abandoned(self) -> None:
        """Remove waiting polls of abandoned groups; running calls may end."""
        self._remove(lambda item: item.work.abandoned)

    def abandon(self) -> None:
        """Remove every poll and cancel running calls: this process does not own the groups any more."""
        for item in self._all_waiting():
            item.work.abandoned = True
        self._remove(lambda _: True)
        for task in self._running:
            end_task(task)

    # ------------------------------------------------------------------ calling

    async def run(self) -> None:
        """Call until closed."""
        self._dispatcher = asyncio.current_task()
        while True:
            await self._wait_for_item()
            self.permits.expected = max(0, len(self._queue) - 1)
            permit = await self.permits.acquire()
            courier = self.courier
            if not self._queue or self._stopping or courier is None:
                self.permits.expected = 0
                permit.close(None)
                await asyncio.sleep(0)
                continue
            item = self._queue.popleft()
            if item.work.abandoned:
                permit.close(None)
                await asyncio.sleep(0)
                continue
            self.permits.expected = len(self._queue)
            if len(self._queue) * 2 <= self._group_polls:
                self._on_room()
            task = asyncio.create_task(cancel_safe(self._poll(item, courier, permit)))
            self._running.add(task)
            task.add_done_callback(self._ran)

    async def _wait_for_item(self) -> None:
        while True:
            self._changed.clear()
            now = monotonic()
            while self._later and self._later[0][0] <= now:
                self._queue.append(heapq.heappop(self._later)[2])
            while self._queue and self._queue[0].work.abandoned:  # its group was lost
                self._queue.popleft()
            if self._queue and self.courier is not None and not self._stopping and len(self._running) < self._calls_max:
                return
            if self.courier is None:  # no courier here: request no permits
                self.permits.expected = 0
            wait_s = self._later[0][0] - now if self._later and not self._queue else None
            await is_set_within(self._changed, wait_s)

    def _ran(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._changed.set()

    async def _poll(self, item: QueuedPoll, courier: Courier, permit: Permit) -> None:
        try:
            result = await (self._traced_call(item, courier) if traces.recording() else self._call(item, courier))
        except BaseException:
            permit.close(None)
            if not item.work.abandoned:
                self._queue.appendleft(item)
            raise
        if isinstance(result, Postponed):
            permit.close(None)
            self._put_later(item, result.by.total_seconds())
            return
        self._ended += 1
        if isinstance(result, Answer):
            permit.close(ANSWERED)
            ends = result.terminal or result.status in self.terminal
            self._writer.add(item.work, item.tracker_id, result, terminal=ends)
            return
        permit.close(result)
        self._retry_later(item, result)

    async def _traced_call(self, item: QueuedPoll, courier: Courier) -> Result:
        """Call inside a span; a poll is a trace of its own, since no request caused it."""
        facts: dict[str, str | int] = {"tickwright.partner": self.name, "tickwright.tracker_id": item.tracker_id}
        with traces.attempting("polls", None, facts) as span:
            result = await self._call(item, courier)
            if not isinstance(result, Answer | Postponed):
                traces.fail(span, "throttled" if isinstance(result, Throttled) else "failed")
            return result

    async def _call(self, item: QueuedPoll, courier: Courier) -> Result:
        poll = Poll(
            poll_id(item.tracker_id, item.work.group.due_at),
            item.tracker_id,
            item.external_id,
            item.account_id,
            self.name,
            item.work.group.due_at,
            self.timeout,
        )
        limit_s = None if getattr(courier, "own_timeout", False) else self.timeout.total_seconds()
        within = asyncio.timeout(limit_s)
        try:
            async with within:
                result: object = await courier(poll)
        except BaseException as error:  # the user's function: whatever it raises is a failed call
            if is_final_cancel(error):
                raise
            if within.expired():
                return Failed("timeout")
            failed = raised(error, without_secrets)
            _log.warning("polls.courier_raised", partner=self.name, tracker_id=item.tracker_id, error=failed.reason)
            return failed
        if isinstance(result, Answer | Postponed):
            return result
        outcome = returned(result, without_secrets)
        if isinstance(outcome, Answered):
            return Failed(f"the function of {self.name} returned {type(result).__name__} instead of an Answer")
        return outcome

    def _retry_later(self, item: QueuedPoll, result: Throttled | Failed) -> None:
        wait_s = RETRY.ceiling_s(item.failures + 1)
        if isinstance(result, Throttled):  # after the silence other polls go first: it may be about this one
            wait_s += result.retry_after.total_seconds()
        self._put_later(item._replace(failures=item.failures + 1), wait_s)

    def _put_later(self, item: QueuedPoll, wait_s: float) -> None:
        if not item.work.abandoned:
            heapq.heappush(self._later, (monotonic() + wait_s, next(self._order), item))
            self._changed.set()

    # ------------------------------------------------------------------ stopping

    def halt(self) -> None:
        """Start no further call."""
        self._stopping = True
        self.permits.expected = 0

    async def quiet(self) -> None:
        """Start no further call; return when running calls have ended."""
        self.halt()
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        """Cancel running calls."""
        self.halt()
        tasks = [*self._running] if self._dispatcher is None else [*self._running, self._dispatcher]
        for task in tasks:
            end_task(task)
        await asyncio.gather(*tasks, return_exceptions=True)
