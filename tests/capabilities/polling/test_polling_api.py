"""Accounts, partners and trackers through the REST API: set, registered, listed, ended; every mistake by its code."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.api import Client, RunningApi, running_api
from kit.polling import Ground

ONE: dict[str, Any] = {"account_id": "acme", "partner": "dhl", "external_id": "A1"}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the partner ``dhl``."""
    async with running_api(database_url) as running:
        await Ground(running.pool).partner()
        yield running


@pytest.fixture
def ground(api: RunningApi) -> Ground:
    """The API's database, for writes by hand."""
    return Ground(api.pool)


async def audit(api: RunningApi) -> list[str]:
    """Return the actions in the audit trail, oldest first, without those of the test's set-up."""
    rows = await api.pool.fetch("SELECT action FROM tickwright.audit WHERE action ~ '^(tra|acc|par|sli)' ORDER BY id")
    return [row[0] for row in rows]


async def pages(client: Client, path: str) -> list[Any]:
    """Return every item of a listing, page by page."""
    items: list[Any] = []
    cursor = ""
    while True:
        page = (await client.get(f"{path}{cursor}")).json
        items += page["items"]
        if not page["next"]:
            return items
        cursor = f"&cursor={page['next']}"


async def test_a_registered_tracker_can_be_read_where_location_says(api: RunningApi) -> None:
    """201 shows it as it waits for its place; its account got a row with the default interval."""
    made = await api.operator.post(
        "/v1/trackers", {**ONE, "status": "Shipped", "tracking_until": "2031-01-01T00:00:00Z"}
    )
    assert made.status == 201, made.body
    shown = (await api.viewer.get(made.headers["location"])).json
    assert (shown.pop("events"), shown.pop("payload_hidden")) == ([], False)
    assert shown == made.json["tracker"]
    wanted = {**ONE, "status": "Shipped", "state": "waiting", "tracking_until": "2031-01-01T00:00:00Z"}
    assert wanted.items() <= shown.items()
    account = (await api.viewer.get("/v1/accounts/acme")).json
    assert (account["polling_interval_minutes"], account["max_age_days"]) == (120, 60)
    assert await audit(api) == ["trackers.register"]


async def test_registering_twice_is_one_tracker_wherever_it_is(api: RunningApi, ground: Ground) -> None:
    """The same (partner, external id) answers 200 with the existing tracker, and changes nothing."""
    first = (await api.operator.post("/v1/trackers", ONE)).json["tracker"]
    again = await api.operator.post("/v1/trackers", {**ONE, "account_id": "other", "status": "x"})
    assert (again.status, again.json["created"], again.json["tracker"]) == (200, False, first)
    placed = await ground.place(await ground.wheel(2), external="B1")
    again = await api.operator.post("/v1/trackers", {**ONE, "external_id": "B1"})
    assert (again.status, again.json["tracker"]["id"]) == (200, placed)
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.tracker_intake") == 1
    assert await audit(api) == ["trackers.register"]


async def test_many_at_once_register_one(api: RunningApi) -> None:
    """Ten requests for one external id: one makes the tracker, all return it."""
    answers = await asyncio.gather(*(api.operator.post("/v1/trackers", ONE) for _ in range(10)))
    assert sorted(answer.status for answer in answers) == [200] * 9 + [201]
    assert len({answer.json["tracker"]["id"] for answer in answers}) == 1


async def test_a_tracker_that_is_being_placed_is_not_registered_again(api: RunningApi, ground: Ground) -> None:
    """While the registrar's transaction is open, a registration waits for it and then finds the placed one."""
    first = (await api.operator.post("/v1/trackers", ONE)).json["tracker"]["id"]
    slot = await ground.wheel(2)
    async with api.pool.acquire() as registrar:
        moving = registrar.transaction()
        await moving.start()
        await registrar.execute(
            """WITH taken AS (DELETE FROM tickwright.tracker_intake RETURNING *)
               INSERT INTO tickwright.trackers
                      (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
               SELECT id, created_at, tracking_until, account_no, $1, partner_no, status, external_id FROM taken""",
            slot * 60,
        )
        asked = asyncio.create_task(api.operator.post("/v1/trackers", ONE))
        await wait_for_a_blocked_session(api)
        await moving.commit()
    answer = await asked
    assert (answer.status, answer.json["tracker"]["id"]) == (200, first)
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.tracker_intake") == 0


async def wait_for_a_blocked_session(api: RunningApi) -> None:
    """Return when a session waits for a lock in this database."""
    from kit.waiting import eventually_async

    async def is_blocked() -> bool:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return bool(await api.pool.fetchval(sql))

    await eventually_async(is_blocked)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"account_id": ""}, 422, "invalid_account"),
        ({"account_id": "a/b"}, 422, "invalid_account"),
        ({"account_id": "a" * 201}, 422, "invalid_account"),
        ({"account_id": "a\tb"}, 422, "invalid_account"),
        ({"account_id": "."}, 422, "invalid_account"),
        ({"account_id": ".."}, 422, "invalid_account"),
        ({"partner": "d h l"}, 422, "invalid_partner"),
        ({"partner": ""}, 422, "invalid_partner"),
        ({"partner": "nobody"}, 422, "unknown_partner"),
        ({"external_id": ""}, 422, "invalid_external_id"),
        ({"external_id": "x" * 201}, 422, "invalid_external_id"),
        ({"external_id": None}, 422, "invalid_value"),
        ({"status": ""}, 422, "invalid_status"),
        ({"status": "x" * 101}, 422, "invalid_status"),
        ({"tracking_until": "2030-01-01T00:00:00"}, 422, "naive_datetime"),
        ({"tracking_until": "tomorrow"}, 422, "invalid_datetime"),
        ({"tracking_until": "2020-01-01T00:00:00Z"}, 422, "time_in_past"),
        ({"id": 7}, 400, "unknown_field"),
        ({"next_poll_at": "2030-01-01T00:00:00Z"}, 400, "unknown_field"),
        ({"external_id": "\u0000"}, 400, "unsupported_character"),
    ],
)
async def test_a_bad_tracker_is_refused_by_its_code(api: RunningApi, change: Any, status: int, code: str) -> None:
    """Each mistake has its own stable code, and nothing is registered."""
    (await api.operator.post("/v1/trackers", {**ONE, **change})).says(status, code)
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.tracker_intake") == 0


async def test_a_field_that_occurs_twice_is_refused(api: RunningApi) -> None:
    """Two parsers may read such a body differently."""
    body = b'{"account_id":"a","account_id":"b","partner":"dhl","external_id":"A1"}'
    (await api.operator.post("/v1/trackers", body)).says(400, "duplicate_key")


async def test_lists_filter_and_page(api: RunningApi, ground: Ground) -> None:
    """Newest first, placed and waiting together; every filter; cursors belong to their filter."""
    await ground.partner("ups")
    slot = await ground.wheel(5)
    ids = [await ground.place(slot, n, account=f"a{n % 2}", external=f"P{n}") for n in range(12)]
    ids += [
        (await api.operator.post("/v1/trackers", {**ONE, "account_id": "a0", "partner": "ups", "external_id": f"W{n}"}))
        .json["tracker"]["id"]
        for n in range(5)
    ]  # fmt: skip
    await api.pool.execute("UPDATE tickwright.trackers SET status = 'Lost' WHERE id = $1", ids[3])
    assert (await api.operator.post(f"/v1/trackers/{ids[4]}/end")).status == 200

    async def found(query: str) -> list[int]:
        return [ids.index(item["id"]) for item in await pages(api.viewer, f"/v1/trackers?limit=3{query}")]

    assert await found("") == list(reversed(range(17)))
    assert await found("&account_id=a0") == [16, 15, 14, 13, 12, 10, 8, 6, 4, 2, 0]
    assert await found("&partner=ups") == [16, 15, 14, 13, 12]
    assert await found("&partner=dhl&account_id=a1") == [11, 9, 7, 5, 3, 1]
    assert await found("&status=Lost") == [3]
    assert await found("&ended=true") == [4]
    assert 4 not in await found("&ended=false")
    assert await found("&account_id=nobody") == []
    assert await found("&partner=nobody") == []
    cursor = (await api.viewer.get("/v1/trackers?limit=3")).json["next"]
    (await api.viewer.get(f"/v1/trackers?limit=3&partner=ups&cursor={cursor}")).says(400, "invalid_cursor")


async def test_a_page_reads_a_bounded_number_of_trackers(
    api: RunningApi, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that few trackers match costs several bounded pages, some of them empty, and loses no tracker."""
    from tickwright.capabilities.polling import service as polling_service

    monkeypatch.setattr(polling_service, "READ_MAX", 5)
    slot = await ground.wheel(5)
    ids = [await ground.place(slot, n, external=f"P{n}") for n in range(23)]
    await api.pool.execute("UPDATE tickwright.trackers SET status = 'Lost' WHERE id = ANY ($1)", [ids[0], ids[13]])
    first = (await api.viewer.get("/v1/trackers?status=Lost")).json
    assert first["items"] == []
    assert first["next"]
    assert [item["id"] for item in await pages(api.viewer, "/v1/trackers?status=Lost")] == [ids[13], ids[0]]


async def test_a_small_accounts_trackers_are_found_among_many_that_wait(
    api: RunningApi, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placed or waiting, however many trackers of other accounts wait before and after them."""
    from tickwright.capabilities.polling import service as polling_service

    monkeypatch.setattr(polling_service, "READ_MAX", 4)
    slot = await ground.wheel(5)
    insert = "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id) VALUES ($1, 'dhl', $2)"
    for n in range(6):
        await ground.place(slot, n, account="small", external=f"P{n}")
        for other in range(3):
            await api.pool.execute(insert, "big", f"B{n}.{other}")
        await api.pool.execute(insert, "small", f"W{n}")
    found = [item["external_id"] for item in await pages(api.viewer, "/v1/trackers?account_id=small&limit=2")]
    assert found == [f"{kind}{n}" for n in reversed(range(6)) for kind in "WP"]


async def test_an_ended_tracker_is_polled_no_more(api: RunningApi, ground: Ground) -> None:
    """Its place is free, its last poll is kept; ending twice is harmless; one that waits ends without a place."""
    slot = await ground.wheel(2)
    tracker = await ground.place(slot, 7)
    due = await ground.turn(slot, 1)
    await api.pool.execute(
        "INSERT INTO tickwright.poll_done "
        "SELECT $1, $2::timestamptz + interval '7 seconds', partner_no, now(), ARRAY[id] FROM tickwright.trackers",
        slot,
        due,
    )
    done = await api.operator.post(f"/v1/trackers/{tracker}/end")
    assert done.json["outcome"] == "ended"
    again = await api.operator.post(f"/v1/trackers/{tracker}/end")
    assert (again.json["outcome"], again.json["ended_at"]) == ("already_ended", done.json["ended_at"])
    row = await ground.row(tracker)
    assert row["place"] is None
    assert row["last_polled_at"] is not None
    waiting = (await api.operator.post("/v1/trackers", {**ONE, "external_id": "W"})).json["tracker"]["id"]
    assert (await api.operator.post(f"/v1/trackers/{waiting}/end")).json["outcome"] == "ended"
    shown = (await api.viewer.get(f"/v1/trackers/{waiting}")).json
    assert (shown["state"], shown["next_poll_at"]) == ("ended", None)
    assert await audit(api) == ["trackers.end", "trackers.register", "trackers.end"]
    for action in ("end", "events"):
        body = {"status": "x", "at": "2026-01-01T00:00:00Z"} if action == "events" else None
        (await api.operator.post(f"/v1/trackers/999999/{action}", body)).says(404, "tracker_not_found")


async def test_an_account_is_set_without_a_restart(api: RunningApi, ground: Ground) -> None:
    """Its new interval is shown beside the one by which its trackers are placed; a pause stops their polls."""
    slot = await ground.wheel(120)
    tracker = await ground.place(slot)
    made = await api.admin.send("PUT", "/v1/accounts/acme", {"polling_interval_minutes": 30})
    assert (made.status, made.json["created"]) == (200, False)
    shown = (await api.viewer.get("/v1/accounts/acme")).json
    assert (shown["polling_interval_minutes"], shown["placed_interval_minutes"], shown["max_age_days"]) == (30, 120, 60)
    assert (shown["trackers"], shown["trackers_estimated"]) == (1, False)
    assert (await api.viewer.get(f"/v1/trackers/{tracker}")).json["next_poll_at"] is not None
    assert (await api.admin.post("/v1/accounts/acme/pause")).json["paused_at"] is not None
    assert (await api.viewer.get(f"/v1/trackers/{tracker}")).json["next_poll_at"] is None
    assert (await api.admin.post("/v1/accounts/acme/enable")).json["paused_at"] is None
    new = await api.admin.send("PUT", "/v1/accounts/new%20one", {"polling_interval_minutes": 15, "max_age_days": 3})
    assert (new.status, new.json["account"]["placed_interval_minutes"]) == (201, 15)
    assert await audit(api) == ["accounts.put", "accounts.pause", "accounts.enable", "accounts.put"]
    line = (await api.viewer.get("/v1/audit?action=accounts.put")).json["items"][1]
    assert line["before"]["polling_interval_minutes"] == 120
    counts = {"polls": 0, "fresh": 0, "share": None}
    nothing: dict[str, Any] = {
        "lag_ratio": None,
        "judged_until": None,
        "stale_since": None,
        "recent": counts,
        "month": counts,
        "error_budget_left": None,
        "burn": [],
    }
    assert shown["freshness"] == {"objective": 0.99, **nothing}
    assert line["after"]["polling_interval_minutes"] == 30


async def test_the_number_of_an_accounts_many_trackers_is_an_estimate(
    api: RunningApi, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound nothing is counted: PostgreSQL's statistics say about how many there are."""
    from tickwright.capabilities.polling.trackers import accounts

    monkeypatch.setattr(accounts, "COUNTED_MAX", 100)
    slot = await ground.wheel(2)
    await ground.place(slot)
    await api.pool.execute(
        """INSERT INTO tickwright.trackers
                  (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
           SELECT nextval('tickwright.tracker_ids'), created_at, tracking_until, account_no, place, partner_no, status,
                  'E' || n
             FROM tickwright.trackers, generate_series(1, 999) AS n"""
    )
    await api.pool.execute("ANALYZE tickwright.trackers")
    shown = (await api.viewer.get("/v1/accounts/acme")).json
    assert (shown["trackers"], shown["trackers_estimated"]) == (1000, True)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("PUT", "/v1/accounts/a", {"polling_interval_minutes": 0}, 422, "invalid_value"),
        ("PUT", "/v1/accounts/a", {"polling_interval_minutes": 10_081}, 422, "invalid_value"),
        ("PUT", "/v1/accounts/a", {"polling_interval_minutes": 1.5}, 422, "invalid_value"),
        ("PUT", "/v1/accounts/a", {"max_age_days": 0}, 422, "invalid_value"),
        ("PUT", "/v1/accounts/a", {"polls_per_slice_max": 0}, 422, "invalid_value"),
        ("PUT", "/v1/accounts/a", {"freshness_objective": 1}, 422, "invalid_value"),
        ("PUT", "/v1/accounts/a", {"paused_at": None}, 400, "unknown_field"),
        ("PUT", "/v1/accounts/a%09b", {}, 422, "invalid_account"),
        ("POST", "/v1/accounts/nobody/pause", None, 404, "account_not_found"),
        ("GET", "/v1/accounts/nobody", None, 404, "account_not_found"),
        ("GET", "/v1/accounts?cursor=x", None, 400, "invalid_cursor"),
        ("PUT", "/v1/partners/d%20h%20l", {}, 422, "invalid_partner"),
        ("PUT", "/v1/partners/dhl", [], 422, "invalid_value"),
        ("PUT", "/v1/partners/dhl", {"rate": "fast"}, 422, "invalid_partner"),
        ("PUT", "/v1/partners/dhl", {"concurency": 5}, 422, "invalid_partner"),
        ("PUT", "/v1/partners/dhl", {"http": {"url": "https://api.example/{external_id}"}}, 422, "invalid_partner"),
        ("POST", "/v1/partners/nobody/pause", None, 404, "partner_not_found"),
        ("POST", "/v1/partners/nobody/reset", None, 404, "partner_not_found"),
        ("GET", "/v1/partners/nobody", None, 404, "partner_not_found"),
        ("GET", "/v1/trackers/0", None, 422, "invalid_parameter"),
        ("GET", "/v1/trackers/77", None, 404, "tracker_not_found"),
        ("GET", "/v1/trackers/77/explain", None, 404, "tracker_not_found"),
        ("GET", "/v1/trackers?limit=201", None, 422, "invalid_parameter"),
        ("GET", "/v1/trackers?ended=perhaps", None, 422, "invalid_parameter"),
        ("GET", "/v1/trackers?colour=red", None, 400, "unknown_parameter"),
    ],
)
async def test_a_bad_request_is_refused_by_its_code(  # noqa: PLR0917  pytest calls it by name
    api: RunningApi, method: str, path: str, body: Any, status: int, code: str
) -> None:
    """Each mistake has its own stable code."""
    (await api.admin.send(method, path, body)).says(status, code)


async def test_accounts_page_by_their_ids(api: RunningApi) -> None:
    """In order, each once."""
    for name in ("c", "a", "e", "b", "d"):
        await api.admin.send("PUT", f"/v1/accounts/{name}", {})
    assert [item["account_id"] for item in await pages(api.viewer, "/v1/accounts?limit=2")] == list("abcde")


async def test_a_partner_is_set_paused_enabled_and_reset(api: RunningApi, ground: Ground) -> None:
    """Settings are replaced whole; a pause stops its polls; a reset closes its breaker."""
    tracker = await ground.place(await ground.wheel(2))
    made = await api.admin.send("PUT", "/v1/partners/ups", {"concurrency": 20})
    assert (made.status, made.json["partner"]["settings"], made.json["partner"]["breaker"]) == (
        201, {"concurrency": 20}, "closed",
    )  # fmt: skip
    again = await api.admin.send("PUT", "/v1/partners/ups", {"concurrency": 5})
    assert (again.status, again.json["partner"]["settings"]) == (200, {"concurrency": 5})
    assert [one["name"] for one in (await api.viewer.get("/v1/partners")).json["items"]] == ["dhl", "ups"]
    assert (await api.admin.post("/v1/partners/dhl/pause")).json["paused_at"] is not None
    assert (await api.viewer.get(f"/v1/trackers/{tracker}")).json["next_poll_at"] is None
    assert (await api.admin.post("/v1/partners/dhl/enable")).json["paused_at"] is None
    await api.pool.execute(
        "INSERT INTO tickwright.partner_states (partner_no, breaker, open_until, blocked_until, opened_times) "
        "SELECT partner_no, 'open', now() + interval '1 hour', now() + interval '1 hour', 3 "
        "FROM tickwright.partners WHERE name = 'dhl'"
    )
    assert (await api.viewer.get("/v1/partners/dhl")).json["breaker"] == "open"
    reset = (await api.admin.post("/v1/partners/dhl/reset")).json
    assert (reset["breaker"], reset["open_until"], reset["blocked_until"]) == ("closed", None, None)
    assert await audit(api) == [
        "partners.put", "partners.put", "partners.pause", "partners.enable", "partners.reset",
    ]  # fmt: skip


async def test_every_mistake_in_a_partners_settings_is_named_at_once(api: RunningApi) -> None:
    """With the names of the TOML file and the remedy; nothing is stored."""
    body = {"rate": "50", "concurency": 5, "timeout": "1h", "http": {"status": "$.x"}}
    said = (await api.admin.send("PUT", "/v1/partners/ups", body)).says(422, "invalid_partner").json
    assert len(said["problems"]) >= 4
    assert any("did you mean concurrency?" in problem for problem in said["problems"])
    (await api.viewer.get("/v1/partners/ups")).says(404, "partner_not_found")


async def test_an_import_route_takes_two_types_and_no_other(api: RunningApi) -> None:
    """NDJSON and CSV; everything else is 415."""
    for kind in ("application/json", "text/plain", "text/csv; charset=latin-1"):
        answer = await api.operator.post("/v1/trackers:bulk", b"x", headers={"Content-Type": kind})
        answer.says(415, "unsupported_media_type")
    answer = await api.operator.post(
        "/v1/trackers:bulk", json.dumps(ONE).encode(), headers={"Content-Type": "application/x-ndjson"}
    )
    assert answer.json["created"] == 1
