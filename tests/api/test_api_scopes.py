"""Narrow keys: a scope opens the routes that name it, and nothing else."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.test_api_access import OPEN, SIGN_IN, SIGNED, filled, operations
from kit.api import ADMIN, RunningApi, running_api
from kit.mutants import mutate
from tickwright.api import ApiLimits
from tickwright.api.gate import check_role
from tickwright.ports.caller import SCOPES, Role

OPENS = {
    "jobs:schedule": {("post", "/v1/jobs"), ("post", "/v1/jobs:bulk")},
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
    """Walk all routes with a key of each scope, and return what opens too much or too little."""
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


async def test_a_scope_opens_its_routes_and_no_other(api: RunningApi) -> None:
    """Every route is asked with a key of every scope: a new route is closed to all of them."""
    assert await wrong_answers(api) == []


@pytest.mark.parametrize(
    ("guard", "instead"),
    [
        ("if caller.scopes:", "if False:"),
        ("if scope in caller.scopes:", "if scope:"),
        ("if scope in caller.scopes:", "if False:"),
    ],
    ids=["scopes are ignored", "any scope opens", "no scope opens"],
)
async def test_a_mutant_is_found_by_the_walk(
    api: RunningApi, guard: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk over the routes notices each of them."""
    mutate(monkeypatch, check_role, guard, instead)
    assert await wrong_answers(api) != []


async def test_a_refusal_names_what_would_open(api: RunningApi) -> None:
    """403 with the scope and the role that the route needs, and what the key has."""
    client = api.stranger.with_key((await made(api, ["trackers:events"]))["key"])
    said = (await client.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).says(403, "forbidden").json["detail"]
    assert said == "this needs the scope jobs:schedule or the role operator; the key has only trackers:events"
    said = (await client.get("/v1/jobs")).says(403, "forbidden").json["detail"]
    assert said == "this needs the role viewer; the key has only trackers:events"


async def test_a_narrow_key_does_its_work(api: RunningApi) -> None:
    """Jobs are scheduled one by one and in bulk by the same scope, and are those of the key in the audit trail."""
    client = api.stranger.with_key((await made(api, ["jobs:schedule", "trackers:register"]))["key"])
    assert (await client.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).status == 201
    line = b'{"task_type": "noop", "delay": "1h"}\n'
    bulk = await client.send("POST", "/v1/jobs:bulk", line, headers={"Content-Type": "application/x-ndjson"})
    assert bulk.status == 200, bulk.body
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 2
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.audit WHERE actor = 'narrow'") == 1


async def test_a_key_has_a_role_or_scopes_that_exist(api: RunningApi) -> None:
    """Neither, both, an unknown one, one twice: 422 with the words that are allowed."""
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
    """A successor opens what its predecessor opened; a narrow key is shown without a role."""
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


async def test_a_narrow_key_signs_no_browser_in(api: RunningApi) -> None:
    """The page is for people with a role; no cookie is set."""
    refused = await api.stranger.post("/v1/session", {"key": (await made(api, ["jobs:schedule"]))["key"]})
    assert "set-cookie" not in refused.says(403, "key_has_scopes").headers
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.sessions") == 0


async def test_plain_sql_makes_no_narrow_key_that_is_mighty(api: RunningApi) -> None:
    """A key with scopes has the lowest role in the table, so that a process of an older release grants no more."""
    narrow = await api.operations.keys.create("n", None, caller=ADMIN, scopes=["jobs:schedule"])
    role = await api.pool.fetchval("SELECT role FROM tickwright.api_keys WHERE id = $1", narrow.details.id)
    assert role == Role.VIEWER.name.lower()
    with pytest.raises(Exception, match="api_keys_check"):
        await api.pool.execute("UPDATE tickwright.api_keys SET role = 'admin' WHERE id = $1", narrow.details.id)
