"""The caller's own connection: AUTOCOMMIT of SQLAlchemy, pipelines of psycopg."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from kit.mutants import mutate
from kit.postgres import sqlalchemy_url
from tickwright import Rejected, Tickwright
from tickwright.store import borrowed

LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
DRIVERS = ["asyncpg", "psycopg"]


# ---------------------------------------------------------------------- AUTOCOMMIT


async def _refusal(work: Coroutine[Any, Any, Any]) -> str | None:
    try:
        await work
    except Rejected as refused:
        return refused.code
    return None


async def check_autocommit_is_refused(app: Tickwright, url: str, other: Any, driver: str) -> None:
    """BOR-1, for asynchronous connections and sessions, set on the engine or on the connection."""
    address = sqlalchemy_url(url).replace("+psycopg", f"+{driver}")
    plain, alone = create_async_engine(address), create_async_engine(address, isolation_level="AUTOCOMMIT")

    async def one(connection: Any) -> None:
        for work in (
            lambda: app.schedule("mail", {"to": "ann"}, connection=connection),
            lambda: app.publish("pg:topic", {}, connection=connection),
            lambda: app.track("a", "p", "x", connection=connection),
        ):
            assert await _refusal(work()) == "no_transaction", "BOR-1 broken: nothing could roll this back"

    async with alone.begin() as connection:
        await one(connection)
    async with plain.connect() as connection:
        await one(await connection.execution_options(isolation_level="AUTOCOMMIT"))
    async with AsyncSession(alone) as session:
        await one(session)
    async with AsyncSession(plain) as session:
        await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        await one(session)
    async with plain.connect() as connection:
        serializable = await connection.execution_options(isolation_level="SERIALIZABLE")
        assert (await app.schedule("mail", {"to": "ann"}, connection=serializable)).created
        await connection.rollback()
    await plain.dispose()
    await alone.dispose()
    assert await other.fetchval(LIVE) == 0


@pytest.mark.parametrize("driver", DRIVERS)
async def test_autocommit_of_sqlalchemy_is_refused(app: Tickwright, database_url: str, other: Any, driver: str) -> None:
    """BOR-1."""
    await check_autocommit_is_refused(app, database_url, other, driver)


async def test_the_suite_notices_a_connection_that_is_not_asked_whether_it_commits_alone(
    app: Tickwright, database_url: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the guard."""
    mutate(monkeypatch, borrowed._commits_alone, "connection is not None and", "False and")
    with pytest.raises(AssertionError, match="BOR-1 broken"):
        await check_autocommit_is_refused(app, database_url, other, "asyncpg")


async def test_autocommit_of_a_synchronous_sqlalchemy_is_refused(
    app: Tickwright, database_url: str, other: Any
) -> None:
    """BOR-1."""
    closed = Tickwright(database_url)

    def one(connection: Any) -> None:
        with pytest.raises(Rejected) as refused:
            closed.schedule_sync("mail", {"to": "ann"}, connection=connection)
        assert refused.value.code == "no_transaction"

    def work() -> None:
        address = sqlalchemy_url(database_url)
        plain, alone = (
            sqlalchemy.create_engine(address),
            sqlalchemy.create_engine(address, isolation_level="AUTOCOMMIT"),
        )
        with alone.begin() as connection:
            one(connection)
        with plain.connect() as connection:
            one(connection.execution_options(isolation_level="AUTOCOMMIT"))
        for engine in (alone, plain.execution_options(isolation_level="AUTOCOMMIT")):
            with Session(engine) as session:
                one(session)
        with plain.begin() as connection:
            assert closed.schedule_sync("mail", {"to": "ann"}, connection=connection).created
        plain.dispose()
        alone.dispose()

    await asyncio.to_thread(work)
    assert await other.fetchval(LIVE) == 1


# ---------------------------------------------------------------------- pipelines, keys


async def test_a_pipeline_of_psycopg_schedules(app: Tickwright, database_url: str, other: Any) -> None:
    """The answers are those of the database; whether the pipeline is synchronous or not."""
    closed = Tickwright(database_url)

    def work() -> None:
        with psycopg.connect(database_url) as connection, connection.pipeline():
            connection.execute("SELECT 1")
            assert closed.schedule_sync("mail", {"to": "ann"}, connection=connection).created
            assert closed.schedule_sync("mail", {"to": "ann"}, key="k", connection=connection).created
            assert not closed.schedule_sync("mail", {"to": "ann"}, key="k", connection=connection).created

    await asyncio.to_thread(work)
    async with await psycopg.AsyncConnection.connect(database_url) as connection, connection.pipeline():
        assert (await app.schedule("mail", {"to": "ann"}, connection=connection)).created
    assert await other.fetchval(LIVE) == 3


@pytest.mark.parametrize("key", ["a\0b", "\ud800", "", "k" * 256])
async def test_a_key_that_postgresql_cannot_keep_is_refused(app: Tickwright, other: Any, key: str) -> None:
    """``invalid_key``, as every other key that cannot be one."""
    with pytest.raises(Rejected) as refused:
        app.new_job("mail", key=key)
    assert refused.value.code == "invalid_key"
    assert await _refusal(app.schedule("mail", key=key)) == "invalid_key"
    assert await other.fetchval(LIVE) == 0


@pytest.mark.parametrize("key", ["a\0b", "\ud800", "k" * 1025])
async def test_a_messages_key_that_postgresql_cannot_keep_is_refused(app: Tickwright, key: str) -> None:
    """The same for messages."""
    with pytest.raises(Rejected) as refused:
        await app.publish("pg:topic", {}, key=key)
    assert refused.value.code == "invalid_key"
