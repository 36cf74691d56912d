"""Numbers that are given once: nothing that is repeated or rolled back uses them up."""

import asyncio
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest

from kit.migrations import upgrade_to
from kit.servers import PostgresServer
from tickwright.capabilities.polling.wheels import loops as wheels_store
from tickwright.partners.contract import SQL
from tickwright.store.migrate import migrate

STARTS = 10_000
DECLARE = SQL["declare_partner"].replace("$1, $2", "format('p%s', n % 4), '{\"concurrency\": 2}'")
START = f"DO $do$ BEGIN FOR n IN 1..{4 * STARTS} LOOP {DECLARE}; END LOOP; END $do$"
"""10,000 starts of a process that declares four partners, in one statement; smallint ends at 32,767."""
TRACKERS = (
    "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner) "
    "SELECT 'a', format('{}%s', n) FROM generate_series(1, {}) AS n"
)
PARTNERS = "SELECT partner_no FROM tickwright.partners ORDER BY partner_no"
ID_GIVEN_MAX = 2**52
ID_MAX = 2**53 - 1


@pytest.fixture
def bare_url(pg_server: PostgresServer) -> Iterator[str]:
    """A database without our schema."""
    yield pg_server.create_database("numbers")
    pg_server.drop_database("numbers")


async def test_ten_thousand_starts_use_four_numbers(other: asyncpg.Connection) -> None:
    """A start that declares its partners again takes no number, however often."""
    await other.execute(START)
    await other.execute("INSERT INTO tickwright.partners (name) VALUES ('next')")
    assert [row["partner_no"] for row in await other.fetch(PARTNERS)] == [1, 2, 3, 4, 5]


async def test_a_statement_that_is_rolled_back_uses_no_partners_number(other: asyncpg.Connection) -> None:
    """Plain SQL that registers trackers of 900 new partners and is rolled back leaves every number free."""
    for _ in range(3):
        transaction = other.transaction()
        await transaction.start()
        await other.execute(TRACKERS.format("x", 900))
        await transaction.rollback()
    await other.execute(TRACKERS.format("y", 1))
    assert [row["partner_no"] for row in await other.fetch(PARTNERS)] == [1]


async def test_plain_sql_adds_a_thousand_partners_at_most(other: asyncpg.Connection) -> None:
    """The other numbers are left for partners that an operator or a program declares."""
    with pytest.raises(asyncpg.CheckViolationError, match=r"^too_many_partners: "):
        await other.execute(TRACKERS.format("x", 1001))
    await other.execute(TRACKERS.format("x", 1000))
    await other.execute(TRACKERS.format("x", 3))
    with pytest.raises(asyncpg.CheckViolationError, match=r"^too_many_partners: "):
        await other.execute(TRACKERS.format("y", 1))
    await other.execute(SQL["declare_partner"], "declared", "{}")
    assert await other.fetchval("SELECT partner_no FROM tickwright.partners WHERE name = 'declared'") == 1001


async def test_first_declarations_that_race_get_a_number_each_and_none_waits(database_url: str) -> None:
    """Twenty open transactions hold a number each; of one name there is one partner."""
    connections = await asyncio.gather(*(asyncpg.connect(database_url) for _ in range(20)))
    transactions = [one.transaction() for one in connections]
    for n, (connection, transaction) in enumerate(zip(connections, transactions, strict=True)):
        await transaction.start()
        await connection.execute(SQL["declare_partner"], f"p{n}", "{}")
    for n, transaction in enumerate(transactions):
        await (transaction.rollback() if n == 7 else transaction.commit())
    await asyncio.gather(*(one.execute(SQL["declare_partner"], "same", "{}") for one in connections))
    names = {row["partner_no"]: row["name"] for row in await connections[0].fetch("TABLE tickwright.partners")}
    expected = {n + 1: f"p{n}" for n in range(20) if n != 7}
    assert {number: name for number, name in names.items() if name != "same"} == expected
    assert list(names.values()).count("same") == 1
    for connection in connections:
        await connection.close()


async def test_the_number_of_a_deleted_partner_is_not_given_again(other: asyncpg.Connection) -> None:
    """Trackers, queues and topics may still name it."""
    await other.execute("INSERT INTO tickwright.partners (name) VALUES ('a'), ('b')")
    await other.execute("DELETE FROM tickwright.partners WHERE name = 'a'")
    await other.execute("INSERT INTO tickwright.partners (name) VALUES ('a'), ('c')")
    assert [row["partner_no"] for row in await other.fetch(PARTNERS)] == [2, 3, 4]


async def test_numbers_of_accounts_come_round_and_pass_over_those_in_use(other: asyncpg.Connection) -> None:
    """Behind 2^31 - 1 the sequence begins again; accounts that are there and deleted ones keep their numbers."""
    add = "INSERT INTO tickwright.polling_schedule_config (account_id) VALUES ($1) RETURNING account_no"
    numbers = [await other.fetchval(add, name) for name in "abc"]
    await other.execute("DELETE FROM tickwright.polling_schedule_config WHERE account_id = 'b'")
    await other.execute("SELECT setval('tickwright.polling_schedule_config_account_no_seq', 2147483646)")
    numbers += [await other.fetchval(add, name) for name in "de"]
    assert numbers == [1, 2, 3, 2147483647, 4]


async def test_an_id_that_is_given_leaves_as_many_after_it(other: asyncpg.Connection) -> None:
    """The greatest id that may be given, rolled back, leaves 2^52 ids; a greater one is refused and moves nothing."""
    give = "INSERT INTO tickwright.shipment_polling_tracker (id, account_id, partner) VALUES ($1, 'a', 'dhl')"
    with pytest.raises(asyncpg.CheckViolationError, match=r"^invalid_tracker: "):
        await other.execute(give, ID_MAX)
    assert await other.fetchval("SELECT last_value FROM tickwright.tracker_ids") == 1
    transaction = other.transaction()
    await transaction.start()
    await other.execute(give, ID_GIVEN_MAX)
    await transaction.rollback()
    drawn = await other.fetchval(TRACKERS.format("p", 1) + " RETURNING id")
    assert drawn == ID_GIVEN_MAX + 1
    assert drawn <= ID_MAX - ID_GIVEN_MAX + 2


async def test_an_interval_without_room_for_a_wheel_leaves_the_others_alone(pool: asyncpg.Pool) -> None:
    """Places are integers: the last wheel ends before they overflow, and trackers of other intervals are placed."""
    await pool.execute("INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id) VALUES (7, 35791380)")
    for account, minutes in (("none", 8), ("last", 7)):
        await pool.execute(
            "INSERT INTO tickwright.polling_schedule_config (account_id, polling_interval_minutes) VALUES ($1, $2)",
            account,
            minutes,
        )
        await pool.execute(
            "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner) VALUES ($1, 'dhl')", account
        )
    async with pool.acquire() as connection, connection.transaction():
        assert await wheels_store.add_missing_wheels(connection) == 0
        assert await wheels_store.place_new(connection, 10) == (1, 1)
    assert await pool.fetchval("SELECT array_agg(interval_minutes) FROM tickwright.poll_wheels") == [7]


def test_an_installation_at_its_end_recovers_by_the_migration(bare_url: str) -> None:
    """Numbers that were lost are given again; those of deleted partners whose trackers are left are not."""
    upgrade_to(bare_url, "0011")
    with psycopg.connect(bare_url, autocommit=True) as connection:
        connection.execute("INSERT INTO tickwright.partners (name) VALUES ('a'), ('gone'), ('b')")
        connection.execute("INSERT INTO tickwright.shipment_polling_tracker (account_id, partner) VALUES ('a', 'gone')")
        connection.execute("DELETE FROM tickwright.partners WHERE name = 'gone'")
        connection.execute("SELECT setval('tickwright.partners_partner_no_seq', 32767)")
        connection.execute("SELECT setval('tickwright.polling_schedule_config_account_no_seq', 2147483647)")
        connection.execute("SELECT setval('tickwright.tracker_ids', %s)", [ID_MAX])
        migrate(bare_url)
        connection.execute("INSERT INTO tickwright.partners (name) VALUES ('c')")
        connection.execute("INSERT INTO tickwright.shipment_polling_tracker (account_id, partner) VALUES ('new', 'd')")
        assert connection.execute(PARTNERS).fetchall() == [(1,), (3,), (4,), (5,)]
        assert connection.execute("SELECT id, account_no FROM tickwright.tracker_intake ORDER BY id").fetchall() == [
            (1, 1),
            (2, 2),
        ]


def test_every_narrow_number_of_the_schema_is_listed_with_its_reason(database_url: str) -> None:
    """A new identity or sequence is a bigint that counts up, or is listed here with the reason why it may be less."""
    known = {"polling_schedule_config_account_no_seq"}  # begins again at its end
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT sequencename FROM pg_sequences WHERE schemaname = 'tickwright' AND max_value < 9223372036854775807"
        ).fetchall()
    assert {name for (name,) in rows} == known
