"""Reports by call from a program: alone, or in its own transaction, whatever its driver."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from kit.postgres import sqlalchemy_url
from tickwright import Rejected, ReportRequest, Tickwright

CONDITIONS = {"country": "NL", "limit": 5}


def program(url: str) -> Tickwright:
    """A program with a listener and a report type."""
    app = Tickwright(url)

    @app.listener("users")
    async def users(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        yield {"id": request.report_id}

    @app.report("users", listeners=["users"])
    def merged() -> str:
        return "SELECT * FROM users"

    return app


async def stored(app: Tickwright) -> list[tuple[int, str]]:
    """Every record's id and requester."""
    rows = await app.pool.fetch("SELECT id, requester FROM tickwright.reports ORDER BY id")
    return [(row["id"], row["requester"]) for row in rows]


async def test_a_program_asks_for_a_report(database_url: str) -> None:
    """The record is there when the call returns, with its parts; an equal one is the answer to the second call."""
    async with program(database_url) as app:
        made = await app.request_report("users", CONDITIONS, department="sales", format="parquet", source="crm")
        again = await app.request_report("users", {"limit": 5.0, "country": "NL"}, format="parquet")
        assert (made.created, again) == (True, type(made)(made.id, created=False))
        seen = await app.reports.records.get(made.id)
        assert (seen.requester, seen.department, seen.source, seen.format) == ("python", "sales", "crm", "parquet")
        assert [part.listener for part in seen.parts] == ["users"]
        other = await app.request_report("users", CONDITIONS, requester="colleague")
        assert await stored(app) == [(made.id, "python"), (other.id, "colleague")]


async def test_a_program_has_the_bounds_of_the_rest_api(database_url: str) -> None:
    """The same bounds and codes as by REST, before anything reaches a statement."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"report_type": "user"}, "unknown_report_type"),
        ({"report_type": "users", "format": "xlsx"}, "invalid_value"),
        ({"report_type": "users", "requester": "x" * 201}, "invalid_value"),
        ({"report_type": "users", "conditions": {"a": float("nan")}}, "non_finite_number"),
        ({"report_type": "users", "conditions": {"a": "\0"}}, "unsupported_character"),
        ({"report_type": "users", "notify": "unknown"}, "receiver_not_found"),
        ({"report_type": "users", "connection": object()}, "unsupported_connection"),
    ]
    async with program(database_url) as app:
        for arguments, code in wrong:
            with pytest.raises(Rejected) as caught:
                await app.request_report(**arguments)
            assert caught.value.code == code
        assert await stored(app) == []


async def test_a_report_lives_and_dies_with_the_callers_transaction(database_url: str) -> None:
    """asyncpg, psycopg, SQLAlchemy: nothing is there after a rollback, record and parts after a commit."""
    async with program(database_url) as app:
        await _by_asyncpg(app, database_url)
        await _by_psycopg(app, database_url)
        await _by_sqlalchemy(app, database_url)
        made = await stored(app)
        assert [requester for _, requester in made] == ["asyncpg", "psycopg", "sqlalchemy"]
        for report_id, _ in made:
            seen = await app.reports.records.get(report_id)
            assert (seen.status, seen.parts_expected, seen.conditions) == ("pending", 1, seen.conditions)
            assert [part.state for part in seen.parts] == ["due"]


async def _by_asyncpg(app: Tickwright, url: str) -> None:
    connection = await asyncpg.connect(url)
    for commit in (False, True):
        transaction = connection.transaction()
        await transaction.start()
        await app.request_report("users", CONDITIONS, requester="asyncpg", connection=connection)
        await (transaction.commit() if commit else transaction.rollback())
    await connection.close()


async def _by_psycopg(app: Tickwright, url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await app.request_report("users", CONDITIONS, requester="psycopg", connection=connection)
        await connection.rollback()
        first = await app.request_report("users", CONDITIONS, requester="psycopg", connection=connection)
        again = await app.request_report("users", CONDITIONS, requester="psycopg", connection=connection)
        assert (again.id, again.created) == (first.id, False)
        await connection.commit()


async def _by_sqlalchemy(app: Tickwright, url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(url).replace("+psycopg", "+asyncpg"))
    for commit in (False, True):
        async with engine.connect() as connection:
            await app.request_report("users", CONDITIONS, requester="sqlalchemy", connection=connection)
            await (connection.commit() if commit else connection.rollback())
    await engine.dispose()


async def test_a_transaction_that_cannot_see_the_others_is_refused(database_url: str) -> None:
    """With its own snapshot it would not find the equal report that is under way."""
    async with program(database_url) as app:
        connection = await asyncpg.connect(database_url)
        async with connection.transaction(isolation="repeatable_read"):
            with pytest.raises(Rejected, match="REPEATABLE READ") as caught:
                await app.request_report("users", CONDITIONS, connection=connection)
        assert caught.value.code == "unsupported_isolation"
        with pytest.raises(Rejected) as caught:
            await app.request_report("users", CONDITIONS, connection=connection)
        assert caught.value.code == "no_transaction"
        await connection.close()
