"""The slice ledger: outcomes of each minute, polls that are to come, and a replay of missing polls only."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.polling import Ground

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the partners ``dhl`` and ``ups``."""
    async with running_api(database_url) as running:
        for name in ("dhl", "ups"):
            await Ground(running.pool).partner(name)
        yield running


@pytest.fixture
def ground(api: RunningApi) -> Ground:
    """The API's database, for writes by hand."""
    return Ground(api.pool)


async def pages(api: RunningApi, query: str) -> list[Any]:
    """Return every slice of a listing, page by page."""
    items: list[Any] = []
    cursor = ""
    while True:
        page = (await api.viewer.get(f"/v1/slices?{query}{cursor}")).json
        items += page["items"]
        if not page["next"]:
            return items
        cursor = f"&cursor={page['next']}"


def text(at: datetime) -> str:
    """An instant for a query."""
    return at.isoformat().replace("+00:00", "Z")


async def test_slices_add_up_in_total_and_per_partner(api: RunningApi, ground: Ground) -> None:
    """One row per minute, or per five of them; each coalesced minute of a slot counts as one."""
    slot = await ground.wheel(120)
    now = await ground.turn(slot, 0)
    five = now - timedelta(minutes=20) - timedelta(minutes=now.minute % 5)
    for n in range(5):
        await ground.slice(slot + n, five + n * MINUTE, selected=10, skipped=2, published=9, polled=8)
        await ground.slice(slot + n, five + n * MINUTE, partner="ups", selected=1)
    await api.pool.execute(
        "INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, coalesced) "
        "VALUES ($1, $2, 0, 120, 0, true)",
        five,
        slot,
    )
    items = await pages(api, "limit=50")
    assert [item["due_at"] for item in items] == [text(five + n * MINUTE) for n in reversed(range(5))]
    assert items[0]["partners"]["dhl"] == {
        "expected": 12, "selected": 10, "skipped": 2, "deferred": 0, "published": 9, "polled": 8, "late": 0,
        "superseded": 0, "coalesced": 0,
    }  # fmt: skip
    assert (items[0]["total"]["expected"], items[-1]["total"]["coalesced"]) == (13, 1)
    [whole] = await pages(api, "minutes=5")
    assert (whole["due_at"], whole["total"]["selected"], whole["partners"]["ups"]["selected"]) == (text(five), 55, 5)
    only = await pages(api, "minutes=5&partner=ups")
    assert (only[0]["total"]["selected"], list(only[0]["partners"])) == (5, ["ups"])


async def test_slices_page_over_gaps(api: RunningApi, ground: Ground) -> None:
    """Newest first, each once, however long nothing was selected between two; ``from`` and ``to`` bound them."""
    slot = await ground.wheel(120)
    now = await ground.turn(slot, 0)
    minutes = [now - timedelta(minutes=n) for n in (1, 2, 3, 40, 41, 500, 5_000)]
    for at in minutes:
        await ground.slice(slot, at)
    assert [item["due_at"] for item in await pages(api, "limit=2")] == [text(at) for at in minutes]
    some = await pages(api, f"limit=2&from={text(minutes[4])}&to={text(minutes[1])}")
    assert [item["due_at"] for item in some] == [text(at) for at in minutes[2:5]]


async def test_polls_of_minutes_that_are_to_come_are_expected(api: RunningApi, ground: Ground) -> None:
    """A minute that is not selected yet, or late, counts the trackers of its slot's last selection."""
    slot = await ground.wheel(120)
    due = await ground.turn(slot, 119)
    await ground.slice(slot, due, selected=7)
    [item] = (await api.viewer.get(f"/v1/slices?to={text(due + 125 * MINUTE)}&limit=10")).json["items"]
    assert (item["due_at"], item["total"]["expected"], item["total"]["selected"]) == (text(due + 120 * MINUTE), 7, 0)


async def replay(api: RunningApi, since: datetime, until: datetime, **more: Any) -> Any:
    """Ask for a replay."""
    answer = await api.operator.post("/v1/slices/replay", {"from": text(since), "to": text(until), **more})
    assert answer.status == 200, answer.body
    return answer.json


async def test_a_replay_polls_what_is_missing_and_nothing_else(api: RunningApi, ground: Ground) -> None:
    """Answered, waiting, queued, skipped, paused, younger and ended ones are left out; a dry run only counts."""
    slot = await ground.wheel(120)
    names = ("lost", "lost2", "done", "waiting", "queued", "skipped", "young", "aged", "ended", "moved")
    trackers = {name: await ground.place(slot, n, external=name) for n, name in enumerate(names)}
    await ground.place(slot, 59, account="asleep", external="asleep")
    await api.admin.post("/v1/accounts/asleep/pause")
    minute = await ground.turn(slot, 5)
    due = {tracker: minute + n * timedelta(seconds=1) for n, tracker in enumerate(trackers.values())}
    await ground.slice(slot, minute, selected=8, published=7)
    await ground.done(trackers["done"], due[trackers["done"]])
    await ground.waiting(trackers["waiting"], due[trackers["waiting"]])
    await ground.queued(trackers["queued"], due[trackers["queued"]])
    for name, change in {
        "skipped": "skip_until = now() + interval '1 hour'",
        "young": "created_at = now()",
        "aged": "tracking_until = now()",
        "ended": "ended_at = now(), place = NULL",
        "moved": "last_polled_at = now()",
    }.items():
        await api.pool.execute(f"UPDATE tickwright.trackers SET {change} WHERE id = $1", trackers[name])
    said = await replay(api, minute, minute + MINUTE)
    assert (said["dry_run"], said["turns"], said["trackers"]) == (True, 1, 2)
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduler_outbox") == 1
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.audit WHERE action = 'slices.replay'") == 0
    said = await replay(api, minute, minute + MINUTE, dry_run=False)
    assert (said["turns"], said["trackers"]) == (1, 2)
    rows = await api.pool.fetch("SELECT * FROM tickwright.scheduler_outbox WHERE batch_no IS NULL ORDER BY id OFFSET 1")
    assert [(row["ids"], row["due_at"]) for row in rows] == [
        ([trackers[name]], due[trackers[name]]) for name in ("lost", "lost2")
    ]
    now = await api.pool.fetchval("SELECT clock_timestamp()")
    assert all(row["release_at"] > now for row in rows)
    assert rows[0]["external_ids"] == ["lost"]
    ledger = await api.pool.fetchrow("SELECT selected, published FROM tickwright.poll_slices")
    pending = await api.pool.fetchval("SELECT sum(cardinality(ids)) FROM tickwright.scheduler_outbox")
    assert ledger["selected"] == ledger["published"] + pending
    [line] = (await api.viewer.get("/v1/audit?action=slices.replay")).json["items"]
    assert (line["actor"], line["after"]["trackers"]) == ("operator", 2)
    assert (await replay(api, minute, minute + MINUTE, dry_run=False))["trackers"] == 0


async def test_a_minute_of_a_slot_with_a_later_one_is_not_replayed(api: RunningApi, ground: Ground) -> None:
    """Its trackers were polled since; nor is one whose slot is due again before. Other partners are not replayed."""
    slot = await ground.wheel(120)
    for name in ("dhl", "ups"):
        await ground.place(slot, 1, partner=name, external=name)
        await ground.place(slot + 1, 1, partner=name, external=f"{name}2")
    minute = await ground.turn(slot, 5)
    await ground.slice(slot, minute - timedelta(hours=2), selected=2)
    await ground.slice(slot, minute, selected=2)
    soon = await ground.turn(slot + 1, 119)
    await ground.slice(slot + 1, soon, selected=2)
    said = await replay(api, minute - timedelta(hours=3), minute + MINUTE, partner="ups", dry_run=False)
    assert (said["turns"], said["trackers"], said["superseded_turns"]) == (1, 1, 2)
    assert await api.pool.fetchval("SELECT external_ids FROM tickwright.scheduler_outbox") == ["ups"]


async def test_replayed_slots_of_one_wheel_are_released_a_minute_apart(api: RunningApi, ground: Ground) -> None:
    """However many are missing, a wheel has at most twice its normal load."""
    slot = await ground.wheel(120)
    for n in range(4):
        await ground.place(slot + n, 30, external=f"E{n}")
        minute = await ground.turn(slot + n, 10 - n)
        await ground.slice(slot + n, minute)
    since = minute - timedelta(hours=1)
    said = await replay(api, since, minute + MINUTE, dry_run=False)
    assert said["trackers"] == 4
    rows = await api.pool.fetch("SELECT release_at FROM tickwright.scheduler_outbox ORDER BY due_at")
    releases = [row["release_at"] for row in rows]
    assert [later - earlier for earlier, later in pairwise(releases)] == [MINUTE] * 3
    assert {at.second for at in releases} == {30}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"from": "2026-01-01T00:00:00Z"}, 422, "invalid_value"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, 422, "invalid_range"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2027-01-01T00:00:00Z"}, 422, "invalid_range"),
        ({"from": "2026-01-01T00:00:00", "to": "2026-01-01T01:00:00Z"}, 422, "naive_datetime"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z", "partner": "nobody"}, 404, "partner_not_found"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z", "force": True}, 400, "unknown_field"),
    ],
)
async def test_a_bad_replay_is_refused_by_its_code(api: RunningApi, body: Any, status: int, code: str) -> None:
    """Each mistake has its own stable code."""
    (await api.operator.post("/v1/slices/replay", body)).says(status, code)


async def test_a_bad_listing_is_refused_by_its_code(api: RunningApi) -> None:
    """Slices are one or five minutes long; instants have their offsets; cursors belong to their listing."""
    (await api.viewer.get("/v1/slices?minutes=7")).says(422, "invalid_parameter")
    (await api.viewer.get("/v1/slices?from=2026-01-01T00:00:00")).says(422, "naive_datetime")
    (await api.viewer.get("/v1/slices?partner=nobody")).says(404, "partner_not_found")
    (await api.viewer.get("/v1/slices?cursor=x")).says(400, "invalid_cursor")
