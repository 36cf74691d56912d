"""The app object registers trackers alone and in the caller's own transaction, sends events and ends them."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from kit.polling import Ground
from kit.postgres import sqlalchemy_url
from tickwright import Answer, Poll, Rejected, Tickwright, Tracked, Unavailable

UNTIL = datetime(2031, 5, 1, 9, tzinfo=UTC)
THERE = "SELECT account_id, partner, external_id, status, tracking_until FROM tickwright.shipment_polling_tracker"


def program(url: str) -> Tickwright:
    """Return an app with one partner."""
    app = Tickwright(url)

    @app.partner("dhl", rate="50/s")
    async def dhl(_poll: Poll) -> Answer:
        return Answer("moving")

    return app


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Tickwright]:
    """An open app on a fresh database."""
    async with program(database_url) as app:
        yield app


async def test_a_tracker_is_registered_when_the_call_returns(app: Tickwright) -> None:
    """The partner is there as soon as the app is open; a second call answers with the first one's tracker."""
    made = await app.track("shop", "dhl", "A-1", status="label printed", until=UNTIL)
    assert [tuple(row) for row in await app.pool.fetch(THERE)] == [("shop", "dhl", "A-1", "label printed", UNTIL)]
    assert await app.track("other", "dhl", "A-1") == Tracked(made.id, created=False)
    settings = await app.pool.fetchval("SELECT settings->>'rate' FROM tickwright.partners WHERE name = 'dhl'")
    assert settings == "50/s"


async def test_one_that_is_placed_already_is_found(app: Tickwright) -> None:
    """Nothing is left of the second registration, also on the caller's own connection."""
    ground = Ground(app.pool)
    placed = await ground.place(await ground.wheel(2), external="P")
    async with app.pool.acquire() as connection, connection.transaction():
        assert await app.track("acme", "dhl", "P", connection=connection) == Tracked(placed, created=False)
    assert await app.pool.fetchval("SELECT count(*) FROM tickwright.tracker_intake") == 0


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("invalid_account", {"account_id": "a/b"}),
        ("invalid_partner", {"partner": "d h l"}),
        ("unknown_partner", {"partner": "ups"}),
        ("invalid_external_id", {"external_id": ""}),
        ("invalid_tracker", {"external_id": 4711}),
        ("invalid_status", {"status": "x" * 101}),
        ("naive_datetime", {"until": UNTIL.replace(tzinfo=None)}),
    ],
)
async def test_what_is_out_of_bounds_is_refused(app: Tickwright, code: str, arguments: dict[str, Any]) -> None:
    """With the code that REST has for it, and nothing is registered."""
    with pytest.raises(Rejected) as refused:
        await app.track(**{"account_id": "shop", "partner": "dhl", "external_id": "A-1", **arguments})
    assert refused.value.code == code
    assert await app.pool.fetchval("SELECT count(*) FROM tickwright.shipment_polling_tracker") == 0


async def test_an_app_that_is_not_open_is_refused(database_url: str) -> None:
    """The remedy is in the message."""
    with pytest.raises(Unavailable, match="async with app"):
        await program(database_url).track("shop", "dhl", "A-1")


# ---------------------------------------------------------------------- the caller's transaction


async def _asyncpg(app: Tickwright, url: str, *, commit: bool) -> None:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await _use(app, connection)
    await (transaction.commit() if commit else transaction.rollback())
    await connection.close()


async def _psycopg(app: Tickwright, url: str, *, commit: bool) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await _use(app, connection)
        await (connection.commit() if commit else connection.rollback())


async def _alchemy(app: Tickwright, url: str, *, commit: bool) -> None:
    engine = create_async_engine(sqlalchemy_url(url).replace("+psycopg", "+asyncpg"))
    async with AsyncSession(engine) as session:
        await _use(app, session)
        await (session.commit() if commit else session.rollback())
    await engine.dispose()


async def _use(app: Tickwright, connection: Any) -> None:
    made = await app.track("shop", "dhl", "100 % :x $1", until=UNTIL, connection=connection)
    assert await app.track("shop", "dhl", "100 % :x $1", connection=connection) == Tracked(made.id, created=False)
    assert (await app.track("shop", "dhl", "B-2", connection=connection)).created


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("way", [_asyncpg, _psycopg, _alchemy])
async def test_a_tracker_lives_and_dies_with_the_callers_transaction(
    app: Tickwright, database_url: str, way: Any, *, commit: bool
) -> None:
    """Whatever the driver, the commit is the caller's."""
    await way(app, database_url, commit=commit)
    rows = await app.pool.fetch(f"{THERE} ORDER BY external_id")
    assert [row["external_id"] for row in rows] == (["100 % :x $1", "B-2"] if commit else [])
    assert (await app.track("shop", "dhl", "B-2")).created is not commit


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy session"])
async def test_a_synchronous_program_registers_in_its_own_transaction(
    app: Tickwright, database_url: str, kind: str, *, commit: bool
) -> None:
    """The app is not even open in such a program; the transaction decides as ever."""
    closed = program(database_url)
    engine = sqlalchemy.create_engine(sqlalchemy_url(database_url))
    openers: dict[str, Callable[[], Any]] = {
        "psycopg": lambda: psycopg.connect(database_url),
        "sqlalchemy session": lambda: Session(engine),
    }
    with openers[kind]() as connection:
        made = closed.track_sync("shop", "dhl", "A-1", connection=connection)
        assert closed.track_sync("shop", "dhl", "A-1", connection=connection) == Tracked(made.id, created=False)
        with pytest.raises(Rejected, match="no partner"):
            closed.track_sync("shop", "ups", "A-1", connection=connection)
        finish: Any = connection.commit if commit else connection.rollback
        finish()
    engine.dispose()
    assert await app.pool.fetchval("SELECT count(*) FROM tickwright.shipment_polling_tracker") == int(commit)


async def test_a_connection_without_a_transaction_is_refused(app: Tickwright, database_url: str) -> None:
    """It would commit at once, whatever the caller does later."""
    connection = await asyncpg.connect(database_url)
    with pytest.raises(Rejected) as refused:
        await app.track("shop", "dhl", "A-1", connection=connection)
    assert refused.value.code == "no_transaction"
    await connection.close()


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_transaction_that_sees_nothing_new_is_refused(
    app: Tickwright, database_url: str, isolation: Any
) -> None:
    """It could not find a tracker that was placed meanwhile; READ COMMITTED does, in the same place."""
    ground = Ground(app.pool)
    slot = await ground.wheel(2)
    connection = await asyncpg.connect(database_url)
    for level in (isolation, "read_committed"):
        async with connection.transaction(isolation=level):
            await connection.fetch("SELECT count(*) FROM tickwright.trackers")
            placed = await ground.place(slot, external=level)
            if level == isolation:
                with pytest.raises(Rejected, match="use READ COMMITTED") as refused:
                    await app.track("acme", "dhl", level, connection=connection)
                assert refused.value.code == "unsupported_isolation"
                assert await connection.fetchval("SELECT 1") == 1, "the transaction is not broken by it"
            else:
                assert await app.track("acme", "dhl", level, connection=connection) == Tracked(placed, created=False)
    await connection.close()
    assert await app.pool.fetchval("SELECT count(*) FROM tickwright.tracker_intake") == 0


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_synchronous_transaction_that_sees_nothing_new_is_refused(database_url: str, isolation: str) -> None:
    """Whatever the driver: SQLAlchemy, and psycopg where a statement sets it."""
    app = program(database_url)
    engine = sqlalchemy.create_engine(sqlalchemy_url(database_url), isolation_level=isolation)
    with Session(engine) as session, pytest.raises(Rejected, match=f"is {isolation} "):
        app.track_sync("shop", "dhl", "A-1", connection=session)
    engine.dispose()
    with psycopg.connect(database_url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        with pytest.raises(Rejected, match=f"is {isolation} "):
            app.track_sync("shop", "dhl", "A-1", connection=connection)


# ---------------------------------------------------------------------- events and ends


async def test_a_tracker_gets_an_event_is_explained_and_ended(app: Tickwright) -> None:
    """What REST does, by call; an end is in the audit trail, a registration is not."""
    made = await app.track("shop", "dhl", "A-1")
    at = datetime(2026, 1, 1, 10, tzinfo=UTC)
    said = await app.trackers.event(made.id, "InTransit", at=at, event_id="e1")
    assert (said.outcome, said.status, said.status_at) == ("applied", "InTransit", at)
    again = await app.trackers.event(made.id, "InTransit", at=at, event_id="e1")
    assert again.outcome == "duplicate"
    assert (await app.trackers.get(made.id)).status == "InTransit"
    assert (await app.trackers.explain(made.id)).reasons
    assert (await app.trackers.end(made.id)).outcome == "ended"
    assert (await app.trackers.get(made.id)).state == "ended"
    rows = await app.pool.fetch("SELECT actor, action FROM tickwright.audit ORDER BY id")
    assert [tuple(row) for row in rows] == [("python", "trackers.end")]
    with pytest.raises(Rejected, match="no tracker 999"):
        await app.trackers.end(999)


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("naive_datetime", {"at": datetime(2026, 1, 1)}),  # noqa: DTZ001  the mistake itself
        ("time_in_future", {"at": UNTIL}),
        ("invalid_status", {"status": ""}),
        ("invalid_event_id", {"event_id": ""}),
    ],
)
async def test_an_invalid_event_is_refused(app: Tickwright, code: str, arguments: dict[str, Any]) -> None:
    """With a code of their own; the tracker is as it was."""
    made = await app.track("shop", "dhl", "A-1")
    given = {"status": "InTransit", "at": datetime(2026, 1, 1, tzinfo=UTC), **arguments}
    with pytest.raises(Rejected) as refused:
        await app.trackers.event(made.id, given.pop("status"), **given)
    assert refused.value.code == code
    assert (await app.trackers.get(made.id)).status == "registered"
