"""Data of users: with a higher role required, no answer to a lower one holds any of it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kit.alerts import RULES
from kit.api import Client, RunningApi, running_api
from kit.polling import Ground
from kit.streams import open_stream
from tickwright.capabilities.operations.alerts import alerting
from tickwright.observe.alerts import AlertFinding
from tickwright.ports.caller import Role
from tickwright.ports.task_queue import DeadMessage, Peeked
from tickwright.ports.views import HIDDEN, Page, UserData, set_sight, shown

CANARY = "canary-7f3a"
DATA = {"who": CANARY}
STREAMS = {"/v1/stream", "/v1/jobs/{job_id}/events"}
FILES = {"/v1/reports/{report_id}/file", "/v1/report-files/{report_id}"}
SHOWS = {
    "/v1/jobs/{job_id}",
    "/v1/audit",
    "/v1/entities/{code}",
    "/v1/reports",
    "/v1/reports/{report_id}",
    "/v1/executions/{execution_id}/actions",
    "/v1/trackers/{tracker_id}",
    "/v1/dead-letters/fanout",
    "/v1/dead-letters/reports",
}
"""Fields in which the data that is put here is visible to higher roles; data of a new route is put here, too."""

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PLACED = """
WITH taken AS (DELETE FROM tickwright.tracker_intake RETURNING *)
INSERT INTO tickwright.trackers
       (id, created_at, tracking_until, account_no, place, partner_no, status, external_id, events)
SELECT id, created_at, tracking_until, account_no, $1, partner_no, status, external_id, $2 FROM taken
"""
"""The work of the registrar on the tracker, and the result of its first poll."""


class OneDeadLetter:
    """A queue of dead letters with one message."""

    async def peek(self, _limit: int) -> Peeked:
        """Return the message."""
        dead = DeadMessage("m1", "rejected", "no such module", 1.0, json.dumps(DATA).encode(), "users")
        return Peeked([dead], 1)

    async def requeue(self, _limit: int, *, message_ids: Sequence[str] | None = None) -> list[str]:
        """Return nothing."""
        return []


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """An API that shows data of users to operators and above, with some of every kind."""
    async with running_api(
        database_url, payloads_from=Role.OPERATOR, dead_tasks=OneDeadLetter(), dead_calls=OneDeadLetter()
    ) as running:
        yield running


async def put_data(api: RunningApi) -> dict[str, str]:
    """Put the canary into every field for data of users; return the values of path parameters."""
    body = {"task_type": "noop", "payload": DATA, "metadata": DATA, "delay": "1h"}
    job = (await api.operator.post("/v1/jobs", body)).json["id"]
    edited = await api.operator.send("PATCH", f"/v1/jobs/{job}", {"payload": [CANARY], "metadata": {"m": CANARY}})
    assert edited.status == 200, edited.body
    text = json.dumps(DATA)
    await api.pool.execute("UPDATE tickwright.scheduled_tasks SET result = $2, progress = $2 WHERE id = $1", job, text)
    step = json.dumps({"first": {"result": DATA, "at": "2026-01-01T00:00:00Z", "attempt": 1}})
    await api.pool.execute("UPDATE tickwright.scheduled_tasks SET steps = $2 WHERE id = $1", job, step)
    put = await api.admin.send("PUT", "/v1/entities/ACME", {"party": DATA, "polling_enabled_modules": "TARIFFS"})
    assert put.status == 201, put.body
    await Ground(api.pool).partner()
    tracker = {"account_id": "shop", "partner": "dhl", "external_id": "A1"}
    tracker_id = (await api.operator.post("/v1/trackers", tracker)).json["tracker"]["id"]
    event = json.dumps([{"at": "2026-01-01T00:00:00Z", "text": CANARY}])
    await api.pool.execute(PLACED, 60 * await Ground(api.pool).wheel(2), event)
    kind = {"parameters": {"who": "text"}, "listeners": {"users": {}}}
    assert (await api.admin.send("PUT", "/v1/report-types/users", kind)).status == 201
    report = (await api.operator.post("/v1/reports", {"type": "users", "conditions": DATA})).json["id"]
    await api.pool.execute("INSERT INTO tickwright.batches (name, kind, type) VALUES ('loans', 'campaign', 'MANUAL')")
    return {
        "job_id": job,
        "code": "ACME",
        "tracker_id": tracker_id,
        "report_id": report,
        "execution_id": await put_action(api, text),
        "account_id": "shop",
    }


async def put_action(api: RunningApi, client: str) -> int:
    """Create an execution with one action."""
    execution = await api.pool.fetchval(
        "INSERT INTO tickwright.executions (batch_id, slot_at, status) "
        "SELECT id, $1, 'FINISHED' FROM tickwright.batches RETURNING id",
        datetime(2026, 1, 5, tzinfo=UTC),
    )
    await api.pool.execute(
        "INSERT INTO tickwright.execution_chunks (execution_id, number, state, value) VALUES ($1, 0, 'done', '{}')",
        execution,
    )
    await api.pool.execute(
        "INSERT INTO tickwright.execution_actions (execution_id, chunk, client_id, client) VALUES ($1, 0, '7', $2)",
        execution,
        client,
    )
    return int(execution)


async def reads(api: RunningApi) -> list[str]:
    """Return every path that can be read and ends."""
    document = (await api.stranger.get("/v1/openapi.json")).json
    return [path for path, item in document["paths"].items() if "get" in item and path not in STREAMS | FILES]


def filled(path: str, places: dict[str, Any]) -> str:
    """Return the path of the data that was put; names are those of the test's task type."""
    return re.sub(r"\{([a-z_]+)\}", lambda found: str(places.get(found[1], "noop")), path)


async def seen(client: Client, paths: list[str], places: dict[str, Any]) -> dict[str, str]:
    """Return the text of every answer, problems included, and the first event of every stream."""
    answers = [await client.get(filled(path, places)) for path in paths]
    assert not [answer.body for answer in answers if answer.status >= 500]
    texts = {path: answer.body.decode() for path, answer in zip(paths, answers, strict=True)}
    async with open_stream(client) as stream:
        return texts | {"/v1/stream": json.dumps(await stream.until(lambda view: view["jobs"]["latest"]))}


async def test_no_route_shows_a_viewer_what_only_operators_see(api: RunningApi) -> None:
    """Every GET route: the canary is nowhere, and ``payload_hidden`` marks the fields."""
    places = await put_data(api)
    paths = await reads(api)
    operators = await seen(api.operator, paths, places)
    assert {path for path, text in operators.items() if CANARY in text} == SHOWS
    assert not [path for path, text in operators.items() if f'"{HIDDEN}":true' in text]
    viewers = await seen(api.viewer, paths, places)
    assert not [path for path, text in viewers.items() if CANARY in text]
    assert {path for path, text in viewers.items() if f'"{HIDDEN}":true' in text} == SHOWS
    (await api.viewer.get(f"/v1/reports/{places['report_id']}/file")).says(403, "payload_hidden")
    (await api.operator.get(f"/v1/reports/{places['report_id']}/file")).says(409, "report_not_finished")


async def test_conditions_and_feed_of_a_service_are_hidden(api: RunningApi) -> None:
    """A part's request is refused as a whole: with ``null`` in it a service would deliver wrong rows."""
    kind = {
        "parameters": {"who": "text"},
        "listeners": {"paid": {"service": True, "columns": {"id": "BIGINT"}}},
        "merge": "SELECT id FROM paid",
    }
    assert (await api.admin.send("PUT", "/v1/report-types/sent", kind)).status == 201
    report = (await api.operator.post("/v1/reports", {"type": "sent", "conditions": DATA})).json["id"]
    path = f"/v1/reports/{report}/parts/paid"
    assert (await api.operator.get(path)).json["conditions"] == DATA
    refused = await api.viewer.get(path)
    refused.says(403, "payload_hidden")
    assert CANARY not in refused.body.decode()


async def test_an_expression_on_clients_needs_the_role_that_sees_data(database_url: str) -> None:
    """A count reveals data one bit at a time."""
    async with running_api(database_url, payloads_from=Role.ADMIN) as api:
        guess = {"expression": "client.income > 1000"}
        (await api.operator.post("/v1/campaigns/loans/dry-run", guess)).says(403, "payload_hidden")
        (await api.operator.post("/v1/campaigns/loans/dry-run", {})).says(404, "campaign_not_found")
        (await api.admin.post("/v1/campaigns/loans/dry-run", guess)).says(404, "campaign_not_found")


async def test_conditions_of_a_report_need_the_role_that_sees_data(database_url: str) -> None:
    """The number of its rows reveals data, as the count of a dry run does."""
    async with running_api(database_url, payloads_from=Role.ADMIN) as api:
        kind = {"parameters": {"who": "text"}, "listeners": {"users": {}}}
        assert (await api.admin.send("PUT", "/v1/report-types/users", kind)).status == 201
        assert (await api.admin.send("PUT", "/v1/report-types/all", {"listeners": {"users": {}}})).status == 201
        (await api.operator.post("/v1/reports", {"type": "users", "conditions": DATA})).says(403, "payload_hidden")
        assert (await api.operator.post("/v1/reports", {"type": "all"})).status == 201
        assert (await api.admin.post("/v1/reports", {"type": "users", "conditions": DATA})).status == 201


async def test_texts_of_errors_are_not_hidden(api: RunningApi) -> None:
    """Only data of users is hidden; a viewer needs the reason of a failure."""
    job = (await api.operator.post("/v1/jobs", {"task_type": "noop", "payload": DATA, "delay": "1h"})).json["id"]
    await api.pool.execute("UPDATE tickwright.scheduled_tasks SET error_message = 'no route' WHERE id = $1", job)
    answered = (await api.viewer.get(f"/v1/jobs/{job}")).json
    assert (answered["error_message"], answered["payload"], answered["result"]) == ("no route", None, None)
    assert (await api.viewer.get("/v1/dead-letters/fanout")).json["items"][0]["error_message"] == "no such module"


async def test_the_trace_of_a_job_is_not_hidden(api: RunningApi) -> None:
    """It has only ids; another value that a user wrote there is shown to no role."""
    job = (await api.operator.post("/v1/jobs", {"task_type": "noop", "payload": DATA, "delay": "1h"})).json["id"]
    for stored, seen_is in ((TRACE, TRACE), (f"00-{CANARY}", None)):
        await api.pool.execute("UPDATE tickwright.scheduled_tasks SET traceparent = $2 WHERE id = $1", job, stored)
        assert (await api.viewer.get(f"/v1/jobs/{job}")).json["traceparent"] == seen_is


async def test_the_session_says_whether_payloads_are_shown(api: RunningApi) -> None:
    """The dashboard reads it once, and shows a note instead of empty fields."""
    assert [
        (await client.get("/v1/session")).json["shows_payloads"] for client in (api.viewer, api.operator, api.admin)
    ] == [False, True, True]


async def test_concurrent_requests_keep_their_own_rights(api: RunningApi) -> None:
    """Requests at the same time on one connection pool: each sees what its own role sees."""
    job = (await api.operator.post("/v1/jobs", {"task_type": "noop", "payload": DATA, "delay": "1h"})).json["id"]
    clients = [api.viewer, api.operator] * 50
    answers = await asyncio.gather(*(client.get(f"/v1/jobs/{job}") for client in clients))
    assert [CANARY in answer.body.decode() for answer in answers] == [False, True] * 50


def kinds(of: type[UserData] = UserData) -> Iterator[type[UserData]]:
    """Yield every view with data of users."""
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


async def test_every_hidden_field_may_be_null_in_the_document(api: RunningApi) -> None:
    """A client that is generated from the document accepts the answers."""
    schemas = (await api.stranger.get("/v1/openapi.json")).json["components"]["schemas"]
    found = {kind.__name__: kind.USER_DATA for kind in kinds() if kind.__name__ in schemas}
    assert len(found) >= 10
    for name, fields in found.items():
        assert fields, name
        assert HIDDEN in schemas[name]["properties"]
        for field in fields:
            kind = schemas[name]["properties"][field]
            typed = {"type", "anyOf", "$ref"} & set(kind)
            assert not typed or {"type": "null"} in kind.get("anyOf", []), (name, field, kind)


class Note(msgspec.Struct, UserData):
    """A view with data of users, and others within it."""

    USER_DATA = ("text",)
    text: str | None
    inner: "list[Note]" = msgspec.field(default_factory=list)
    named: "dict[str, Note]" = msgspec.field(default_factory=dict)
    payload_hidden: bool = False


def test_fields_are_hidden_at_any_depth_and_others_are_unchanged() -> None:
    """In lists, pages and maps; the value itself is not modified, since other requests may share it."""
    whole = Page([Note("a", [Note("b")], {"x": Note("c")})], "next")
    assert shown(whole) is whole
    set_sight(allowed=False)
    try:
        bare = shown(whole)
    finally:
        set_sight(allowed=True)
    one = bare.items[0]
    assert (one.text, one.inner[0].text, one.named["x"].text, bare.next) == (None, None, None, "next")
    assert one.payload_hidden
    assert one.inner[0].payload_hidden
    assert (whole.items[0].text, whole.items[0].payload_hidden) == ("a", False)


HOOK = f"https://hooks.example/{CANARY}?key={CANARY}"
HTTP = {
    "url": f"https://api.example/{CANARY}/{{external_id}}",
    "status": "status",
    "headers": {"X-Key": CANARY, "authorization": f"Basic {CANARY}", "x-named": "Bearer ${env:DHL_TOKEN}"},
}
PARTY = {"url": f"{HOOK}#x", "notes": [f"see {HOOK}, or {HOOK}"], HOOK: 1, "api_host": f"cpo.example/{CANARY}"}
WHOLE = {
    "/v1/task-types", "/v1/task-types/{name}", "/v1/partners", "/v1/partners/{name}", "/v1/outbox", "/v1/jobs/{job_id}",
    "/v1/entities/{code}", "/v1/alerts", "/v1/overview", "/v1/stream", "/v1/reports", "/v1/reports/{report_id}",
    "/v1/reports/{report_id}/file", "/v1/reports/{report_id}/explain",
}  # fmt: skip
FACTS = '{"reason": "no %s", "n": 12345678901234567890123, "f": 1.10, "e": "a \\\\ \\u00e9"}'
ODD = f"slack:{CANARY}"
"""Addresses and headers that only operators see whole."""


async def put_credentials(api: RunningApi) -> int:
    """Put the canary into every address and header that an operator sets, and let each write its audit rows.

    Returns:
        The id of a failed report.
    """
    send = api.admin.send
    assert (await send("PUT", "/v1/task-types/hook", {"target": HOOK})).status == 201
    assert (await send("PATCH", "/v1/task-types/hook", {"max_attempts": 2})).status == 200
    assert (await send("PUT", "/v1/partners/dhl", {"rate": "5/s", "http": HTTP})).status == 201
    assert (await send("POST", "/v1/partners/dhl/pause")).status == 200
    receiver = await send("PUT", "/v1/alerts/receivers/pager", {"url": HOOK})
    assert receiver.status == 201, receiver.body
    for destination in (HOOK, ODD, f"https:{CANARY}"):
        await api.pool.execute("INSERT INTO tickwright.outbox (destination, payload) VALUES ($1, '{}')", destination)
    assert (await send("PUT", "/v1/entities/door", {"party": PARTY})).status == 201
    job = (await send("POST", "/v1/jobs", {"task_type": "noop", "delay": "1h"})).json["id"]
    error = f"no {HOOK}, and none in " + json.dumps({"callback": HOOK}).replace("/", "\\/")
    await api.pool.execute("UPDATE tickwright.scheduled_tasks SET error_message = $2 WHERE id = $1", job, error)
    await api.pool.execute(
        "INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts) "
        "VALUES (7, $1, '{}', '{}', now(), 1)",
        HOOK,
    )
    assert (await send("POST", "/v1/outbox:retry", {"destination": HOOK})).status == 200
    requeued = await send("POST", "/v1/dead-letters/requeue", {"kind": "outbox", "subject": HOOK})
    assert requeued.status == 200, requeued.body
    assert (await send("POST", "/v1/outbox/7/discard")).status == 200
    await api.pool.execute(
        "INSERT INTO tickwright.alerts (rule, subject, severity, summary, state, facts) "
        "VALUES ('outbox_oldest', 'x', 'info', 'x', 'firing', $1)",
        FACTS % HOOK,
    )
    return await put_failures(api)


async def put_failures(api: RunningApi) -> int:
    """Create a failed report and a failed execution with the canary in their errors."""
    await api.pool.execute(
        "WITH made AS (INSERT INTO tickwright.batches (name, kind, type) VALUES ('shut', 'campaign', 'MANUAL') "
        "              RETURNING id) "
        "INSERT INTO tickwright.executions (batch_id, slot_at, status, error_message) "
        "SELECT id, now(), 'EXCEPTION_OCCURRED', $1 FROM made",
        f"no {HOOK}",
    )
    assert (await api.admin.send("PUT", "/v1/report-types/shut", {"listeners": {"users": {}}})).status == 201
    report = (await api.operator.post("/v1/reports", {"type": "shut"})).json["id"]
    await api.pool.execute(
        "UPDATE tickwright.reports SET status = 'failed', step_at = NULL, finished_at = now(), error = $2 "
        "WHERE id = $1",
        report,
        f"no {HOOK}",
    )
    return int(report)


async def test_no_route_shows_a_viewer_a_possible_credential(database_url: str) -> None:
    """Every GET route: paths and queries of addresses and plain headers are for operators; the audit masks them."""
    async with running_api(database_url) as api:
        report = await put_credentials(api)
        paths, client = [*await reads(api), *FILES], api.viewer
        job = (await client.get("/v1/jobs")).json["items"][0]["id"]
        shows: set[str] = set()
        for name in ("hook", "dhl", "pager"):
            places = {"name": name, "job_id": job, "code": "door", "report_id": report}
            found = await seen(client, paths, places)
            assert not [path for path, text in found.items() if CANARY in text]
            shows |= {path for path, text in (await seen(api.operator, paths, places)).items() if CANARY in text}
        assert "/v1/audit" not in shows
        assert shows >= WHOLE
        problem = (await client.get(f"/v1/reports/{report}/file")).says(409, "report_not_finished")
        assert problem.json["detail"].endswith(": no https://hooks.example/…")
        assert problem.json["type"] == "urn:tickwright:problem:report_not_finished"
        facts = (await client.get("/v1/alerts")).body.decode()
        assert '"n": 12345678901234567890123, "reason": "no https://hooks.example/\\u2026"' in facts
        shown = (await client.get("/v1/partners/dhl")).json["settings"]["http"]
        assert shown["url"] == "https://api.example/…"
        assert shown["headers"] == {"X-Key": "***", "authorization": "***", "x-named": "Bearer ${env:DHL_TOKEN}"}
        assert (await client.get("/v1/task-types/hook")).json["target"] == "https://hooks.example/…"
        waiting = {one["destination"] for one in (await client.get("/v1/outbox")).json["items"]}
        assert waiting == {"https://hooks.example/…", "slack:***", "https:***"}
        hidden = "https://hooks.example/…"
        party = {"url": hidden, "notes": [f"see {hidden} or {hidden}"], hidden: 1, "api_host": "cpo.example/…"}
        assert (await client.get("/v1/entities/door")).json["party"] == party
        assert (await api.operator.get("/v1/entities/door")).json["party"] == PARTY


async def test_an_alert_names_the_host_of_a_destination_only(database_url: str) -> None:
    """Alerts go to viewers, logs and receivers; of two destinations of one host the longest waiting one is reported."""
    async with running_api(database_url) as api:
        for place, age in (("a", 900), ("b", 500)):
            await api.pool.execute(
                "INSERT INTO tickwright.outbox (destination, payload, created_at) "
                "VALUES ($1, '{}', now() - $2::int * interval '1 second')",
                f"https://hooks.example/{CANARY}/{place}",
                age,
            )
        rule = next(rule for rule in RULES if rule.name == "outbox_oldest")
        async with api.pool.acquire() as connection:
            [finding] = await alerting._query(connection, [rule])
        assert finding.subject == "https://hooks.example/…"
        assert finding.facts["age_s"] >= 900


async def test_an_alert_has_only_the_host_of_addresses_in_its_facts(database_url: str) -> None:
    """Facts repeat errors of other servers; a receiver is a server of another party."""
    async with running_api(database_url) as api:
        receiver = await api.admin.send("PUT", "/v1/alerts/receivers/pager", {"url": "https://pager.example/x"})
        assert receiver.status == 201, receiver.body
        rule = next(rule for rule in RULES if rule.name == "outbox_oldest")
        async with api.pool.acquire() as connection, connection.transaction():
            await alerting._apply_findings(
                connection, rule, [AlertFinding("x", {"age_s": 900, "reason": f"no {HOOK}"})], set()
            )
        sent = await api.pool.fetchval("SELECT payload::text FROM tickwright.outbox WHERE destination LIKE 'alert:%'")
        alert = (await api.operator.get("/v1/alerts")).json["items"][0]
    assert alert["facts"] == {"age_s": 900, "reason": "no https://hooks.example/…"}
    assert CANARY not in sent
    assert CANARY not in alert["summary"]


async def test_a_masked_value_is_not_saved_as_a_setting(database_url: str) -> None:
    """A client that sends a masked value back gets an error, and nothing is overwritten."""
    async with running_api(database_url) as api:
        await put_credentials(api)
        for path, body in (
            ("/v1/partners/dhl", {"http": {"headers": {"X-Key": "***"}}}),
            ("/v1/partners/dhl", {"http": {"url": "https://api.example/…"}}),
            ("/v1/task-types/hook", {"target": "https://hooks.example/…"}),
        ):
            assert (await api.admin.send("PATCH", path, body)).status == 422
        assert (await api.admin.get("/v1/task-types/hook")).json["target"] == HOOK
        assert (await api.admin.get("/v1/partners/dhl")).json["settings"]["http"] == HTTP


async def test_audit_rows_of_releases_that_did_not_mask_are_masked_for_viewers(database_url: str) -> None:
    """They were written unmasked."""
    async with running_api(database_url) as api:
        row = json.dumps({"target": HOOK, "settings": {"http": HTTP}, "party": PARTY, "n": 0})
        row = row.replace(": 0", f": {'9' * 6000}")
        await api.pool.execute(
            "INSERT INTO tickwright.audit (actor, action, subject, before, after) VALUES ('a', 'b', 'c', $1, $1)", row
        )
        one = (await api.viewer.get("/v1/audit?action=b")).json["items"][0]
        assert CANARY not in json.dumps(one)
        assert one["after"]["target"] == "https://hooks.example/…"
