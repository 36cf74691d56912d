"""Requests that wait for a job: how many may, for how long, and their end when the client or the process leaves.

A waiting request holds a connection of its client and no connection of the database. It ends with the job, with its
time, with its client, or when the process drains; then it answers with the job's present state.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from contextvars import Context
from datetime import datetime, timedelta
from typing import Any, ClassVar

import msgspec
import structlog

from tickwright.capabilities.jobs.results import JobResults, JobState, WorkflowResults
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.time_texts import parse_duration
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import is_set_within
from tickwright.ports.caller import Caller
from tickwright.ports.views import Sight, UserData, raw, shown

WAIT_MIN = timedelta(milliseconds=1)
WAIT_MAX = timedelta(seconds=60)
WAITS_MAX = 1000
WAITS_PER_KEY = 500
STREAMS_MAX = 200
STREAMS_PER_KEY = 40
STREAM_FOR_S = 300.0
"""After which the stream of a job that goes on ends, so that its client connects again, with a key that is valid."""

_log = structlog.get_logger("tickwright.jobs")


class JobProgress(msgspec.Struct, UserData, kw_only=True):
    """An event of a job's stream: its state now, after a change of progress, and at its end, which is the last event.

    ``attempts`` and ``completed_at`` are null for a job of which nothing is left, because its type keeps no history.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("progress", "result")
    id: int
    status: str
    attempts: int | None
    progress: Any
    result: Any
    error_message: str | None
    completed_at: datetime | None
    payload_hidden: bool = False


def parse_wait(text: str) -> timedelta:
    """Return the time of ``?wait=10s``.

    Raises:
        Rejected: ``invalid_duration``, ``invalid_wait``. Permanent.
    """
    wait = parse_duration(text, field="wait")
    if not WAIT_MIN <= wait <= WAIT_MAX:
        raise Rejected("invalid_wait", "wait: 1ms to 60s; to wait longer, send the request again", field="wait")
    return wait


class JobWaits(LoopService):
    """The waiting requests of one process; a :class:`tickwright.ports.service.Service`, whose end ends them."""

    name = "job-waits"

    def __init__(self, results: JobResults) -> None:
        super().__init__()
        self._results = results
        self._waits, self._streams = _Places(), _Places()

    @property
    def waiting(self) -> int:
        """How many requests wait, including open streams."""
        return self._waits.taken.total() + self._streams.taken.total()

    async def _work(self) -> None:
        await self.stopping.wait()

    def last_tick_age_s(self) -> float | None:
        """Return 0: it has no rounds."""
        return 0.0

    async def wait(self, job_id: int, wait: timedelta, caller: Caller) -> JobState | None:
        """Return the state of a job that has ended; ``None`` where it goes on when the time is over.

        Raises:
            Rejected: ``job_not_found``. Permanent.
            Unavailable: ``too_many_waits``. Retry.
        """
        if self.stopping.is_set():
            return None
        with self._waits.taken_by(caller, WAITS_MAX, WAITS_PER_KEY, "too_many_waits", "requests wait for jobs"):
            ending = asyncio.ensure_future(self._results.wait(job_id, wait))
            stopping = asyncio.ensure_future(self.stopping.wait())
            try:
                await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
                return ending.result() if ending.done() else None
            except Unavailable as error:
                if error.code in {"result_timeout", "draining"}:
                    return None
                raise
            finally:
                ending.cancel()
                stopping.cancel()

    @contextmanager
    def stream(self, job_id: int, caller: Caller, sight: Sight) -> Iterator["JobStream"]:
        """Yield the states of a job, as ``sight`` may see them.

        Raises:
            Unavailable: ``too_many_streams``, or ``draining``. Retry.
        """
        if self.stopping.is_set():
            raise Unavailable("draining", "this process is being stopped; try another")
        with self._streams.taken_by(caller, STREAMS_MAX, STREAMS_PER_KEY, "too_many_streams", "streams of jobs"):
            stream = JobStream(sight)
            following = asyncio.create_task(self._follow(job_id, stream), context=Context())
            try:
                yield stream
            finally:
                following.cancel()

    async def _follow(self, job_id: int, stream: "JobStream") -> None:
        try:
            async with asyncio.timeout(STREAM_FOR_S), aclosing(self._results.follow(job_id)) as states:
                stopping = asyncio.ensure_future(self.stopping.wait())
                stopping.add_done_callback(lambda _: stream.end())
                try:
                    async for state in states:
                        stream.give(state)
                finally:
                    stopping.cancel()
        except TimeoutError:
            pass
        except TickwrightError as error:
            _log.info("jobs.stream_ended", job=job_id, code=error.code)
        finally:
            stream.end()


class _Places:
    """Bounds of how many requests of a kind there are, by caller."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()

    @contextmanager
    def taken_by(self, caller: Caller, most: int, each: int, code: str, what: str) -> Iterator[None]:
        """Count a request while the block runs."""
        if self.taken.total() >= most or self.taken[caller.name] >= each:
            whose = f"{each} {what} with this key" if self.taken[caller.name] >= each else f"{most} {what} here"
            raise Unavailable(
                code, f"{whose} already; wait for their ends, or read jobs without waiting", retry_after_s=5
            )
        self.taken[caller.name] += 1
        try:
            yield
        finally:
            self.taken[caller.name] -= 1
            if not self.taken[caller.name]:
                del self.taken[caller.name]


class WorkflowWaits(JobWaits):
    """The requests that wait for workflows: the same with their results, without streams."""

    name = "workflow-waits"

    def __init__(self, results: WorkflowResults) -> None:
        super().__init__(results)


class JobStream:
    """The newest state of a job for one reader, who may miss some, and not the last one."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight
        self._state: JobState | None = None
        self._ended = False
        self._woken = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the last state was read."""
        return self._ended and self._state is None

    def give(self, state: JobState) -> None:
        """Store the newest state; replace one that was not read."""
        self._state = state
        self._woken.set()

    def end(self) -> None:
        """End the stream behind the stored state."""
        self._ended = True
        self._woken.set()

    async def next(self, within_s: float) -> bytes | None:
        """Return the next state as JSON; ``None`` when none came in time, or the stream is over."""
        if not await is_set_within(self._woken, within_s):
            return None
        state, self._state = self._state, None
        if not self._ended:
            self._woken.clear()
        return None if state is None else msgspec.json.encode(shown(_view(state), self._sight))


def _view(state: JobState) -> JobProgress:
    return JobProgress(
        id=state.id,
        status=state.status,
        attempts=state.attempts,
        progress=raw(state.progress),
        result=raw(state.result),
        error_message=state.error,
        completed_at=state.completed_at,
    )
