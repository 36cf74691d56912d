"""A test in one transaction: nothing of it stays, and its borrowers behave as with connections of their own."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import asyncpg
import pytest

from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright import Job, Rejected, Tickwright
from tickwright.testing import assert_scheduled, refute_scheduled, travel
from tickwright.testing.databases import ScratchDatabase
from tickwright.testing.isolation import IsolatedPool, _Line, isolated_pool
from tickwright.testing.opening import OpenApp

own = Tickwright()


@own.job("note")
async def note(job: Job, text: str = "") -> str:
    """Write a row by the app's pool, and schedule beside it."""
    async with own.pool.acquire() as connection, connection.transaction():
        await connection.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
        await connection.execute("INSERT INTO notes VALUES ($1)", text)
        await other.schedule()
    return text


@own.job("other")
async def other(job: Job) -> None:
    """Do nothing."""


async def check_that_nothing_stays(tickwright_app: OpenApp, database: ScratchDatabase) -> None:
    """Do all that an isolated test can do, and look from outside."""
    async with tickwright_app(own) as app:
        await note.options(key="k").schedule(text="a")
        await app.drain()
        await note.options(delay="1d", key="l").schedule(text="b")
        await app.drain(until="2d")
        await travel(app, "3d")
        assert await app.pool.fetchval("SELECT count(*) FROM notes") == 2
        await other.schedule()
    outside = await asyncpg.connect(database.url)
    tables = ("scheduled_tasks", "job_keys", "workers", "task_types")
    left = [await outside.fetchval(f"SELECT count(*) FROM tickwright.{table}") for table in tables]
    assert left == [0] * len(tables)
    assert await outside.fetchval("SELECT to_regclass('notes')") is None
    ahead = await outside.fetchval("SELECT ahead FROM tickwright_test.clock")
    await outside.close()
    assert ahead == timedelta()


async def test_nothing_of_an_isolated_test_stays(
    tickwright_app: OpenApp, tickwright_session_database: ScratchDatabase
) -> None:
    """No job, key, declaration, session, table of its own or moved clock, jobs of a drain included."""
    await check_that_nothing_stays(tickwright_app, tickwright_session_database)


@pytest.mark.parametrize("round_", [1, 2])
async def test_the_next_test_begins_empty(tickwright_app: OpenApp, round_: int) -> None:
    """The same key schedules a job each time."""
    async with tickwright_app(own) as app:
        await refute_scheduled(app, "other")
        assert (await other.options(key="same").schedule()).created
        await assert_scheduled(app, other)


async def test_the_suite_notices_a_test_that_commits(
    tickwright_server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a COMMIT at the end, the check of what stays fails."""
    server = tickwright_server
    database = server.create()  # type: ignore[attr-defined]
    mutate(monkeypatch, isolated_pool, '"ROLLBACK"', '"COMMIT"')
    async with isolated_pool(database.url) as pool:
        await pool.execute("CREATE TABLE notes ()")
    outside = await asyncpg.connect(database.url)
    assert await outside.fetchval("SELECT to_regclass('notes')") is not None
    await outside.close()
    server.drop(database)  # type: ignore[attr-defined]


@pytest.fixture
def url(tickwright_session_database: ScratchDatabase) -> str:
    """The database of isolated tests."""
    return tickwright_session_database.url


async def _numbers(pool: IsolatedPool) -> list[int]:
    return [row[0] for row in await pool.fetch("SELECT n FROM numbers ORDER BY n")]


async def test_an_error_outside_of_a_transaction_costs_one_statement(url: str) -> None:
    """A constraint that a test expects to fail does not break the rest of the test."""
    async with isolated_pool(url) as pool:
        await pool.execute("CREATE TABLE numbers (n int PRIMARY KEY)")
        await pool.execute("INSERT INTO numbers VALUES (1)")
        with pytest.raises(asyncpg.UniqueViolationError):
            await pool.execute("INSERT INTO numbers VALUES (1)")
        assert await _numbers(pool) == [1]


async def test_a_transaction_that_fails_takes_back_its_own_statements(url: str) -> None:
    """Also nested ones, each its own part; the connection says whether it is in one."""
    async with isolated_pool(url) as pool:
        await pool.execute("CREATE TABLE numbers (n int)")
        connection = await pool.acquire()
        assert not connection.is_in_transaction()
        with suppress(ZeroDivisionError):
            async with connection.transaction():
                assert connection.is_in_transaction()
                await connection.execute("INSERT INTO numbers VALUES (1)")
                raise ZeroDivisionError
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute("INSERT INTO numbers VALUES (2)")
            with suppress(asyncpg.DivisionByZeroError):
                async with connection.transaction():
                    await connection.execute("INSERT INTO numbers VALUES (3)")
                    await connection.execute("SELECT 1 / 0")
        assert await _numbers(pool) == [2]


async def test_transactions_may_overlap_in_any_order(url: str) -> None:
    """The one that began first may end first; what both wrote is there."""
    async with isolated_pool(url) as pool:
        await pool.execute("CREATE TABLE numbers (n int)")
        one, two = await pool.acquire(), await pool.acquire()
        first, second = one.transaction(), two.transaction()
        await first.start()
        await one.execute("INSERT INTO numbers VALUES (1)")
        await second.start()
        await two.execute("INSERT INTO numbers VALUES (2)")
        await first.commit()
        await one.execute("INSERT INTO numbers VALUES (3)")
        await second.commit()
        assert await _numbers(pool) == [1, 2, 3]


async def test_what_a_rollback_of_another_connection_takes_back_is_an_error(url: str) -> None:
    """One connection cannot keep it, and a test must not believe that it was kept, or that it never was."""
    async with isolated_pool(url) as pool:
        await pool.execute("CREATE TABLE numbers (n int)")
        one, two = await pool.acquire(), await pool.acquire()
        first, second = one.transaction(), two.transaction()
        await first.start()
        await second.start()
        await two.execute("INSERT INTO numbers VALUES (2)")
        await first.rollback()
        with pytest.raises(Rejected, match="INSERT INTO numbers") as refused:
            await second.commit()
        assert refused.value.code == "isolated_transactions_overlap"
        await first.start()
        await pool.execute("INSERT INTO numbers VALUES (3)")
        with pytest.raises(Rejected, match="INSERT INTO numbers"):
            await first.rollback()
        assert await _numbers(pool) == []


async def test_a_handler_that_schedules_outside_of_its_failing_transaction_is_found(tickwright_app: OpenApp) -> None:
    """Without ``connection=`` the job would stay in production; with it, it is rolled back in both."""
    wrong = Tickwright()

    @wrong.job("next")
    async def following(job: Job) -> None:
        """Do nothing."""

    @wrong.job("order")
    async def order(job: Job, together: bool) -> None:
        async with wrong.pool.acquire() as connection, connection.transaction():
            await following.options(connection=connection if together else None).schedule()
            raise ZeroDivisionError

    async with tickwright_app(wrong) as app:
        await order.schedule(together=False)
        with pytest.raises(Rejected, match="connection="):
            await app.drain()
        await order.schedule(together=True)
        with pytest.raises(ZeroDivisionError):
            await app.drain()
        await refute_scheduled(app, following)


async def test_the_suite_notices_writes_that_are_not_noted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no note of what others write, a rollback takes it back in silence."""
    mutate(monkeypatch, _Line.note, "if self.savepoints and", "if False and")
    with pytest.raises(pytest.fail.Exception):
        await test_what_a_rollback_of_another_connection_takes_back_is_an_error(url)


async def test_statements_of_many_borrowers_wait_for_each_other(url: str) -> None:
    """A hundred at once, in transactions and outside."""
    async with isolated_pool(url) as pool:
        await pool.execute("CREATE TABLE numbers (n int)")

        async def write(number: int) -> None:
            async with pool.acquire() as connection:
                if number % 2:
                    await connection.execute("INSERT INTO numbers VALUES ($1)", number)
                    return
                async with connection.transaction():
                    await connection.execute("INSERT INTO numbers VALUES ($1)", number)

        await asyncio.gather(*(write(number) for number in range(100)))
        assert await _numbers(pool) == list(range(100))


async def test_a_cancelled_statement_leaves_the_test_usable(url: str) -> None:
    """A timeout of a handler may fall into a statement."""
    async with isolated_pool(url) as pool:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pool.execute("SELECT pg_sleep(60)")
        assert await pool.fetchval("SELECT 1") == 1


async def test_time_passes_within_the_transaction(url: str) -> None:
    """``now()`` is the time of the statement, or a job that is scheduled later would be due when the test began."""
    async with isolated_pool(url) as pool:
        first = await pool.fetchval("SELECT now()")
        await eventually_async(lambda: pool.fetchval("SELECT now() > $1", first), what="the time passes")
        assert await pool.fetchval("SELECT now() = statement_timestamp() AND now() = transaction_timestamp()")


async def test_apps_of_one_test_share_its_transaction(tickwright_app: OpenApp) -> None:
    """What one program schedules, the other one runs."""
    caller = Tickwright()
    async with tickwright_app(own) as first, tickwright_app(caller) as second:
        await second.schedule("other")
        await assert_scheduled(first, other)
        assert (await first.drain()).counts == {"completed": 1}


@pytest.mark.parametrize("text", ["COMMIT", "-- done\n rollback;", "END TRANSACTION", "Abort"])
async def test_a_statement_that_ends_the_transaction_of_the_test_is_refused(tickwright_app: OpenApp, text: str) -> None:
    """What it commits would stay for all tests that follow; a rollback to a savepoint is no such statement."""
    async with tickwright_app(own) as app, app.pool.acquire() as connection, connection.transaction():
        await connection.execute("SAVEPOINT mine")
        with pytest.raises(Rejected, match="isolated=False") as refused:
            await connection.execute(text)
        assert refused.value.code == "isolated_transaction_ends"
        await connection.execute("ROLLBACK TO mine")
        await connection.execute("DO $$ BEGIN NULL; END $$")
