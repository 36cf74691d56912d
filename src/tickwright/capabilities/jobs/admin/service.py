"""Actions of operators and callers on jobs: read, cancel, retry, move, explain.

Every instant is the database's. Each action locks its job first, so that it and a worker's claim exclude each other: a
job that is returned as ``cancelled`` has left the live table in the same transaction and cannot start. Each action
writes one line of the audit trail, in its own transaction.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import asyncpg
from msgspec import UNSET

from tickwright.capabilities.jobs.admin.bulk_actions import JobBulkActions, cancel, refused
from tickwright.capabilities.jobs.admin.dead_letters import DeadLetterAdmin, revive
from tickwright.capabilities.jobs.admin.groups import JobGroups
from tickwright.capabilities.jobs.admin.queues import Queues
from tickwright.capabilities.jobs.admin.search import (
    COUNT_MAX,
    EXPLAIN,
    GET,
    GET_MANY,
    QUERIES,
    JobFilter,
    JobSearch,
    ListQuery,
    with_ids,
)
from tickwright.capabilities.jobs.admin.views import (
    JobAction,
    JobCounts,
    JobDetail,
    JobPage,
    JobView,
    decoded,
    explain,
    job_detail,
    job_view,
)
from tickwright.capabilities.jobs.enqueue import Enqueuer, Scheduled
from tickwright.capabilities.jobs.requests import BOUNDS, EDITED, JobEdit, ScheduleBounds, read_job
from tickwright.capabilities.jobs.sealing import seal_payload
from tickwright.capabilities.jobs.states import FINAL, JobStatus
from tickwright.capabilities.jobs.task_types import TaskTypes
from tickwright.capabilities.jobs.workflows.explain import read_surroundings
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.ports.views import Explanation
from tickwright.store.audit import write_audit
from tickwright.store.paging import NEWEST, Cursors, checked_limit
from tickwright.store.pool import Connection, Pool


class JobService:
    """The actions on one-shot jobs for the API and the command line; one per process and pool.

    Raises:
        Rejected: ``job_not_found`` (404) from every method with an id; types without history delete their jobs at the
            end. Permanent.
    """

    def __init__(self, pool: Pool, *, enqueuer: Enqueuer, allow_target: Callable[[str], None]) -> None:
        self._pool = pool
        self._cursors = Cursors(pool)
        self._search = JobSearch(pool)
        self.many = JobBulkActions(pool, self._search, self._cursors)
        self.enqueuer = enqueuer
        self.types = TaskTypes(pool, allow_target, enqueuer.keys)
        self.queues = Queues(pool)
        self.groups = JobGroups(pool, self._cursors)
        self.dead_letters = DeadLetterAdmin(pool, self._cursors)

    async def schedule_text(
        self, body: bytes, *, key: str | None = None, now: datetime | None = None, bounds: ScheduleBounds = BOUNDS
    ) -> Scheduled:
        """Schedule the job of a JSON body; see ``read_job`` and ``Enqueuer.schedule`` for the errors."""
        return await self.enqueuer.schedule(read_job(body, key=key, now=now, bounds=bounds))

    async def get(self, job_id: int) -> JobDetail:
        """Return one job, live or finished, with its payload, result and progress decoded."""
        return decoded(await self.get_raw(job_id))

    async def get_raw(self, job_id: int) -> JobDetail:
        """Do the same with unparsed JSON, for an answer that copies it."""
        row = await self._pool.fetchrow(GET, job_id)
        if row is None:
            raise _not_found(job_id)
        return job_detail(row)

    async def list(self, query: ListQuery) -> JobPage:
        """Return one page of jobs, newest first.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit, listing = checked_limit(query.limit), ("jobs", *query.listing())
        before = NEWEST if query.cursor is None else await self._cursors.read(query.cursor, int, *listing)
        found = await self._search.newest(await with_ids(self._pool, query), before, limit)
        rows = await self._pool.fetch(GET_MANY, found.ids) if found.ids else []
        more = None if found.position is None else await self._cursors.make(found.position, *listing)
        return JobPage([job_view(JobView, row) for row in rows], more, found.searched)

    async def count(self, which: JobFilter) -> JobCounts:
        """Return how many jobs match, by state; the work of each count is bounded."""
        counted = await self._search.count(await with_ids(self._pool, which))
        partial = any(counted.counts[state] < COUNT_MAX for state in counted.at_least)
        return JobCounts(counted.counts, COUNT_MAX, sorted(counted.at_least), partial)

    async def explain(self, job_id: int) -> Explanation:
        """Return why a job is in its state."""
        facts = await self._pool.fetchrow(EXPLAIN, job_id)
        if facts is None:
            raise _not_found(job_id)
        if facts["workflow_id"] is None:
            return explain(facts)
        return explain(facts, await read_surroundings(self._pool, job_id))

    async def cancel(self, job_id: int, *, caller: Caller) -> JobAction:
        """Cancel a pending job at once, or ask the worker that holds it to stop it.

        Returns:
            ``outcome`` ``cancelled``: it never starts. ``requested``: it may still end otherwise.

        Raises:
            Rejected: ``job_finished`` (409) with its status. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            if await connection.fetchval(QUERIES["cancel_waiting"], job_id) is not None:
                done = JobAction(job_id, JobStatus.CANCELLED, "cancelled")
                after = {"status": done.status, "outcome": done.outcome}
                await _audit(connection, caller, "cancel", job_id, {"status": "waiting"}, after)
                return done
            before = await self._locked(connection, job_id)
            [(_, status)] = await cancel(connection, [job_id])
            outcome = "cancelled" if status == JobStatus.CANCELLED else "requested"
            after = {"status": status, "outcome": outcome}
            await _audit(connection, caller, "cancel", job_id, {"status": before["status"]}, after)
        return JobAction(job_id, status, outcome)

    async def reschedule(
        self, job_id: int, *, caller: Caller, execute_at: datetime | None = None, delay: timedelta | None = None
    ) -> JobAction:
        """Move a pending job to ``execute_at``, or to ``delay`` from the database's now; give exactly one.

        Raises:
            Rejected: ``time_out_of_range``; ``job_not_pending`` or ``job_finished`` (409); ``job_unfit`` (409): it
                breaks a rule that is newer than the job. Permanent.
        """
        return await self._move(job_id, caller, "reschedule", execute_at, delay)

    async def run_now(self, job_id: int, *, caller: Caller) -> JobAction:
        """Make a pending job due now. Errors as :meth:`reschedule`."""
        return await self._move(job_id, caller, "run_now", None, timedelta())

    async def edit(self, job_id: int, edit: JobEdit, *, caller: Caller) -> JobAction:
        """Change the payload, priority, tags or metadata of a pending job; a worker that claims it then gets these.

        Its steps stay, also with another payload; ``from_start`` removes them, so that they run again.

        Raises:
            Rejected: ``version_conflict`` (409) with the present ``version``: read the job again. ``job_not_pending``
                or ``job_finished`` (409); ``empty_edit``, and what a new job is refused for. Permanent.
            Unavailable: ``payload_keys_missing``: its type is encrypted. Retry in a process with keys.
        """
        changes = edit.changes()
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, job_id)
            if before["status"] != JobStatus.PENDING:
                raise _wrong_state("job_not_pending", job_id, before["status"])
            if edit.version is not UNSET and edit.version != before["version"]:
                text = f"job {job_id} was changed since version {edit.version}; it has version {before['version']} now"
                raise Rejected("version_conflict", text, status=409, version=before["version"])
            if "payload" in changes and before["encrypted"]:
                changes["payload"] = seal_payload(before["task_type"], changes["payload"], self.enqueuer.keys)
            values = [changes.get(name) or None if name == "tags" else changes.get(name) for name in EDITED]
            try:
                version = await connection.fetchval(
                    QUERIES["edit"], job_id, *(name in changes for name in EDITED), *values, edit.from_start
                )
            except asyncpg.CheckViolationError as error:
                raise refused(error) from error
            former = {"version": before["version"], "priority": before["priority"], "tags": before["tags"]}
            shown = {name: list(changes[name]) if name == "tags" else changes[name] for name in changes.keys() & _SHOWN}
            shown |= {"from_start": True} if edit.from_start else {}
            await _audit(
                connection, caller, "edit", job_id, former, {"version": version, "edited": list(changes)} | shown
            )
        return JobAction(job_id, JobStatus.PENDING, "edited", version=version)

    async def retry(self, job_id: int, *, caller: Caller, from_start: bool = False) -> JobAction:
        """Run a failed job again: same id, all its attempts, due now; its fence keeps rising.

        Its steps stay done; ``from_start`` removes them, so that they run again.

        Raises:
            Rejected: ``job_not_failed`` (409) with its status; ``key_reused`` (409): another job has its idempotency
                key; ``unique_held`` (409): another one holds its unique arguments; ``job_unfit`` (409): it breaks a
                rule that is newer than the job. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            revived = await revive(connection, [job_id], None, 1, from_start=from_start)
            if revived.key_reused:
                raise Rejected("key_reused", f"another job has the idempotency key of job {job_id} by now", status=409)
            if revived.unique_held:
                text = (
                    f"another job holds the unique arguments of job {job_id} by now; retry it when that one has ended"
                )
                raise Rejected("unique_held", text, status=409)
            if revived.unfit:
                raise Rejected(
                    "job_unfit",
                    f"job {job_id} breaks a rule of new jobs that is younger than it, such as that of payloads with "
                    "1e1000; schedule it again as one that keeps it",
                    status=409,
                )
            if not revived.rows:
                status = await connection.fetchval(QUERIES["finished_status"], job_id)
                raise _not_found(job_id) if status is None else _wrong_state("job_not_failed", job_id, status)
            before = {"status": "failed", "attempts": revived.rows[0]["attempts"]}
            after = {"status": "pending", "attempts": 0} | ({"from_start": True} if from_start else {})
            await _audit(connection, caller, "retry", job_id, before, after)
        return JobAction(job_id, JobStatus.PENDING, "retried")

    async def _move(
        self, job_id: int, caller: Caller, action: str, execute_at: datetime | None, delay: timedelta | None
    ) -> JobAction:
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, job_id)
            if before["status"] != JobStatus.PENDING:
                raise _wrong_state("job_not_pending", job_id, before["status"])
            try:
                moved = await connection.fetchval(QUERIES["reschedule"], job_id, execute_at, delay)
            except asyncpg.CheckViolationError as error:
                raise refused(error) from error
            former = {"execute_at": before["execute_at"], "retry_at": before["retry_at"]}
            await _audit(connection, caller, action, job_id, former, {"execute_at": moved})
        return JobAction(job_id, JobStatus.PENDING, "rescheduled" if action == "reschedule" else action, moved)

    async def _locked(self, connection: Connection, job_id: int) -> Any:
        row = await connection.fetchrow(QUERIES["lock"], job_id)
        if row is None:
            status = await connection.fetchval(QUERIES["finished_status"], job_id)
            if status is None:
                raise _not_found(job_id)
            is_waiting = status == JobStatus.PENDING
            raise _wrong_state(*(("job_waits", job_id, "waiting") if is_waiting else ("job_finished", job_id, status)))
        return row


_SHOWN = frozenset({"priority", "tags"})
"""What the audit trail shows of an edit; payloads and metadata are user data."""


async def _audit(  # noqa: PLR0917  the columns of the row
    connection: Connection, caller: Caller, action: str, job_id: int, before: Any, after: Any
) -> None:
    await write_audit(connection, caller, f"jobs.{action}", f"job:{job_id}", before=before, after=after)


def _not_found(job_id: int) -> Rejected:
    return Rejected("job_not_found", f"there is no job {job_id}, or its type keeps no history", status=404)


def _wrong_state(code: str, job_id: int, status: str) -> Rejected:
    reasons = {
        "job_finished": "it is finished",
        "job_not_pending": "only a pending job can be moved or edited",
        "job_not_failed": "only a failed job can be retried",
        "job_waits": "it waits for other jobs of its workflow; cancel it, or change it when it is released",
    }
    if code == "job_not_pending" and status in FINAL:
        code = "job_finished"
    return Rejected(code, f"job {job_id} is {status}: {reasons[code]}", status=409, state=str(status))
