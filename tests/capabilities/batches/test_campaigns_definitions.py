"""Definitions of campaigns by REST: created, edited in versions, refused with every error, tried unsaved."""

import json
from typing import Any

from kit.campaigns import AUDIENCE, FORBIDDEN, LOAN, SIX_HOURS, CampaignApi


async def test_a_campaigns_life_by_rest(campaigns: CampaignApi) -> None:
    """Created with defaults, shown as a body that creates it again, edited, deleted; each in the audit trail."""
    made = await campaigns.create("loans", SIX_HOURS)
    assert (made["kind"], made["status"], made["version"], made["set_by"]) == ("campaign", "IDLE", 1, "operator")
    assert made["definition"]["date_time_execution"] == "2026-01-05T09:00:00+02:00"
    assert (made["definition"]["overlap"], made["definition"]["misfire_grace"], made["definition"]["rate"]) == (
        "skip", "1m", None,
    )  # fmt: skip
    assert made["definition"]["action"] == {"target": "pg:applications", "release": "finished"}
    assert await campaigns.get("/campaigns/loans") == {**made, "next_slots": made["next_slots"]}
    again = await campaigns.put("loans", made["definition"])
    assert (again["created"], again["changed"], again["campaign"]["version"]) == (False, False, 1)
    edited = await campaigns.put("loans", {**made["definition"], "rate": "1000/s", "version": 1})
    assert (edited["changed"], edited["campaign"]["version"], edited["campaign"]["status"]) == (True, 2, "IDLE")
    assert (await campaigns.api.admin.send("DELETE", "/v1/campaigns/loans")).status == 204
    (await campaigns.api.admin.send("DELETE", "/v1/campaigns/loans")).says(404, "campaign_not_found")
    actions = ["campaigns.create", "campaigns.put", "campaigns.delete"]
    assert await campaigns.trail() == [("admin", action, "campaign:loans") for action in actions]


async def test_the_stored_definition_has_what_an_execution_needs(campaigns: CampaignApi) -> None:
    """Its kind's fields, and the rate per second."""
    await campaigns.create("loans", LOAN, rate="60/min", on_finished="pg:ends", chunk_rows=200, attempts=3)
    row = await campaigns.api.pool.fetchrow("SELECT definition::text, product_codes, served_by FROM tickwright.batches")
    assert json.loads(row["definition"]) == {
        "audience": AUDIENCE,
        "expression": LOAN["expression"],
        "action": {"target": "pg:applications", "release": "finished"},
        "chunk_rows": 200,
        "rate_per_s": 1.0,
        "attempts": 3,
        "on_finished": "pg:ends",
    }
    assert (row["product_codes"], row["served_by"]) == (["LOAN"], "source:crm")


async def test_versions_stay_readable(campaigns: CampaignApi) -> None:
    """Each edit adds one, the old ones stay as they were written, and pages follow each other."""
    await campaigns.create("loans")
    for rows in (100, 200, 300):
        await campaigns.put("loans", {**LOAN, "chunk_rows": rows})
    first = await campaigns.get("/campaigns/loans/versions?limit=3")
    rest = await campaigns.get(f"/campaigns/loans/versions?limit=3&cursor={first['next']}")
    assert [one["version"] for one in first["items"] + rest["items"]] == [4, 3, 2, 1]
    assert rest["next"] is None
    second = await campaigns.get("/campaigns/loans/versions/2")
    assert (second["definition"]["chunk_rows"], second["made_by"]) == (100, "admin")
    (await campaigns.api.viewer.get("/v1/campaigns/loans/versions/9")).says(404, "version_not_found")


async def test_an_edit_of_an_old_version_is_refused(campaigns: CampaignApi) -> None:
    """An edit that names its version overwrites no other edit; it is also refused where there is no campaign."""
    await campaigns.create("loans")
    await campaigns.put("loans", {**LOAN, "chunk_rows": 100, "version": 1})
    late = await campaigns.api.admin.send("PUT", "/v1/campaigns/loans", {**LOAN, "chunk_rows": 200, "version": 1})
    assert late.says(409, "version_conflict").json["version"] == 2
    assert (await campaigns.get("/campaigns/loans"))["definition"]["chunk_rows"] == 100
    none = await campaigns.api.admin.send("PUT", "/v1/campaigns/none", {**LOAN, "version": 1})
    none.says(404, "campaign_not_found")


async def test_names_are_taken_once(campaigns: CampaignApi) -> None:
    """Over all kinds of batches; a put under another name than the body's is refused."""
    await campaigns.create("loans")
    (await campaigns.api.admin.post("/v1/campaigns", {"name": "loans", **LOAN})).says(409, "campaign_exists")
    await campaigns.api.pool.execute(
        "INSERT INTO tickwright.batches (name, kind, type) VALUES ('sync', 'program', 'MANUAL')"
    )
    (await campaigns.api.admin.post("/v1/campaigns", {"name": "sync", **LOAN})).says(409, "name_taken")
    (await campaigns.api.admin.send("PUT", "/v1/campaigns/sync", dict(LOAN))).says(409, "name_taken")
    (await campaigns.api.admin.send("PUT", "/v1/campaigns/a", {"name": "b", **LOAN})).says(422, "invalid_name")
    for name in ("", "a b", ".a", "x" * 101, 5, None):
        (await campaigns.api.admin.post("/v1/campaigns", {"name": name, **LOAN})).says(422, "invalid_name")
    (await campaigns.api.viewer.get("/v1/campaigns/sync")).says(404, "campaign_not_found")
    near = (await campaigns.api.viewer.get("/v1/campaigns/loan")).says(404, "campaign_not_found")
    assert "did you mean loans?" in near.json["detail"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"type": "SOMETIMES"}, "type"),
    ({"type": None}, "type"),
    ({"date_time_execution": "tomorrow"}, "date_time_execution"),
    ({"date_time_execution": "2026-02-30T09:00"}, "date_time_execution"),
    ({"date_time_execution": "1969-12-31T09:00"}, "date_time_execution"),
    ({"date_time_execution": "2026-03-29T03:30"}, "date_time_execution"),
    ({"date_time_execution": None}, "date_time_execution"),
    ({"time_zone": "Europe/Kiew"}, "time_zone"),
    ({"time_zone": "../etc/passwd"}, "time_zone"),
    ({"restartable_unit": 0}, "restartable_unit"),
    ({"restartable_unit": None}, "restartable_unit"),
    ({"restartable_unit_type": "SECONDS"}, "restartable_unit_type"),
    ({"cron": "0 9 * * *"}, "cron"),
    ({"restartable": False, "cron": "0 9 * *"}, "cron"),
    ({"restartable": False, "cron": "0 0 31 2 *"}, "cron"),
    ({"restartable": "yes"}, "restartable"),
    ({"overlap": "wait"}, "overlap"),
    ({"misfire": "some"}, "misfire"),
    ({"misfire_max": 1001}, "misfire_max"),
    ({"misfire_grace": "8d"}, "misfire_grace"),
    ({"misfire_grace": 60}, "misfire_grace"),
    ({"product_codes": "LOAN"}, "product_codes"),
    ({"product_codes": ["a\nb"]}, "product_codes"),
    ({"chunk_rows": 99}, "chunk_rows"),
    ({"chunk_rows": True}, "chunk_rows"),
    ({"rate": "1000"}, "rate"),
    ({"attempts": 0}, "attempts"),
    ({"on_finished": "ftp://x/"}, "on_finished"),
    ({"on_finished": FORBIDDEN}, "on_finished"),
    ({"action": {"target": FORBIDDEN}}, "action.target"),
    ({"action": {"target": "python:not a name"}}, "action.target"),
    ({"action": {"release": "chunk"}}, "action.target"),
    ({"action": {"target": "pg:x", "release": "now"}}, "action.release"),
    ({"action": {"target": "pg:x", "until": 1}}, "action.until"),
    ({"action": "pg:x"}, "action"),
    ({"status": "SCHEDULED"}, "status"),
    ({"expression": None}, "expression"),
    ({"audience": None}, "audience"),
    ({"audience": {**AUDIENCE, "table": "public.client"}}, "audience.table"),
    ({"audience": {**AUDIENCE, "source": "crn"}}, "audience.source"),
]


async def test_a_wrong_field_is_refused(campaigns: CampaignApi) -> None:
    """With its name and what to do, and nothing is written."""
    for wrong, field in WRONG:
        problem = await campaigns.refused({**SIX_HOURS, **wrong})
        assert [one["field"] for one in problem["problems"]] == [field], problem
        assert problem["detail"].startswith(f"{field}: "), problem


async def test_jobs_of_an_encrypted_type_are_refused(campaigns: CampaignApi) -> None:
    """A campaign makes plain payloads: refused where it is defined, not when its actions leave."""
    sql = "INSERT INTO tickwright.task_types (name, target, encrypted) VALUES ('secret', 'python:secret', true)"
    await campaigns.api.pool.execute(sql)
    for wrong, field in (
        ({"action": {"target": "python:secret"}}, "action.target"),
        ({"on_finished": "python:secret"}, "on_finished"),
    ):
        problem = await campaigns.refused({**SIX_HOURS, **wrong})
        assert problem["code"] == "invalid_campaign"
        assert [one["field"] for one in problem["problems"]] == [field]
        assert "secret is encrypted" in problem["detail"]


async def test_every_error_is_named_at_once(campaigns: CampaignApi) -> None:
    """Those of all fields, of the audience's table, and the position in the expression."""
    audience = {**AUDIENCE, "fields": {"age": "int", "incom": "double"}, "keys": 1}
    wrong = {**SIX_HOURS, "overlap": "wait", "chunk_row": 5, "audience": audience, "expression": "client.age >"}
    problem = await campaigns.refused({**wrong, "action": {"target": "nothing"}})
    assert problem["code"] == "invalid_campaign"
    fields = {one["field"] for one in problem["problems"]}
    assert fields == {"overlap", "chunk_row", "audience.keys", "expression", "action.target"}
    assert (problem["line"], problem["column"], problem["offset"]) == (1, 13, 12)


EXPRESSIONS = [
    ("client.age >", "expression_syntax", 1, 13),
    ("client.agee > 25", "unknown_field", 1, 1),
    ('client.age > "25"', "expression_type", 1, 12),
    ("client.age", "expression_not_boolean", 1, 1),
    ("true &&\n [1, 2].exists(x, x > 1)", "expression_loops", 2, 15),
]


async def test_a_wrong_expression_is_refused_with_its_position(campaigns: CampaignApi) -> None:
    """The error has the expression's own code, with line and column in the text as it was sent."""
    found = []
    for expression, _, _, _ in EXPRESSIONS:
        problem = await campaigns.refused({**LOAN, "expression": expression})
        assert problem["field"] == "expression"
        found.append((expression, problem["code"], problem["line"], problem["column"]))
        assert (await campaigns.api.admin.post("/v1/campaigns:check", {**LOAN, "expression": expression})).json[
            "valid"
        ] is False
    assert found == EXPRESSIONS


async def test_a_manual_campaign_has_no_schedule(campaigns: CampaignApi) -> None:
    """Each field that would never be used is refused."""
    problem = await campaigns.refused({**SIX_HOURS, "type": "MANUAL"})
    assert {one["field"] for one in problem["problems"]} == {"date_time_execution", "restartable"}


async def test_a_check_returns_the_errors_and_saves_nothing(campaigns: CampaignApi) -> None:
    """200 with the errors, none for a valid one."""
    good = await campaigns.api.admin.post("/v1/campaigns:check", {"name": "loans", **SIX_HOURS})
    assert (good.status, good.json) == (200, {"valid": True, "problems": []})
    bad = await campaigns.api.admin.post(
        "/v1/campaigns:check", {"name": "a b", **LOAN, "expression": "client.agee > 1"}
    )
    assert [one["field"] for one in bad.json["problems"]] == ["name", "expression"]
    assert (await campaigns.get("/campaigns"))["items"] == []


async def test_a_dry_run_counts_and_shows_the_clients_of_an_execution(campaigns: CampaignApi) -> None:
    """With its own definition or with changes that are not saved."""
    await campaigns.create("loans")
    own = (await campaigns.post("/campaigns/loans/dry-run")).json
    assert (own["members"], own["selected"], own["missing"], own["skipped"]) == (5, 1, 1, 0)
    assert [(one["client_id"], one["client"]["income"]) for one in own["examples"]] == [("1", 4000.0)]
    other = (await campaigns.post("/campaigns/loans/dry-run", {"expression": "client.age >= 40"})).json
    assert [one["client_id"] for one in other["examples"]] == ["3", "5"]
    assert (await campaigns.get("/campaigns/loans"))["version"] == 1
    wrong = await campaigns.post("/campaigns/loans/dry-run", {"expression": "client.tall"})
    assert wrong.says(422, "unknown_field").json["line"] == 1
    (await campaigns.post("/campaigns/loans/dry-run", {"rate": "1/s"})).says(422, "invalid_campaign")
    query = {"source": "crm", "query": "SELECT 7 AS id, 80 AS age", "key": "id", "fields": {"age": "int"}}
    every = {"audience": query, "expression": "client.age > 1"}
    (await campaigns.post("/campaigns/loans/dry-run", every)).says(403, "forbidden")
    found = (await campaigns.api.admin.post("/v1/campaigns/loans/dry-run", every)).json
    assert [one["client_id"] for one in found["examples"]] == ["7"]
    (await campaigns.post("/campaigns/none/dry-run")).says(404, "campaign_not_found")


async def test_an_unsaved_campaign_has_a_dry_run(campaigns: CampaignApi) -> None:
    """For admins only, since an audience may be any query; nothing is saved."""
    draft = {name: LOAN[name] for name in ("audience", "expression")}
    ask = campaigns.api.admin.post
    found = (await ask("/v1/campaigns:dry-run", draft)).json
    assert (found["members"], found["selected"], [one["client_id"] for one in found["examples"]]) == (5, 1, ["1"])
    assert (await campaigns.get("/campaigns"))["items"] == []
    wrong = (await ask("/v1/campaigns:dry-run", {**draft, "expression": "client.tall"})).says(422, "unknown_field")
    assert wrong.json["line"] == 1
    (await ask("/v1/campaigns:dry-run", {**draft, "name": "loans"})).says(422, "invalid_campaign")
    (await ask("/v1/campaigns:dry-run", {"expression": "true"})).says(422, "invalid_campaign")
    (await campaigns.post("/campaigns:dry-run", draft)).says(403, "forbidden")


async def test_a_listing_has_pages_and_filters(campaigns: CampaignApi) -> None:
    """By name; by type, status and the beginning of the name."""
    for name in ("b2", "a1", "b1", "c1"):
        await campaigns.create(name, SIX_HOURS if name == "b2" else LOAN)
    await campaigns.act("/campaigns/b2/activate")
    first = await campaigns.get("/campaigns?limit=3")
    rest = await campaigns.get(f"/campaigns?limit=3&cursor={first['next']}")
    assert [one["name"] for one in first["items"] + rest["items"]] == ["a1", "b1", "b2", "c1"]
    assert rest["next"] is None

    async def names(query: str) -> list[str]:
        return [one["name"] for one in (await campaigns.get(f"/campaigns?{query}"))["items"]]

    assert await names("q=b") == ["b1", "b2"]
    assert await names("type=AUTOMATIC") == await names("status=SCHEDULED") == ["b2"]
    (await campaigns.api.viewer.get("/v1/campaigns?status=RUNNING")).says(422, "invalid_parameter")
    (await campaigns.api.viewer.get(f"/v1/campaigns?q=b&cursor={first['next']}")).says(400, "invalid_cursor")
    assert (await campaigns.get("/batches"))["items"] == []


async def test_a_campaign_with_work_or_much_history_is_not_deleted(campaigns: CampaignApi) -> None:
    """Not while an execution is open or releases, and not with hundreds of thousands of actions at once."""
    await campaigns.create("loans")
    started = (await campaigns.act("/campaigns/loans/start"))["executions"][0]["id"]
    (await campaigns.api.admin.send("DELETE", "/v1/campaigns/loans")).says(409, "execution_open")
    sets = "status = 'FINISHED', chunks = 2, chunks_released = $2, actions = $3"
    update = f"UPDATE tickwright.executions SET {sets} WHERE id = $1"
    await campaigns.api.pool.execute(update, started, 1, 10)
    (await campaigns.api.admin.send("DELETE", "/v1/campaigns/loans")).says(409, "execution_open")
    await campaigns.api.pool.execute(update, started, 2, 200_001)
    (await campaigns.api.admin.send("DELETE", "/v1/campaigns/loans")).says(409, "too_much_history")
    await campaigns.api.pool.execute(update, started, 2, 1)
    await campaigns.chunk(started, 0, "released")
    await campaigns.action(started, 0, "1")
    assert (await campaigns.api.admin.send("DELETE", "/v1/campaigns/loans")).status == 204
    for table in ("executions", "execution_chunks", "execution_actions", "batch_versions"):
        assert await campaigns.api.pool.fetchval(f"SELECT count(*) FROM tickwright.{table}") == 0
