"""Bulk imports of trackers: NDJSON and CSV in constant memory; a bad line costs no good one."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.api import Answer, Client, RunningApi, running_api
from kit.database_faults import SHUTTING_DOWN
from kit.polling import Ground
from kit.waiting import eventually_async

LINE = b'{"account_id":"a%d","partner":"dhl","external_id":"X%d"}\n'
HEAD = b"account_id,partner,external_id,status,tracking_until\n"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the partner ``dhl``."""
    async with running_api(database_url) as running:
        await Ground(running.pool).partner()
        yield running


async def send(client: Client, body: Any, kind: str = "application/x-ndjson") -> Answer:
    """Import a body."""
    return await client.post("/v1/trackers:bulk", body, headers={"Content-Type": kind})


async def count(api: RunningApi) -> int:
    """Return how many trackers wait for their places."""
    return int(await api.pool.fetchval("SELECT count(*) FROM tickwright.tracker_intake"))


async def test_good_lines_register_and_bad_ones_say_why(api: RunningApi) -> None:
    """Each bad line is rejected by its number, code and reason; a registered tracker counts as existing."""
    await Ground(api.pool).place(await Ground(api.pool).wheel(2), external="X7")
    lines = [
        LINE % (1, 1),
        b"nonsense\n",
        b"  \n",
        LINE % (1, 1),
        b'{"account_id":"a","partner":"nobody","external_id":"Y"}\n',
        b'{"account_id":"a","partner":"dhl","external_id":"Y","id":1}\n',
        b'{"account_id":"a","partner":"dhl","external_id":"Y","external_id":"Z"}\n',
        b'{"account_id":"a","partner":"dhl","external_id":""}\n',
        b'{"account_id":"a","partner":"dhl","external_id":"a\tb"}\n',
        b'{"account_id":"a","partner":"dhl","external_id":"\\ud800"}\n',
        b'{"account_id":"a","partner":"dhl"}\n',
        b'{"account_id":"a","partner":"dhl","external_id":"Y","tracking_until":"2030-01-01"}\n',
        b'{"account_id":"a","partner":"dhl","external_id":"\xff"}\n',
        b'{"account_id":"' + b"x" * 300_000 + b'"}\n',
        LINE % (2, 7),
        b'{"account_id":"a","partner":"dhl","external_id":"\\u00dc","status":null}\r\n',
        (LINE % (2, 2)).rstrip(),
    ]
    said = (await send(api.operator, b"".join(lines))).json
    assert (said["lines"], said["created"], said["existing"], said["rejected"]) == (17, 3, 2, 11)
    assert [(r["line"], r["code"]) for r in said["rejects"]] == [
        (2, "invalid_json"), (5, "unknown_partner"), (6, "unknown_field"), (7, "duplicate_key"),
        (8, "invalid_external_id"), (9, "invalid_json"), (10, "unsupported_character"), (11, "invalid_value"),
        (12, "invalid_datetime"), (13, "invalid_json"), (14, "line_too_long"),
    ]  # fmt: skip
    assert all(reject["message"] for reject in said["rejects"])
    assert said["committed_lines"] == 17
    assert await count(api) == 3


async def test_a_table_registers_the_same_trackers(api: RunningApi) -> None:
    """CSV: the first line names the columns in any order, cells may be quoted, empty ones are absent."""
    table = (
        '\ufeffexternal_id,partner,account_id,tracking_until,status\r\n'
        'A1,dhl,"acme, inc",2031-01-01T00:00:00Z,Shipped\r\n'
        'A2,dhl,acme,,\r\n'
        '"A ""3""",dhl,acme,,"In transit"\r\n'
        'A4,dhl,acme\r\n'
        'A5,dhl,acme,,,\r\n'
        '"A6,dhl,acme,,\r\n'
        'A7,dhl,acme,yesterday,\r\n'
        '\r\n'
        'A8,nobody,acme,,'
    )  # fmt: skip
    said = (await send(api.operator, table.encode(), "text/csv; charset=utf-8")).json
    assert (said["lines"], said["created"], said["rejected"]) == (10, 3, 5)
    assert [(r["line"], r["code"]) for r in said["rejects"]] == [
        (5, "invalid_csv"), (6, "invalid_csv"), (7, "invalid_csv"), (8, "invalid_datetime"), (10, "unknown_partner"),
    ]  # fmt: skip
    rows = await api.pool.fetch(
        "SELECT account_id, external_id, status, tracking_until FROM tickwright.shipment_polling_tracker ORDER BY 2"
    )
    assert [tuple(row)[:3] for row in rows] == [
        ("acme", 'A "3"', "In transit"), ("acme, inc", "A1", "Shipped"), ("acme", "A2", "registered"),
    ]  # fmt: skip
    assert rows[1]["tracking_until"].year == 2031


@pytest.mark.parametrize(
    "head", [b"a,b,c\n", b"account_id,partner\n", b"account_id,partner,external_id,external_id\n", b"acme,dhl,A1\n"]
)
async def test_a_table_with_other_columns_is_refused_whole(api: RunningApi, head: bytes) -> None:
    """The columns of a file without names are not guessed."""
    (await send(api.operator, head + b"acme,dhl,A1\n", "text/csv")).says(400, "invalid_columns")
    assert await count(api) == 0


async def test_a_large_import_is_complete(api: RunningApi) -> None:
    """12,345 lines of 500 new accounts in odd pieces: each tracker is registered once."""
    body = b"".join(LINE % (n % 500, n) for n in range(12_345))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 9_973):
            yield body[start : start + 9_973]

    said = (await send(api.operator, pieces())).json
    assert (said["created"], said["rejected"], await count(api)) == (12_345, 0, 12_345)
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.polling_schedule_config") == 500
    again = (await send(api.operator, body)).json
    assert (again["created"], again["existing"], await count(api)) == (0, 12_345, 12_345)


async def test_two_uploads_of_one_file_at_once_register_each_once(api: RunningApi) -> None:
    """Also in opposite orders of lines, without a deadlock.

    The test locks the middle line until both uploads wait; in the order of their lines each would then hold half of
    what the other needs.
    """
    lines = [LINE % (1, n) for n in range(10, 60)]
    middle = (
        "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id) VALUES ('a1', 'dhl', 'X35')"
    )
    waiting = (
        "SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    await api.pool.execute("INSERT INTO tickwright.polling_schedule_config (account_id) VALUES ('a1')")
    async with api.pool.acquire() as other:
        holding = other.transaction()
        await holding.start()
        await other.execute(middle)
        asked = [asyncio.create_task(send(api.operator, b"".join(order))) for order in (lines, lines[::-1])]
        await eventually_async(lambda: api.pool.fetchval(waiting))
        await holding.rollback()
    answers = await asyncio.gather(*asked)
    assert [answer.status for answer in answers] == [200] * 2, [answer.body[:300] for answer in answers]
    assert sum(answer.json["created"] for answer in answers) == await count(api) == 50


async def test_a_cut_connection_leaves_exactly_what_the_audit_says(api: RunningApi) -> None:
    """Whole batches stay, the rest and the torn line are dropped; sending it all again completes it."""
    lines = [LINE % (1, n) for n in range(11_000)]
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    head = (
        "POST /v1/trackers:bulk HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
        f"authorization: Bearer {api.operator.key}\r\ncontent-length: 99999999\r\n\r\n"
    )
    writer.write(head.encode() + b"".join(lines) + b'{"account_id":"a1"')
    await writer.drain()

    async def progress() -> dict[str, int]:
        line = await api.pool.fetchval("SELECT after FROM tickwright.audit WHERE action = 'trackers.import'")
        return json.loads(line) if line else {"committed_lines": 0}

    async def two_batches() -> bool:
        return (await progress())["committed_lines"] == 10_000

    await eventually_async(two_batches)
    writer.transport.abort()
    assert await count(api) == 10_000
    said = await progress()
    assert (said["committed_lines"], said["created"], said["finished"]) == (10_000, 10_000, False)
    again = (await send(api.operator, b"".join(lines))).json
    assert (again["existing"], again["created"]) == (10_000, 1_000)


async def test_an_import_leaves_one_line_of_audit_with_its_counts(api: RunningApi) -> None:
    """The line has the caller and the counts; a viewer may not import."""
    (await send(api.viewer, LINE % (1, 1))).says(403, "forbidden")
    said = (await send(api.operator, LINE % (1, 1) + b"x\n")).json
    line = (await api.viewer.get("/v1/audit?action=trackers.import")).json["items"][0]
    assert (line["id"], line["actor"]) == (said["import_id"], "operator")
    assert line["after"] == {"committed_lines": 2, "created": 1, "existing": 0, "rejected": 1, "finished": True}


SHUT_DOWN = """
CREATE FUNCTION tickwright.shut_down() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the server shuts down' USING ERRCODE = 'admin_shutdown'; END $$;
CREATE TRIGGER shut_down BEFORE UPDATE ON tickwright.audit EXECUTE FUNCTION tickwright.shut_down();
"""


async def test_an_import_that_loses_the_database_reports_its_committed_lines(api: RunningApi) -> None:
    """503 with the number of committed lines; the client sends the rest again."""
    lines = [LINE % (1, n) for n in range(6_000)]
    cut = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"".join(lines)
        await cut.wait()
        yield b"".join(LINE % (2, n + 10_000) for n in range(5_000))

    asked = asyncio.create_task(send(api.operator, pieces()))

    async def one_batch() -> bool:
        return await count(api) == 5_000

    await eventually_async(one_batch)
    await api.pool.execute(SHUTTING_DOWN)
    cut.set()
    said = (await asked).says(503, "import_interrupted").json
    assert said["committed_lines"] == 5_000
    await api.pool.execute("DROP FUNCTION tickwright.shutting_down() CASCADE")
    again = (await send(api.operator, b"".join(lines))).json
    assert (again["existing"], again["created"]) == (5_000, 1_000)
