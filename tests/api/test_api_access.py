"""Roles of keys and what each may do, and secrets that are never shown."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.api import ADMIN, RunningApi, running_api
from kit.waiting import eventually_async
from tickwright.api.context import ApiLimits, Readiness
from tickwright.capabilities.jobs.remote.workers import CALLS
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.ports.caller import Role
from tickwright.process.installation import target_check
from tickwright.process.settings import load_settings

OPEN = {"/healthz", "/readyz", "/metrics", "/v1/openapi.json"}
SIGNED = {"/v1/report-files/{report_id}"}
SIGN_IN = ("post", "/v1/session")
ANYBODY_MAY = {SIGN_IN, ("delete", "/v1/session"), ("delete", "/v1/sessions/{session_id}")}
NEEDS = {
    ("post", "/v1/jobs"): Role.OPERATOR,
    ("post", "/v1/jobs:bulk"): Role.OPERATOR,
    ("post", "/v1/jobs:cancel"): Role.OPERATOR,
    ("post", "/v1/jobs:retry"): Role.OPERATOR,
    ("post", "/v1/jobs:run-now"): Role.OPERATOR,
    ("post", "/v1/jobs:reschedule"): Role.OPERATOR,
    ("patch", "/v1/jobs/{job_id}"): Role.OPERATOR,
    ("post", "/v1/jobs/{job_id}/cancel"): Role.OPERATOR,
    ("post", "/v1/jobs/{job_id}/retry"): Role.OPERATOR,
    ("post", "/v1/jobs/{job_id}/reschedule"): Role.OPERATOR,
    ("post", "/v1/jobs/{job_id}/run-now"): Role.OPERATOR,
    **{("post", f"/v1/worker/{call}"): Role.OPERATOR for call in ("register", *CALLS)},
    ("post", "/v1/dead-letters/requeue"): Role.OPERATOR,
    ("post", "/v1/dead-letters/fanout/requeue"): Role.OPERATOR,
    ("post", "/v1/dead-letters/reports/requeue"): Role.OPERATOR,
    ("post", "/v1/workers/{worker}/drain"): Role.ADMIN,
    ("post", "/v1/outbox/polls/reconcile"): Role.OPERATOR,
    ("post", "/v1/outbox:retry"): Role.OPERATOR,
    ("post", "/v1/outbox/{message}/discard"): Role.OPERATOR,
    ("post", "/v1/alerts/{alert}/acknowledge"): Role.OPERATOR,
    ("post", "/v1/leases/{job_name}/release"): Role.ADMIN,
    ("put", "/v1/task-types/{name}"): Role.ADMIN,
    ("patch", "/v1/task-types/{name}"): Role.ADMIN,
    ("post", "/v1/task-types/{name}/pause"): Role.ADMIN,
    ("post", "/v1/task-types/{name}/enable"): Role.ADMIN,
    ("post", "/v1/task-types/{name}/rotate-secret"): Role.ADMIN,
    ("delete", "/v1/task-types/{name}"): Role.ADMIN,
    ("post", "/v1/task-types/{name}/release-group"): Role.OPERATOR,
    ("put", "/v1/schedules/{name}"): Role.OPERATOR,
    ("patch", "/v1/schedules/{name}"): Role.OPERATOR,
    ("delete", "/v1/schedules/{name}"): Role.OPERATOR,
    ("post", "/v1/schedules/{name}/pause"): Role.OPERATOR,
    ("post", "/v1/schedules/{name}/enable"): Role.OPERATOR,
    ("post", "/v1/schedules/{name}/run-now"): Role.OPERATOR,
    ("post", "/v1/schedules:preview"): Role.OPERATOR,
    ("post", "/v1/trackers"): Role.OPERATOR,
    ("post", "/v1/trackers:bulk"): Role.OPERATOR,
    ("post", "/v1/trackers/{tracker_id}/end"): Role.OPERATOR,
    ("post", "/v1/trackers/{tracker_id}/events"): Role.OPERATOR,
    ("post", "/v1/slices/replay"): Role.OPERATOR,
    ("put", "/v1/accounts/{account_id}"): Role.ADMIN,
    ("patch", "/v1/accounts/{account_id}"): Role.ADMIN,
    ("post", "/v1/accounts/{account_id}/preview"): Role.OPERATOR,
    ("post", "/v1/accounts/{account_id}/pause"): Role.ADMIN,
    ("post", "/v1/accounts/{account_id}/enable"): Role.ADMIN,
    ("put", "/v1/partners/{name}"): Role.ADMIN,
    ("patch", "/v1/partners/{name}"): Role.ADMIN,
    ("post", "/v1/partners/{name}/pause"): Role.ADMIN,
    ("post", "/v1/partners/{name}/enable"): Role.ADMIN,
    ("post", "/v1/partners/{name}/reset"): Role.ADMIN,
    ("post", "/v1/reports"): Role.OPERATOR,
    ("post", "/v1/reports/{report_id}/cancel"): Role.OPERATOR,
    ("put", "/v1/reports/{report_id}/parts/{listener}"): Role.OPERATOR,
    ("post", "/v1/reports/{report_id}/parts/{listener}/fail"): Role.OPERATOR,
    ("post", "/v1/campaigns"): Role.ADMIN,
    ("put", "/v1/campaigns/{name}"): Role.ADMIN,
    ("delete", "/v1/campaigns/{name}"): Role.ADMIN,
    ("post", "/v1/campaigns:check"): Role.ADMIN,
    ("post", "/v1/campaigns:dry-run"): Role.ADMIN,
    ("post", "/v1/campaigns/{name}/dry-run"): Role.OPERATOR,
    ("post", "/v1/campaigns/{name}/activate"): Role.OPERATOR,
    ("post", "/v1/campaigns/{name}/deactivate"): Role.OPERATOR,
    ("post", "/v1/campaigns/{name}/start"): Role.OPERATOR,
    ("post", "/v1/campaigns/{name}/stop"): Role.OPERATOR,
    ("post", "/v1/batches/{name}/activate"): Role.OPERATOR,
    ("post", "/v1/batches/{name}/deactivate"): Role.OPERATOR,
    ("post", "/v1/batches/{name}/start"): Role.OPERATOR,
    ("post", "/v1/batches/{name}/stop"): Role.OPERATOR,
    ("post", "/v1/executions/{execution_id}/pause"): Role.OPERATOR,
    ("post", "/v1/executions/{execution_id}/resume"): Role.OPERATOR,
    ("post", "/v1/executions/{execution_id}/stop"): Role.OPERATOR,
    ("post", "/v1/executions/{execution_id}/retry"): Role.OPERATOR,
    ("post", "/v1/entities:bulk"): Role.ADMIN,
    ("put", "/v1/entities/{code}"): Role.ADMIN,
    ("delete", "/v1/entities/{code}"): Role.ADMIN,
    ("post", "/v1/entities/{code}/pause"): Role.ADMIN,
    ("post", "/v1/entities/{code}/enable"): Role.ADMIN,
    ("put", "/v1/modules/{name}"): Role.ADMIN,
    ("put", "/v1/report-types/{name}"): Role.ADMIN,
    ("delete", "/v1/report-types/{name}"): Role.ADMIN,
    ("post", "/v1/modules/{name}/pause"): Role.ADMIN,
    ("post", "/v1/modules/{name}/enable"): Role.ADMIN,
    ("get", "/v1/alerts/receivers"): Role.ADMIN,
    ("get", "/v1/alerts/receivers/{name}"): Role.ADMIN,
    ("put", "/v1/alerts/receivers/{name}"): Role.ADMIN,
    ("delete", "/v1/alerts/receivers/{name}"): Role.ADMIN,
    ("post", "/v1/alerts/receivers/{name}/rotate-secret"): Role.ADMIN,
    ("get", "/v1/keys"): Role.ADMIN,
    ("post", "/v1/keys"): Role.ADMIN,
    ("post", "/v1/keys/{key_id}/rotate"): Role.ADMIN,
    ("post", "/v1/keys/{key_id}/revoke"): Role.ADMIN,
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


async def operations(api: RunningApi) -> list[tuple[str, str]]:
    """Return every operation of the OpenAPI document."""
    document = (await api.stranger.get("/v1/openapi.json")).json
    return [(method, path) for path, item in document["paths"].items() for method in item]


def filled(path: str) -> str:
    """Return a path with a value for every parameter."""
    return re.sub(r"\{[a-z_]+\}", "5", path)


async def test_every_route_without_a_key_is_refused(api: RunningApi) -> None:
    """401 except on the open paths, also for unknown routes; a signed link needs its signature instead."""
    found = await operations(api)
    assert len(found) >= 30
    for method, path in found:
        answer = await api.stranger.send(method.upper(), filled(path))
        if path in OPEN:
            assert answer.status == 200, path
        elif (method, path) == SIGN_IN:
            answer.says(415, "unsupported_media_type")
        elif path in SIGNED:
            answer.says(422, "invalid_parameter")
            unsigned = f"{filled(path)}?expires=9999999999&signature={'0' * 64}"
            (await api.stranger.get(unsigned)).says(403, "invalid_link")
        else:
            assert answer.says(401, "unauthenticated").headers["www-authenticate"].startswith("Bearer")
    for path in ("/", "/v1", "/v1/nothing", "/docs", "/openapi.json", "/v1/jobs/", "//v1/jobs", "/healthz/"):
        (await api.stranger.get(path)).says(401, "unauthenticated")


async def test_every_route_is_documented(api: RunningApi) -> None:
    """No operation is left out of the document; NEEDS names only operations that exist."""
    found = set(await operations(api))
    assert set(NEEDS) <= found
    assert {path for _, path in found if not path.startswith("/v1/")} == OPEN - {"/v1/openapi.json"}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer tw_short",
        "Bearer tw_" + "x" * 43,
        "Bearer tw_" + "x" * 44,
        "Basic dHc6dHc=",
        "tw_" + "x" * 43,
        "Bearer  \tx",
        "Bearer tw_" + "'" * 43,
    ],
)
async def test_an_invalid_key_is_refused(api: RunningApi, header: str) -> None:
    """Malformed and unknown keys are both 401."""
    for method, path in (("GET", "/v1/session"), ("POST", "/v1/jobs")):
        answer = await api.stranger.send(method, path, headers={"Authorization": header})
        answer.says(401, "unauthenticated")


async def test_the_role_matrix_holds_on_every_route(api: RunningApi) -> None:
    """Each role may do what NEEDS has for it; every other route is for viewers."""
    clients = {Role.VIEWER: api.viewer, Role.OPERATOR: api.operator, Role.ADMIN: api.admin}
    for method, path in await operations(api):
        if path in OPEN:
            continue
        needed = NEEDS.get((method, path), Role.VIEWER)
        if (method, path) not in ANYBODY_MAY:
            assert method == "get" or needed > Role.VIEWER, f"{method} {path} changes something and is open to viewers"
        for role, client in clients.items():
            answer = await client.send(method.upper(), filled(path))
            if role < needed:
                answer.says(403, "forbidden")
            else:
                assert answer.status not in {401, 403, 500}, (method, path, role, answer.body)


async def test_a_session_has_the_role_of_its_key(api: RunningApi) -> None:
    """The dashboard and the command line request this first."""
    assert (await api.viewer.get("/v1/session")).json["role"] == "viewer"
    assert (await api.admin.get("/v1/session")).json["name"] == "admin"


async def test_a_revoked_key_is_refused_within_a_second_by_every_replica(database_url: str) -> None:
    """Revoked at one process, is_refused at another one that has just used it, within 1 s."""
    async with running_api(database_url) as one, running_api(database_url) as other:
        made = (await one.admin.post("/v1/keys", {"name": "leaving", "role": "viewer"})).json
        client = other.stranger.with_key(made["key"])
        assert (await client.get("/v1/session")).status == 200
        assert (await one.admin.post(f"/v1/keys/{made['details']['id']}/revoke")).status == 200
        now = asyncio.get_running_loop().time
        revoked_s, asked_s = now(), list[float]()

        async def is_refused() -> bool:
            asked_s.append(now())
            return (await client.get("/v1/session")).status == 401

        await eventually_async(is_refused)
        assert all(at - revoked_s < 1.0 for at in asked_s[:-1]), "a later request was answered"


async def test_a_rotated_key_works_beside_its_successor_until_the_overlap_ends(api: RunningApi) -> None:
    """Rotation locks no client out; overlap 0s ends the old key at once."""
    made = (await api.admin.post("/v1/keys", {"name": "bot", "role": "operator"})).json
    path = f"/v1/keys/{made['details']['id']}/rotate"
    successor = (await api.admin.post(path)).json
    assert successor["details"]["role"] == "operator"
    for key in (made["key"], successor["key"]):
        assert (await api.stranger.with_key(key).get("/v1/session")).json["name"] == "bot"
    assert (await api.admin.post(path, {"overlap": "0s"})).status == 201

    async def is_refused() -> bool:
        return (await api.stranger.with_key(made["key"]).get("/v1/session")).status == 401

    await eventually_async(is_refused)


async def test_a_rotated_key_keeps_its_expiry(api: RunningApi) -> None:
    """A rotation does not make an expiring key permanent; another expiry must be given."""
    made = (await api.admin.post("/v1/keys", {"name": "guest", "role": "viewer", "expires_in": "2h"})).json["details"]
    successor = (await api.admin.post(f"/v1/keys/{made['id']}/rotate")).json["details"]
    assert successor["expires_at"] == made["expires_at"] is not None
    longer = (await api.admin.post(f"/v1/keys/{successor['id']}/rotate", {"expires_in": "9h"})).json["details"]
    assert longer["expires_at"] > made["expires_at"]
    endless = (await api.admin.post("/v1/keys", {"name": "bot", "role": "viewer"})).json["details"]
    assert (await api.admin.post(f"/v1/keys/{endless['id']}/rotate")).json["details"]["expires_at"] is None


async def test_an_expired_key_is_refused(api: RunningApi) -> None:
    """``expires_in`` counts by the database's clock."""
    made = (await api.admin.post("/v1/keys", {"name": "short", "role": "viewer", "expires_in": "50ms"})).json

    async def is_refused() -> bool:
        return (await api.stranger.with_key(made["key"]).get("/v1/session")).status == 401

    await eventually_async(is_refused)


async def test_a_key_above_its_rate_gets_429(database_url: str) -> None:
    """With Retry-After, for this key alone."""
    async with running_api(database_url, limits=ApiLimits(requests_per_s=0.1, burst=2)) as api:
        for path in ("/v1/session", "/v1/session"):
            assert (await api.viewer.get(path)).status == 200
        await api.viewer.get("/v1/session")
        limited = (await api.viewer.get("/v1/session")).says(429, "rate_limited")
        assert int(limited.headers["retry-after"]) >= 1
        assert (await api.admin.get("/v1/session")).status == 200


async def test_a_slow_lookup_of_a_key_does_not_exceed_its_rate(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of the key that passed meanwhile count at their own time."""
    async with running_api(database_url, limits=ApiLimits(requests_per_s=1, burst=1)) as api:
        auth, now_s = api.app._auth, [0.0]
        monkeypatch.setattr("tickwright.api.auth.monotonic", lambda: now_s[0])
        real = auth._lookups

        async def slow(digest: bytes) -> Any:
            known = await real(digest)
            assert known is not None
            now_s[0] += 5
            known.rate.count(now_s[0])
            return known

        monkeypatch.setattr(auth, "_lookups", slow)
        assert (await api.viewer.get("/v1/session")).status == 200


async def test_no_answer_ever_shows_a_secret(api: RunningApi) -> None:
    """Canaries: a signing secret or a key is only in the answer that creates it, and not in the audit trail."""
    put = (await api.admin.send("PUT", "/v1/task-types/hook", {"target": "https://example.org/h"})).json
    rotated = (await api.admin.post("/v1/task-types/hook/rotate-secret")).json
    key = (await api.admin.post("/v1/keys", {"name": "canary", "role": "admin"})).json
    again = (await api.admin.post(f"/v1/keys/{key['details']['id']}/rotate")).json
    canaries = [put["secret"], rotated["secret"], key["key"], again["key"]]
    assert all(re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=|tw_[A-Za-z0-9_-]{43}", canary) for canary in canaries)
    job = (await api.admin.post("/v1/jobs", {"task_type": "hook", "delay": "1h"})).json["id"]
    places = [
        path.replace("{job_id}", str(job)).replace("{name}", "hook")
        for method, path in await operations(api)
        if method == "get"
    ]
    texts = [(await api.admin.get(path)).body.decode() for path in places]
    texts.append(
        (await api.admin.send("PUT", "/v1/task-types/hook", {"target": "https://example.org/h2"})).body.decode()
    )
    rows = await api.pool.fetch("SELECT * FROM tickwright.audit")
    texts.append(json.dumps([str(dict(row)) for row in rows]))
    hashes = await api.pool.fetch("SELECT encode(hash, 'hex') FROM tickwright.api_keys")
    for text in texts:
        assert not [canary for canary in canaries if canary in text or canary[9:] in text]
        assert not [row for row in hashes if row[0] in text]


async def test_the_first_secret_is_made_with_its_type_and_shown_once(api: RunningApi) -> None:
    """Only signed targets have secrets; a second PUT creates none; after a rotation the old one still signs."""
    made = await api.admin.send("PUT", "/v1/task-types/hook", {"target": "https://example.org/h"})
    assert made.status == 201
    assert made.json["secret"].startswith("whsec_")
    again = await api.admin.send("PUT", "/v1/task-types/hook", {"target": "https://example.org/h"})
    assert (again.status, again.json["secret"]) == (200, None)
    await api.admin.post("/v1/task-types/hook/rotate-secret", {"overlap": "2h"})
    assert (await api.viewer.get("/v1/task-types/hook")).json["signing_secrets"] == 2
    await api.admin.post("/v1/task-types/hook/rotate-secret", {"overlap": "0s"})
    assert (await api.viewer.get("/v1/task-types/hook")).json["signing_secrets"] == 1
    (await api.admin.post("/v1/task-types/noop/rotate-secret")).says(422, "nothing_to_sign")


async def test_a_forbidden_target_is_not_stored(database_url: str) -> None:
    """The injected rule decides about targets; its error reaches the caller."""
    from tickwright.domain.errors import Rejected

    def refuse(target: str) -> None:
        if "169.254" in target:
            raise Rejected("ssrf_blocked", "this address is link-local", field="target")

    async with running_api(database_url, allow_target=refuse) as api:
        body = {"target": "https://169.254.169.254/latest"}
        (await api.admin.send("PUT", "/v1/task-types/meta", body)).says(422, "ssrf_blocked")
        (await api.viewer.get("/v1/task-types/meta")).says(404, "task_type_not_found")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("pg:tickwright.poll-events", 422),
        ("amqp:tickwright.fanout/task", 422),
        ("amqp:/mine.fanout", 422),
        ("kafka:tickwright.polls", 422),
        ("kafka:yours.polls", 422),
        ("pg:tickwright", 201),
        ("pg:tickwrights.events", 201),
        ("amqp:shop/tickwright.key", 201),
    ],
)
async def test_a_task_type_may_not_use_internal_destinations(database_url: str, target: str, status: int) -> None:
    """It names no exchange, queue or topic of Tickwright, nor does an outbox row of another program."""
    check = target_check(load_settings(amqp_prefix="mine", kafka_prefix="yours"))
    async with running_api(database_url, allow_target=check) as api:
        answer = await api.admin.send("PUT", "/v1/task-types/meta", {"target": target})
        assert answer.status == status, answer.body
        assert await api.pool.fetchval("SELECT tickwright.is_internal($1)", target) == (
            status == 422 and "tickwright." in target
        )
        if status == 422:
            answer.says(422, "destination_reserved")


async def test_readiness_is_the_result_of_the_processs_checks(database_url: str) -> None:
    """503 with the checks when the process cannot work; liveness does not depend on them."""
    state = Readiness(ready=False, checks={"database": "no answer"})
    async with running_api(database_url, ready=lambda: state) as api:
        answer = await api.stranger.get("/readyz")
        assert (answer.status, answer.json["checks"]) == (503, {"database": "no answer"})
        assert (await api.stranger.get("/healthz")).json == {"status": "ok"}


async def test_every_operator_action_writes_one_audit_entry(api: RunningApi) -> None:
    """Actor, action, before and after, for each action that changes something; is_refused ones write none."""
    service, caller = api.service, ADMIN
    before = await api.pool.fetchval("SELECT max(id) FROM tickwright.audit")
    jobs = [(await api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).json["id"] for _ in range(3)]
    worker = await api.pool.fetchval(
        "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
        "VALUES (77, 'w', '{worker}', '0', now() + interval '1 hour') RETURNING id"
    )
    await service.types.put("hook", TaskTypeRequest(target="https://example.org/"), caller=caller)
    key = (await api.operations.keys.create("k", Role.VIEWER, caller=caller)).details.id
    dead = await dead_job(api)
    message = await api.pool.fetchval(
        "INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts) "
        "VALUES (1, 'pg:x', '{}', '{}', now(), 3) RETURNING id"
    )
    second = await dead_job(api)
    actions: list[tuple[str, str, Any, str]] = [
        ("POST", f"/v1/jobs/{jobs[0]}/reschedule", {"delay": "2h"}, "jobs.reschedule"),
        ("PATCH", f"/v1/jobs/{jobs[0]}", {"priority": 1}, "jobs.edit"),
        ("POST", f"/v1/jobs/{jobs[0]}/run-now", None, "jobs.run_now"),
        ("POST", f"/v1/jobs/{jobs[0]}/cancel", None, "jobs.cancel"),
        ("POST", f"/v1/jobs/{dead}/retry", None, "jobs.retry"),
        ("POST", "/v1/jobs:run-now", {"ids": jobs[1:2]}, "jobs.run_now_many"),
        ("POST", "/v1/jobs:reschedule", {"ids": jobs[1:], "shift": "1h"}, "jobs.reschedule_many"),
        ("POST", "/v1/jobs:cancel", {"ids": jobs[1:]}, "jobs.cancel_many"),
        ("POST", "/v1/jobs:retry", {"ids": [second]}, "jobs.retry_many"),
        ("POST", "/v1/dead-letters/requeue", {"kind": "outbox", "ids": [message]}, "dead_letters.requeue"),
        ("POST", f"/v1/workers/{worker}/drain", None, "workers.drain"),
        ("PUT", "/v1/task-types/hook", {"target": "https://example.org/2"}, "task_types.put"),
        ("PATCH", "/v1/task-types/hook", {"concurrency": 5}, "task_types.change"),
        ("POST", "/v1/task-types/hook/pause", None, "task_types.pause"),
        ("POST", "/v1/task-types/hook/enable", None, "task_types.enable"),
        ("POST", "/v1/task-types/hook/rotate-secret", None, "task_types.rotate_secret"),
        ("DELETE", "/v1/task-types/hook", None, "task_types.delete"),
        ("POST", "/v1/keys", {"name": "n", "role": "viewer"}, "keys.create"),
        ("POST", f"/v1/keys/{key}/rotate", None, "keys.rotate"),
        ("POST", f"/v1/keys/{key}/revoke", None, "keys.revoke"),
    ]
    before = await api.pool.fetchval("SELECT max(id) FROM tickwright.audit")
    for method, path, body, action in actions:
        answer = await api.admin.send(method, path, body)
        assert answer.status < 300, (path, answer.body)
        rows = await api.pool.fetch("SELECT * FROM tickwright.audit WHERE id > $1", before)
        assert [(row["actor"], row["action"]) for row in rows] == [("admin", action)], path
        assert rows[0]["before"] or rows[0]["after"]
        before = rows[0]["id"]
    for method, path in [("POST", f"/v1/jobs/{jobs[0]}/cancel"), ("POST", "/v1/task-types/hook/pause")]:
        assert (await api.admin.send(method, path)).status in {404, 409}
    assert await api.pool.fetchval("SELECT max(id) FROM tickwright.audit") == before
    assert [
        line["subject"] for line in (await api.viewer.get("/v1/audit?action=dead_letters.requeue")).json["items"]
    ] == ["outbox"]
    shown = (await api.viewer.get("/v1/audit?action=jobs.cancel")).json["items"]
    assert [line["subject"] for line in shown] == [f"job:{jobs[0]}"]


async def dead_job(api: RunningApi) -> int:
    """A failed job."""
    made = (await api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).json["id"]
    await api.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE id = $1", made)
    return int(made)
