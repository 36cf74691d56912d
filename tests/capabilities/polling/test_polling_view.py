"""The source document's table by plain SQL: an insert registers a tracker, and some columns can be changed."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from pydantic import SecretStr

from kit.polling import Ground
from kit.waiting import eventually_async
from tickwright.capabilities.polling.service import POLL_EVENTS
from tickwright.capabilities.polling.trackers.events import is_terminal
from tickwright.capabilities.polling.wheels import loops
from tickwright.plugin.settings import Bind, Settings
from tickwright.process.node import open_node
from tickwright.store.queries import load

INSERT = "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id) VALUES ($1, $2, $3)"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """Connections of a user's own program."""
    async with asyncpg.create_pool(database_url, min_size=1, max_size=4) as pool:
        yield pool


async def test_an_insert_registers(pool: asyncpg.Pool) -> None:
    """Missing accounts and partners are created; the age is the account's; ids may be given."""
    await pool.execute("INSERT INTO tickwright.polling_schedule_config (account_id, max_age_days) VALUES ('a', 10)")
    sql = "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner) VALUES ('a', 'new') RETURNING *"
    row = await pool.fetchrow(sql)
    assert (row["status"], row["external_id"], row["next_poll_at"]) == ("registered", str(row["id"]), None)
    assert (row["tracking_until"] - row["created_at"]).days == 10
    shown = await pool.fetchrow("SELECT * FROM tickwright.shipment_polling_tracker WHERE id = $1", row["id"])
    assert shown["account_id"] == "a"
    given = "INSERT INTO tickwright.shipment_polling_tracker (id, account_id, partner) VALUES (500, 'b', 'dhl')"
    await pool.execute(given)
    assert await pool.fetchval(sql.replace("RETURNING *", "RETURNING id")) == 501
    with pytest.raises(asyncpg.UniqueViolationError, match="tracker_exists"):
        await pool.execute(given)


@pytest.mark.parametrize("end", ["", "status = 'Delivered'"], ids=["placed", "ended before it is placed"])
async def test_copied_trackers_keep_when_they_were_last_polled(pool: asyncpg.Pool, end: str) -> None:
    """While they wait, at their places, and when they end; an old ``created_at`` is no long wait."""
    copied = datetime.now(UTC) - timedelta(days=3)
    await pool.execute(
        "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, created_at, last_polled_at) "
        "VALUES ('a', 'dhl', $1, $1)",
        copied,
    )
    shown = "SELECT last_polled_at FROM tickwright.shipment_polling_tracker"
    assert await pool.fetchval(shown) == copied
    missed = load("tickwright.capabilities.polling.sql", "alerts.sql")["config_time_miss"]
    assert await pool.fetch(missed, timedelta(minutes=10)) == []
    if end:
        await pool.execute(f"UPDATE tickwright.shipment_polling_tracker SET {end}")
    else:
        async with pool.acquire() as connection, connection.transaction():
            await loops.add_missing_wheels(connection)
            assert await loops.place_new(connection, 10) == (1, 1)
    assert await pool.fetchval("SELECT last_polled_at FROM tickwright.trackers") == copied
    assert await pool.fetchval(shown) == copied


async def test_a_small_id_that_is_given_never_sets_the_sequence_back(pool: asyncpg.Pool) -> None:
    """An id that the sequence has given is never given again."""
    for n in range(3):
        await pool.execute(INSERT, "a", "dhl", f"x{n}")
    await pool.execute(
        "INSERT INTO tickwright.shipment_polling_tracker (id, account_id, partner) VALUES (900, 'a', 'dhl')"
    )
    await pool.execute(
        "INSERT INTO tickwright.shipment_polling_tracker (id, account_id, partner) VALUES (10, 'a', 'dhl')"
    )
    assert await pool.fetchval("SELECT nextval('tickwright.tracker_ids')") == 901


async def test_registering_twice_is_an_error_with_a_name(pool: asyncpg.Pool) -> None:
    """23505 with ``tracker_exists``, whether the first one waits or is placed; another partner's is another tracker."""
    ground = Ground(pool)
    await pool.execute(INSERT, "a", "dhl", "X1")
    with pytest.raises(asyncpg.UniqueViolationError, match="tracker_exists"):
        await pool.execute(INSERT, "b", "dhl", "X1")
    await ground.place(await ground.wheel(2), external="X2")
    with pytest.raises(asyncpg.UniqueViolationError, match="tracker_exists"):
        await pool.execute(INSERT, "a", "dhl", "X2")
    await pool.execute(INSERT, "a", "ups", "X1")
    assert await pool.fetchval("SELECT count(*) FROM tickwright.shipment_polling_tracker") == 3


@pytest.mark.parametrize(
    ("columns", "values", "code"),
    [
        ("account_id, partner", "NULL, 'dhl'", "tracker_incomplete"),
        ("account_id, partner", "'a', NULL", "tracker_incomplete"),
        ("account_id, partner", "'a', 'd h l'", "invalid_partner"),
        ("account_id, partner, external_id", "'a', 'dhl', ''", "invalid_tracker"),
        ("id, account_id, partner", "0, 'a', 'dhl'", "invalid_tracker"),
        ("id, account_id, partner", "9223372036854775807, 'a', 'dhl'", "invalid_tracker"),
        ("account_id, partner, last_polled_at", "'a', 'dhl', now() + interval '1 hour'", "invalid_tracker"),
        ("account_id, partner, next_poll_at", "'a', 'dhl', now()", "tracker_read_only"),
        ("account_id, partner, ended_at", "'a', 'dhl', now()", "tracker_read_only"),
    ],
)
async def test_a_bad_row_is_refused_by_its_code(pool: asyncpg.Pool, columns: str, values: str, code: str) -> None:
    """23514, with the code in front of the message, and nothing is left of it."""
    with pytest.raises(asyncpg.CheckViolationError, match=f"^{code}: "):
        await pool.execute(f"INSERT INTO tickwright.shipment_polling_tracker ({columns}) VALUES ({values})")
    assert await pool.fetchval("SELECT count(*) FROM tickwright.polling_schedule_config") == 0


async def test_status_and_age_can_be_changed_and_nothing_else(pool: asyncpg.Pool) -> None:
    """``next_poll_at`` follows from the place, and registered values are fixed: changes of them are refused by code."""
    ground = Ground(pool)
    placed = await ground.place(await ground.wheel(2), external="P")
    await pool.execute(INSERT, "acme", "dhl", "W")
    change = "UPDATE tickwright.shipment_polling_tracker SET"
    for external in ("P", "W"):
        await pool.execute(f"{change} status = 'Lost', tracking_until = now() WHERE external_id = $1", external)
    rows = await pool.fetch("SELECT status, next_poll_at FROM tickwright.shipment_polling_tracker")
    assert [tuple(row) for row in rows] == [("Lost", None)] * 2
    for column in ("next_poll_at = now()", "last_polled_at = now()", "ended_at = now()", "account_id = 'b'", "id = 7"):
        with pytest.raises(asyncpg.CheckViolationError, match="tracker_read_only"):
            await pool.execute(f"{change} {column} WHERE id = $1", placed)


LISTED = '{"terminal_statuses": ["Returned", "Lost"]}'


@pytest.mark.parametrize("where", ["placed", "waiting"])
async def test_a_terminal_status_ends_a_tracker_and_is_published(pool: asyncpg.Pool, where: str) -> None:
    """As by REST: no place and no poll any more, and one message to the events' destination; a repetition adds none."""
    ground = Ground(pool)
    await pool.execute("UPDATE tickwright.poll_news SET destination = 'kafka:shop.poll-events'")
    if where == "placed":
        tracker = await ground.place(await ground.wheel(2), external="X")
    else:
        await pool.execute(INSERT, "acme", "dhl", "X")
        tracker = await pool.fetchval("SELECT id FROM tickwright.tracker_intake")
    change = "UPDATE tickwright.shipment_polling_tracker SET status = 'Delivered' WHERE external_id = 'X'"
    await pool.execute(change)
    await pool.execute(change)
    row = await pool.fetchrow("SELECT *, ended_at <= clock_timestamp() AS over FROM tickwright.trackers")
    assert (row["id"], row["status"], row["place"], row["over"]) == (tracker, "Delivered", None, True)
    assert row["status_at"] <= row["ended_at"]
    assert await pool.fetchval("SELECT count(*) FROM tickwright.tracker_intake") == 0
    [message] = await ground.events()
    assert (message["destination"], message["key"]) == ("kafka:shop.poll-events", str(tracker))
    payload = json.loads(message["payload"])
    assert abs(datetime.fromisoformat(payload.pop("at")) - row["ended_at"]) < timedelta(seconds=1)
    assert payload == {
        "version": 1, "event": "ended", "reason": "terminal", "tracker_id": tracker, "account_id": "acme",
        "partner": "dhl", "external_id": "X", "status": "Delivered", "previous_status": "registered", "event_id": None,
    }  # fmt: skip


async def test_the_partners_own_list_decides_which_status_ends(pool: asyncpg.Pool) -> None:
    """A status that it does not list ends nothing; nor does more time for a tracker whose status would end it."""
    ground = Ground(pool)
    await ground.partner(settings=LISTED)
    tracker = await ground.place(await ground.wheel(2), external="X")
    change = "UPDATE tickwright.shipment_polling_tracker SET"
    ended = "SELECT ended_at IS NOT NULL FROM tickwright.trackers WHERE id = $1"
    await pool.execute(f"{change} status = 'Delivered'")
    assert not await pool.fetchval(ended, tracker)
    await pool.execute("UPDATE tickwright.trackers SET status = 'Lost'")
    await pool.execute(f"{change} tracking_until = tracking_until + interval '1 day'")
    assert not await pool.fetchval(ended, tracker)
    await pool.execute(f"{change} status = 'Lost'")
    assert await pool.fetchval(ended, tracker)


@pytest.mark.parametrize("settings", ["{}", LISTED, '{"terminal_statuses": []}', '{"terminal_statuses": null}'])
@pytest.mark.parametrize("status", ["Delivered", "delivered", "Lost", ""])
async def test_sql_and_the_api_end_at_the_same_statuses(pool: asyncpg.Pool, settings: str, status: str) -> None:
    """The function in SQL and the one in Python have the same rule."""
    row = await pool.fetchrow(
        "SELECT tickwright.ends_trackers($1, $2::jsonb) AS ends, ($2::jsonb)->'terminal_statuses' AS listed",
        status,
        settings,
    )
    assert row["ends"] == is_terminal(status, row["listed"])


async def test_a_process_stores_the_destination_of_events(database_url: str, pool: asyncpg.Pool) -> None:
    """A program that changes trackers by plain SQL knows no Kafka: the destination is in the database."""
    settings = Settings(
        database_url=SecretStr(database_url),
        metrics_bind=Bind("127.0.0.1", 0),
        kafka_bootstrap="127.0.0.1:1",
        kafka_prefix="shop",
        kafka_allow_single_broker=True,
    )
    destination = "SELECT destination FROM tickwright.poll_news"
    assert await pool.fetchval(destination) == POLL_EVENTS
    async with open_node(settings, ["scheduler"], any_port=True):
        assert await pool.fetchval(destination) == "kafka:shop.poll-events"


async def test_a_deleted_tracker_can_be_registered_again(pool: asyncpg.Pool) -> None:
    """Waiting or placed, it is gone, and can be registered again."""
    ground = Ground(pool)
    await ground.place(await ground.wheel(2), external="P")
    await pool.execute(INSERT, "acme", "dhl", "W")
    await pool.execute("DELETE FROM tickwright.shipment_polling_tracker")
    assert await pool.fetchval("SELECT count(*) FROM tickwright.shipment_polling_tracker") == 0
    await pool.execute(INSERT, "acme", "dhl", "P")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tickwright.shipment_polling_tracker SET status = 'New'",
        "DELETE FROM tickwright.shipment_polling_tracker",
    ],
)
async def test_a_change_reaches_a_tracker_that_is_being_placed(pool: asyncpg.Pool, statement: str) -> None:
    """A change or a deletion that waits for the registrar's transaction is not lost."""
    slot = await Ground(pool).wheel(2)
    await pool.execute(INSERT, "acme", "dhl", "W")
    async with pool.acquire() as registrar:
        moving = registrar.transaction()
        await moving.start()
        await registrar.execute(
            """WITH taken AS (DELETE FROM tickwright.tracker_intake RETURNING *)
               INSERT INTO tickwright.trackers
                      (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
               SELECT id, created_at, tracking_until, account_no, $1, partner_no, status, external_id FROM taken""",
            slot * 60,
        )
        asked = asyncio.create_task(pool.execute(statement))
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        await eventually_async(lambda: pool.fetchval(sql))
        await moving.commit()
    await asked
    rows = await pool.fetch("SELECT status FROM tickwright.trackers")
    assert [row["status"] for row in rows] == (["New"] if statement.startswith("UPDATE") else [])
