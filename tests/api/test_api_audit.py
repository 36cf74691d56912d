"""Every change writes an audit entry: each changing route of the OpenAPI document is called."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from kit.api import Answer
from kit.campaigns import SIX_HOURS, CampaignApi, campaign_api
from kit.polling import Ground

ASKS = {
    ("post", "/v1/accounts/{account_id}/preview"): "says what a change would do",
    ("post", "/v1/campaigns:check"): "returns the mistakes of a definition",
    ("post", "/v1/campaigns:dry-run"): "says what an execution would do",
    ("post", "/v1/campaigns/{name}/dry-run"): "says what an execution would do",
    ("post", "/v1/schedules:preview"): "says when a definition would occur",
}
"""Routes that change nothing."""
DATA = {
    ("post", "/v1/jobs"): "the job's row has its time; an entry for each would double the work",
    ("post", "/v1/workflows"): "the workflow's row has its time, as a job's",
    ("post", "/v1/trackers/{tracker_id}/events"): "couriers send; events are stored with the tracker and in the topic",
    **{
        ("post", f"/v1/worker/{call}"): "workers send; sessions and attempts are in their rows"
        for call in ("register", "claim", "begin", "heartbeat", "progress", "results", "close")
    },
}
"""Routine requests of programs are no actions of an operator."""
ELSEWHERE = {
    ("post", "/v1/outbox/polls/reconcile"): "outbox.reconcile in test_poll_relay_cli: needs a Kafka that disagrees",
    ("put", "/v1/reports/{report_id}/parts/{listener}"): "below: needs the call of the service",
    ("post", "/v1/reports/{report_id}/parts/{listener}/fail"): "below",
    ("post", "/v1/dead-letters/fanout/requeue"): "dead_letters.requeue in test_fanout_dead_letters: needs RabbitMQ",
    ("post", "/v1/dead-letters/reports/requeue"): "dead_letters.requeue in test_report_dead_letters: needs RabbitMQ",
    ("post", "/v1/payload-keys:reencrypt"): "payload_keys.reencrypt in test_payload_key_rotation: needs keys",
    ("delete", "/v1/session"): "session.close in test_api_session: a bearer key has no session to end",
    ("post", "/v1/session"): "session.open in test_api_session",
    ("delete", "/v1/sessions/{session_id}"): "sessions.revoke in test_api_session",
}
HOOK = {"target": "https://example.org/h"}
TRACKER = {"account_id": "shop", "partner": "dhl", "external_id": "A1"}
SLICES = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:05:00Z", "dry_run": False}
LINES = {"Content-Type": "application/x-ndjson"}
SERVICE = {"listeners": {"paid": {"service": True, "columns": {"id": "BIGINT"}}}}
STEPS: list[tuple[str, str, dict[str, Any], Any, str]] = [
    ("put", "/v1/accounts/{account_id}", {"account_id": "shop"}, {"polling_interval_minutes": 60}, "accounts.put"),
    ("patch", "/v1/accounts/{account_id}", {"account_id": "shop"}, {"max_age_days": 9}, "accounts."),
    ("post", "/v1/accounts/{account_id}/pause", {"account_id": "shop"}, None, "accounts.pause"),
    ("post", "/v1/accounts/{account_id}/enable", {"account_id": "shop"}, None, "accounts.enable"),
    ("put", "/v1/partners/{name}", {"name": "ups"}, {}, "partners.put"),
    ("patch", "/v1/partners/{name}", {"name": "ups"}, {"concurrency": 3}, "partners."),
    ("post", "/v1/partners/{name}/pause", {"name": "ups"}, None, "partners.pause"),
    ("post", "/v1/partners/{name}/enable", {"name": "ups"}, None, "partners.enable"),
    ("post", "/v1/partners/{name}/reset", {"name": "ups"}, None, "partners.reset"),
    ("post", "/v1/trackers", {}, TRACKER, "trackers.register"),
    ("post", "/v1/trackers:bulk", {}, b'{"account_id":"shop","partner":"dhl","external_id":"B1"}\n', "trackers."),
    ("post", "/v1/trackers/{tracker_id}/end", {"tracker_id": "tracker"}, None, "trackers.end"),
    ("post", "/v1/slices/replay", {}, SLICES, "slices.replay"),
    ("put", "/v1/alerts/receivers/{name}", {"name": "me"}, {"url": "https://example.org/a"}, "alert_receivers.put"),
    ("post", "/v1/alerts/receivers/{name}/rotate-secret", {"name": "me"}, None, "alert_receivers."),
    ("delete", "/v1/alerts/receivers/{name}", {"name": "me"}, None, "alert_receivers.delete"),
    ("post", "/v1/alerts/{alert}/acknowledge", {"alert": "alert"}, {}, "alerts.acknowledge"),
    (
        "put",
        "/v1/entities/{code}",
        {"code": "ACME"},
        {"party": {}, "polling_enabled_modules": "TARIFFS"},
        "entities.put",
    ),
    ("post", "/v1/entities/{code}/pause", {"code": "ACME"}, None, "entities.pause"),
    ("post", "/v1/entities/{code}/enable", {"code": "ACME"}, None, "entities.enable"),
    ("delete", "/v1/entities/{code}", {"code": "ACME"}, None, "entities.delete"),
    ("post", "/v1/entities:bulk", {}, b'{"code":"B","party":{},"polling_enabled_modules":"TARIFFS"}\n', "entities."),
    ("put", "/v1/modules/{name}", {"name": "TARIFFS"}, {"every": "10m"}, "modules.put"),
    ("post", "/v1/modules/{name}/pause", {"name": "TARIFFS"}, None, "modules.pause"),
    ("post", "/v1/modules/{name}/enable", {"name": "TARIFFS"}, None, "modules.enable"),
    ("put", "/v1/task-types/{name}", {"name": "hook"}, HOOK, "task_types.put"),
    ("patch", "/v1/task-types/{name}", {"name": "hook"}, {"max_attempts": 7}, "task_types."),
    ("post", "/v1/task-types/{name}/pause", {"name": "hook"}, None, "task_types.pause"),
    ("post", "/v1/task-types/{name}/enable", {"name": "hook"}, None, "task_types.enable"),
    ("post", "/v1/task-types/{name}/rotate-secret", {"name": "hook"}, None, "task_types.rotate_secret"),
    ("post", "/v1/task-types/{name}/release-group", {"name": "noop"}, {"group": "g"}, "task_types.release_group"),
    ("delete", "/v1/task-types/{name}", {"name": "hook"}, None, "task_types.delete"),
    ("post", "/v1/queues/{name}/pause", {"name": "default"}, None, "queues.pause"),
    ("post", "/v1/queues/{name}/enable", {"name": "default"}, None, "queues.enable"),
    ("put", "/v1/batches/{name}", {"name": "away"}, {"target": "remote:shop"}, "batches.create"),
    ("delete", "/v1/batches/{name}", {"name": "away"}, None, "batches.delete"),
    ("post", "/v1/workflows/{workflow_id}/cancel", {"workflow_id": "workflow"}, None, "workflows.cancel"),
    ("post", "/v1/workflows/{workflow_id}/retry", {"workflow_id": "workflow"}, None, "workflows.retry"),
    ("patch", "/v1/jobs/{job_id}", {"job_id": "job"}, {"priority": 3}, "jobs.edit"),
    ("post", "/v1/jobs/{job_id}/reschedule", {"job_id": "job"}, {"delay": "2h"}, "jobs.reschedule"),
    ("post", "/v1/jobs/{job_id}/run-now", {"job_id": "job"}, None, "jobs.run_now"),
    ("post", "/v1/jobs/{job_id}/cancel", {"job_id": "job"}, None, "jobs.cancel"),
    ("post", "/v1/jobs/{job_id}/retry", {"job_id": "failed"}, None, "jobs.retry"),
    ("post", "/v1/jobs:reschedule", {}, {"task_type": "noop", "delay": "2h"}, "jobs.reschedule_many"),
    ("post", "/v1/jobs:run-now", {}, {"task_type": "noop"}, "jobs.run_now_many"),
    ("post", "/v1/jobs:cancel", {}, {"task_type": "noop"}, "jobs.cancel_many"),
    ("post", "/v1/jobs:retry", {}, {"task_type": "noop"}, "jobs.retry_many"),
    ("post", "/v1/jobs:bulk", {}, b'{"task_type":"noop","delay":"1h"}\n', "jobs."),
    ("post", "/v1/outbox/{message}/discard", {"message": "message"}, None, "outbox.discard"),
    ("post", "/v1/dead-letters/requeue", {}, {"kind": "outbox", "subject": "pg:tried"}, "dead_letters.requeue"),
    ("post", "/v1/outbox:retry", {}, {"destination": "pg:tried"}, "outbox.retry"),
    ("post", "/v1/leases/{job_name}/release", {"job_name": "alerting"}, None, "leases.release"),
    ("put", "/v1/schedules/{name}", {"name": "hourly"}, {"task_type": "noop", "every": "1h"}, "schedules.put"),
    ("patch", "/v1/schedules/{name}", {"name": "hourly"}, {"every": "2h"}, "schedules.change"),
    ("post", "/v1/schedules/{name}/pause", {"name": "hourly"}, None, "schedules.pause"),
    ("post", "/v1/schedules/{name}/enable", {"name": "hourly"}, None, "schedules.enable"),
    ("post", "/v1/schedules/{name}/run-now", {"name": "hourly"}, None, "schedules.run_now"),
    ("delete", "/v1/schedules/{name}", {"name": "hourly"}, None, "schedules.delete"),
    ("post", "/v1/workers/{worker}/drain", {"worker": 77}, None, "workers.drain"),
    ("put", "/v1/report-types/{name}", {"name": "users"}, {"listeners": {"users": {}}}, "report_types.put"),
    ("post", "/v1/reports", {}, {"type": "users", "conditions": {}}, "reports.request"),
    ("post", "/v1/reports/{report_id}/cancel", {"report_id": "report"}, None, "reports.cancel"),
    ("delete", "/v1/report-types/{name}", {"name": "users"}, None, "report_types.delete"),
    ("post", "/v1/campaigns", {}, {"name": "loans", **SIX_HOURS}, "campaigns.create"),
    ("put", "/v1/campaigns/{name}", {"name": "loans"}, {**SIX_HOURS, "restartable_unit": 7}, "campaigns.put"),
    ("post", "/v1/campaigns/{name}/activate", {"name": "loans"}, None, "campaigns.activate"),
    ("post", "/v1/campaigns/{name}/deactivate", {"name": "loans"}, None, "campaigns.deactivate"),
    ("delete", "/v1/campaigns/{name}", {"name": "loans"}, None, "campaigns.delete"),
    ("post", "/v1/campaigns/{name}/start", {"name": "once"}, None, "campaigns.start"),
    ("post", "/v1/executions/{execution_id}/pause", {"execution_id": "execution"}, None, "executions.pause"),
    ("post", "/v1/executions/{execution_id}/resume", {"execution_id": "execution"}, None, "executions.resume"),
    ("post", "/v1/executions/{execution_id}/stop", {"execution_id": "execution"}, None, "executions.stop"),
    ("post", "/v1/executions/{execution_id}/retry", {"execution_id": "broken"}, None, "executions.retry"),
    ("post", "/v1/campaigns/{name}/start", {"name": "once"}, None, "campaigns.start"),
    ("post", "/v1/campaigns/{name}/stop", {"name": "once"}, None, "campaigns.stop"),
    ("post", "/v1/batches/{name}/activate", {"name": "nightly"}, None, "batches.activate"),
    ("post", "/v1/batches/{name}/deactivate", {"name": "nightly"}, None, "batches.deactivate"),
    ("post", "/v1/batches/{name}/start", {"name": "now"}, None, "batches.start"),
    ("post", "/v1/batches/{name}/stop", {"name": "now"}, None, "batches.stop"),
    ("post", "/v1/keys", {}, {"name": "bot", "role": "viewer"}, "keys.create"),
    ("post", "/v1/keys/{key_id}/rotate", {"key_id": "key"}, None, "keys.rotate"),
    ("post", "/v1/keys/{key_id}/revoke", {"key_id": "key"}, None, "keys.revoke"),
]
"""In an order in which each finds something to change; a path value in capitals or with a digit is used as it is."""
FOUND: dict[str, str] = {
    "alert": "SELECT max(id) FROM tickwright.alerts",
    "execution": "SELECT min(id) FROM tickwright.executions WHERE status IN ('NEW', 'IN_PROGRESS')",
    "broken": "SELECT min(id) FROM tickwright.executions WHERE status = 'EXCEPTION_OCCURRED'",
    "failed": "SELECT min(id) FROM tickwright.scheduled_tasks WHERE status = 'failed'",
    "job": "SELECT min(id) FROM tickwright.scheduled_tasks WHERE status = 'pending'",
    "key": "SELECT max(id) FROM tickwright.api_keys",
    "message": "SELECT min(id) FROM tickwright.outbox WHERE destination = 'pg:tried'",
    "report": "SELECT max(id) FROM tickwright.reports",
    "workflow": "SELECT min(id) FROM tickwright.workflows",
    "tracker": "SELECT min(id) FROM tickwright.shipment_polling_tracker",
}
PLACED = """
INSERT INTO tickwright.workers (id, name, roles, version, lease_until)
VALUES (77, 'w', '{worker}', '0', now() + interval '1 hour');
INSERT INTO tickwright.job_config (job_name, running, owner, version, lease_until)
VALUES ('alerting', true, 'node', 3, now() + interval '1 hour');
INSERT INTO tickwright.alerts (rule, subject, severity, summary, state) VALUES ('x', 'y', 'info', 'z', 'firing');
INSERT INTO tickwright.outbox (destination, payload, attempts, next_at)
SELECT 'pg:tried', '{}', 1, now() + interval '1 hour' FROM generate_series(1, 3);
INSERT INTO tickwright.batches
       (name, kind, type, date_time_execution, restartable, restartable_unit, restartable_unit_type)
VALUES ('nightly', 'program', 'AUTOMATIC', '2026-01-05', true, 1, 'DAYS'),
       ('now', 'program', 'MANUAL', NULL, false, NULL, NULL);
"""

STOPPED = """
INSERT INTO tickwright.scheduled_tasks_dead (id, execute_at, task_type, payload, status, completed_at, group_key)
VALUES (1000000, now(), 'noop', '{}', 'failed', now(), 'g');
INSERT INTO tickwright.job_groups (task_type, group_key, stopped_by) VALUES ('noop', 'g', 1000000);
"""


@pytest.fixture
async def campaigns(database_url: str) -> AsyncIterator[CampaignApi]:
    """An API with a source, and an object for every action."""
    async with campaign_api(database_url) as made:
        api = made.api
        await Ground(api.pool).partner()
        await api.pool.execute(PLACED)
        for _ in range(4):
            assert (await api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).status == 201
        await api.pool.execute(
            "UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE id IN "
            "(SELECT id FROM tickwright.scheduled_tasks ORDER BY id DESC LIMIT 2)"
        )
        flow = {"name": "flow", "jobs": [{"task_type": "noop", "delay": "1 hour"}]}
        assert (await api.operator.post("/v1/workflows", flow)).status == 201
        await api.pool.execute(STOPPED)
        await made.create("once")
        await made.create("broken")
        await made.slot("broken", datetime(2026, 1, 5, tzinfo=UTC), "EXCEPTION_OCCURRED", version=1)
        yield made


async def act(campaigns: CampaignApi, method: str, path: str, places: dict[str, Any], body: Any) -> Answer:
    """Send one of the steps."""
    for name, value in places.items():
        found = await campaigns.api.pool.fetchval(FOUND[value]) if value in FOUND else value
        path = path.replace(f"{{{name}}}", str(found))
    headers = LINES if isinstance(body, bytes) else {}
    return await campaigns.api.admin.send(method.upper(), path, body, headers=headers)


async def test_every_changing_route_writes_an_audit_entry(campaigns: CampaignApi) -> None:
    """Each changing route of the document succeeds once: one entry with its action and its caller."""
    pool = campaigns.api.pool
    for method, path, places, body, action in STEPS:
        before = await pool.fetchval("SELECT max(id) FROM tickwright.audit")
        answer = await act(campaigns, method, path, places, body)
        assert answer.status < 300, (method, path, answer.body)
        rows = await pool.fetch("SELECT actor, action FROM tickwright.audit WHERE id > $1", before)
        assert [row["actor"] for row in rows] == ["admin"], (method, path, rows, answer.body)
        assert rows[0]["action"].startswith(action), (method, path, rows)


async def test_every_changing_route_is_called_or_excepted(campaigns: CampaignApi) -> None:
    """A new changing route is called above, or listed here with the reason why it writes no entry."""
    document = (await campaigns.api.stranger.get("/v1/openapi.json")).json
    changing = {(method, path) for path, item in document["paths"].items() for method in item if method != "get"}
    walked = {(method, path) for method, path, *_ in STEPS}
    assert changing == walked | set(ASKS) | set(DATA) | set(ELSEWHERE)


async def test_a_service_that_delivers_a_part_writes_an_audit_entry(campaigns: CampaignApi) -> None:
    """Also one that refuses it."""
    api = campaigns.api
    await api.admin.send("PUT", "/v1/report-types/paid", {"parameters": {"n": "integer"}, **SERVICE})
    for number, (method, tail, body) in enumerate(
        [("PUT", "?epoch=1", b'{"id":1}\n'), ("POST", "/fail", {"error": "no such table", "epoch": 1})]
    ):
        requested = await api.admin.post("/v1/reports", {"type": "paid", "conditions": {"n": number}})
        path = f"/v1/reports/{requested.json['id']}/parts/paid{tail}"
        before = await api.pool.fetchval("SELECT max(id) FROM tickwright.audit")
        answer = await api.admin.send(method, path, body, headers=LINES if isinstance(body, bytes) else {})
        assert answer.status < 300, (json.dumps(requested.json), answer.body)
        rows = await api.pool.fetch("SELECT actor, action FROM tickwright.audit WHERE id > $1", before)
        assert [(row["actor"], row["action"].partition(".")[0]) for row in rows] == [("admin", "reports")]
