"""The results of remote workers: fenced by session and attempt, the calls of many clients in one transaction.

::

    calls that arrive while a transaction runs ──▶ lock the attempts that are held ──▶ decide ──▶ write ──▶ commit
                                                     └ not held: stale   └ locked by another session: locked

The statements are those of the Python worker (``results.sql``); some are fenced by their owner only. So the first
statement locks the attempts that the calls name, by session, job and fence, and the others write what it returned. A
repeated call finds nothing, whatever became of the job, and changes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import structlog
from msgspec import UNSET

from tickwright.capabilities.jobs.model import ERROR_MESSAGE_MAX, Errored, TaskType
from tickwright.capabilities.jobs.remote.messages import (
    RESULT_BYTES_MAX,
    RemoteAttempt,
    RemoteBegun,
    RemoteCancel,
    RemoteComplete,
    RemoteFail,
    RemoteProgressItem,
    RemoteRecorded,
    RemoteRelease,
    RemoteReported,
    RemoteResult,
    RemoteSnooze,
)
from tickwright.capabilities.jobs.remote.sessions import CALL_S, SQL, RemoteSession
from tickwright.capabilities.jobs.worker.claims import ClaimStore
from tickwright.capabilities.jobs.worker.groups import HINT
from tickwright.capabilities.jobs.worker.result_writer import (
    CANCELLED,
    EXPIRED,
    FENCED_BY_JOB,
    INTERRUPTED,
    RELEASING,
    result_of_error,
)
from tickwright.domain.errors import Rejected, storable
from tickwright.domain.retries import WAIT_MAX
from tickwright.domain.time_texts import parse_duration
from tickwright.engine.call_batcher import CallBatcher
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.bounds import TookTooLong, for_all_callers, outcome_unknown, within
from tickwright.store.pool import Connection, Pool

CALLS_MAX = 64
"""Calls in one transaction."""
_NO_TYPE = TaskType("", "")
_COUNTED_AS = {
    "complete": "completed",
    "complete_and_forget": "completed",
    "complete_with_result": "completed",
    "retry": "retried",
    "fail": "failed",
    "snooze": "snoozed",
    "release": "released",
    "release_with_error": "released",
    "cancel_held": "cancelled",
    "cancel_unstarted": "expired",
}
_log = structlog.get_logger("tickwright.remote")


@dataclass(frozen=True, slots=True)
class ExpiredAttempt:
    """An attempt whose job expired before its start."""

    id: int
    fence: int


@dataclass(frozen=True, slots=True)
class _Call:
    session: int
    results: Sequence[RemoteResult | ExpiredAttempt]


@dataclass(slots=True)
class _Batch:
    ids: list[int] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)


class RemoteResultWriter:
    """Writes the results of remote workers.

    Args:
        pool: Connections for the work of all callers.
        store: The statements of the worker.
        types: Returns a task type by its name.
        released: Called when jobs are pending again, or places of a limited type are free.

    Attributes:
        counts: Written results by outcome, and those that were stale.
    """

    def __init__(
        self,
        pool: Pool,
        store: ClaimStore,
        types: Callable[[str], TaskType | None],
        *,
        released: Callable[[], None],
        probe: Probe = NO_PROBE,
    ) -> None:
        self._pool, self._store, self._types, self._released, self._probe = pool, store, types, released, probe
        self._record = CallBatcher(self._write, items_max=CALLS_MAX)
        self.counts: Counter[str] = Counter()

    async def record(self, session: RemoteSession, results: Sequence[RemoteResult | ExpiredAttempt]) -> RemoteRecorded:
        """Write results; return which were not written.

        Raises:
            Rejected: ``duplicate_job``, ``result_too_large``, ``invalid_duration``. Permanent; nothing was written.
            Unavailable: ``outcome_unknown``, or the database does not answer. Send the same results again.
        """
        _check(results)
        return await self._record(_Call(session.id, results))

    async def begin(self, session: RemoteSession, attempts: Sequence[RemoteAttempt]) -> RemoteBegun:
        """Write that last attempts begin, so that they count from now on; idempotent."""
        found = await self._store.begin_last(session.id, [one.id for one in attempts], [one.fence for one in attempts])
        ids = [one.id for one in attempts]
        return RemoteBegun(
            [job for job in ids if found.get(job) is True],
            lost=[job for job in ids if job not in found],
            locked=[job for job in ids if found.get(job) is False],
        )

    async def report_progress(self, session: RemoteSession, items: Sequence[RemoteProgressItem]) -> RemoteReported:
        """Write the progress of running attempts.

        Raises:
            Rejected: ``duplicate_job``, ``result_too_large``. Permanent.
        """
        _check_ids(items)
        for item in items:
            _check_size(item.id, bytes(item.progress))
        ids, fences = [item.id for item in items], [item.fence for item in items]
        texts = [bytes(item.progress).decode() for item in items]
        rows = await self._pool.fetch(SQL["report_progress"], session.id, ids, fences, texts)
        written = {row["id"] for row in rows}
        return RemoteReported(len(written), [job for job in ids if job not in written])

    async def _write(self, calls: Sequence[_Call]) -> Sequence[RemoteRecorded | Exception]:
        try:
            with for_all_callers(), within(CALL_S):
                return await self._write_again(calls)
        except TookTooLong:
            return [outcome_unknown()] * len(calls)

    async def _write_again(self, calls: Sequence[_Call]) -> Sequence[RemoteRecorded | Exception]:
        """Write all calls, once more on a new day; where the database refuses a result, find it."""
        for last in (False, True):
            try:
                return await self._write_together(calls)
            except asyncpg.UndefinedTableError:  # retention has dropped the table of the former day
                if last:
                    raise
            except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
                return [await self._write_parts(call, error) for call in calls]
        raise AssertionError

    async def _write_parts(self, call: _Call, error: asyncpg.PostgresError) -> RemoteRecorded:
        """Write one of the calls by halves; a single result that the database refuses fails its job."""
        if len(call.results) == 1:
            [result] = call.results
            _log.error("remote.result_refused", job=result.id, error=repr(error))
            text = storable(f"result_refused: {error}")[:ERROR_MESSAGE_MAX]
            parts: list[Sequence[RemoteResult | ExpiredAttempt]] = [
                [RemoteFail(id=result.id, fence=result.fence, message=text, code="result_refused", final=True)]
            ]
        else:
            half = len(call.results) // 2
            parts = [call.results[:half], call.results[half:]]
        done = RemoteRecorded(0, [], [])
        for part in parts:
            one = _Call(call.session, part)
            try:
                [written] = await self._write_together([one])
            except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as again:
                if len(call.results) == 1:
                    raise
                written = await self._write_parts(one, again)
            done = RemoteRecorded(done.done + written.done, done.stale + written.stale, done.locked + written.locked)
        return done

    async def _write_together(self, calls: Sequence[_Call]) -> Sequence[RemoteRecorded]:
        async with self._pool.acquire() as connection, connection.transaction():
            held = await self._lock(connection, calls)
            await self._probe.reached("remote.locked_results", sessions=[call.session for call in calls])
            batches: dict[tuple[int, str], _Batch] = defaultdict(_Batch)
            ended: Counter[tuple[int, str]] = Counter()
            groups = {
                (row["task_type"], row["group_key"]) for row in held.values() if row["group_key"] and not row["locked"]
            }
            answers = [self._sort(call, held, batches, ended) for call in calls]
            for (session, query), batch in sorted(batches.items()):
                await self._store.write_in(
                    connection, query, session, batch.ids, *map(list, zip(*batch.rows, strict=True))
                )
            if ended:
                await connection.execute(
                    SQL["free_places"], [key[0] for key in ended], [key[1] for key in ended], list(ended.values())
                )
            if groups:
                await connection.execute(HINT, [key[0] for key in groups], [key[1] for key in groups])
        for (_, query), batch in batches.items():
            self.counts[_COUNTED_AS[query]] += len(batch.ids)
        if stale := sum(len(answer.stale) for answer in answers):
            self.counts["stale"] += stale
        if ended or groups or any(query in RELEASING for _, query in batches):
            self._released()
        return answers

    @staticmethod
    async def _lock(connection: Connection, calls: Sequence[_Call]) -> dict[tuple[int, int, int], Any]:
        """Lock the attempts that are held, and return them by session, job and fence."""
        asked = [(call.session, result.id, result.fence) for call in calls for result in call.results]
        columns = [list(column) for column in zip(*asked, strict=True)]
        return {
            (row["owner"], row["id"], row["fence"]): row for row in await connection.fetch(SQL["lock_held"], *columns)
        }

    def _sort(
        self,
        call: _Call,
        held: dict[tuple[int, int, int], Any],
        batches: Mapping[tuple[int, str], _Batch],
        ended: Counter[tuple[int, str]],
    ) -> RemoteRecorded:
        """Add a call's results to the batches, each attempt once; return what becomes of them."""
        done, stale, locked = 0, list[int](), list[int]()
        for result in call.results:
            row = held.get((call.session, result.id, result.fence))
            if row is None:
                stale.append(result.id)
            elif row["locked"]:
                locked.append(result.id)
            else:
                del held[call.session, result.id, result.fence]  # the same call again, in one transaction
                query, columns = self._statement(result, row)
                batch = batches[call.session, query]
                batch.ids.append(result.id)
                batch.rows.append((result.fence, *columns) if query in FENCED_BY_JOB else columns)
                done += 1
                if row["counted"]:
                    ended[call.session, row["task_type"]] += 1
        return RemoteRecorded(done, stale, locked)

    def _statement(  # noqa: PLR0911  one for each result
        self, result: RemoteResult | ExpiredAttempt, row: Mapping[str, Any]
    ) -> tuple[str, tuple[Any, ...]]:
        """Return the query of ``results.sql`` for a result, and its columns behind id and fence."""
        kind = self._types(row["task_type"]) or _NO_TYPE
        match result:
            case RemoteComplete(result=value):
                if value is not UNSET and (text := bytes(value).decode()) != "null":
                    return "complete_with_result", (text,)
                return ("complete" if kind.keep_history else "complete_and_forget"), ()
            case RemoteFail():
                return result_of_error(_errored(result), kind, row["attempts"], row["max_attempts"])
            case RemoteSnooze(wait=wait):
                return "snooze", (parse_duration(wait).total_seconds(),)
            case RemoteRelease(started=False):
                return "release", ()
            case ExpiredAttempt():
                return "cancel_unstarted", (EXPIRED,)
            case RemoteCancel() if row["cancelled"]:
                return "cancel_held", (CANCELLED,)
            case _:
                return "release_with_error", (INTERRUPTED,)


def _errored(result: RemoteFail) -> Errored:
    text = result.message if result.code == "handler_error" else f"{result.code}: {result.message}"
    wait = None if result.retry_after is None else parse_duration(result.retry_after)
    return Errored(result.code, text, final=result.final, retry_after=wait)


def _check(results: Sequence[RemoteResult | ExpiredAttempt]) -> None:
    _check_ids(results)
    for result in results:
        match result:
            case RemoteComplete(result=value) if value is not UNSET:
                _check_size(result.id, bytes(value))
            case RemoteFail(retry_after=str() as text) | RemoteSnooze(wait=text):
                if parse_duration(text, field="wait") > WAIT_MAX:
                    raise Rejected("invalid_duration", f"a wait has {WAIT_MAX.days} days at the most", field="wait")
            case _:
                pass


def _check_ids(items: Iterable[Any]) -> None:
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        twice = next(job for job, count in Counter(ids).items() if count > 1)
        raise Rejected("duplicate_job", f"job {twice} is named twice; send one result for each job", field="results")


def _check_size(job: int, value: bytes) -> None:
    if len(value) > RESULT_BYTES_MAX:
        text = f"the value for job {job} has {len(value)} bytes; at most {RESULT_BYTES_MAX} are kept"
        raise Rejected("result_too_large", text, status=413, field="result")
