"""The app object schedules alone, together, and inside the caller's own transaction."""

import math
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from kit.engine import job_row
from kit.postgres import sqlalchemy_url
from tickwright import Contended, Job, Rejected, RetryPolicy, Scheduled, Tickwright, Unavailable
from tickwright.capabilities.jobs.admin.search import ListQuery

_ALL = ListQuery()
DUE = datetime(2031, 5, 1, 9, tzinfo=UTC)


def program(url: str) -> Tickwright:
    """Return an app with one handler."""
    app = Tickwright(url)

    @app.job("mail", timeout="5s", max_attempts=7, rate="600/min", retry={"base": "2s", "factor": 3, "cap": "1m"})
    async def mail(_job: Job, to: str) -> None: ...

    return app


@pytest_asyncio.fixture
async def app(database_url: str) -> AsyncIterator[Tickwright]:
    """An open app on a fresh database."""
    async with program(database_url) as app:
        yield app


@pytest_asyncio.fixture
async def db(database_url: str) -> AsyncIterator[Any]:
    """A plain connection to the same database."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def test_a_handler_becomes_a_task_type_when_the_app_opens(app: Tickwright) -> None:
    """What the decorator says is what the row says."""
    kind = await app.service.types.get("mail")
    assert (kind.target, kind.timeout, kind.max_attempts, kind.rate_per_s) == ("python:mail", "5s", 7, 10.0)
    assert (kind.retry_base, kind.retry_factor, kind.retry_cap) == ("2s", 3.0, "1m")


async def test_a_scheduled_job_is_committed_when_the_call_returns(app: Tickwright, db: Any) -> None:
    """The row has what was asked for, and the type's attempts."""
    made = await app.schedule("mail", {"to": "ann"}, at=DUE, priority=3, timeout="2s", expires_at=DUE + timedelta(1))
    row = await job_row(db, made.id)
    assert made == Scheduled(row["id"], created=True)
    assert (row["execute_at"], row["priority"], row["timeout_ms"], row["max_attempts"]) == (DUE, 3, 2000, 7)
    assert row["payload"] == '{"to": "ann"}'


async def test_a_delay_counts_from_the_clock_of_the_database(app: Tickwright, db: Any) -> None:
    """No clock of ours takes part."""
    before = await db.fetchval("SELECT clock_timestamp()")
    made = await app.schedule("mail", {"to": "ann"}, delay="1h30m")
    after = await db.fetchval("SELECT clock_timestamp()")
    due = (await job_row(db, made.id))["execute_at"] - timedelta(hours=1.5)
    assert before <= due <= after


async def test_the_same_key_schedules_nothing_twice(app: Tickwright) -> None:
    """Same key and same job: the first job's id; same key and another job: an error that says so."""
    first = await app.schedule("mail", {"to": "ann", "cc": "bob"}, at=DUE, key="k")
    assert await app.schedule("mail", {"cc": "bob", "to": "ann"}, at=DUE, key="k") == Scheduled(first.id, created=False)
    with pytest.raises(Contended) as contended:
        await app.schedule("mail", {"to": "eve"}, at=DUE, key="k")
    assert contended.value.code == "key_reused"


async def test_many_jobs_go_in_together_or_not_at_all(app: Tickwright, db: Any) -> None:
    """One refused job takes the whole call with it."""
    good = [app.new_job("mail", {"to": str(n)}, at=DUE, key=f"k{n}") for n in range(3)]
    made = await app.schedule_many(good)
    assert [answer.created for answer in made] == [True] * 3
    with pytest.raises(Contended):
        await app.schedule_many([app.new_job("mail", at=DUE), app.new_job("mail", {"to": "x"}, at=DUE, key="k1")])
    assert await db.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 3


async def test_bulk_takes_any_number_of_jobs_without_keys(app: Tickwright, db: Any) -> None:
    """COPY knows no conflicts, so keys are refused, and then nothing is in."""
    assert await app.schedule_bulk(app.new_job("mail", {"n": n}, at=DUE) for n in range(12_000)) == 12_000
    with pytest.raises(Rejected) as refused:
        await app.schedule_bulk([app.new_job("mail", at=DUE), app.new_job("mail", at=DUE, key="k")])
    assert refused.value.code == "key_in_bulk"
    assert await db.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 12_000


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("naive_datetime", {"at": DUE.replace(tzinfo=None)}),
        ("execute_at_and_delay", {"at": DUE, "delay": "1s"}),
        ("invalid_duration", {"delay": "5"}),
        ("invalid_duration", {"delay": timedelta(seconds=-1)}),
        ("invalid_duration", {"timeout": 5}),
        ("invalid_priority", {"priority": 101}),
        ("invalid_max_attempts", {"max_attempts": 0}),
        ("invalid_key", {"key": ""}),
        ("non_finite_number", {"payload": {"a": [1.0, math.nan]}}),
        ("unsupported_character", {"payload": {"a": "\0"}}),
        ("invalid_payload", {"payload": {"a": object()}}),
        ("invalid_payload", {"payload": {"a": [2**63]}}),
        ("invalid_payload", {"payload": {"a": -(2**70)}}),
        ("invalid_payload", {"payload": {"a": [{"b": {1, 2}}]}}),
        ("invalid_payload", {"payload": (frozenset(),)}),
        ("payload_too_large", {"payload": "x" * 70_000}),
        ("unknown_task_type", {"name": "unknown.type"}),
        ("invalid_datetime", {"at": "2030-01-31T09:00:00Z"}),
        ("invalid_datetime", {"expires_at": DUE.date()}),
        ("invalid_priority", {"priority": "5"}),
        ("invalid_priority", {"priority": 1.5}),
        ("invalid_max_attempts", {"max_attempts": 2.5}),
        ("invalid_key", {"key": 42}),
        ("invalid_key", {"key": b"42"}),
        ("invalid_group", {"group": 42}),
        ("invalid_tags", {"tags": 42}),
        ("invalid_unique", {"unique": True}),
    ],
)
async def test_what_is_out_of_bounds_is_refused_before_it_reaches_the_database(
    app: Tickwright, code: str, arguments: dict[str, Any]
) -> None:
    """Each mistake has its own stable code, and the row that was not wanted is not there."""
    with pytest.raises(Rejected) as refused:
        await app.schedule(**{"name": "mail", "payload": {"to": "ann"}, **arguments})
    assert refused.value.code == code
    assert (await app.service.list(_ALL)).items == []


async def test_a_job_is_not_moved_to_a_time_that_no_job_may_have(app: Tickwright) -> None:
    """A time without its offset is refused as in a new job, and not read as one of UTC."""
    job = await app.schedule("mail", at=DUE)
    for at in (DUE.replace(tzinfo=None), "2030-01-31T09:00:00Z"):
        with pytest.raises(Rejected) as refused:
            await app.reschedule(job.id, at=at)  # type: ignore[arg-type]
        assert refused.value.code in {"naive_datetime", "invalid_datetime"}
    assert (await job.get()).due_at == DUE


@pytest.mark.parametrize(
    ("destination", "code"),
    [
        ("https://169.254.169.254/latest", "ssrf_blocked"),
        ("https://[::1]/", "ssrf_blocked"),
        ("http://8.8.8.8/", "ssrf_blocked"),
        ("ws://example.org/", "ssrf_blocked"),
        ("ftp://example.org/", "invalid_target"),
        ("python:mail", "invalid_target"),
    ],
)
async def test_a_message_that_could_never_leave_is_refused_when_it_is_published(
    app: Tickwright, db: Any, destination: str, code: str
) -> None:
    """By what the address itself says, with the code that a task type's target gets; nothing is stored."""
    with pytest.raises(Rejected) as refused:
        await app.publish(destination, {})
    assert refused.value.code == code
    assert await db.fetchval("SELECT count(*) FROM tickwright.outbox") == 0


async def test_an_app_that_is_not_open_is_refused(database_url: str) -> None:
    """The remedy is in the message."""
    with pytest.raises(Unavailable, match="async with app") as away:
        await program(database_url).schedule("mail", {"to": "ann"})
    assert away.value.code == "app_not_open"


def test_every_mistake_of_a_decorator_is_named_at_once() -> None:
    """A programmer fixes them in one go."""
    with pytest.raises(Rejected) as refused:
        Tickwright().job("a b", timeout="5", max_attempts=0, rate="50", retry={"bse": "1s"})(lambda _job: None)
    assert [problem.split(":")[0] for problem in refused.value.details["problems"]] == [
        "@app.job('a b')",
        "@app.job('a b').timeout",
        "@app.job('a b').max_attempts",
        "@app.job('a b').rate",
        "@app.job('a b').retry",
    ]


@pytest.mark.parametrize(
    "retry", [{"base": "2m", "cap": "1m"}, RetryPolicy(timedelta(minutes=2), 2, timedelta(minutes=1))]
)
def test_a_first_wait_above_the_longest_is_refused(retry: Any) -> None:
    """In whatever way the policy is written."""
    with pytest.raises(Rejected, match="above cap") as refused:
        Tickwright().job("a", retry=retry)(lambda _job: None)
    assert refused.value.code == "invalid_task_type"


# ---------------------------------------------------------------------- the caller's transaction


async def _asyncpg(app: Tickwright, url: str, *, commit: bool) -> list[int]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    ids = await _use(app, connection)
    await (transaction.commit() if commit else transaction.rollback())
    await connection.close()
    return ids


async def _psycopg(app: Tickwright, url: str, *, commit: bool) -> list[int]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        ids = await _use(app, connection)
        await (connection.commit() if commit else connection.rollback())
    return ids


async def _alchemy(app: Tickwright, url: str, *, commit: bool, driver: str = "asyncpg") -> list[int]:
    engine = create_async_engine(sqlalchemy_url(url).replace("+psycopg", f"+{driver}"))
    async with engine.connect() as connection:
        ids = await _use(app, connection)
        await (connection.commit() if commit else connection.rollback())
    await engine.dispose()
    return ids


async def _alchemy_psycopg(app: Tickwright, url: str, *, commit: bool) -> list[int]:
    return await _alchemy(app, url, commit=commit, driver="psycopg")


async def _alchemy_session(app: Tickwright, url: str, *, commit: bool) -> list[int]:
    engine = create_async_engine(sqlalchemy_url(url))
    async with AsyncSession(engine) as session:
        ids = await _use(app, session)
        await (session.commit() if commit else session.rollback())
    await engine.dispose()
    return ids


async def _use(app: Tickwright, connection: Any) -> list[int]:
    plain = await app.schedule("mail", {"to": "100 % ann: :x $1"}, at=DUE, timeout="3s", connection=connection)
    keyed = await app.schedule("mail", {"to": "bob"}, delay="1h", key="k", connection=connection)
    again = await app.schedule("mail", {"to": "bob"}, delay="1h", key="k", connection=connection)
    assert (keyed.created, again) == (True, Scheduled(keyed.id, created=False))
    many = await app.schedule_many([app.new_job("mail", at=DUE), app.new_job("mail", at=DUE)], connection=connection)
    message = await app.publish("pg:topic", {"a": 1}, key="k", headers={"x-a": "b"}, connection=connection)
    assert message > 0
    return [plain.id, keyed.id, *(job.id for job in many)]


ASYNC_WAYS = [_asyncpg, _psycopg, _alchemy, _alchemy_psycopg, _alchemy_session]


@pytest.mark.parametrize("way", ASYNC_WAYS)
async def test_jobs_and_messages_are_committed_with_the_callers_transaction(
    app: Tickwright, database_url: str, db: Any, way: Any
) -> None:
    """Whatever the driver, the commit is the caller's."""
    ids = await way(app, database_url, commit=True)
    rows = await db.fetch("SELECT * FROM tickwright.scheduled_tasks ORDER BY id")
    assert [row["id"] for row in rows] == sorted(ids)
    assert rows[0]["payload"] == '{"to": "100 % ann: :x $1"}'
    assert (rows[0]["execute_at"], rows[0]["timeout_ms"]) == (DUE, 3000)
    outbox = await db.fetchrow("SELECT destination, key, payload, headers FROM tickwright.outbox")
    assert tuple(outbox) == ("pg:topic", "k", '{"a": 1}', '{"x-a": "b"}')


@pytest.mark.parametrize("way", ASYNC_WAYS)
async def test_jobs_and_messages_vanish_with_the_callers_rollback(
    app: Tickwright, database_url: str, db: Any, way: Any
) -> None:
    """What was rolled back never was; its key is free."""
    await way(app, database_url, commit=False)
    assert await db.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 0
    assert await db.fetchval("SELECT count(*) FROM tickwright.outbox") == 0
    assert (await app.schedule("mail", {"to": "eve"}, key="k")).created


async def test_a_connection_without_a_transaction_is_refused(app: Tickwright, database_url: str, db: Any) -> None:
    """It would commit at once, whatever the caller does later."""
    with pytest.raises(Rejected) as refused:
        await app.schedule("mail", {"to": "ann"}, connection=db)
    assert refused.value.code == "no_transaction"
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        with pytest.raises(Rejected, match="transaction"):
            await app.schedule("mail", {"to": "ann"}, connection=connection)
        async with connection.transaction():
            assert (await app.schedule("mail", {"to": "ann"}, connection=connection)).created


async def test_a_synchronous_connection_is_shown_the_way(app: Tickwright, database_url: str) -> None:
    """It would block the event loop."""
    with psycopg.connect(database_url) as connection, pytest.raises(Rejected, match="schedule_sync") as refused:
        await app.schedule("mail", {"to": "ann"}, connection=connection)
    assert refused.value.code == "unsupported_connection"


def _sync_use(app: Tickwright, connection: Any) -> int:
    made = app.schedule_sync("mail", {"to": "ann"}, at=DUE, key="k", connection=connection)
    assert app.publish_sync("pg:topic", {"a": 1}, connection=connection) > 0
    with pytest.raises(Rejected) as refused:
        app.schedule_sync("unknown.type", connection=connection)
    assert refused.value.code == "unknown_task_type"
    return made.id


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy connection", "sqlalchemy session"])
async def test_a_synchronous_program_schedules_in_its_own_transaction(
    app: Tickwright, database_url: str, db: Any, kind: str, commit: bool
) -> None:
    """The app is not even open in such a program; the transaction decides as ever."""
    closed = program(database_url)
    engine = sqlalchemy.create_engine(sqlalchemy_url(database_url))
    openers: dict[str, Callable[[], Any]] = {
        "psycopg": lambda: psycopg.connect(database_url),
        "sqlalchemy connection": engine.connect,
        "sqlalchemy session": lambda: Session(engine),
    }
    with openers[kind]() as connection:
        _sync_use(closed, connection)
        finish: Any = connection.commit if commit else connection.rollback
        finish()
    engine.dispose()
    assert await db.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == int(commit)
    assert await db.fetchval("SELECT count(*) FROM tickwright.outbox") == int(commit)
