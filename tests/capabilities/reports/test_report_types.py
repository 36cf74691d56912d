"""Report types by REST, by a program and by the TOML file: which one takes precedence, and the plan of a record."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from tickwright.capabilities.reports import report_types
from tickwright.capabilities.reports.report_types import ReportTypes
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller, Role
from tickwright.store.paging import Cursors
from tickwright.store.pool import Pool

ADMIN = Caller("test", Role.ADMIN)
ONE: dict[str, Any] = {"listeners": ["users"], "merge": "SELECT id FROM users", "parameters": {"country": "text"}}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


@pytest.fixture
def types(pool: Pool) -> ReportTypes:
    """The report types of a fresh database."""
    return ReportTypes(pool, Cursors(pool))


async def trail(pool: Pool) -> list[tuple[str, str]]:
    """Return actor and action of each change of a report type, oldest first."""
    rows = await pool.fetch("SELECT actor, action FROM tickwright.audit WHERE action LIKE 'report_types.%' ORDER BY id")
    return [tuple(row) for row in rows]


async def test_a_report_type_is_created_shown_changed_and_deleted_by_rest(api: RunningApi) -> None:
    """GET shows what PUT accepts; a PUT of the same definition changes nothing."""
    made = await api.admin.send("PUT", "/v1/report-types/users", ONE)
    assert made.status == 201
    shown = (await api.viewer.get("/v1/report-types/users")).json
    assert shown == made.json["report_type"]
    assert (shown["listeners"], shown["stages"], shown["format"], shown["set_by"]) == (["users"], 1, "csv", "operator")
    assert shown["definition"]["merge"] == "SELECT id FROM users"
    again = await api.admin.send("PUT", "/v1/report-types/users", shown["definition"])
    assert (again.status, again.json["created"], again.json["report_type"]) == (200, False, shown)
    changed = await api.admin.send("PUT", "/v1/report-types/users", {**ONE, "format": "parquet"})
    assert (changed.status, changed.json["report_type"]["format"]) == (200, "parquet")
    assert changed.json["report_type"]["updated_at"] > shown["updated_at"]
    assert (await api.admin.send("DELETE", "/v1/report-types/users")).status == 204
    (await api.admin.send("DELETE", "/v1/report-types/users")).says(404, "report_type_not_found")
    (await api.viewer.get("/v1/report-types/users")).says(404, "report_type_not_found")
    assert [action for _, action in await trail(api.pool)] == ["report_types.put"] * 2 + ["report_types.delete"]


async def test_only_an_admin_sets_a_report_type(api: RunningApi) -> None:
    """A viewer reads, an operator acts on reports."""
    for client in (api.viewer, api.operator):
        assert (await client.send("PUT", "/v1/report-types/users", ONE)).status == 403
        assert (await client.send("DELETE", "/v1/report-types/users")).status == 403
    assert (await api.stranger.get("/v1/report-types")).status == 401


async def test_a_wrong_definition_is_refused_with_every_mistake(api: RunningApi) -> None:
    """422 with all of them; a malformed body is refused as everywhere."""
    answer = await api.admin.send("PUT", "/v1/report-types/users", {"listeners": ["order"], "merg": 1, "checks": 0})
    problems = answer.says(422, "invalid_report_type").json["problems"]
    assert len(problems) == 3
    (await api.admin.send("PUT", "/v1/report-types/a%20b", ONE)).says(422, "invalid_report_type")
    (await api.admin.send("PUT", "/v1/report-types/users", b'{"checks": 1, "checks": 2}')).says(400, "duplicate_key")
    assert (await api.viewer.get("/v1/report-types")).json == {"items": [], "next": None}


async def test_definitions_are_checked_one_at_a_time(types: ReportTypes, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB's parser holds the interpreter's lock, so checks in parallel would stop the process."""
    two, together = threading.Barrier(2), []

    def check(name: str, *_: Any, **__: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            two.wait(timeout=1)
            together.append(name)
        raise Rejected("invalid_report_type", name)

    monkeypatch.setattr(report_types, "check_definition", check)
    ends = await asyncio.gather(
        *(types.put(name, ONE, caller=ADMIN) for name in ("a", "b", "c")), return_exceptions=True
    )
    assert [str(end) for end in ends] == ["a", "b", "c"]
    assert together == []


async def test_report_types_are_listed_page_by_page(api: RunningApi) -> None:
    """By name, without their SQL; a made-up cursor is refused."""
    for name in ("c", "a", "b"):
        await api.admin.send("PUT", f"/v1/report-types/{name}", {"stages": [["x"], ["y"]], "merge": "SELECT 1"})
    first = (await api.viewer.get("/v1/report-types?limit=2")).json
    assert [(one["name"], one["listeners"], one["stages"]) for one in first["items"]] == [
        ("a", ["x", "y"], 2),
        ("b", ["x", "y"], 2),
    ]
    last = (await api.viewer.get(f"/v1/report-types?limit=2&cursor={first['next']}")).json
    assert ([one["name"] for one in last["items"]], last["next"]) == (["c"], None)
    (await api.viewer.get("/v1/report-types?cursor=xyz")).says(400, "invalid_cursor")


async def test_a_program_replaces_definitions_of_programs_only(types: ReportTypes, pool: Pool) -> None:
    """A second start changes nothing; what an operator or a file has set stays."""
    for _ in range(2):
        await types.declare("t", ONE, caller=ADMIN)
    await types.declare("t", {**ONE, "bom": True}, caller=ADMIN)
    assert ((await types.get("t")).set_by, (await types.get("t")).definition["bom"]) == ("app", True)
    await types.put("t", ONE, caller=ADMIN)
    await types.declare("t", {**ONE, "bom": True}, caller=ADMIN)
    assert ((await types.get("t")).set_by, (await types.get("t")).definition["bom"]) == ("operator", False)
    assert len(await trail(pool)) == 3


async def test_a_put_of_a_programs_definition_makes_it_the_operators(types: ReportTypes) -> None:
    """``set_by`` is ``operator`` from then on."""
    await types.declare("t", ONE, caller=ADMIN)
    assert (await types.put("t", ONE, caller=ADMIN)).created is False
    assert (await types.get("t")).set_by == "operator"


async def test_a_plan_is_read_from_the_stored_definition(types: ReportTypes, pool: Pool) -> None:
    """Read in a transaction, to be frozen with a record; the error for an unknown type names the nearest one."""
    await types.put("withdrawals", {**ONE, "keep": "1d", "feeds": {}}, caller=ADMIN)
    async with pool.acquire() as connection:
        plan = await types.plan(connection, "withdrawals")
        assert (plan.keep_s, [one.name for one in plan.listeners], plan.merge) == (86_400, ["users"], ONE["merge"])
        with pytest.raises(Rejected, match="did you mean withdrawals") as caught:
            await types.plan(connection, "withdrawls")
        assert (caught.value.code, caught.value.http_status) == ("unknown_report_type", 422)


async def test_missing_fields_of_a_stored_definition_have_their_defaults(types: ReportTypes, pool: Pool) -> None:
    """A release ignores fields that it does not know, and uses the default of a missing one."""
    await pool.execute(
        "INSERT INTO tickwright.report_types (name, definition) VALUES ('t', $1)",
        '{"listeners": [{"name": "a", "kind": "function"}], "merge": "FROM a", "later": 1}',
    )
    assert (await types.get("t")).definition["checks"] == 6
    assert [(one.name, one.stages) for one in (await types.list()).items] == [("t", 1)]
