"""Performing one attempt of a job in a test, without a database.

The arguments take the way that they take in production: checked, encoded to JSON, and read back with the handler's own
struct. So does the result. Between them the handler runs as in a worker: inside the program's middleware, with its
resources, a synchronous one in a thread. There is no timeout, no retry and no claim: for these, drain a database.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import msgspec

from tickwright.app.jobs import ChunkFunction, JobCall, JobOptions
from tickwright.capabilities.jobs.arguments import PayloadInvalid
from tickwright.capabilities.jobs.model import ClaimedRow, Completed, Errored, Job, Snoozed
from tickwright.capabilities.jobs.worker.chunks import ChunkCall
from tickwright.capabilities.jobs.worker.steps import Steps
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import encode_value, from_json_value
from tickwright.ports.ids import local_unix_seconds

if TYPE_CHECKING:
    from tickwright.capabilities.jobs.handlers import Handler

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_CANCELLED = "cancel"


@dataclass(slots=True)
class Performance:
    """How attempts are performed, and what handlers reported while they ran; see :func:`performing`.

    Attributes:
        progress: What handlers reported with ``job.progress``, in order, decoded.
        steps: Results of steps by name: those that earlier attempts have kept, and then those of handlers, decoded.
    """

    attempt: int = 1
    max_attempts: int | None = None
    id: int = 1
    fence: int | None = None
    execute_at: datetime | None = None
    cancelled: bool = False
    resources: Mapping[str, Any] | None = None
    progress: list[Any] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, job: JobOptions[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Perform one attempt; see :func:`perform`."""
        call = job.call(*args, **kwargs)
        handler = job.handler
        async with self._resources(handler):
            if isinstance(handler.call, ChunkCall):
                handler.call.room = lambda: 1  # it waits for no other; a worker sets its own
            result = await self._attempt(handler, self._job(handler, call))
        return cast("R", _as_read(result, handler))

    async def chunk(self, job: ChunkFunction[T], values: Sequence[T]) -> list[Any]:
        """Perform one attempt of a handler of chunks; see :func:`perform_chunk`."""
        handler = job.handler
        calls = [job.call(value) for value in values]
        async with self._resources(handler):
            if isinstance(handler.call, ChunkCall):
                handler.call.room = lambda: len(calls)
            jobs = [self._job(handler, call, id=self.id + number) for number, call in enumerate(calls)]
            ended = await asyncio.gather(*(self._attempt(handler, one) for one in jobs), return_exceptions=True)
        return [one if isinstance(one, BaseException) else _as_read(one, handler) for one in ended]

    def sync(self, job: JobOptions[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Perform one attempt from a synchronous test, with an event loop of its own."""
        return asyncio.run(self(job, *args, **kwargs))

    async def report_progress(self, job: Job, progress: str) -> bool:
        """Take what a handler reports."""
        self.progress.append(msgspec.json.decode(progress))
        return job.stop_reason is None

    def steps_of(self, job: Job) -> Steps:
        """Return the steps of an attempt."""
        return Steps(job, self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the attempt."""
        assert self._loop is not None  # noqa: S101  an attempt runs
        return self._loop

    async def load(self, job: Job) -> str | None:  # noqa: ARG002  as of a worker
        """Return the kept steps."""
        return encode_value({name: {"result": result} for name, result in self.steps.items()})

    async def keep(self, job: Job, name: str, result: str) -> None:  # noqa: ARG002  as above
        """Keep a result."""
        self.steps[name] = msgspec.json.decode(result)

    @staticmethod
    def borrow(connection: Any, *, is_async: bool) -> Any:  # noqa: ARG004  nothing is written on it
        """Return the connection: whatever the test passes to the handler."""
        return connection

    async def find_in(self, connection: Any, job: Job, name: str) -> tuple[str | None, int, int]:  # noqa: ARG002
        """Return a kept result."""
        return (encode_value(self.steps[name]) if name in self.steps else None), 0, len(self.steps)

    @staticmethod
    def seal(job: Job, name: str, result: str) -> str:  # noqa: ARG004  nothing is stored
        """Return a result as it is."""
        return result

    @staticmethod
    def open(job: Job, name: str, kept: str) -> str:  # noqa: ARG004
        """Return a result as it is."""
        return kept

    async def keep_in(self, connection: Any, job: Job, name: str, result: str) -> None:  # noqa: ARG002
        """Keep a result."""
        self.steps[name] = msgspec.json.decode(result)

    def _job(self, handler: "Handler", call: JobCall[Any], *, id: int | None = None) -> Job:  # noqa: A002
        kind = handler.defaults
        attempts = self.max_attempts or call.max_attempts or max(kind.max_attempts, self.attempt)
        at = self.execute_at or call.execute_at
        due_s = float(local_unix_seconds()) if at is None else at.timestamp()
        fence = self.attempt if self.fence is None else self.fence
        row = ClaimedRow(
            id or self.id, handler.name, call.payload, call.priority, self.attempt, attempts, fence, None, None, due_s,
            None, None,
        )  # fmt: skip
        state = TypeState(kind, handler.call, is_async=handler.is_async, around=handler.around)
        job = Job(row, state, self, due_s, 0.0)
        if self.cancelled:
            job.stop_because(_CANCELLED)
        return job

    @asynccontextmanager
    async def _resources(self, handler: "Handler") -> AsyncIterator[None]:
        """Fill the handler's resources: with the given ones, or with what the program's lifespans yield."""
        lifespan = handler.lifespan
        if self.resources is not None:
            with lifespan.holding(self.resources, only=handler.function):
                yield
        elif lifespan.is_wanted_by(handler.function):
            async with lifespan.opened(None):
                yield
        else:
            yield

    async def _attempt(self, handler: "Handler", job: Job) -> Any:
        self._loop = asyncio.get_running_loop()

        async def run() -> Any:
            if handler.is_async:
                return await handler.call(job)
            return await asyncio.to_thread(handler.call, job)

        try:
            return await (run() if handler.around is None else handler.around(job, run))
        except PayloadInvalid as error:
            raise Rejected("payload_invalid", f"the job's payload: {error}") from error


def _as_read(result: Any, handler: "Handler") -> Any:
    """Return a result as a caller that waits for it gets it; outcomes that a handler returns stay as they are."""
    if isinstance(handler.call, ChunkCall) and isinstance(result, Completed):  # of an item
        return None if result.result is None else msgspec.json.decode(result.result)
    if result is None or isinstance(result, Completed | Errored | Snoozed):
        return result
    try:
        text = encode_value(result)
    except Exception as error:
        why = f"{handler.name}: the result is not JSON, so the job would fail: {error}"
        raise Rejected("result_invalid", why) from error
    try:
        return msgspec.json.decode(text, type=handler.arguments.returns, dec_hook=from_json_value)
    except (msgspec.ValidationError, TypeError) as error:
        why = f"{handler.name}: the result does not fit the return type of the handler: {error}"
        raise Rejected("result_type_differs", why) from error


async def perform(job: JobOptions[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a handler once, as a worker would, and return its result; no database is needed.

    Args:
        job: What ``@app.job`` made of the handler, or its :meth:`~tickwright.JobFunction.options`.
        args: Of the handler, without the job.
        kwargs: The same, by name.

    Returns:
        The handler's result after its way through JSON, decoded to the return type.

    Raises:
        Rejected: ``invalid_arguments``, or what ``schedule`` would raise; ``result_invalid``, ``result_type_differs``;
            ``resource_missing``. Permanent.
        Exception: What the handler, its middleware or a lifespan raises, such as ``Retry``, ``Snooze`` or ``Fail``.
    """
    return await Performance()(job, *args, **kwargs)


def perform_sync(job: JobOptions[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Do what :func:`perform` does in a synchronous test."""
    return Performance().sync(job, *args, **kwargs)


async def perform_chunk(job: ChunkFunction[T], values: Sequence[T]) -> list[Any]:
    """Run a handler of chunks once, with an item for each value.

    Returns:
        For each value what its item ended with: the result of ``complete``, ``None``, or the exception of ``retry``,
        ``fail`` or ``snooze``, or of the handler.

    Raises:
        Rejected: As :func:`perform`. Permanent.
    """
    return await Performance().chunk(job, values)


def performing(
    *,
    attempt: int = 1,
    max_attempts: int | None = None,
    id: int = 1,  # noqa: A002  the name of the field
    fence: int | None = None,
    execute_at: datetime | None = None,
    cancelled: bool = False,
    resources: Mapping[str, Any] | None = None,
    steps: Mapping[str, Any] | None = None,
) -> Performance:
    """Choose the job of an attempt, which the returned function performs.

    ::

        await performing(attempt=3)(remind, invoice_id=42)

    Args:
        attempt: The number of the attempt, from 1.
        max_attempts: Of the job; by default the type's, and at least ``attempt``.
        id: Of the job.
        fence: Of the attempt; ``attempt`` by default.
        execute_at: When the job was wanted; now by default.
        cancelled: Whether the handler finds that it should stop.
        resources: Instead of what the lifespans yield; these are not opened. The handler's own are enough.
        steps: Results of steps that earlier attempts have kept, by name: the handler's functions are not called again.

    Returns:
        A function like :func:`perform`, with ``sync`` for synchronous tests. Its ``progress`` has what handlers report,
        and its ``steps`` the results of their steps.

    Raises:
        Rejected: ``invalid_attempt``: an attempt has a number from 1 to ``max_attempts``, and a time has a zone.
            Permanent.
    """
    if attempt < 1 or (max_attempts is not None and max_attempts < attempt):
        raise Rejected("invalid_attempt", f"attempt: from 1 to max_attempts, not {attempt} of {max_attempts}")
    if execute_at is not None and execute_at.tzinfo is None:
        raise Rejected("invalid_attempt", "execute_at: give a time with a time zone")
    return Performance(attempt, max_attempts, id, fence, execute_at, cancelled, resources, steps=dict(steps or {}))
