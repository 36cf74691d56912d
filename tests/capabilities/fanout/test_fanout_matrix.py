"""Overviews of fan-out: modules against windows, and entities against modules."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from kit.api import RunningApi, running_api

QUARTER = timedelta(minutes=15)
WINDOW = """
INSERT INTO tickwright.fanout_windows (task_type, window_at, succeeded, failed, superseded, expired)
VALUES ($1, $2, $3, $4, $5, $6)
"""


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with two entities that are polled for locations, one of them for tariffs, too."""
    async with running_api(database_url) as running:
        for code, modules in {"DE*AAA": "LOCATIONS", "NL*BBB": "LOCATIONS,TARIFFS", "ZZ": "LOCATIONS"}.items():
            body = {"polling_enabled_modules": modules, "is_polling_enabled": code != "ZZ"}
            assert (await running.admin.send("PUT", f"/v1/entities/{code}", body)).status == 201
        yield running


async def window_now(api: RunningApi) -> datetime:
    """Return the start of the current window of fifteen minutes."""
    found: datetime = await api.pool.fetchval("SELECT date_bin('15 minutes', now(), 'epoch')")
    return found


async def matrix(api: RunningApi, query: str = "") -> Any:
    """Return modules against windows, by the modules' names."""
    answer = await api.viewer.get(f"/v1/fanout/windows{query}")
    assert answer.status == 200, answer.body
    return {one["name"]: one for one in answer.json["modules"]}


async def test_no_window_from_before_the_module_is_missed(api: RunningApi) -> None:
    """A window that began before the module was created is idle, unless a task of it came."""
    now = await window_now(api)
    await api.pool.execute("UPDATE tickwright.modules SET created_at = $1", now - 2 * QUARTER)
    await api.pool.execute(WINDOW, "LOCATIONS", now - 5 * QUARTER, 0, 1, 0, 0)
    windows = (await matrix(api, "?hours=2"))["LOCATIONS"]["windows"]
    assert [one["state"] for one in windows][:7] == ["open", "missed", "missed", "idle", "idle", "missed", "idle"]


async def test_each_window_has_its_state(api: RunningApi) -> None:
    """Open, done, partly, missed, against the entities that are polled now; idle where none was to be polled."""
    now = await window_now(api)
    await api.pool.execute("UPDATE tickwright.modules SET created_at = created_at - interval '1 day'")
    for back, counts in {1: (2, 0, 0, 0), 2: (1, 4, 0, 1), 3: (0, 3, 0, 2), 4: (5, 0, 1, 0)}.items():
        await api.pool.execute(WINDOW, "LOCATIONS", now - back * QUARTER, *counts)
    await api.pool.execute(WINDOW, "CDRS", now - 2 * QUARTER, 0, 0, 1, 0)
    found = await matrix(api, "?hours=2")
    locations = found["LOCATIONS"]
    assert (locations["expected"], locations["every"], locations["more"]) == (2, "15m", False)
    assert [one["state"] for one in locations["windows"]][:6] == ["open", "done", "partly", "missed", "done", "missed"]
    assert len(locations["windows"]) == 9, "two hours, and the window in which they begin"
    second = locations["windows"][2]
    assert (second["succeeded"], second["failed"], second["superseded"], second["expired"]) == (1, 4, 0, 1)
    assert locations["last_success_window_at"] == locations["windows"][1]["window_at"]
    assert [one["state"] for one in found["CDRS"]["windows"]][:4] == ["open", "idle", "missed", "idle"]
    assert found["CDRS"]["last_success_window_at"] is None


async def test_one_module_is_queried_in_any_spelling(api: RunningApi) -> None:
    """An unknown one is an error, not an empty answer."""
    assert list(await matrix(api, "?module=%20locations")) == ["LOCATIONS"]
    (await api.viewer.get("/v1/fanout/windows?module=NOTHING")).says(404, "module_not_found")


async def test_published_entities_are_counted_for_the_newest_windows(api: RunningApi) -> None:
    """Where PostgreSQL has the marks; a claim without a confirm is not published."""
    now = await window_now(api)
    for code, published in {"DE*AAA": now, "NL*BBB": None}.items():
        await api.pool.execute(
            "INSERT INTO tickwright.fanout_claims VALUES ($1, 'LOCATIONS', $2, 't', now(), $3)", now, code, published
        )
    windows = (await matrix(api))["LOCATIONS"]["windows"]
    assert [one["published"] for one in windows[:3]] == [1, 0, None]


async def test_a_module_of_seconds_shows_its_newest_windows(api: RunningApi) -> None:
    """Five hundred of them, however many hours the query covers."""
    await api.pool.execute("UPDATE tickwright.modules SET interval_seconds = 1 WHERE name = 'LOCATIONS'")
    found = (await matrix(api, "?hours=168"))["LOCATIONS"]
    assert (len(found["windows"]), found["more"]) == (500, True)
    starts = [datetime.fromisoformat(one["window_at"]) for one in found["windows"]]
    assert starts == sorted(starts, reverse=True)
    assert starts[0] - starts[-1] == timedelta(seconds=499)


async def test_entities_are_listed_with_their_modules(api: RunningApi) -> None:
    """By code, page by page: last success, last error and next window of each module, in the entity's order."""
    await api.pool.execute(
        """INSERT INTO tickwright.fanout_cursors
                  (entity_code, task_type, last_window_at, last_success_at, failures, last_error, last_error_at)
           VALUES ('NL*BBB', 'TARIFFS', now(), now(), 3, 'broken', now())"""
    )
    first = (await api.viewer.get("/v1/fanout/entities?limit=1")).json
    assert [one["code"] for one in first["items"]] == ["DE*AAA"]
    rest = (await api.viewer.get(f"/v1/fanout/entities?limit=1&cursor={first['next']}")).json["items"]
    [entity] = rest
    locations, tariffs = entity["modules"]
    assert (entity["code"], locations["name"], tariffs["name"]) == ("NL*BBB", "LOCATIONS", "TARIFFS")
    assert (tariffs["failures"], tariffs["last_error"], locations["last_success_at"]) == (3, "broken", None)
    assert tariffs["last_success_at"] is not None
    assert tariffs["next_window_at"] > tariffs["window_at"]
    only = (await api.viewer.get("/v1/fanout/entities?module=tariffs&enabled=true")).json["items"]
    assert [one["code"] for one in only] == ["NL*BBB"]
    whole = (await api.viewer.get("/v1/entities/NL*BBB")).json["modules"]
    assert [one["last_window_at"] for one in whole] == [one["last_window_at"] for one in entity["modules"]]
