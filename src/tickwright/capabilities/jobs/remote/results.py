"""The results of remote workers: fenced by session and attempt, the calls of many clients in one transaction.

::

    calls that arrive while a transaction runs ──▶ lock the attempts that are held ──▶ decide ──▶ write ──▶ commit
                                                     └ not held: stale   └ locked by another session: locked

The statements are those of the Python worker (``results.sql``); some are fenced by their owner only. So the first
statement locks the attempts that the calls name, by session, job and fence, and the others write what it returned. A
repeated call finds nothing, whatever became of the job, and changes nothing. Answers to polls, tasks and chunks go to
their consumers (:mod:`tickwright.engine.remote.work`), fenced in the same way.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import structlog
from msgspec import UNSET

from tickwright.capabilities.jobs.model import ERROR_MESSAGE_MAX, Errored, TaskType
from tickwright.capabilities.jobs.remote.messages import (
    CHUNK_RESULT_BYTES_MAX,
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
    RemoteThrottled,
)
from tickwright.capabilities.jobs.remote.sessions import CALL_S, SQL, RemoteSession
from tickwright.capabilities.jobs.worker.claims import ClaimStore
from tickwright.capabilities.jobs.worker.encryption import MISSING_WAIT, withheld
from tickwright.capabilities.jobs.worker.groups import HINT
from tickwright.capabilities.jobs.worker.result_writer import (
    CANCELLED,
    EXPIRED,
    FENCED_BY_JOB,
    INTERRUPTED,
    RELEASING,
    result_of_error,
)
from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Rejected, storable
from tickwright.domain.retries import WAIT_MAX
from tickwright.domain.time_texts import parse_duration
from tickwright.engine.call_batcher import CallBatcher
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.engine.remote.calls import CallEnd
from tickwright.engine.remote.work import CallStore, EndedCall, failure
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
    "defer": "deferred",
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
class DeferredAttempt:
    """An attempt whose payload this process cannot open, and why."""

    id: int
    fence: int
    why: str


Ended = RemoteResult | ExpiredAttempt | DeferredAttempt


@dataclass(frozen=True, slots=True)
class _Call:
    session: int
    results: Sequence[Ended]


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
        calls: Of consumers.
        released: Called when jobs are pending again, or places of a limited type are free.
        keys: Seal results and progress of encrypted types; without keys these are left to another process.

    Attributes:
        counts: Written results by outcome, and those that were stale.
    """

    def __init__(
        self,
        pool: Pool,
        store: ClaimStore,
        types: Callable[[str], TaskType | None],
        calls: CallStore,
        *,
        released: Callable[[], None],
        keys: PayloadKeys = NO_KEYS,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._pool, self._store, self._types, self._calls = pool, store, types, calls
        self._released, self._keys, self._probe = released, keys, probe
        self._record = CallBatcher(self._write, items_max=CALLS_MAX)
        self.counts: Counter[str] = Counter()

    async def record(self, session: RemoteSession, results: Sequence[Ended]) -> RemoteRecorded:
        """Write results; return which were not written.

        Raises:
            Rejected: ``duplicate_job``, ``result_too_large``, ``invalid_duration``. Permanent; nothing was written.
            Unavailable: ``outcome_unknown``, or the database does not answer. Send the same results again.
        """
        _check(results)
        jobs = [one for one in results if isinstance(one, ExpiredAttempt | DeferredAttempt) or one.kind == "job"]
        done = await self._record(_Call(session.id, jobs)) if jobs else RemoteRecorded(0, [], [])
        if len(jobs) == len(results):
            return done
        calls = [one for one in results if not isinstance(one, ExpiredAttempt | DeferredAttempt) and one.kind != "job"]
        written = await self._end_calls(session.id, calls)
        stale = [one.id for one in calls if one.id not in written]
        return RemoteRecorded(done.done + len(written), done.stale + stale, done.locked)

    async def _end_calls(self, session: int, results: Sequence[RemoteResult]) -> set[int]:
        releases = [(one.id, one.fence) for one in results if isinstance(one, RemoteRelease | RemoteCancel)]
        answers = [
            EndedCall(one.id, session, one.fence, *_answer_of(one))
            for one in results
            if not isinstance(one, RemoteRelease | RemoteCancel)
        ]
        written = await self._calls.end(answers) if answers else set[int]()
        return written | (await self._calls.release(session, releases) if releases else set())

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
            Unavailable: ``payload_keys_missing``: a type is encrypted. Retry, at another process.
        """
        _check_ids(items)
        for item in items:
            _check_size(item.id, bytes(item.progress))
        written = set[int]()
        if jobs := {item.id: (item.fence, bytes(item.progress).decode()) for item in items if item.kind == "job"}:
            written |= await self._report_of_jobs(session, jobs)
        if calls := [(one.id, one.fence, bytes(one.progress).decode()) for one in items if one.kind != "job"]:
            written |= await self._calls.report_progress(session.id, calls)
        return RemoteReported(len(written), [item.id for item in items if item.id not in written])

    async def _report_of_jobs(self, session: RemoteSession, jobs: Mapping[int, tuple[int, str]]) -> AbstractSet[int]:
        """Write the progress of jobs, given by id with their fences; of encrypted types sealed."""

        async def write(jobs: Mapping[int, tuple[int, str]]) -> AbstractSet[int]:
            columns = [*jobs], [fence for fence, _ in jobs.values()], [text for _, text in jobs.values()]
            return {row["id"] for row in await self._pool.fetch(SQL["report_progress"], session.id, *columns)}

        written = await write(jobs)
        if left := [job for job in jobs if job not in written]:
            encrypted = [row["id"] for row in await self._pool.fetch(SQL["encrypted_of"], session.id, left)]
            if encrypted:
                seal = self._keys.seal
                sealed = {job: (jobs[job][0], seal(jobs[job][1], Purpose.PROGRESS, str(job))) for job in encrypted}
                written |= await write(sealed)
        return written

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
            parts: list[Sequence[Ended]] = [
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
            elif row["locked"] or self._lacks_keys(result, row):
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

    def _lacks_keys(self, result: Ended, row: Mapping[str, Any]) -> bool:
        """Return whether a result cannot be sealed here; its client sends it again, maybe to a process with keys."""
        if not row["encrypted"] or self._keys or not isinstance(result, RemoteComplete):
            return False
        _log.warning("remote.payload_keys_missing", job=result.id, task_type=row["task_type"])
        return True

    def _statement(  # noqa: PLR0911  one for each result
        self, result: Ended, row: Mapping[str, Any]
    ) -> tuple[str, tuple[Any, ...]]:
        """Return the query of ``results.sql`` for a result, and its columns behind id and fence."""
        kind = self._types(row["task_type"]) or _NO_TYPE
        match result:
            case RemoteComplete(result=value):
                if value is not UNSET and (text := bytes(value).decode()) != "null":
                    if row["encrypted"]:
                        text = self._keys.seal(text, Purpose.RESULT, str(result.id))
                    return "complete_with_result", (text,)
                return ("complete" if kind.keep_history else "complete_and_forget"), ()
            case RemoteFail():
                error = withheld(_errored(result)) if row["encrypted"] else _errored(result)
                return result_of_error(error, kind, row["attempts"], row["max_attempts"])
            case DeferredAttempt(why=why):
                return "defer", (MISSING_WAIT.total_seconds(), why)
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


def _answer_of(result: RemoteResult) -> tuple[Any, str | None]:
    """Return the outcome of a poll, task or chunk, and its answer as its consumer reads it."""
    match result:
        case RemoteComplete(result=value):
            return "complete", None if value is UNSET else storable(bytes(value).decode())
        case RemoteFail(code=code, message=text, final=final, retry_after=after):
            wait_s = None if after is None else parse_duration(after).total_seconds()
            end = CallEnd(outcome="fail", code=code, message=storable(text), final=final, wait_s=wait_s)
        case RemoteThrottled(retry_after=wait):
            end = CallEnd(outcome="throttled", wait_s=parse_duration(wait).total_seconds())
        case RemoteSnooze(wait=wait):
            end = CallEnd(outcome="snooze", wait_s=parse_duration(wait).total_seconds())
        case _:
            raise AssertionError(result)
    return end.outcome, failure(end)


def _errored(result: RemoteFail) -> Errored:
    text = result.message if result.code == "handler_error" else f"{result.code}: {result.message}"
    wait = None if result.retry_after is None else parse_duration(result.retry_after)
    return Errored(result.code, text, final=result.final, retry_after=wait)


def _check(results: Sequence[Ended]) -> None:
    _check_ids(results)
    for result in results:
        match result:
            case RemoteThrottled(kind="job" | "chunk"):
                text = "a job or a chunk has no partner: fail it with retry_after, or snooze it"
                raise Rejected("invalid_value", text, field="outcome")
            case RemoteComplete(kind="chunk", result=value) if value is not UNSET:
                _check_size(result.id, bytes(value), CHUNK_RESULT_BYTES_MAX)
            case RemoteComplete(result=value) if value is not UNSET:
                _check_size(result.id, bytes(value))
            case RemoteFail(retry_after=str() as text) | RemoteSnooze(wait=text) | RemoteThrottled(retry_after=text):
                if parse_duration(text, field="wait") > WAIT_MAX:
                    raise Rejected("invalid_duration", f"a wait has {WAIT_MAX.days} days at the most", field="wait")
            case _:
                pass


def _check_ids(items: Iterable[Any]) -> None:
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        twice = next(job for job, count in Counter(ids).items() if count > 1)
        raise Rejected("duplicate_job", f"job {twice} is named twice; send one result for each job", field="results")


def _check_size(job: int, value: bytes, bytes_max: int = RESULT_BYTES_MAX) -> None:
    if len(value) > bytes_max:
        text = f"the value for {job} has {len(value)} bytes; at most {bytes_max} are kept"
        raise Rejected("result_too_large", text, status=413, field="result")
