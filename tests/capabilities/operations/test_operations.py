"""Operations of an operator: what a worker holds, holders of leases, stuck destinations, acknowledged alerts."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.nodes import started
from tickwright.capabilities.operations import actions
from tickwright.engine.leases import Lease, Leases
from tickwright.plugin.settings import Settings
from tickwright.process.installation import lease_purposes

NOTHING: Mapping[str, str] = {}
WORKER = """
INSERT INTO tickwright.workers (id, name, roles, version, lease_until)
VALUES ($1, $2, '{worker}', '0', now() + interval '1 minute')
"""
JOBS = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type)
SELECT now() - interval '1 minute', 'noop' FROM generate_series(1, $1)
"""
HELD = """
INSERT INTO tickwright.entities (code) VALUES ('DE*AAA');
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, owner, fence, running_since)
VALUES ('DE*AAA', 'LOCATIONS', 7, 11, now());
INSERT INTO tickwright.poll_partitions (topic, partition, epoch, owner) VALUES ('tickwright.polls', 3, 2, 7);
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids, owner, taken_at)
VALUES (now(), 1, 1, '{1,2}', '{1,1}', '{a,b}', 7, now());
INSERT INTO tickwright.batches (name, kind, type) VALUES ('spring', 'campaign', 'MANUAL');
INSERT INTO tickwright.executions (batch_id, slot_at, status, owner, fence) VALUES (1, now(), 'IN_PROGRESS', 7, 5);
INSERT INTO tickwright.execution_chunks (execution_id, number, value, state, owner, fence, members)
VALUES (1, 4, '{}', 'working', 7, 6, 100);
INSERT INTO tickwright.reports (type, query_key, requester, plan, owner, fence, deadline_at, step_at)
VALUES ('sales', repeat('a', 64), 'me', '{}', 7, 8, now(), now());
INSERT INTO tickwright.report_parts (report_id, listener, stage, kind, served_by, required, state, owner, fence)
VALUES (1, 'shop', 1, 'function', 'function:shop', true, 'running', 7, 9);
"""
LEASES = """
INSERT INTO tickwright.job_config (job_name, running, owner, lease_until, version, last_started_at)
VALUES ('selector', true, 'host:7:Kk5', now() + interval '1 minute', 12, now()),
       ('registrar', true, 'host:8:Zz1', now() + interval '1 minute', 3, now())
"""


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API and two worker sessions, 7 and 8."""
    async with running_api(database_url) as running:
        for number in (7, 8):
            await running.pool.execute(WORKER, number, f"host:{number}")
        yield running


async def audit(api: RunningApi, action: str) -> list[Any]:
    """Return the entries of one action in the audit trail, newest first."""
    items: list[Any] = (await api.viewer.get(f"/v1/audit?action={action}")).json["items"]
    return items


# ---------------------------------------------------------------------- workers


async def test_a_worker_shows_everything_that_it_holds_and_nothing_else(api: RunningApi) -> None:
    """Jobs, leases, executions, chunks, reports, parts, fan-out's tasks, polls and partitions, each with its fence."""
    await api.pool.execute(JOBS, 3)
    await api.pool.execute(
        "UPDATE tickwright.scheduled_tasks "
        "SET status = 'processing', owner = id + 6, fence = 4, attempts = 1 WHERE id < 3"
    )
    await api.pool.execute("INSERT INTO tickwright.partners (name) VALUES ('dhl')")
    await api.pool.execute(HELD)
    await api.pool.execute(LEASES)
    worker = (await api.viewer.get("/v1/workers/7")).json
    assert (worker["id"], worker["name"], worker["alive"], worker["more"]) == (7, "host:7", True, [])
    assert worker["seen_ago_s"] >= 0
    held = {one["kind"]: one for one in worker["holds"]}
    assert len(worker["holds"]) == len(held) == 9
    assert {kind: one["fence"] for kind, one in held.items()} == {
        "job": 4, "lease": 12, "execution": 5, "chunk": 6, "report": 8, "part": 9, "task": 11, "polls": None,
        "partition": 2,
    }  # fmt: skip
    assert (held["job"]["id"], held["job"]["name"], held["job"]["count"]) == (1, "noop", 1)
    assert (held["chunk"]["id"], held["chunk"]["number"], held["chunk"]["count"]) == (1, 4, 100)
    assert (held["task"]["name"], held["polls"]["count"], held["lease"]["name"]) == ("DE*AAA/LOCATIONS", 2, "selector")
    other = (await api.viewer.get("/v1/workers/8")).json["holds"]
    assert sorted((one["kind"], one["name"]) for one in other) == [("job", "noop"), ("lease", "registrar")]
    (await api.viewer.get("/v1/workers/9")).says(404, "worker_not_found")


async def test_a_worker_shows_at_most_a_hundred_of_each_kind(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says of which kinds it holds more."""
    monkeypatch.setattr(actions, "SHOWN_MAX", 5)
    await api.pool.execute(JOBS, 20)
    await api.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 7, fence = 1")
    worker = (await api.viewer.get("/v1/workers/7")).json
    assert (len(worker["holds"]), worker["more"]) == (5, ["job"])


# ---------------------------------------------------------------------- leases


async def test_a_lease_shows_its_holder_since_when_and_its_purpose(api: RunningApi) -> None:
    """The session is found by the name of the process; a lease without a holder says so."""
    await api.pool.execute(LEASES)
    await api.pool.execute("INSERT INTO tickwright.job_config (job_name) VALUES ('poll-relay:3'), ('strange')")
    found = {one["job_name"]: one for one in (await api.viewer.get("/v1/leases")).json["items"]}
    selector = found["selector"]
    assert (selector["held"], selector["owner"], selector["session"], selector["version"]) == (
        True,
        "host:7:Kk5",
        7,
        12,
    )
    assert selector["age_s"] >= 0
    assert (selector["guards"], found["strange"]["guards"]) == (lease_purposes().of("selector"), "")
    assert (found["poll-relay:3"]["held"], found["poll-relay:3"]["age_s"]) == (False, None)
    assert found["poll-relay:3"]["guards"] == lease_purposes().of("poll-relay")


async def test_every_lease_of_a_process_has_a_description(api: RunningApi) -> None:
    """A new loop needs a description; that of a removed one is removed."""
    async with started(api.pool, Settings(), "scheduler", "relay") as context:
        names = {loop._lease_name for loop in context.leased} | {"relay:outbox"}
    purposes = lease_purposes()
    assert all(purposes.of(name) for name in names), [name for name in names if not purposes.of(name)]
    assert {name if name in purposes else name.partition(":")[0] for name in names} == set(purposes)


async def test_breaking_a_lease_fences_its_holder(api: RunningApi) -> None:
    """Writes of the old holder have no effect; the audit trail has the operator; a free lease is an error."""
    leases = Leases(api.pool, owner="host:7")
    lease = await leases.take("selector", leases.terms)
    assert isinstance(lease, Lease)
    done = await api.admin.post("/v1/leases/selector/release")
    assert (done.status, done.json["owner"]) == (200, lease.owner)
    assert done.json["version"] > lease.fence
    async with lease.transaction() as connection:
        assert connection is None
    [line] = await audit(api, "leases.release")
    assert (line["subject"], line["before"]["owner"]) == ("lease:selector", lease.owner)
    (await api.admin.post("/v1/leases/selector/release")).says(409, "lease_free")
    (await api.admin.post("/v1/leases/nothing/release")).says(404, "lease_not_found")
    (await api.operator.post("/v1/leases/selector/release")).says(403, "forbidden")


# ---------------------------------------------------------------------- the outbox


async def waits(api: RunningApi, destination: str, count: int = 1, columns: Mapping[str, str] = NOTHING) -> list[int]:
    """Put messages into the outbox, with columns as SQL; return their ids."""
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", {value}" for value in columns.values())
    rows = await api.pool.fetch(
        f"INSERT INTO tickwright.outbox (destination, payload{names}) SELECT $1, '{{}}'{values} "
        "FROM generate_series(1, $2) RETURNING id",
        destination,
        count,
    )
    return [row["id"] for row in rows]


async def destinations(api: RunningApi) -> dict[str, Any]:
    """Return the waiting messages by destination."""
    items = (await api.operator.get("/v1/outbox:destinations")).json["items"]
    return {item["destination"]: item for item in items}


LATER = {"attempts": "3", "next_at": "now() + interval '1 hour'", "error_message": "'503'"}


async def test_a_destination_says_whether_it_is_sent_waits_or_is_stuck(api: RunningApi) -> None:
    """With their number, their age and the reason; the stuck ones come first."""
    await waits(api, "pg:fast", 2)
    await waits(api, "pg:slow", 3, LATER)
    await waits(api, "pg:slow", 2)
    await waits(api, "mail:x", columns={"error_message": "'unknown_scheme: no broker for mail'"})
    await waits(api, "pg:old", 1, {"created_at": "now() - interval '1 hour'", **LATER})
    assert {one["why"] for one in (await destinations(api)).values()} == {"no_relay"}, "its lease is free"
    await api.pool.execute(
        "INSERT INTO tickwright.job_config (job_name, running, lease_until) "
        "VALUES ('relay:outbox', true, now() + interval '1 hour')"
    )
    found = await destinations(api)
    assert {name: (one["state"], one["why"]) for name, one in found.items()} == {
        "pg:old": ("stuck", "too_old"), "mail:x": ("stuck", "unknown_scheme"), "pg:slow": ("waiting", "failing"),
        "pg:fast": ("flowing", None),
    }  # fmt: skip
    assert next(iter(found)) == "pg:old"
    slow = found["pg:slow"]
    assert (slow["waiting"], slow["tried"], slow["attempts"], slow["error"]) == (5, 3, 3, "503")
    assert slow["next_try_at"] is not None
    assert found["pg:fast"]["next_try_at"] is None
    assert found["pg:old"]["oldest_s"] > 3_500


async def test_counts_of_destinations_are_bounded(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """All counts together; from the bound on the number is that many or more."""
    monkeypatch.setattr(actions, "ROWS_SEARCHED_MAX", 10)
    await waits(api, "pg:a", 50)
    await waits(api, "pg:b", 1)
    found = await destinations(api)
    assert (found["pg:a"]["waiting"], found["pg:a"]["capped_at"], found["pg:b"]["waiting"]) == (5, 5, 1)


async def test_a_destination_is_tried_again_now(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own messages that wait for a retry, in bounded steps; the audit trail has an entry if any changed."""
    monkeypatch.setattr(actions, "RETRY_MAX", 2)
    await waits(api, "pg:slow", 3, LATER)
    [other] = await waits(api, "pg:other", 1, LATER)
    first = (await api.operator.post("/v1/outbox:retry", {"destination": "pg:slow"})).json
    second = (await api.operator.post("/v1/outbox:retry", {"destination": "pg:slow"})).json
    third = (await api.operator.post("/v1/outbox:retry", {"destination": "pg:slow"})).json
    assert [(one["retried"], one["more"]) for one in (first, second, third)] == [(2, True), (1, False), (0, False)]
    waiting = await api.pool.fetch("SELECT id FROM tickwright.outbox WHERE next_at > clock_timestamp()")
    assert [row["id"] for row in waiting] == [other]
    assert [line["after"]["retried"] for line in await audit(api, "outbox.retry")] == [1, 2]


async def test_a_discarded_message_is_a_dead_letter_and_can_be_requeued(api: RunningApi) -> None:
    """Once, also with concurrent calls; it is listed with the dead letters, under its own id."""
    [message] = await waits(api, "pg:slow", 1, LATER)
    answers = await asyncio.gather(*(api.operator.post(f"/v1/outbox/{message}/discard") for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 404, 404, 404, 404]
    [dead] = (await api.viewer.get("/v1/dead-letters?kind=outbox")).json["items"]
    assert (dead["id"], dead["error_message"], dead["attempts"]) == (message, "discarded by operator", 3)
    assert [line["subject"] for line in await audit(api, "outbox.discard")] == [f"outbox:{message}"]
    back = await api.operator.post("/v1/dead-letters/requeue", {"kind": "outbox", "ids": [message]})
    assert back.json["ids"] == [message]
    (await api.operator.post("/v1/outbox/999999/discard")).says(404, "message_not_found")


# ---------------------------------------------------------------------- alerts


async def test_an_acknowledged_alert_shows_its_operator_and_note(api: RunningApi) -> None:
    """In the listing until it is resolved; the latest acknowledgement is shown."""
    alert = await api.pool.fetchval(
        "INSERT INTO tickwright.alerts (rule, subject, severity, summary, state) "
        "VALUES ('lateness', 'noop', 'critical', 'late', 'firing') RETURNING id"
    )
    [shown] = (await api.viewer.get("/v1/alerts")).json["items"]
    assert (shown["acknowledged_at"], shown["acknowledged_by"]) == (None, None)
    done = await api.operator.post(f"/v1/alerts/{alert}/acknowledge", {"note": "on it"})
    assert (done.status, done.json["acknowledged_by"], done.json["acknowledged_note"]) == (200, "operator", "on it")
    assert (await api.admin.post(f"/v1/alerts/{alert}/acknowledge")).json["acknowledged_by"] == "admin"
    [shown] = (await api.viewer.get("/v1/alerts?state=firing")).json["items"]
    assert (shown["acknowledged_by"], shown["acknowledged_note"]) == ("admin", None)
    assert [line["after"]["note"] for line in await audit(api, "alerts.acknowledge")] == [None, "on it"]
    await api.pool.execute("UPDATE tickwright.alerts SET state = 'resolved', resolved_at = now()")
    (await api.operator.post(f"/v1/alerts/{alert}/acknowledge")).says(409, "alert_resolved")
    (await api.operator.post("/v1/alerts/999/acknowledge")).says(404, "alert_not_found")
    body = {"note": "x" * 1001}
    (await api.operator.post(f"/v1/alerts/{alert}/acknowledge", body)).says(422, "invalid_value")
