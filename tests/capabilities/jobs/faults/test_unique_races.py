"""Equal unique jobs at the same moment: two transactions, many connections, a claim, an end, a killed process."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.engine import connect, policy, running_engine
from kit.mutants import mutate_sql
from kit.processes import spawn
from kit.waiting import eventually_async
from tickwright import Job, Unique
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.requests import NewJob
from tickwright.store.pool import Pool, open_pool

KEEP = '{"by": ["c"]}'
DEBOUNCE = '{"by": ["c"], "over": ["pending"], "on_conflict": ["payload"]}'
PUT = "SELECT * FROM tickwright.schedule_unique('t', $1::text::jsonb, $2::text::jsonb)"
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
WAITS = "SELECT count(*) FROM pg_locks WHERE NOT granted"
CLAIM = """
UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 1, fence = fence + 1, attempts = 1
 WHERE id = ANY (ARRAY (SELECT id FROM ONLY tickwright.scheduled_tasks WHERE status = 'pending' FOR UPDATE SKIP LOCKED))
RETURNING id
"""
TWICE = """
SELECT payload FROM ONLY tickwright.scheduled_tasks WHERE status = 'pending' GROUP BY payload HAVING count(*) > 1
"""
OTHERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'
"""
PROGRAM = Path(__file__).parents[3] / "kit" / "unique_program.py"


@asynccontextmanager
async def begun(url: str) -> AsyncIterator[tuple[asyncpg.Connection, Any]]:
    """Yield a connection in a transaction, and the transaction."""
    connection = await connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection, transaction
    finally:
        await connection.close()


async def _waiting(connection: asyncpg.Connection, call: "asyncio.Task[Any]") -> None:
    await eventually_async(lambda: connection.fetchval(WAITS) if not call.done() else asyncio.sleep(0, True))


@pytest.mark.parametrize("commits", [True, False])
async def test_the_second_of_two_transactions_waits_for_the_first(database_url: str, commits: bool) -> None:
    """UNQ-2: it answers with the first one's job, or inserts its own after a rollback."""
    other = await connect(database_url)
    async with begun(database_url) as (connection, transaction):
        first = await connection.fetchrow(PUT, '{"c": 1}', KEEP)
        second = asyncio.create_task(other.fetchrow(PUT, '{"c": 1}', KEEP))
        await _waiting(connection, second)
        assert not second.done()
        await (transaction.commit() if commits else transaction.rollback())
        answer = await second
    assert answer["outcome"] == ("existing" if commits else "inserted")
    assert (answer["job_id"] == first["job_id"]) is commits
    assert await other.fetchval(LIVE) == 1
    await other.close()


async def check_a_kept_job_starts_after_the_commit(url: str) -> None:
    """A caller's transaction that was answered with a pending job: a claim passes it by until the commit."""
    worker = await connect(url)
    first = await worker.fetchrow(PUT, '{"c": 1}', KEEP)
    async with begun(url) as (connection, transaction):
        assert (await connection.fetchrow(PUT, '{"c": 1}', KEEP))["outcome"] == "existing"
        assert await worker.fetch(CLAIM) == [], "UNQ-3 broken: it starts before the caller's commit"
        await transaction.commit()
    assert [row["id"] for row in await worker.fetch(CLAIM)] == [first["job_id"]]
    await worker.close()


async def test_a_kept_job_starts_after_the_commit_of_the_caller(database_url: str) -> None:
    """UNQ-3: so it sees what the caller's transaction has written."""
    await check_a_kept_job_starts_after_the_commit(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_a_kept_job_that_is_not_locked(database_url: str) -> None:
    """A mutant of the guard: the answer of a snapshot."""
    await mutate_sql(database_url, "put_unique", "(conflict <> '[]' OR is_caller)", "(conflict <> '[]')")
    with pytest.raises(AssertionError, match="UNQ-3 broken"):
        await check_a_kept_job_starts_after_the_commit(database_url)


async def check_a_job_that_is_being_claimed_is_not_replaced(url: str, *, commits: bool) -> None:
    """A claim is under way: the replacement waits for it."""
    other = await connect(url)
    first = await other.fetchrow(PUT, '{"c": 1}', DEBOUNCE)
    async with begun(url) as (worker, transaction):
        assert [row["id"] for row in await worker.fetch(CLAIM)] == [first["job_id"]]
        second = asyncio.create_task(other.fetchrow(PUT, '{"c": 1, "n": 2}', DEBOUNCE))
        await _waiting(worker, second)
        await (transaction.commit() if commits else transaction.rollback())
        answer = await second
    payload = await other.fetchval("SELECT payload FROM tickwright.scheduled_tasks WHERE id = $1", first["job_id"])
    if commits:
        assert "n" not in payload, "UNQ-4 broken: the payload of a running job was replaced"
        assert (answer["outcome"], answer["job_id"] == first["job_id"]) == ("inserted", False)
    else:
        assert (answer["outcome"], answer["job_id"]) == ("replaced", first["job_id"])
        assert "n" in payload
    await other.close()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_job_that_is_being_claimed_is_not_replaced(database_url: str, commits: bool) -> None:
    """UNQ-4: a worker has read it, so that the request becomes the next job; after a rollback it is replaced."""
    await check_a_job_that_is_being_claimed_is_not_replaced(database_url, commits=commits)


@pytest.mark.mutant
async def test_the_suite_notices_a_replacement_of_a_claimed_job(database_url: str) -> None:
    """A mutant of the guard: the state is not read again behind the lock."""
    guard = "OR tickwright.unique_state(holder) IS DISTINCT FROM 'pending'"
    await mutate_sql(database_url, "put_into_pending", guard, "")
    with pytest.raises((AssertionError, asyncpg.CheckViolationError)):
        await check_a_job_that_is_being_claimed_is_not_replaced(database_url, commits=True)


async def test_an_end_waits_for_no_caller(database_url: str) -> None:
    """UNQ-5: a transaction that stays open with a job's arguments holds up no worker's result."""
    rule = '{"by": ["c"], "over": ["pending", "processing", "completed"], "period": "1h", "on_conflict": ["time"]}'
    worker = await connect(database_url)
    first = await worker.fetchrow(PUT, '{"c": 1}', rule)
    await worker.fetch(CLAIM)
    async with begun(database_url) as (connection, transaction):
        answer = await connection.fetchrow(PUT, '{"c": 1}', rule)
        assert (answer["outcome"], answer["status"]) == ("existing", "processing")
        await worker.execute("SET lock_timeout = '1s'")
        await worker.execute("UPDATE tickwright.scheduled_tasks SET owner = NULL, status = 'completed'")
        assert (await connection.fetchrow(PUT, '{"c": 1}', rule))["status"] == "completed"
        await transaction.commit()
    assert (await worker.fetchrow(PUT, '{"c": 1}', rule))["job_id"] == first["job_id"]
    await worker.close()


async def check_the_end_of_a_job_whose_arguments_a_caller_has_taken_over(url: str) -> None:
    """A job runs, so that a debounce inserts the next one, in a transaction that stays open: the first one ends."""
    rule = '{"by": ["c"], "over": ["pending", "completed"]}'
    worker = await connect(url)
    first = await worker.fetchrow(PUT, '{"c": 1}', rule)
    await worker.fetch(CLAIM)
    async with begun(url) as (connection, transaction):
        assert (await connection.fetchrow(PUT, '{"c": 1}', rule))["outcome"] == "inserted"
        await _end(worker, first["job_id"])
        await transaction.commit()
    await worker.close()


async def _end(worker: asyncpg.Connection, job_id: int) -> None:
    await worker.execute("SET lock_timeout = '1s'")
    try:
        await worker.execute("DELETE FROM ONLY tickwright.scheduled_tasks WHERE id = $1 AND owner = 1", job_id)
    except asyncpg.LockNotAvailableError:
        raise AssertionError("UNQ-5 broken: an end waits for a caller") from None


async def test_an_end_locks_no_arguments(database_url: str) -> None:
    """UNQ-5: a caller's transaction has the arguments of a job that runs; its end does not wait for it."""
    await check_the_end_of_a_job_whose_arguments_a_caller_has_taken_over(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_an_end_that_locks_the_arguments(database_url: str) -> None:
    """A mutant of the guard: the end locks the row that says whose the arguments are."""
    guard = "AND (u.until IS NULL OR u.until > clock_timestamp());"
    await mutate_sql(database_url, "end_unique_job", guard, guard.replace(";", " FOR UPDATE;"))
    with pytest.raises(AssertionError, match="UNQ-5 broken"):
        await check_the_end_of_a_job_whose_arguments_a_caller_has_taken_over(database_url)


async def check_a_request_that_waited_for_a_claim(url: str) -> None:
    """A request has waited for a claim, and its transaction stays open: the job of the claim ends."""
    worker = await connect(url)
    await worker.fetchrow(PUT, '{"c": 1}', DEBOUNCE)
    async with begun(url) as (connection, transaction):
        claim = worker.transaction()
        await claim.start()
        [row] = await worker.fetch(CLAIM)
        call = asyncio.create_task(connection.fetchrow(PUT, '{"c": 1, "n": 2}', DEBOUNCE))
        await _waiting(worker, call)
        await claim.commit()
        assert (await call)["outcome"] == "inserted"
        await _end(worker, row["id"])
        await transaction.commit()
    await worker.close()


async def test_a_claim_that_another_caller_holds_up_locks_no_running_job(database_url: str) -> None:
    """A request that has waited for a claim releases its lock on the job, which runs now: its end does not wait."""
    await check_a_request_that_waited_for_a_claim(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_a_request_that_keeps_its_lock_on_a_running_job(database_url: str) -> None:
    """A mutant of the guard: the lock is taken outside of the subtransaction that releases it."""
    guard = "BEGIN\n          RETURN tickwright.put_into_pending"
    lock = "PERFORM FROM ONLY tickwright.scheduled_tasks t WHERE t.id = holder.job_id FOR NO KEY UPDATE;"
    await mutate_sql(database_url, "put_unique", guard, f"{lock} {guard}")
    with pytest.raises(AssertionError, match="UNQ-5 broken"):
        await check_a_request_that_waited_for_a_claim(database_url)


async def check_many_connections(url: str) -> None:
    """Twelve connections insert, replace and claim five sets of arguments, singly and in bulk."""
    pool = await open_pool(url, min_size=1, max_size=12)
    await pool.execute(
        "INSERT INTO tickwright.task_types (name, target) VALUES ('t', 'python:t') ON CONFLICT DO NOTHING"
    )
    rules = [
        Unique(by=("c",), over=("pending",), on_conflict=one) for one in ("keep", ("payload",), ("time", "priority"))
    ]
    outcomes: Counter[str] = Counter()

    async def one(seed: int) -> None:
        chance, enqueuer = random.Random(seed), Enqueuer(pool)
        for _ in range(25):
            jobs = [NewJob("t", f'{{"c": {chance.randrange(5)}}}', unique=chance.choice(rules)) for _ in range(20)]
            made = await (enqueuer.schedule_many(jobs) if chance.random() < 0.5 else _each(enqueuer, jobs))
            outcomes.update(one.outcome for one in made)
            if chance.random() < 0.2:
                await pool.fetch(CLAIM)
            assert await pool.fetch(TWICE) == [], "UNQ-2 broken: two equal pending jobs"

    try:
        await asyncio.gather(*map(one, range(10)))
        jobs = await pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks")
        assert outcomes["inserted"] == jobs
        assert min(outcomes["existing"], outcomes["replaced"]) > 0
    finally:
        await pool.close()


async def _each(enqueuer: Enqueuer, jobs: list[NewJob]) -> list[Any]:
    return await asyncio.gather(*map(enqueuer.schedule, jobs))


async def test_many_connections_make_one_job_of_equal_ones(database_url: str) -> None:
    """UNQ-2 under load: never two equal pending jobs, no deadlock, and each insertion is answered once."""
    await check_many_connections(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_an_insert_without_the_row_of_its_arguments(database_url: str) -> None:
    """A mutant of the guard: the row is taken whichever job has it."""
    await mutate_sql(database_url, "put_unique", "WHERE u.job_id = holder.job_id;", ";")
    with pytest.raises((AssertionError, ExceptionGroup)):
        await check_many_connections(database_url)


async def test_a_held_row_delays_only_its_own_arguments(database_url: str) -> None:
    """A transaction stays open with one set of arguments: others are scheduled, the held one is refused."""
    pool = await open_pool(database_url, min_size=1, max_size=4)
    await pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('t', 'python:t')")
    rule, enqueuer = Unique(by=("c",)), Enqueuer(pool)
    async with begun(database_url) as (connection, _):
        await connection.fetchrow(PUT, '{"c": 1}', KEEP)
        held = asyncio.create_task(enqueuer.schedule(NewJob("t", '{"c": 1}', unique=rule)))
        made = await asyncio.gather(
            *(enqueuer.schedule(NewJob("t", f'{{"c": {n}}}', unique=rule)) for n in range(2, 40))
        )
        assert all(one.created for one in made)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await held
    assert not enqueuer._unique._held
    await pool.close()


async def test_a_worker_and_requests_run_each_change_once_more(database_url: str) -> None:
    """Debounce under a worker: behind the last request of each customer, there is a run that sees it."""
    seen: dict[int, int] = {}

    async def handler(job: Job, c: int, n: int) -> None:
        seen[c] = max(seen.get(c, 0), n)

    async with running_engine(database_url, {"t": handler}, kinds={"t": policy("t")}) as engine:
        enqueuer = Enqueuer(engine.pool)
        rule = Unique(by=("c",), over=("pending",), on_conflict=("payload",))
        for n in range(60):
            calls = [enqueuer.schedule(NewJob("t", f'{{"c": {c}, "n": {n}}}', unique=rule)) for c in range(6)]
            await asyncio.gather(*calls)
        await eventually_async(lambda: _none(engine.pool), what="all to end")
    assert seen == dict.fromkeys(range(6), 59), "a change was lost"


async def _none(pool: Pool) -> bool:
    return bool(await pool.fetchval(LIVE) == 0)


async def test_a_killed_program_leaves_no_arguments_behind_that_no_job_holds(database_url: str, tmp_path: Path) -> None:
    """UNQ-2 with kill -9 of programs that insert, replace and claim: arguments are those of a job, or free."""
    connection = await connect(database_url)
    await connection.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('t', 'python:t')")
    for round_ in range(4):
        programs = [
            spawn([sys.executable, str(PROGRAM), database_url], tmp_path / f"{round_}-{n}.out", {}) for n in range(2)
        ]
        before = await connection.fetchval("SELECT last_value FROM tickwright.scheduled_tasks_id_seq")
        await eventually_async(partial(_grown, connection, before), 60, what="requests")
        for program in programs:
            program.kill()
            program.wait()
    await eventually_async(lambda: _alone(connection), what="the end of the killed connections")
    assert await connection.fetch(TWICE) == []
    made = [await connection.fetchrow(PUT, f'{{"c": {c}}}', KEEP) for c in range(20)]
    pending = await connection.fetchval("SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE status = 'pending'")
    assert pending == len({one["job_id"] for one in made}) == 20
    await connection.close()


async def _grown(connection: asyncpg.Connection, before: int) -> bool:
    now: int = await connection.fetchval("SELECT last_value FROM tickwright.scheduled_tasks_id_seq")
    return now > before + 30


async def _alone(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval(OTHERS) == 0)
