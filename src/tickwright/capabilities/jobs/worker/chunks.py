"""Chunks: a handler that takes several jobs at once, such as the rows of a bulk insert.

::

    @app.job("search.index", batch=500, within="1s")
    async def index(chunk: JobChunk[Document]) -> None:
        refused = await search.bulk([item.value for item in chunk])
        for item in chunk:
            if item.value.id in refused:
                item.retry("the index refused it")

Each job keeps an attempt, a fence, a lease and an outcome of its own. Its attempt starts like every other, waits here
until its chunk is full or the oldest one in it has waited for ``within``, and ends with the outcome that the handler
gave its item: completed by default. So cancels, timeouts, retries and lost leases concern one job, not its chunk.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from datetime import timedelta
from typing import Any, Generic, TypeVar, get_args, get_origin, overload

import msgspec

from tickwright.capabilities.jobs.arguments import PayloadInvalid, hints_of, name_of, parameters_of, shortened
from tickwright.capabilities.jobs.model import AttemptOutcome, Completed, Fail, Job, Retry, Snooze
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import encode_value, from_json_value
from tickwright.ports.ids import monotonic

SIZE_MAX = 10_000
WITHIN_MAX = timedelta(minutes=1)
WITHIN_DEFAULT = timedelta(seconds=1)

T = TypeVar("T")
_VARIABLE = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class ChunkItem(Generic[T]):
    """One job of a chunk: its attempt and its payload. Of several outcomes the last one counts.

    Attributes:
        job: The attempt; ``job.cancelled`` says that its result does not count any more.
        value: The payload, of the type in the handler's annotation.
    """

    __slots__ = ("_deadline_s", "_outcome", "ended", "job", "value")

    def __init__(self, job: Job, value: T) -> None:
        self.job, self.value = job, value
        self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._outcome: AttemptOutcome | Exception | None = None
        self._deadline_s, job.deadline_s = job.deadline_s, 0.0  # the wait for others does not count

    def complete(self, result: Any = None) -> None:
        """Complete the job, with a result."""
        self._outcome = Completed(None if result is None else encode_value(result))

    def retry(self, message: str = "retry", *, after: str | timedelta | None = None) -> None:
        """Fail this attempt of the job; it is retried by the type's policy, ``after`` that time at the earliest."""
        self._outcome = Retry(message, after=after)

    def fail(self, message: str) -> None:
        """Fail the job at once."""
        self._outcome = Fail(message)

    def snooze(self, wait: str | timedelta) -> None:
        """Run the job again after ``wait``; costs no attempt."""
        self._outcome = Snooze(wait)

    def start(self, now_s: float) -> None:
        """Let the timeout of the attempt count from now on; for the worker."""
        self.job.started_s, self.job.deadline_s = now_s, self._deadline_s

    def end(self, error: BaseException | None) -> None:
        """End the attempt as decided, or with an error of the handler, or completed; for the worker."""
        if self.ended.done():  # it was cancelled, or stopped in another way
            return
        outcome = error if self._outcome is None else self._outcome
        if isinstance(outcome, BaseException):
            self.ended.set_exception(_Raised(outcome))
        else:
            self.ended.set_result(outcome)


class _Raised(Exception):
    """Carries an error through a future, which cannot hold every one."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class JobChunk(Sequence[ChunkItem[T]]):
    """The jobs of one call, in the order in which they were due."""

    def __init__(self, items: Sequence[ChunkItem[T]]) -> None:
        self._items = items

    @overload
    def __getitem__(self, index: int) -> ChunkItem[T]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ChunkItem[T]]: ...

    def __getitem__(self, index: int | slice) -> ChunkItem[T] | Sequence[ChunkItem[T]]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[ChunkItem[T]]:
        return iter(self._items)


class ChunkArguments:
    """The one argument of a chunk's jobs: the payload itself. See :class:`~.arguments.Arguments`."""

    returns: Any = Any

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read the type of the items.

        Raises:
            Rejected: ``invalid_handler``: the function takes something else than a chunk. Permanent.
        """
        if not inspect.iscoroutinefunction(function):
            raise Rejected("invalid_handler", f"{name_of(function)}: a handler of chunks is an 'async def'")
        parameters = parameters_of(function)
        annotation = hints_of(function).get(parameters[0].name) if parameters else None
        if annotation is not JobChunk and get_origin(annotation) is not JobChunk:
            text = f"{function.__qualname__}: with batch=… the function takes a JobChunk, such as JobChunk[Document]"
            raise Rejected("invalid_handler", text)
        if more := [one.name for one in parameters[1:] if one.default is one.empty and one.kind not in _VARIABLE]:
            text = f"{function.__qualname__}: {more[0]}: beside the chunk it takes resources, such as = resource()"
            raise Rejected("invalid_handler", text)
        [kind] = get_args(annotation) or (Any,)
        try:
            self._decode = msgspec.json.Decoder(kind, dec_hook=from_json_value).decode
        except TypeError as error:
            raise Rejected("invalid_handler", f"{function.__qualname__}: {error}") from error

    def read(self, payload: str) -> Any:
        """Return the value of a payload. Raises :class:`PayloadInvalid`."""
        try:
            return self._decode(payload)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise PayloadInvalid(shortened(str(error))) from error

    def bind(self, args: Sequence[Any], kwargs: Any) -> Any:
        """Return the value of a call. Raises ``Rejected`` (``invalid_arguments``): permanent."""
        if len(args) != 1 or kwargs:
            raise Rejected("invalid_arguments", "the job's arguments: give one value, the payload")
        return args[0]

    def split(self, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a value as the arguments of a call."""
        return (given,), {}

    def check(self, payload: str) -> str:
        """Return a payload that the handler can read. Raises ``Rejected`` (``invalid_arguments``): permanent."""
        try:
            self._decode(payload)
        except msgspec.ValidationError as error:
            raise Rejected("invalid_arguments", f"the job's arguments: {shortened(str(error))}") from None
        return payload


class ChunkCall:
    """The call of a handler of chunks: an attempt joins the open chunk, and ends with it.

    Args:
        function: Takes a :class:`JobChunk`.
        size: Most jobs of a chunk, 1 to ``SIZE_MAX``.
        within: How long the oldest job of a chunk waits, up to ``WITHIN_MAX``.

    Attributes:
        room: How many attempts of the type this worker may run; a chunk of so many does not wait for more.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: ChunkArguments, *, size: int, within: timedelta
    ) -> None:
        self._function, self._read = function, arguments.read
        self._size, self._within_s = size, within.total_seconds()
        self.room: Callable[[], int] = lambda: size
        self._open: _OpenChunk | None = None

    @property
    def size(self) -> int:
        """Most jobs of a chunk."""
        return self._size

    async def __call__(self, job: Job) -> AttemptOutcome | None:
        """Run one attempt: wait for its chunk, and return the outcome of its item."""
        item = ChunkItem(job, self._read(job.payload_json))
        chunk = self._open
        if chunk is None:
            chunk = self._open = _OpenChunk(self._function)
            chunk.timer = asyncio.get_running_loop().call_later(self._within_s, self._start)
        chunk.items[item] = None
        if len(chunk.items) >= min(self._size, self.room()):
            self._start()
        try:
            outcome: AttemptOutcome | None = await item.ended
        except _Raised as raised:
            raise raised.error from None
        finally:
            chunk.leave(item)
        return outcome

    def _start(self) -> None:
        if (chunk := self._open) is not None:
            self._open = None
            chunk.start()


class _OpenChunk:
    """A chunk that gathers items, and then runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.items: dict[ChunkItem[Any], None] = {}
        self.timer: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call the handler. The timeouts of the attempts count from here on."""
        if self.timer is not None:
            self.timer.cancel()
        if self.items:
            now = monotonic()
            for item in self.items:
                item.start(now)
            self._running = asyncio.create_task(self._run(JobChunk([*self.items])), context=Context())

    async def _run(self, chunk: JobChunk[Any]) -> None:
        raised: BaseException | None = None
        try:
            await self._function(chunk)
        except BaseException as error:  # noqa: BLE001  all that a handler raises is the result of its attempts
            raised = error
        for item in chunk:
            item.end(raised)

    def leave(self, item: ChunkItem[Any]) -> None:
        """Forget an item whose attempt has ended; a handler that works for none any more is cancelled."""
        item.ended.cancel()
        self.items.pop(item, None)
        if not self.items and self._running is not None:
            self._running.cancel()
