"""Narrow keys: a scope allows the routes that name it, and no others."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.test_api_access import OPEN, SIGN_IN, SIGNED, filled, operations
from kit.api import ADMIN, RunningApi, running_api
from kit.mutants import mutate
from tickwright.api.context import ApiLimits
from tickwright.api.gate import check_role
from tickwright.capabilities.jobs.remote.workers import CALLS
from tickwright.ports.caller import SCOPES, Role

OPENS = {
    "jobs:schedule": {("post", "/v1/jobs"), ("post", "/v1/jobs:bulk"), ("post", "/v1/workflows")},
    "jobs:work": {("post", f"/v1/worker/{call}") for call in ("register", *CALLS)},
    "reports:deliver": {
        ("get", "/v1/reports/{report_id}/parts/{listener}"),
        ("put", "/v1/reports/{report_id}/parts/{listener}"),
        ("post", "/v1/reports/{report_id}/parts/{listener}/fail"),
    },
    "trackers:events": {("post", "/v1/trackers/{tracker_id}/events")},
    "trackers:register": {
        ("post", "/v1/trackers"),
        ("post", "/v1/trackers:bulk"),
        ("post", "/v1/trackers/{tracker_id}/end"),
    },
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API whose keys may send many requests."""
    async with running_api(database_url, limits=ApiLimits(requests_per_s=1000, burst=1000)) as running:
        yield running


async def made(api: RunningApi, scopes: list[str]) -> Any:
    """Make a key with these scopes."""
    answer = await api.admin.post("/v1/keys", {"name": "narrow", "scopes": scopes})
    assert answer.status == 201, answer.body
    return answer.json


async def wrong_answers(api: RunningApi) -> list[Any]:
    """Call all routes with a key of each scope, and return those that allow too much or too little."""
    assert OPENS.keys() == SCOPES.keys()
    found = [(method, path) for method, path in await operations(api) if path not in OPEN | SIGNED]
    wrong: list[Any] = []
    for scope, opens in OPENS.items():
        assert opens <= set(found)
        client = api.stranger.with_key((await made(api, [scope]))["key"])
        for method, path in found:
            if (method, path) != SIGN_IN:
                refused = (await client.send(method.upper(), filled(path))).status == 403
                if refused == ((method, path) in opens):
                    wrong.append((scope, method, path))
    return wrong


async def test_a_scope_allows_its_routes_and_no_other(api: RunningApi) -> None:
    """Every route is called with a key of every scope: a new route is closed to all of them."""
    assert await wrong_answers(api) == []


@pytest.mark.parametrize(
    ("guard", "instead"),
    [
        ("if caller.scopes:", "if False:"),
        ("if scope in caller.scopes:", "if scope:"),
        ("if scope in caller.scopes:", "if False:"),
    ],
    ids=["scopes are ignored", "any scope allows", "no scope allows"],
)
async def test_the_suite_notices_a_scope_that_is_not_checked(
    api: RunningApi, guard: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of all routes detect each mutant."""
    mutate(monkeypatch, check_role, guard, instead)
    assert await wrong_answers(api) != []


async def test_a_refusal_names_the_needed_scope_and_role(api: RunningApi) -> None:
    """403, also with the scopes of the key."""
    client = api.stranger.with_key((await made(api, ["trackers:events"]))["key"])
    detail = (await client.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).says(403, "forbidden").json["detail"]
    assert detail == "this needs the scope jobs:schedule or the role operator; the key has only trackers:events"
    detail = (await client.get("/v1/jobs")).says(403, "forbidden").json["detail"]
    assert detail == "this needs the role viewer; the key has only trackers:events"


async def test_a_narrow_key_schedules_jobs(api: RunningApi) -> None:
    """One by one and in bulk with the same scope; the audit trail has the name of the key."""
    client = api.stranger.with_key((await made(api, ["jobs:schedule", "trackers:register"]))["key"])
    assert (await client.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).status == 201
    line = b'{"task_type": "noop", "delay": "1h"}\n'
    bulk = await client.send("POST", "/v1/jobs:bulk", line, headers={"Content-Type": "application/x-ndjson"})
    assert bulk.status == 200, bulk.body
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 2
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.audit WHERE actor = 'narrow'") == 1


async def test_a_key_has_a_role_or_known_scopes(api: RunningApi) -> None:
    """Neither, both, an unknown one, one twice: 422 with the allowed values."""
    for body in (
        {},
        {"role": "viewer", "scopes": ["jobs:schedule"]},
        {"scopes": ["jobs:read"]},
        {"scopes": ["jobs:schedule", "jobs:schedule"]},
    ):
        (await api.admin.post("/v1/keys", {"name": "wrong", **body})).says(422, "invalid_scopes")
    listed = (await api.admin.get("/v1/keys")).json["items"]
    assert [one["name"] for one in listed if one["name"] == "wrong"] == []


async def test_rotation_keeps_scopes_and_lists_show_them(api: RunningApi) -> None:
    """A successor has its predecessor's scopes; a narrow key is shown without a role."""
    key = (await made(api, ["trackers:events", "jobs:schedule"]))["details"]
    assert (key["role"], key["scopes"]) == (None, ["jobs:schedule", "trackers:events"])
    successor = (await api.admin.post(f"/v1/keys/{key['id']}/rotate")).json
    assert (successor["details"]["role"], successor["details"]["scopes"]) == (None, key["scopes"])
    client = api.stranger.with_key(successor["key"])
    (await client.get("/v1/jobs")).says(403, "forbidden")
    assert (await client.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).status == 201
    listed = {one["id"]: one for one in (await api.admin.get("/v1/keys")).json["items"]}
    assert listed[key["id"]]["scopes"] == key["scopes"]
    assert {one["role"] for one in listed.values() if not one["scopes"]} == {"viewer", "operator", "admin"}


async def test_a_narrow_key_cannot_sign_in(api: RunningApi) -> None:
    """The dashboard is for users with a role; no cookie is set."""
    refused = await api.stranger.post("/v1/session", {"key": (await made(api, ["jobs:schedule"]))["key"]})
    assert "set-cookie" not in refused.says(403, "key_has_scopes").headers
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.sessions") == 0


async def test_plain_sql_cannot_give_a_narrow_key_a_role(api: RunningApi) -> None:
    """A key with scopes has the lowest role in the table, so that an older release's process grants no more."""
    narrow = await api.operations.keys.create("n", None, caller=ADMIN, scopes=["jobs:schedule"])
    role = await api.pool.fetchval("SELECT role FROM tickwright.api_keys WHERE id = $1", narrow.details.id)
    assert role == Role.VIEWER.name.lower()
    with pytest.raises(Exception, match="api_keys_check"):
        await api.pool.execute("UPDATE tickwright.api_keys SET role = 'admin' WHERE id = $1", narrow.details.id)
