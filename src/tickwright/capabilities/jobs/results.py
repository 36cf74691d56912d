"""Waiting for the end of jobs, and for their progress: woken by a notification, not by polling. See ADR 0036.

::

    a waiter marks the live row ──▶ whatever ends the job deletes that row ──▶ its trigger notifies ──▶ the waiter reads

No end is missed. A mark that commits before the end is seen by it: the DELETE waits for the lock of the row and reads
it again. A mark that comes after the end finds no live row, and the waiter reads the finished one. A notification is a
hint: what a waiter returns is read from the tables. Every waiter reads again after the connection opens or ends, and
now and then.

All waiters of a process share one connection that listens, and it is open only while they wait. What they mark and
read goes into shared statements. A waiter that gives up leaves its mark on the row, which costs one notification.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import structlog

from tickwright.capabilities.jobs.states import FINAL, JobStatus
from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.strict_json import decode_stored
from tickwright.domain.time_texts import format_duration
from tickwright.engine.call_batcher import CallBatcher
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup.on_demand import DirectAccess, OnDemandListener
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load

CHANNEL = "tickwright_results"
POLL_S = 1.0
"""How often a waiter reads while no notification can arrive, and how soon again while the database is unavailable."""
RECHECK_S = 30.0
"""How often it reads in spite of notifications, in case that a connection is dead without its knowledge."""
LOCKED_S = 0.01
LOCKED_MAX_S = 0.5
"""When a row that another session has locked is marked again: at first, and at last."""
MARKED_AT_ONCE = 1000
READ_AT_ONCE = 100
"""Few, because each result may be large."""

T = TypeVar("T")
_SQL = load("tickwright.capabilities.jobs.sql", "awaited.sql")
_log = structlog.get_logger("tickwright.jobs")


class JobState(NamedTuple):
    """A job as a waiter sees it; ``progress`` and ``result`` are JSON text.

    ``attempts`` and ``completed_at`` are ``None`` for a job that completed without a result and whose type keeps no
    history: nothing of it is left.
    """

    id: int
    status: str
    attempts: int | None = None
    progress: str | None = None
    result: str | None = None
    error: str | None = None
    completed_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its status is final; a failed job may still be retried by an operator."""
        return self.status in FINAL


class _Row(NamedTuple):
    """A row that was read, and whether it is marked."""

    state: JobState
    awaited: bool


class _Mark(NamedTuple):
    """What became of the mark on a live row."""

    marked: bool
    keep_history: bool


class JobResults:
    """Waits for jobs; one per process and pool.

    Args:
        access: How to listen. Without a direct URL, waiters read once a second.
        keys: Open results and progress of encrypted types; a wait itself returns them as they are stored.
        probe: Points for tests.

    Invariants:
        RES-1: a wait for a job that ends returns its end, whenever it began, whatever connection is lost meanwhile.
        RES-2: all waiters of a process use one connection beside the pool, and none some seconds after the last.
        RES-3: a wait holds up no worker: it locks rows for one statement, and waits for no lock.
        RES-4: a worker writes an end that is awaited at once, while others gather; one that does not listen knows of it
            from its next check of the job on.
    """

    _marking, _reading = _SQL["mark"], _SQL["read"]

    def __init__(
        self, pool: Pool, access: DirectAccess, keys: PayloadKeys = NO_KEYS, *, probe: Probe = NO_PROBE
    ) -> None:
        self._pool, self._keys, self._probe = pool, keys, probe
        self._listener = OnDemandListener(access, CHANNEL, self._notified, self._wake_all)
        self._mark = CallBatcher(self._mark_many, items_max=MARKED_AT_ONCE, for_all=True)
        self._read = CallBatcher(self._read_many, items_max=READ_AT_ONCE, for_all=True)
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._closed = self._has_warned = False

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return sum(map(len, self._waiting.values()))

    @property
    def listens(self) -> bool:
        """Whether notifications arrive now."""
        return self._listener.works

    async def wait(self, job_id: int, timeout: timedelta | None = None) -> JobState:
        """Return the state of a job when it has ended: completed, failed or cancelled.

        Args:
            job_id: Of a committed job.
            timeout: Above zero; without one it waits for as long as the job takes, also while the database is
                unavailable.

        Raises:
            Rejected: ``job_not_found`` (404): there is no such job, it was deleted, or it completed without a result
                before the wait began and its type keeps no history. Permanent.
            Unavailable: ``result_timeout`` (504): the job has not ended in time; wait again. ``draining``: the process
                ends; retry elsewhere.
        """
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()) as limit:
                with self._watched(job_id) as notified:
                    return await self._until_end(job_id, notified)
        except TimeoutError:
            if timeout is None or not limit.expired():
                raise
        text = f"job {job_id} has not ended within {format_duration(timeout)}; it goes on, so wait again"
        raise Unavailable("result_timeout", text, status=504)

    async def follow(self, job_id: int) -> AsyncGenerator[JobState, None]:
        """Yield the state of a job now, and then each change that is noticed, to its end.

        A change of progress or an end is noticed at once, a start by the next reading. Of several changes in a short
        time the last one is noticed. Errors as :meth:`wait`.
        """
        with self._watched(job_id) as notified:
            state, _ = await self._row(job_id, None)
            yield state
            mark: _Mark | None = None
            while not state.has_ended:
                mark = mark or await self._marked(job_id)
                notified.clear()
                known, (state, awaited) = state, await self._row(job_id, mark)
                if state != known:
                    yield state
                if not awaited:
                    mark = None
                elif not state.has_ended:
                    await self._rest(notified)

    async def progress(self, job_id: int) -> AsyncGenerator[Any, None]:
        """Yield each new value that the handler reports as progress, decoded, until the job ends.

        It begins with the present value, if there is one. Errors as :meth:`wait`.
        """
        last = None
        async with aclosing(self.follow(job_id)) as states:
            async for state in states:
                if state.progress is not None and state.progress != last:
                    last = state.progress
                    yield decode_stored(self._keys.open(last, Purpose.PROGRESS, str(job_id)))

    def opened(self, state: JobState) -> JobState:
        """Return a state with its result in plain text.

        Raises:
            Unavailable: ``payload_key_missing``. Retry in a process that has the key.
            Rejected: ``payload_unreadable``: it was changed. Permanent.
        """
        if state.result is None:
            return state
        return state._replace(result=self._keys.open(state.result, Purpose.RESULT, str(state.id)))

    async def aclose(self) -> None:
        """End every wait with ``draining``, and the connection."""
        self._closed = True
        self._wake_all()
        await self._listener.aclose()

    # ------------------------------------------------------------------ one waiter

    @contextmanager
    def _watched(self, job_id: int) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the job may have changed."""
        if not self._listener.can_listen and not self._has_warned:
            self._has_warned = True
            advice = "without TICKWRIGHT_DIRECT_DATABASE_URL and notifications, results are read once a second"
            _log.warning("results.polling_only", advice=advice)
        notified = asyncio.Event()
        waiters = self._waiting.setdefault(job_id, set())
        waiters.add(notified)
        try:
            with self._listener.used():
                yield notified
        finally:
            waiters.discard(notified)
            if not waiters:
                self._waiting.pop(job_id, None)

    async def _until_end(self, job_id: int, notified: asyncio.Event) -> JobState:
        mark = await self._marked(job_id)
        await self._probe.reached("results.marked", job=job_id, live=mark is not None)
        while True:
            if mark is not None:
                await self._rest(notified)
                notified.clear()
            state, awaited = await self._row(job_id, mark)
            if state.has_ended:
                return state
            if not awaited:  # it had failed, and an operator retried it
                mark = await self._marked(job_id)

    async def _marked(self, job_id: int) -> _Mark | None:
        """Mark a live job; return ``None`` when there is none. A row that is locked is tried again."""
        again_s = LOCKED_S
        while (mark := await self._asked(self._mark, job_id)) is not None and not mark.marked:
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, LOCKED_MAX_S)
        return mark

    async def _row(self, job_id: int, mark: _Mark | None) -> _Row:
        return await self._asked(self._read, job_id) or _ended_unseen(job_id, mark)

    async def _asked(self, batch: CallBatcher[int, T], job_id: int) -> T:
        """Return the answer of a shared statement; repeat it while the database is unavailable."""
        while True:
            self._check_open()
            try:
                return await batch(job_id)
            except UNAVAILABLE as error:
                _log.warning("results.delayed", job=job_id, error=repr(error)[:300])
            await asyncio.sleep(POLL_S)

    async def _rest(self, notified: asyncio.Event) -> None:
        await is_set_within(notified, RECHECK_S if self._listener.works else POLL_S)
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("draining", "this process ends, and with it its waits; the job goes on")

    # ------------------------------------------------------------------ all waiters

    def _notified(self, payload: str) -> None:
        """Wake the waiters of a job. Every user of the database may notify, so the payload may be anything."""
        if payload.isascii() and payload.isdigit() and len(payload) < 20:
            for notified in self._waiting.get(int(payload), ()):
                notified.set()

    def _wake_all(self) -> None:
        for waiters in self._waiting.values():
            for notified in waiters:
                notified.set()

    async def _mark_many(self, ids: Sequence[int]) -> list[_Mark | Exception | None]:
        await self._probe.reached("results.before_mark", ids=ids)
        rows = await self._pool.fetch(self._marking, list(set(ids)))
        marks = {row["id"]: _Mark(row["marked"], row["keep_history"]) for row in rows}
        return [marks.get(job_id) for job_id in ids]

    async def _read_many(self, ids: Sequence[int]) -> list[_Row | Exception | None]:
        rows = await self._pool.fetch(self._reading, list(set(ids)))
        found = {row["id"]: _Row(JobState(*row[1:]), row["awaited"]) for row in rows}
        return [found.get(job_id) for job_id in ids]


class WorkflowResults(JobResults):
    """Waits for workflows, as :class:`JobResults` for jobs; the states are those of workflows, without a result."""

    _marking, _reading = _SQL["mark_workflows"], _SQL["read_workflows"]


def _ended_unseen(job_id: int, mark: _Mark | None) -> _Row:
    """Return the end of a job of which no row is left.

    A job that was live when it was marked, and whose type keeps no history, completed without a result.

    Raises:
        Rejected: ``job_not_found``: there was none, or a user deleted it.
    """
    if mark is None or mark.keep_history:
        raise _not_found(job_id)
    return _Row(JobState(job_id, JobStatus.COMPLETED), awaited=True)


def _not_found(job_id: int) -> Rejected:
    return Rejected("job_not_found", f"there is no job {job_id}, or its type keeps no history", status=404)
