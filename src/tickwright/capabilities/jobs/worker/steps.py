"""Steps of a handler: the result of a step is kept in the job's row, and a later attempt returns it without a call.

::

    receipt = await job.step("charge", charge, order_id)         # 1. called, 2. kept, 3. returned
    await job.step("mail", send_mail, address, receipt)          # its attempt fails here: "charge" is not repeated

A result is committed before the handler goes on, under the fence of the attempt: of an attempt that has lost its job
nothing is kept. Between the call and the commit a crash loses the result, so the function runs at least once. It runs
exactly once in effect where it writes in a transaction that also keeps the result (``step_in``): the update locks the
job's row until the commit, so that no other attempt begins before it.

The steps of a job are read once in an attempt, at the first one; a handler without steps costs nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from inspect import isawaitable, iscoroutinefunction
from typing import Any, NamedTuple, Protocol, TypeVar

import asyncpg
import msgspec
import structlog

from tickwright.capabilities.jobs.arguments import result_type, shortened
from tickwright.capabilities.jobs.model import Job
from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Contended, Rejected, error_text, storable
from tickwright.domain.strict_json import from_json_value, quoted, to_json_value
from tickwright.engine.call_batcher import CallBatcher
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.ports.session import Session
from tickwright.store.borrowed import Fetching, borrow, borrow_sync, finish
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load

NAME_CHARS_MAX = 100
STEPS_MAX = 100
RESULT_BYTES_MAX = 65_536
TOTAL_BYTES_MAX = 1_048_576
"""Of all steps of a job: its row is written again with each."""
STEPS_AT_ONCE = 50
"""How many steps one statement reads or keeps."""
RETRY_S = 0.2
LOCKED_S = 0.01
LOCKED_MAX_S = 0.5
"""When a step of a row that another session has locked is kept again: at first, and at last."""
THREAD_CHECK_S = 1.0

T = TypeVar("T")
_SQL = load("tickwright.capabilities.jobs.sql", "steps.sql")
_encode = msgspec.json.Encoder(enc_hook=to_json_value).encode
_log = structlog.get_logger("tickwright.jobs")


class StepRefused(Rejected):
    """A step that cannot run, or whose result cannot be kept or read. Another attempt cannot help: the job fails."""


class KeptStep(msgspec.Struct):
    """A step as its job's row has it, besides its instant and its attempt."""

    result: msgspec.Raw


class _NewStep(NamedTuple):
    job: Job
    name: str
    result: str


class StepStore(Protocol):
    """Where the steps of an attempt are kept."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the calls, for handlers in threads."""

    async def load(self, job: Job) -> str | None:
        """Return the steps of a held attempt as JSON text. Raises ``Contended`` (``attempt_ended``)."""

    async def keep(self, job: Job, name: str, result: str) -> None:
        """Keep a result. Raises ``Contended`` (``attempt_ended``), ``StepRefused`` (``step_result_invalid``)."""

    def seal(self, job: Job, name: str, result: str) -> str:
        """Return a result as it is kept: an envelope, where the job's type is encrypted."""

    def open(self, job: Job, name: str, kept: str) -> str:
        """Return a result from what is kept. Raises as :meth:`~tickwright.engine.payload_keys.PayloadKeys.open`."""

    def borrow(self, connection: Any, *, is_async: bool) -> Fetching:
        """Adapt the connection of a handler."""

    async def find_in(self, connection: Fetching, job: Job, name: str) -> tuple[str | None, int, int]:
        """Return the result of a step, and the bytes and the number of all. Raises as :meth:`load`."""

    async def keep_in(self, connection: Fetching, job: Job, name: str, result: str) -> None:
        """Keep a result in the transaction of ``connection``. Raises as :meth:`load`."""


class Steps:
    """The steps of one attempt.

    Invariants:
        STEP-1: a function whose result is kept is not called again for its job, on any attempt, unless an operator
            removes its steps.
        STEP-2: an attempt that does not hold its job keeps no result.
    """

    def __init__(self, job: Job, store: StepStore) -> None:
        self._job, self._store = job, store
        self._kept: dict[str, bytes] | None = None
        self._loading = asyncio.Lock()
        self._used: set[str] = set()
        self._used_in: set[str] = set()
        """Names that were kept in a transaction of the handler, which may have been rolled back."""

    async def run(self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a step, kept or new; see :meth:`~tickwright.Job.step`."""
        with self._using(name):
            kept = await self._find(name)
            if kept is None:
                kept = await self._keep(name, await _called(function, args, kwargs))
        return _read(name, kept, function)

    def run_sync(self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do the same in the thread of a synchronous handler."""
        with self._using(name):
            kept = self.wait(self._find(name))
            if kept is None:
                kept = self.wait(self._keep(name, function(*args, **kwargs)))
        return _read(name, kept, function)

    async def run_in(
        self,
        connection: Any,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        is_async: bool = True,
    ) -> Any:
        """Do the same in a transaction of the handler."""
        to = self._store.borrow(connection, is_async=is_async)
        with self._using(name):
            text, total, count = await self._store.find_in(to, self._job, name)
            if text is not None and name in self._used_in:
                raise _repeated(name)
            kept = None if text is None else self._store.open(self._job, name, text).encode()
            if kept is None:
                _check_room(name, count + 1, total)
                value = await _called(function, args, kwargs) if is_async else function(*args, **kwargs)
                kept = _written(name, value)
                stored = self._store.seal(self._job, name, kept.decode())
                _check_room(name, count + 1, total + len(stored))
                await self._store.keep_in(to, self._job, name, stored)
                self._used_in.add(name)
        self._used.discard(name)
        return _read(name, kept, function)

    def run_in_sync(
        self,
        connection: Any,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Do the same with a synchronous connection; without an event loop."""
        return finish(self.run_in(connection, name, function, args, kwargs, is_async=False))

    @contextmanager
    def _using(self, name: str) -> Iterator[None]:
        """Reserve a name for one step; where the step raises, another try may have it."""
        if self._job.stop_reason is not None:
            raise _ended(self._job)
        if not 1 <= len(name) <= NAME_CHARS_MAX or storable(name) != name:
            text = f"the name of a step has 1 to {NAME_CHARS_MAX} characters that PostgreSQL can store"
            raise StepRefused("invalid_step_name", f"{text}, not {quoted(name)}")
        if name in self._used:
            raise _repeated(name)
        self._used.add(name)
        try:
            yield
        except BaseException:
            self._used.discard(name)
            raise

    async def _find(self, name: str) -> bytes | None:
        if name in self._used_in:
            raise _repeated(name)
        async with self._loading:
            if self._kept is None:
                self._kept = _steps_of(await self._store.load(self._job))
        if (kept := self._kept.get(name)) is None:
            _check_room(name, len(self._kept.keys() | self._used), self._total)
            return None
        return self._store.open(self._job, name, kept.decode()).encode()

    async def _keep(self, name: str, value: Any) -> bytes:
        written = _written(name, value)
        stored = self._store.seal(self._job, name, written.decode())
        _check_room(name, 0, self._total + len(stored))
        await self._store.keep(self._job, name, stored)
        assert self._kept is not None  # noqa: S101  it was found first
        self._kept[name] = stored.encode()
        return written

    @property
    def _total(self) -> int:
        return sum(map(len, (self._kept or {}).values()))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the event loop and wait for it in this thread, as long as the loop runs.

        Raises:
            StepRefused: ``sync_in_async``: this is the event loop, which would wait for itself for ever.
        """
        if _is_in_a_loop():
            work.close()
            raise StepRefused("sync_in_async", "an async handler awaits: job.step(…), job.progress(…)")
        future = asyncio.run_coroutine_threadsafe(work, self._store.loop)
        while True:
            try:
                return future.result(THREAD_CHECK_S)
            except TimeoutError:
                if future.done():
                    raise
                if not self._store.loop.is_running():
                    raise _ended(self._job) from None


async def _called(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of either kind; a synchronous one in a thread, because it would stop the event loop."""
    if iscoroutinefunction(function):
        return await function(*args, **kwargs)
    value = await asyncio.to_thread(function, *args, **kwargs)
    return await value if isawaitable(value) else value


def _written(name: str, value: Any) -> bytes:
    try:
        text = _encode(value)
    except Exception as error:  # methods of its class may raise anything
        why = f"step {name}: its result is not JSON: {error_text(error)}; return what JSON can hold"
        raise StepRefused("step_result_invalid", why) from error
    if len(text) > RESULT_BYTES_MAX:
        why = f"step {name}: its result has {len(text)} bytes as JSON; {RESULT_BYTES_MAX} at the most"
        raise StepRefused("step_result_too_large", f"{why}. Store it elsewhere and return a reference")
    return text


def _read(name: str, kept: bytes, function: Callable[..., Any]) -> Any:
    """Return a result as every attempt gets it: from its JSON, as the function's return type."""
    try:
        return msgspec.json.decode(kept, type=_returns(function), dec_hook=from_json_value)
    except (msgspec.ValidationError, TypeError) as error:
        why = f"step {name}: its kept result does not fit the function's return type: {shortened(str(error))}"
        advice = "let the type accept it, or retry the job from the start"
        raise StepRefused("step_type_differs", f"{why}; {advice}") from error


_returns = lru_cache(maxsize=1000)(result_type)


def _steps_of(text: str | None) -> dict[str, bytes]:
    if text is None:
        return {}
    return {name: bytes(step.result) for name, step in msgspec.json.decode(text, type=dict[str, KeptStep]).items()}


def _check_room(name: str, count: int, total: int) -> None:
    if count > STEPS_MAX:
        text = f"step {name}: a job has {STEPS_MAX} steps at the most; schedule further jobs for more work"
        raise StepRefused("too_many_steps", text)
    if total > TOTAL_BYTES_MAX:
        text = f"step {name}: the results of a job's steps have {TOTAL_BYTES_MAX} bytes at the most in total"
        raise StepRefused("steps_too_large", f"{text}. Store them elsewhere and return references")


def _repeated(name: str) -> StepRefused:
    text = f"this attempt has run the step {name} already; give each step a name of its own, such as mail:42"
    return StepRefused("step_repeated", text)


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _ended(job: Job) -> Contended:
    why = "its worker does not hold it any more" if job.stop_reason is None else f"it is stopped: {job.stop_reason}"
    return Contended("attempt_ended", f"attempt {job.attempt} of job {job.id} runs and keeps no more steps: {why}")


class WorkerSteps:
    """Keeps the steps of a worker's attempts; implements :class:`StepStore`.

    The steps of many attempts are kept by one statement. While the database is unavailable, it is repeated as long as
    the session lives.
    """

    def __init__(
        self, pool: Pool, session: Session, loop: Callable[[], asyncio.AbstractEventLoop], keys: PayloadKeys = NO_KEYS
    ) -> None:
        self._pool, self._session, self._loop, self._keys = pool, session, loop, keys
        self._load = CallBatcher(self._load_many, items_max=STEPS_AT_ONCE, for_all=True)
        self._keep = CallBatcher(self._keep_many, items_max=STEPS_AT_ONCE, for_all=True)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the worker."""
        return self._loop()

    async def load(self, job: Job) -> str | None:
        """Return the steps of a held attempt as JSON text."""
        return await self._load(job)

    async def keep(self, job: Job, name: str, result: str) -> None:
        """Keep a result."""
        again_s = LOCKED_S
        while not await self._keep(_NewStep(job, name, result)):
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, LOCKED_MAX_S)

    def seal(self, job: Job, name: str, result: str) -> str:
        """Return a result as it is kept."""
        if not job.type_state.task_type.encrypted:
            return result
        return self._keys.seal(result, Purpose.STEP, f"{job.id}/{name}")

    def open(self, job: Job, name: str, kept: str) -> str:
        """Return a result from what is kept; one from before its type was encrypted is no envelope."""
        if not job.type_state.task_type.encrypted:
            return kept
        return self._keys.open(kept, Purpose.STEP, f"{job.id}/{name}")

    @staticmethod
    def borrow(connection: Any, *, is_async: bool) -> Fetching:
        """Adapt the connection of a handler."""
        return borrow(connection) if is_async else borrow_sync(connection)

    async def find_in(self, connection: Fetching, job: Job, name: str) -> tuple[str | None, int, int]:
        """Return the result of a step, and the bytes and the number of all."""
        rows = await connection.fetch(_SQL["find_in"], self._session.token, job.id, job.fence, name)
        if not rows:
            raise _ended(job)
        return rows[0]["result"], rows[0]["bytes"] or 0, rows[0]["count"]

    async def keep_in(self, connection: Fetching, job: Job, name: str, result: str) -> None:
        """Keep a result in the transaction of ``connection``."""
        if not await connection.fetch(_SQL["keep_in"], self._session.token, job.id, job.fence, name, result):
            raise _ended(job)

    async def _load_many(self, jobs: Sequence[Job]) -> Sequence[str | Exception | None]:
        ids, fences = [job.id for job in jobs], [job.fence for job in jobs]
        rows = await self._asked("load", ids, fences)
        found: dict[int, str | None] = {row["id"]: row["steps"] for row in rows}
        return [found[job.id] if job.id in found else _ended(job) for job in jobs]

    async def _keep_many(self, steps: Sequence[_NewStep]) -> Sequence[bool | Exception]:
        """Keep results, except those of locked rows; where the database refuses one, keep each by itself."""
        columns = zip(
            *((one.job.id, one.job.fence, one.name, one.result, one.job.attempt) for one in steps), strict=True
        )
        try:
            rows = await self._asked("keep", *map(list, columns))
        except (asyncpg.DataError, asyncpg.ProgramLimitExceededError, asyncpg.StatementTooComplexError) as error:
            if len(steps) == 1:
                why = f"step {steps[0].name}: the database refuses its result: {storable(str(error))}"
                return [StepRefused("step_result_invalid", why)]
            return [answer for one in steps for answer in await self._keep_many([one])]
        found: dict[tuple[int, int], bool] = {(row["id"], row["fence"]): row["is_kept"] for row in rows}
        return [found.get((one.job.id, one.job.fence), _ended(one.job)) for one in steps]

    async def _asked(self, name: str, *columns: list[Any]) -> Sequence[Any]:
        """Run a statement; return nothing where the session is lost meanwhile."""
        token = self._session.token
        while token and token == self._session.token:
            try:
                rows: Sequence[Any] = await self._pool.fetch(_SQL[name], token, *columns)
            except UNAVAILABLE as error:
                _log.warning("jobs.step_delayed", query=name, jobs=len(columns[0]), error=repr(error)[:300])
                await asyncio.sleep(RETRY_S)
            else:
                return rows
        return ()
