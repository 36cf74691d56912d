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
    """Two listeners' queues of the test's own."""
    reports = Reports(rabbit_server.url)
    await reports.prepare("users", "tags")
    yield reports
    await reports.remove()


@pytest.fixture
async def api(database_url: str, queues: Reports) -> AsyncIterator[RunningApi]:
    """An API that knows where RabbitMQ is."""
    async with running_api(database_url, dead_calls=queues.dead) as api:
        yield api


async def bury(queues: Reports, listener: str, *ids: str, body: bytes = BODY) -> None:
    """Bury calls of a listener."""
    async with queues.consumer(listener) as source:
        for one in ids:
            await queues.tell(listener, one, body=body)
            assert await source.dead_letter(await taken(source), "unreadable", "It is no call.")


async def test_a_viewer_sees_whose_calls_died_and_why(api: RunningApi, queues: Reports) -> None:
    """Listener, report, reason, words and instant; of one listener alone; and how many there are in all."""
    await bury(queues, "users", "a")
    await bury(queues, "tags", "b", body=b"\xff[" + b"1" * 6000)
    page = (await api.viewer.get("/v1/dead-letters/reports")).json
    assert page["count"] == 2
    first, second = page["items"]
    assert (first["id"], first["listener"], first["report_id"]) == ("a", "users", 42)
    assert (first["reason"], first["error_message"]) == ("unreadable", "It is no call.")
    assert first["died_at"].endswith("Z")
    assert (second["listener"], second["report_id"], second["body"][:6]) == ("tags", None, "\\xff[1")
    page = (await api.viewer.get("/v1/dead-letters/reports?listener=tags")).json
    assert [item["id"] for item in page["items"]] == ["b"]


async def test_an_operator_puts_them_back_to_their_listeners(api: RunningApi, queues: Reports) -> None:
    """By id or all, each into the queue that it came from, with a line in the audit trail."""
    await bury(queues, "users", "a", "b")
    await bury(queues, "tags", "c")
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


async def test_without_rabbitmq_there_are_none(database_url: str) -> None:
    """Nobody is called there, so nothing is given up."""
    async with running_api(database_url) as api:
        assert (await api.viewer.get("/v1/dead-letters/reports")).json == {"items": [], "count": 0}
        done = (await api.operator.post("/v1/dead-letters/reports/requeue", {"all": True})).json
        assert done == {"requeued": 0, "ids": [], "more": False}


async def test_a_rabbitmq_that_is_away_is_unavailable(database_url: str) -> None:
    """Worth trying again."""
    away = RabbitDeadLetters("amqp://guest:guest@127.0.0.1:1/", report_exchanges("t"))
    async with running_api(database_url, dead_calls=away) as api:
        (await api.viewer.get("/v1/dead-letters/reports")).says(503, "rabbitmq_unavailable")


async def test_the_command_line_lists_and_puts_back(database_url: str, queues: Reports) -> None:
    """``--kind reports``: by id or ``--all``; 1 where an id is none."""
    await bury(queues, "users", "a", "b")
    env = environment(DATABASE_URL=database_url, AMQP_URL=queues.url, AMQP_PREFIX=queues.shared.prefix)

    async def said(*words: str) -> Said:
        return await asyncio.to_thread(tickwright, "dead-letters", *words, "--kind", "reports", env=env)

    listed = await said("list", "--limit", "1")
    assert listed.code == 0, listed.err
    assert "unreadable" in listed.out
    assert "1 of 2" in listed.err
    assert (await said("list", "--subject", "tags")).err == "no dead letters\n0 of 2\n"
    gone = await said("requeue", "b", "nowhere", "--json")
    assert (gone.code, gone.json["ids"], gone.error["ids"]) == (1, ["b"], ["nowhere"])
    assert (await said("requeue", "x", "--all")).code == 2
    assert (await said("requeue", "--all")).out == "1 requeued\n"
    assert await queues.ids_in(queues.names("users").queue) == ["b", "a"]
