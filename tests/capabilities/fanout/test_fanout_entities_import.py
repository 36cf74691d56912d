"""Thousands of entities by NDJSON and CSV: one bad line does not stop the good ones."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.api import Answer, Client, RunningApi, running_api
from kit.database_faults import SHUTTING_DOWN
from kit.polling import Ground
from kit.waiting import eventually_async


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the partner ``dhl``."""
    async with running_api(database_url) as running:
        await Ground(running.pool).partner()
        yield running


async def send(client: Client, body: Any, kind: str = "application/x-ndjson") -> Answer:
    """Import a body."""
    return await client.post("/v1/entities:bulk", body, headers={"Content-Type": kind})


def line(code: str, **fields: Any) -> bytes:
    """Return one line of NDJSON."""
    return json.dumps({"code": code, **fields}).encode() + b"\n"


async def rows(api: RunningApi) -> list[tuple[Any, ...]]:
    """Return every entity."""
    found = await api.pool.fetch(
        """SELECT code, party::text, is_polling_enabled, polling_enabled_modules, partner, config_version
             FROM tickwright.entities ORDER BY code"""
    )
    return [tuple(row) for row in found]


async def test_good_lines_are_set_and_bad_ones_say_why(api: RunningApi) -> None:
    """Each bad line is rejected with its number, code and reason; an entity that exists is set and counted as such."""
    await api.admin.send("PUT", "/v1/entities/c", {"partner": "dhl", "party": {"x": 1}})
    lines = [
        line("a", party={"n": 1}, polling_enabled_modules="cdrs, TARIFFS", partner="dhl"),
        b"nonsense\n",
        b"  \n",
        line("b:c"),
        line("b/c"),
        line("x" * 101),
        line(""),
        line("b", polling_enabled_modules="NOSUCH"),
        line("b", polling_enabled_modules="A-B"),
        line("b", partner="unknown"),
        line("b", party={"a": {"password": "hunter2"}}),
        line("b", party="{}"),
        line("b", party={"a": "x" * 65_536}),
        line("b", colour="red"),
        b'{"code":"b","code":"d"}\n',
        b'{"code":"b","party":{"a":"\\u0000"}}\n',
        b'{"party":{}}\n',
        b'{"code":"b","party":{"a":"' + b"x" * 300_000 + b'"}}\n',
        line("c", is_polling_enabled=False),
        line("a", party={"n": 2}).rstrip(),
    ]
    answer = await send(api.admin, b"".join(lines))
    said = answer.json
    assert (said["lines"], said["created"], said["existing"], said["rejected"]) == (20, 1, 2, 16)
    assert [(r["line"], r["code"]) for r in said["rejects"]] == [
        (2, "invalid_json"), (4, "invalid_entity_code"), (5, "invalid_entity_code"), (6, "invalid_entity_code"),
        (7, "invalid_entity_code"), (8, "unknown_module"), (9, "invalid_modules"), (10, "unknown_partner"),
        (11, "plain_secret"), (12, "invalid_value"), (13, "party_too_large"), (14, "unknown_field"),
        (15, "duplicate_key"), (16, "unsupported_character"), (17, "invalid_value"), (18, "line_too_long"),
    ]  # fmt: skip
    assert all(reject["message"] for reject in said["rejects"])
    assert "hunter2" not in answer.body.decode()
    assert await rows(api) == [("a", '{"n": 2}', True, "", None, 1), ("c", "{}", False, "", None, 2)]


async def test_the_same_file_again_changes_nothing(api: RunningApi) -> None:
    """Not even a version; only a line that changed raises one."""
    lines = [line(f"e{n}", polling_enabled_modules="CDRS", party={"n": n, "s": "ü"}) for n in range(2_500)]
    said = (await send(api.admin, b"".join(lines))).json
    assert (said["created"], said["existing"], said["committed_lines"]) == (2_500, 0, 2_500)
    before = await rows(api)
    said = (await send(api.admin, b"".join(lines))).json
    assert (said["created"], said["existing"]) == (0, 2_500)
    assert await rows(api) == before
    await send(api.admin, line("e7", polling_enabled_modules="CDRS", party={"n": 8, "s": "ü"}))
    assert [row[0] for row in await rows(api) if row[5] != 1] == ["e7"]


async def test_a_table_sets_the_same_entities(api: RunningApi) -> None:
    """CSV: the first line names the columns in any order, the party is JSON in its cell, empty cells are defaults."""
    table = (
        '\ufeffpartner,code,polling_enabled_modules,is_polling_enabled,party\r\n'
        'dhl,a,"LOCATIONS,TARIFFS",true,"{""token"": ""${env:A}""}"\r\n'
        ',b,cdrs,FALSE,\r\n'
        ',c,,,\r\n'
        ',d,,perhaps,\r\n'
        ',d,,,[]\r\n'
        ',d,,,{\r\n'
        ',d,,\r\n'
        ',d,,,"{""token"": ""abc""}"\r\n'
        ',"d,,,\r\n'
        ',,,,\r\n'
    )  # fmt: skip
    said = (await send(api.admin, table.encode(), "text/csv; charset=utf-8")).json
    assert [(r["line"], r["code"]) for r in said["rejects"]] == [
        (5, "invalid_value"), (6, "invalid_value"), (7, "invalid_json"), (8, "invalid_csv"), (9, "plain_secret"),
        (10, "invalid_csv"), (11, "invalid_entity_code"),
    ]  # fmt: skip
    assert await rows(api) == [
        ("a", '{"token": "${env:A}"}', True, "LOCATIONS,TARIFFS", "dhl", 1),
        ("b", "{}", False, "CDRS", None, 1),
        ("c", "{}", True, "", None, 1),
    ]
    assert (await send(api.admin, b"code\nz\n", "text/csv")).json["created"] == 1


@pytest.mark.parametrize("head", [b"party\n", b"code,colour\n", b"code,code\n", b'{"code":"a"}\n'])
async def test_a_table_with_other_columns_is_refused_whole(api: RunningApi, head: bytes) -> None:
    """Before anything is set."""
    (await send(api.admin, head + b"a,b\n", "text/csv")).says(400, "invalid_columns")
    assert await rows(api) == []


async def test_an_import_leaves_one_line_of_audit_with_its_counts(api: RunningApi) -> None:
    """The caller and the counts; only admins may import."""
    (await send(api.operator, line("a"))).says(403, "forbidden")
    said = (await send(api.admin, line("a") + b"x\n")).json
    entry = (await api.viewer.get("/v1/audit?action=entities.import")).json["items"][0]
    assert (entry["id"], entry["actor"]) == (said["import_id"], "admin")
    assert entry["after"] == {"committed_lines": 2, "created": 1, "existing": 0, "rejected": 1, "finished": True}


async def test_large_parties_are_committed_in_batches_by_their_bytes(api: RunningApi) -> None:
    """However large the lines, a transaction holds a few megabytes; progress is reported meanwhile."""
    more = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        for n in range(80):
            yield line(f"e{n:03}", party={"a": "x" * 65_000})
        await more.wait()
        yield line("last")

    asked = asyncio.create_task(send(api.admin, pieces()))

    async def some() -> bool:
        return len(await rows(api)) >= 60

    await eventually_async(some)
    entry = (await api.viewer.get("/v1/audit?action=entities.import")).json["items"][0]["after"]
    assert entry["finished"] is False
    assert 60 <= entry["committed_lines"] < 80
    more.set()
    assert (await asked).json["created"] == 81


async def test_an_import_that_loses_the_database_reports_the_committed_lines(api: RunningApi) -> None:
    """503 with the count of committed lines; the client sends the rest again."""
    cut = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"".join(line(f"a{n}") for n in range(1_200))
        await cut.wait()
        yield b"".join(line(f"b{n}") for n in range(1_000))

    asked = asyncio.create_task(send(api.admin, pieces()))

    async def one_batch() -> bool:
        return len(await rows(api)) == 1_000

    await eventually_async(one_batch)
    await api.pool.execute(SHUTTING_DOWN)
    cut.set()
    said = (await asked).says(503, "import_interrupted").json
    assert said["committed_lines"] == 1_000
    assert len(await rows(api)) == 1_000
    await api.pool.execute("DROP FUNCTION tickwright.shutting_down() CASCADE")
