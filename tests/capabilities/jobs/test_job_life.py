"""One job's life on a real database: plain SQL and two workers' writes, step by step beside a small model.

The model is the behaviour that the documents promise. Hypothesis lets users, workers and zombies act in any
order, and the table has to match the model.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange
from tickwright.capabilities.jobs.states import TRANSITIONS, JobStatus
from tickwright.capabilities.jobs.worker.claims import ClaimRequest, ClaimStore
from tickwright.capabilities.jobs.worker.result_writer import FENCED_BY_JOB
from tickwright.store.pool import open_pool

T = TypeVar("T")
LIVE = ("pending", "processing")
FINAL = ("completed", "failed", "cancelled")
NOTED = {"retry": "failed", "fail": "timed_out", "release_with_error": "released"}
NOTED_MAX = 10
EMPTY = "TRUNCATE tickwright.scheduled_tasks, tickwright.job_keys, tickwright.workers CASCADE"
OPEN = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "VALUES (nextval('tickwright.fence_seq'), 'model', '{worker}', '0', clock_timestamp() + interval '1 hour') "
    "RETURNING id"
)
CURRENT = (
    "SELECT *, tableoid = 'tickwright.scheduled_tasks'::regclass AS live FROM tickwright.scheduled_tasks WHERE id = $1"
)
WORKERS = st.sampled_from([0, 1])
WRITES = st.sampled_from(
    [
        "complete", "complete_and_forget", "complete_with_result", "retry", "fail", "cancel_held", "cancel_unstarted",
        "release", "release_with_error", "snooze",
    ]
)  # fmt: skip
COLUMNS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "complete_with_result": lambda: (["{}"],),
    "retry": lambda: ([0.0], ["failed"], ["no luck"]),
    "fail": lambda: (["timed_out"], ["no luck"]),
    "release_with_error": lambda: (["no luck"],),
    "cancel_held": lambda: (["stopped"],),
    "cancel_unstarted": lambda: (["expired"],),
    "snooze": lambda: ([0.0],),
}


@dataclass
class Model:
    """The expected state of the job."""

    id: int
    max_attempts: int
    status: str = "pending"
    attempts: int = 0
    fence: int = 0
    owner: int | None = None
    due: bool = True
    begun: bool = False
    asked_to_stop: bool = False
    forgotten: bool = False
    by_hand: bool = False
    noted: list[tuple[int, int, int, str]] = field(default_factory=list)
    last_seen: JobStatus = JobStatus.PENDING

    def note(self, outcome: str) -> None:
        """Record the attempt that ends here."""
        assert self.owner is not None
        self.noted = [*self.noted, (self.attempts, self.fence, self.owner, outcome)][-NOTED_MAX:]

    def free(self, status: str) -> None:
        """The job has no owner any more."""
        self.status, self.owner = status, None


class JobLife(RuleBasedStateMachine):
    """Users, two workers and their zombies, and one job at a time."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pool: asyncpg.Pool = self.do(open_pool(self.url, min_size=1, max_size=2))
        self.do(self.pool.execute(EMPTY))
        self.store = ClaimStore(self.pool)
        self.tokens = [self.do(self.pool.fetchval(OPEN)) for _ in range(2)]
        self.zombies: list[int] = []
        self.job: Model | None = None

    def do(self, work: Awaitable[T]) -> T:
        """Run one asynchronous step to its end."""
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        """Close the connections of this life."""
        self.do(self.pool.close())
        self.loop.close()

    def user(self, change: str) -> str:
        """Let a user change the job by plain SQL; the answer is PostgreSQL's."""
        assert self.job is not None
        sql = f"UPDATE tickwright.scheduled_tasks SET {change} WHERE id = $1"
        return str(self.do(self.pool.execute(sql, self.job.id)))

    # ------------------------------------------------------------------ users

    @precondition(lambda self: self.job is None or self.job.status in FINAL)
    @rule(max_attempts=st.integers(1, 3), due=st.booleans())
    def schedule(self, max_attempts: int, due: bool) -> None:
        """A new job, due or in an hour."""
        at = "now()" if due else "now() + interval '1 hour'"
        sql = (
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, max_attempts) "
            f"VALUES ({at}, 't', $1) RETURNING id"
        )
        self.job = Model(self.do(self.pool.fetchval(sql, max_attempts)), max_attempts, due=due)

    @precondition(lambda self: self.job is not None)
    @rule()
    def cancel(self) -> None:
        """Pending ends at once, running is asked to stop, finished stays as it was."""
        assert self.job is not None
        self.user("status = 'cancelled'")
        if self.job.status == "pending":
            self.job.free("cancelled")
        elif self.job.status == "processing":
            self.job.asked_to_stop = True

    @precondition(lambda self: self.job is not None and self.job.status in LIVE)
    @rule(later=st.booleans())
    def reschedule(self, later: bool) -> None:
        """A pending job moves; a running one is refused."""
        assert self.job is not None
        change = f"execute_at = now() + interval '{3600 if later else 0} seconds'"
        if self.job.owner is not None:
            with pytest.raises(asyncpg.CheckViolationError):
                self.user(change)
            return
        self.user(change)
        self.job.due = not later

    @precondition(lambda self: self.job is not None and self.job.status == "processing")
    @rule()
    def take_back(self) -> None:
        """A user sets a running job back by SQL: the fence of its holder ends."""
        assert self.job is not None
        self.user("status = 'pending'")
        self.job.free("pending")
        self.job.by_hand = True

    @precondition(lambda self: self.job is not None and self.job.status in FINAL and not self.job.forgotten)
    @rule(status=st.sampled_from(LIVE))
    def reopen(self, status: str) -> None:
        """Plain SQL cannot move a finished job into a state that no worker reads."""
        with pytest.raises(asyncpg.CheckViolationError):
            self.user(f"status = '{status}'")

    # ------------------------------------------------------------------ workers

    def _claim(self, token: int) -> list[Any]:
        request = ClaimRequest(token, ClaimPlan(("t",), (5,), 5), [ClaimRange("t", 0)], timedelta(milliseconds=200))
        return self.do(self.store.claim(request)).rows

    @rule(worker=WORKERS)
    def claim(self, worker: int) -> None:
        """A worker claims the job exactly when it is pending and due."""
        rows = self._claim(self.tokens[worker])
        if self.job is None or self.job.status != "pending" or not self.job.due:
            assert rows == []
            return
        assert [row.id for row in rows] == [self.job.id]
        self.job.status, self.job.owner = "processing", self.tokens[worker]
        self.job.attempts += 1
        self.job.fence += 1
        self.job.begun = self.job.attempts < self.job.max_attempts  # a last attempt begins by a separate write
        assert (rows[0].attempts, rows[0].fence) == (self.job.attempts, self.job.fence)

    @precondition(lambda self: self.job is not None)
    @rule(worker=WORKERS)
    def begin(self, worker: int) -> None:
        """A worker may begin exactly while it holds the job; a last attempt counts from here."""
        assert self.job is not None
        begun_here = self.do(self.store.begin_last(self.tokens[worker], [self.job.id], [self.job.fence]))
        assert begun_here == ({self.job.id: True} if self.job.owner == self.tokens[worker] else {})
        self.job.begun = self.job.begun or bool(begun_here)

    @precondition(lambda self: self.zombies)
    @rule()
    def zombie_claims(self) -> None:
        """A session that was declared lost claims nothing."""
        assert self._claim(self.zombies[-1]) == []

    @precondition(lambda self: self.job is not None)
    @rule(name=WRITES, worker=WORKERS)
    def report(self, name: str, worker: int) -> None:
        """A worker's result counts exactly while the worker holds the job."""
        assert self.job is not None
        found = self._write(name, self.tokens[worker])
        if self.job.owner != self.tokens[worker]:
            assert found == 0
            return
        assert found == 1
        self._apply(name, self.job)

    @precondition(lambda self: self.job is not None and self.job.owner is not None)
    @rule(name=WRITES)
    def holder_reports(self, name: str) -> None:
        """The holder's result always counts, whatever users change meanwhile."""
        assert self.job is not None
        assert self.job.owner is not None
        assert self._write(name, self.job.owner) == 1
        self._apply(name, self.job)

    @precondition(lambda self: self.job is not None and self.zombies)
    @rule(name=WRITES, which=st.integers(0, 9))
    def zombie_reports(self, name: str, which: int) -> None:
        """A lost session's result never counts."""
        assert self._write(name, self.zombies[which % len(self.zombies)]) == 0

    def _write(self, name: str, token: int) -> int:
        assert self.job is not None
        columns = COLUMNS.get(name, tuple)()
        fences = ([self.job.fence],) if name in FENCED_BY_JOB else ()
        return self.do(self.store.write(name, token, [self.job.id], *fences, *columns))

    @staticmethod
    def _apply(name: str, job: Model) -> None:
        unbegun = name in {"retry", "release_with_error"} and job.asked_to_stop and not job.begun
        if name in NOTED and not unbegun:
            job.note(NOTED[name])
        if name.startswith("complete"):
            job.free("completed")
            job.forgotten = name == "complete_and_forget"
        elif name == "fail":
            job.free("failed")
        elif name in {"cancel_held", "cancel_unstarted"} or job.asked_to_stop:
            job.free("cancelled")
            job.attempts -= name in {"release", "cancel_unstarted"} or unbegun
        else:
            job.free("pending")
            job.due = True
            job.by_hand = job.by_hand or (name == "retry" and job.attempts >= job.max_attempts)  # no worker writes that
            job.attempts -= name in {"release", "release_with_error", "snooze"}

    @rule(worker=WORKERS)
    def lose(self, worker: int) -> None:
        """A session is declared lost: its job is released, or ends after its last attempt.

        An attempt that was not begun does not count.
        """
        token, job = self.tokens[worker], self.job
        self.do(self._declare_lost(token))
        self.zombies.append(token)
        self.tokens[worker] = self.do(self.pool.fetchval(OPEN))
        if job is None or job.owner != token:
            return
        if job.begun:
            job.note("lost")
        else:
            job.attempts -= 1
        if job.asked_to_stop:
            job.free("cancelled")
        else:
            job.free("failed" if job.attempts >= job.max_attempts else "pending")

    async def _declare_lost(self, token: int) -> None:
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute("UPDATE tickwright.workers SET lost_at = clock_timestamp() WHERE id = $1", token)
            await self.store.reclaim(connection, [token])

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def the_table_says_what_the_model_says(self) -> None:
        """One row per job under one name, in the promised state."""
        if self.job is None:
            return
        rows = self.do(self.pool.fetch(CURRENT, self.job.id))
        if self.job.forgotten:
            assert rows == []
            return
        assert len(rows) == 1, "J1: one job, one row"
        row, job = rows[0], self.job
        assert (row["status"], row["owner"]) == (job.status, job.owner)
        assert job.status == job.last_seen or job.status in TRANSITIONS[job.last_seen], "no such transition"
        job.last_seen = JobStatus(job.status)
        assert (row["attempts"], row["fence"]) == (job.attempts, job.fence)
        assert row["live"] == (job.status in LIVE), "nothing finished stays in the live table"
        assert (row["completed_at"] is not None) == (job.status in FINAL)
        assert row["attempts"] <= row["fence"]
        assert row["attempts"] <= job.max_attempts or job.by_hand, "J4"
        noted = json.loads(row["attempt_errors"] or "[]")
        assert [(one["attempt"], one["fence"], one["worker"], one["outcome"]) for one in noted] == job.noted


def test_a_job_matches_the_model_whatever_users_workers_and_zombies_do(database_url: str) -> None:
    """J1, J3, J4: one row, one holder, no write by another one, no attempt too many."""

    class Life(JobLife):
        url = database_url

    quick = settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=(Phase.generate,),  # shrinking would outlast the test's timeout; the steps are few anyway
    )
    run_state_machine_as_test(Life, settings=quick)


@pytest.mark.parametrize("name", ["release", "release_with_error", "snooze"])
async def test_a_job_whose_cancel_was_requested_does_not_start_again(database_url: str, name: str) -> None:
    """A cancel that was answered as requested outranks a snooze, and the release at a shutdown."""
    pool = await open_pool(database_url, max_size=2)
    try:
        token, store = await pool.fetchval(OPEN), ClaimStore(pool)
        sql = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now(), 't') RETURNING id"
        job_id = await pool.fetchval(sql)
        request = ClaimRequest(token, ClaimPlan(("t",), (5,), 5), [ClaimRange("t", 0)], timedelta(milliseconds=200))
        assert len((await store.claim(request)).rows) == 1
        await pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)
        await store.write(name, token, [job_id], [1], *COLUMNS.get(name, tuple)())
        assert (await store.claim(request)).rows == []
    finally:
        await pool.close()


async def test_a_retry_returns_the_number_of_jobs_that_were_still_held(database_url: str) -> None:
    """The result writer learns how many results counted, so that it counts lost ones once."""
    pool = await open_pool(database_url, max_size=2)
    try:
        token, store = await pool.fetchval(OPEN), ClaimStore(pool)
        await pool.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) "
            "SELECT now(), 't' FROM generate_series(1, 3)"
        )
        request = ClaimRequest(token, ClaimPlan(("t",), (5,), 5), [ClaimRange("t", 0)], timedelta(milliseconds=200))
        ids = [row.id for row in (await store.claim(request)).rows]
        assert await store.write("retry", token, ids, [1] * 3, [60.0] * 3, ["failed"] * 3, ["no luck"] * 3) == 3
        assert await store.write("retry", token, ids, [1] * 3, [60.0] * 3, ["failed"] * 3, ["no luck"] * 3) == 0
    finally:
        await pool.close()
