"""The dead letters of fan-out by REST and on the command line, on a real RabbitMQ."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.cli import Said, environment, tickwright
from kit.rabbit_tasks import Fanout, taken
from tickwright.capabilities.fanout.messages import write_task
from tickwright.capabilities.fanout.windows import Window
from tickwright.ports.broker import Message
from tickwright.store.pool import open_pool
from tickwright.transports.postgres.broker import PostgresBroker, PostgresDeadLetters, PostgresTaskQueue

WINDOW = Window(1_800_000_000, 300)


@pytest.fixture
async def api(database_url: str, fanout: Fanout) -> AsyncIterator[RunningApi]:
    """An API that knows where RabbitMQ is."""
    async with running_api(database_url, dead_tasks=fanout.dead) as api:
        yield api


def task(code: str, module: str = "TARIFFS", party: bytes = b"{}") -> tuple[str, bytes]:
    """Return id and body of a task."""
    return write_task(code, module, party, WINDOW, None, 1000, None, 1)


async def put_dead(fanout: Fanout, *tasks: tuple[str, bytes]) -> list[str]:
    """Dead-letter tasks with the reason ``no_handler``; return their ids."""
    async with fanout.consumer() as source:
        for message_id, body in tasks:
            await fanout.put(message_id, body=body)
            assert await source.dead_letter(await taken(source), "no_handler", "No process here handles it.")
    return [message_id for message_id, _ in tasks]


@pytest.mark.parametrize(
    "odd", [b"1" * 6000, b'{"a":' * 3000 + b"1" + b"}" * 3000], ids=["a long number", "nested deeply"]
)
async def test_a_secret_is_hidden_also_beside_unreadable_values(api: RunningApi, fanout: Fanout, odd: bytes) -> None:
    """A task that no consumer can read is dead-lettered with its whole party, which SQL may have written."""
    await put_dead(fanout, task("ACME", party=b'{"token": "hunter2", "odd": ' + odd + b"}"))
    page = await api.viewer.get("/v1/dead-letters/fanout")
    assert page.status == 200
    assert len(page.json["items"]) == 1
    assert "hunter2" not in str(page.json)


async def test_a_viewer_sees_which_tasks_died_and_why(api: RunningApi, fanout: Fanout) -> None:
    """Entity, task type, reason, text, instant and body; and the total."""
    ids = await put_dead(fanout, task("ACME"), task("BETA", "LOCATIONS"), task("GAMMA"))
    page = (await api.viewer.get("/v1/dead-letters/fanout?limit=2")).json
    assert page["count"] == 3
    assert [item["id"] for item in page["items"]] == ids[:2]
    first = page["items"][0]
    assert (first["entity_code"], first["task_type"], first["reason"]) == ("ACME", "TARIFFS", "no_handler")
    assert first["error_message"] == "No process here handles it."
    assert first["died_at"].endswith("Z")
    assert json.loads(first["body"])["EntityCode"] == "ACME"
    page = (await api.viewer.get("/v1/dead-letters/fanout?task_type=LOCATIONS")).json
    assert [item["entity_code"] for item in page["items"]] == ["BETA"]


async def test_an_unreadable_dead_letter_is_shown_escaped_and_short(api: RunningApi, fanout: Fanout) -> None:
    """A page of unreadable messages is bounded, and names what it can."""
    bodies = [
        b"\x1f\x8b\x00\xff",
        b"[" * 100_000,
        b'{"EntityCode": 7, "TaskType": {"a": 1}}',
        b"x" * 1_000_000,
        b"",
        '{"EntityCode": "ä\u2028"}'.encode(),
    ]
    await fanout.put("a")
    for number, body in enumerate(bodies):
        await fanout.put(str(number), body=body)
    await fanout.reject(1 + len(bodies))
    items = (await api.viewer.get("/v1/dead-letters/fanout")).json["items"][1:]
    assert [item["reason"] for item in items] == ["rejected"] * len(bodies)
    assert [item["entity_code"] for item in items] == [None, None, None, None, None, "ä\u2028"]
    assert [item["task_type"] for item in items] == [None] * len(bodies)
    assert items[0]["body"] == "\x1f\\x8b\x00\\xff"
    assert len(items[3]["body"]) == 65_536


async def test_a_large_party_does_not_hide_whose_task_it_is(api: RunningApi, fanout: Fanout) -> None:
    """The body is cut where it is shown, not before it is read."""
    party = json.dumps({"note": "x" * 65_000, "url": "y" * 500}).encode()
    await put_dead(fanout, task("ACME", party=party))
    (item,) = (await api.viewer.get("/v1/dead-letters/fanout")).json["items"]
    assert (item["entity_code"], item["task_type"]) == ("ACME", "TARIFFS")
    assert len(item["body"]) == 65_536


async def test_a_secret_inside_a_message_is_not_shown(api: RunningApi, fanout: Fanout) -> None:
    """A viewer of dead letters may not read tokens."""
    await put_dead(fanout, task("ACME", party=b'{"token": "hush-hush", "other": "${env:NAME}"}'))
    body = (await api.viewer.get("/v1/dead-letters/fanout")).body
    assert b"hush-hush" not in body
    assert b"${env:NAME}" in body


async def test_an_operator_requeues_by_id_and_it_is_audited(api: RunningApi, fanout: Fanout) -> None:
    """One line in the audit trail with the ids asked for and those requeued; unknown ids are left out."""
    ids = await put_dead(fanout, task("ACME"), task("BETA"))
    wanted = {"ids": [ids[1], "nowhere"]}
    (await api.viewer.post("/v1/dead-letters/fanout/requeue", wanted)).says(403, "forbidden")
    done = (await api.operator.post("/v1/dead-letters/fanout/requeue", wanted)).json
    assert done == {"requeued": 1, "ids": [ids[1]], "more": False}
    again = (await api.operator.post("/v1/dead-letters/fanout/requeue", wanted)).json
    assert again == {"requeued": 0, "ids": [], "more": False}
    lines = (await api.viewer.get("/v1/audit?action=dead_letters.requeue")).json["items"]
    assert [(line["actor"], line["subject"]) for line in lines] == [("operator", "fanout")] * 2
    assert lines[1]["after"] == {"ids": [ids[1]]}
    assert lines[1]["before"]["ids"] == wanted["ids"]
    assert await fanout.ids_in(fanout.names.queue) == [ids[1]]


async def test_all_are_requeued_up_to_a_limit(api: RunningApi, fanout: Fanout) -> None:
    """The oldest first, and the answer says that there may be more."""
    ids = await put_dead(fanout, task("ACME"), task("BETA"), task("GAMMA"))
    done = (await api.operator.post("/v1/dead-letters/fanout/requeue", {"all": True, "limit": 2})).json
    assert done == {"requeued": 2, "ids": ids[:2], "more": True}


@pytest.mark.parametrize("body", [{}, {"all": False}, {"ids": ["a"], "all": True}])
async def test_a_requeue_without_a_filter_is_refused(api: RunningApi, body: dict[str, Any]) -> None:
    """A body that leaves something out does not requeue everything."""
    (await api.operator.post("/v1/dead-letters/fanout/requeue", body)).says(422, "empty_filter")


async def test_without_rabbitmq_the_routes_show_dead_letters_of_postgresql(database_url: str) -> None:
    """The routes are the same, wherever the queue is."""
    async with running_api(database_url) as api:
        await api.pool.execute(
            "INSERT INTO tickwright.messages (topic, message_id, payload, status, finished_at) "
            "VALUES ('tickwright.fanout', 'a', '{}', 'dead', now())"
        )
        assert [item["id"] for item in (await api.viewer.get("/v1/dead-letters/fanout")).json["items"]] == ["a"]
        assert (await api.operator.post("/v1/dead-letters/fanout/requeue", {"all": True})).json["ids"] == ["a"]
        assert (await api.viewer.get("/v1/dead-letters/fanout")).json["count"] == 0


async def test_dead_letters_of_an_unavailable_rabbitmq_are_unavailable(database_url: str, fanout: Fanout) -> None:
    """The request can be retried."""
    unavailable = fanout.behind("amqp://guest:guest@127.0.0.1:1/").dead
    async with running_api(database_url, dead_tasks=unavailable) as api:
        (await api.viewer.get("/v1/dead-letters/fanout")).says(503, "rabbitmq_unavailable")


async def test_the_command_line_lists_and_requeues(database_url: str, fanout: Fanout) -> None:
    """``--kind fanout``: by id or ``--all``; 1 where an id is unknown."""
    ids = await put_dead(fanout, task("ACME"), task("BETA"))
    env = environment(DATABASE_URL=database_url, AMQP_URL=fanout.url, AMQP_PREFIX=fanout.names.prefix)

    async def said(*arguments: str) -> Said:
        return await asyncio.to_thread(tickwright, "dead-letters", *arguments, env=env)

    listed = await said("list", "--kind", "fanout", "--limit", "1")
    assert listed.code == 0, listed.err
    assert ids[0] in listed.out
    assert "no_handler" in listed.out
    assert "1 of 2" in listed.err
    assert [item["id"] for item in (await said("list", "--kind", "fanout", "--json")).json["items"]] == ids
    for wrong in (["x", "--all"], [], ["--subject", "TARIFFS"]):
        assert (await said("requeue", "--kind", "fanout", *wrong)).code == 2
    gone = await said("requeue", ids[1], "nowhere", "--kind", "fanout", "--json")
    assert (gone.code, gone.json["ids"], gone.error["ids"]) == (1, [ids[1]], ["nowhere"])
    assert (await said("requeue", "--kind", "fanout", "--all")).out == "1 requeued\n"
    assert (await said("list", "--kind", "fanout")).err == "no dead letters\n"
    assert (await said("requeue", "--all")).code == 2
    assert (await said("requeue", "seven")).code == 2
    assert await fanout.ids_in(fanout.names.queue) == [ids[1], ids[0]]


async def test_without_rabbitmq_a_dead_letter_is_requeued_in_postgresql(database_url: str) -> None:
    """The same routes and commands, whatever the queue is in."""
    pool = await open_pool(database_url, max_size=4)
    source = PostgresTaskQueue(pool, "tickwright.fanout", slots=1)
    running = asyncio.create_task(source.run())
    message_id, body = task("ACME")
    try:
        await PostgresBroker(pool).publish(Message(message_id, "pg:tickwright.fanout", body))
        assert await source.dead_letter(
            await asyncio.wait_for(source.take(), 10), "no_handler", "No process here handles it."
        )
        async with running_api(database_url, dead_tasks=PostgresDeadLetters(pool, "tickwright.fanout")) as api:
            (item,) = (await api.viewer.get("/v1/dead-letters/fanout")).json["items"]
            assert (item["entity_code"], item["reason"]) == ("ACME", "no_handler")
        env = environment(DATABASE_URL=database_url)
        said = await asyncio.to_thread(tickwright, "dead-letters", "requeue", message_id, "--kind", "fanout", env=env)
        assert said.out == "1 requeued\n", said.err
        assert (await asyncio.wait_for(source.take(), 10)).message_id == message_id
    finally:
        await source.quiesce()
        await source.stop()
        await asyncio.wait({running}, timeout=5)
        pool.terminate()
