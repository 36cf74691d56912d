"""The dead letters of reports by REST and on the command line, on a real RabbitMQ."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kit.api import RunningApi, running_api
from kit.cli import Said, environment, tickwright
from kit.rabbit_reports import Reports
from kit.rabbit_tasks import taken
from kit.servers import RabbitServer
from tickwright.transports.rabbitmq.dead_letters import RabbitDeadLetters
from tickwright.transports.rabbitmq.topology import report_exchanges

BODY = b'{"report_id": 42, "listeners": ["users"]}'


@pytest.fixture
async def queues(rabbit_server: RabbitServer) -> AsyncIterator[Reports]:
    """The queues of two listeners, for this test alone."""
    reports = Reports(rabbit_server.url)
    await reports.prepare("users", "tags")
    yield reports
    await reports.remove()


@pytest.fixture
async def api(database_url: str, queues: Reports) -> AsyncIterator[RunningApi]:
    """An API that is connected to RabbitMQ."""
    async with running_api(database_url, dead_calls=queues.dead) as api:
        yield api


async def dead_letter_calls(queues: Reports, listener: str, *ids: str, body: bytes = BODY) -> None:
    """Dead-letter calls of a listener."""
    async with queues.consumer(listener) as source:
        for one in ids:
            await queues.tell(listener, one, body=body)
            assert await source.dead_letter(await taken(source), "unreadable", "It is no call.")


async def test_a_viewer_sees_the_listener_and_the_reason_of_a_dead_call(api: RunningApi, queues: Reports) -> None:
    """Listener, report, reason, text and instant; filtered by listener; and the total."""
    await dead_letter_calls(queues, "users", "a")
    await dead_letter_calls(queues, "tags", "b", body=b"\xff[" + b"1" * 6000)
    page = (await api.viewer.get("/v1/dead-letters/reports")).json
    assert page["count"] == 2
    first, second = page["items"]
    assert (first["id"], first["listener"], first["report_id"]) == ("a", "users", 42)
    assert (first["reason"], first["error_message"]) == ("unreadable", "It is no call.")
    assert first["died_at"].endswith("Z")
    assert (second["listener"], second["report_id"], second["body"][:6]) == ("tags", None, "\\xff[1")
    page = (await api.viewer.get("/v1/dead-letters/reports?listener=tags")).json
    assert [item["id"] for item in page["items"]] == ["b"]


async def test_an_operator_requeues_dead_calls_to_their_listeners(api: RunningApi, queues: Reports) -> None:
    """By id or all, each into the queue that it came from, with a line in the audit trail."""
    await dead_letter_calls(queues, "users", "a", "b")
    await dead_letter_calls(queues, "tags", "c")
    wanted = {"ids": ["b", "nowhere"]}
    (await api.viewer.post("/v1/dead-letters/reports/requeue", wanted)).says(403, "forbidden")
    for body in ({}, {"ids": ["a"], "all": True}):
        (await api.operator.post("/v1/dead-letters/reports/requeue", body)).says(422, "empty_filter")
    done = (await api.operator.post("/v1/dead-letters/reports/requeue", wanted)).json
    assert done == {"requeued": 1, "ids": ["b"], "more": False}
    done = (await api.operator.post("/v1/dead-letters/reports/requeue", {"all": True})).json
    assert done["ids"] == ["a", "c"]
    assert await queues.ids_in(queues.names("users").queue) == ["b", "a"]
    assert await queues.ids_in(queues.names("tags").queue) == ["c"]
    lines = (await api.viewer.get("/v1/audit?action=dead_letters.requeue")).json["items"]
    assert [(line["subject"], line["after"]) for line in lines] == [
        ("reports", {"ids": ["a", "c"]}), ("reports", {"ids": ["b"]}),
    ]  # fmt: skip


async def test_without_rabbitmq_there_are_no_dead_calls(database_url: str) -> None:
    """No listener is called through RabbitMQ there, so no call is dead-lettered."""
    async with running_api(database_url) as api:
        assert (await api.viewer.get("/v1/dead-letters/reports")).json == {"items": [], "count": 0}
        done = (await api.operator.post("/v1/dead-letters/reports/requeue", {"all": True})).json
        assert done == {"requeued": 0, "ids": [], "more": False}


async def test_dead_calls_on_an_unavailable_rabbitmq_are_a_503(database_url: str) -> None:
    """503 with the code of an unavailable RabbitMQ."""
    unreachable = RabbitDeadLetters("amqp://guest:guest@127.0.0.1:1/", report_exchanges("t"))
    async with running_api(database_url, dead_calls=unreachable) as api:
        (await api.viewer.get("/v1/dead-letters/reports")).says(503, "rabbitmq_unavailable")


async def test_the_command_line_lists_and_requeues_dead_calls(database_url: str, queues: Reports) -> None:
    """``--kind reports``: by id or ``--all``; exit code 1 where an id is unknown."""
    await dead_letter_calls(queues, "users", "a", "b")
    env = environment(DATABASE_URL=database_url, AMQP_URL=queues.url, AMQP_PREFIX=queues.shared.prefix)

    async def run(*arguments: str) -> Said:
        return await asyncio.to_thread(tickwright, "dead-letters", *arguments, "--kind", "reports", env=env)

    listed = await run("list", "--limit", "1")
    assert listed.code == 0, listed.err
    assert "unreadable" in listed.out
    assert "1 of 2" in listed.err
    assert (await run("list", "--subject", "tags")).err == "no dead letters\n0 of 2\n"
    gone = await run("requeue", "b", "nowhere", "--json")
    assert (gone.code, gone.json["ids"], gone.error["ids"]) == (1, ["b"], ["nowhere"])
    assert (await run("requeue", "x", "--all")).code == 2
    assert (await run("requeue", "--all")).out == "1 requeued\n"
    assert await queues.ids_in(queues.names("users").queue) == ["b", "a"]
