"""Trackers by the prefix of their external ids and by state, and the slice ledger as a heat map."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.polling import Ground
from tickwright.capabilities.polling import service as polling_service

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


async def found(api: RunningApi, limit: int = 2, **query: Any) -> list[str]:
    """Return what a listing finds, page by page, as ``partner:external_id``."""
    items: list[str] = []
    cursor = None
    while True:
        given = {**query, "limit": limit, **({} if cursor is None else {"cursor": cursor})}
        page = (await api.viewer.get("/v1/trackers", params=given)).json
        items += [f"{item['partner']}:{item['external_id']}" for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            return items


async def several(api: RunningApi, ground: Ground) -> None:
    """Placed, waiting and ended trackers of two partners."""
    slot = await ground.wheel(5)
    for n, name in enumerate(["A", "A1", "A10", "A2", "a1", "B", "Ä", "A_", "A%", "A\U0010fffe"]):
        await ground.place(slot, n, external=name, account="acme" if n % 2 else "other")
    await ground.place(slot, 20, external="A1", partner="ups")
    body = {"account_id": "acme", "partner": "ups", "external_id": "A15"}
    assert (await api.operator.post("/v1/trackers", body)).status == 201
    ended = await api.pool.fetchval("SELECT id FROM tickwright.trackers WHERE external_id = 'A2'")
    assert (await api.operator.post(f"/v1/trackers/{ended}/end")).status == 200


async def test_a_prefix_finds_trackers_in_the_order_of_their_external_ids(api: RunningApi, ground: Ground) -> None:
    """Placed, waiting and ended ones, byte by byte, without wildcards; pages lose no tracker and show none twice."""
    await several(api, ground)
    assert await found(api, external_id="A1") == ["dhl:A1", "ups:A1", "dhl:A10", "ups:A15"]
    whole = ["dhl:A", "dhl:A%", "dhl:A1", "ups:A1", "dhl:A10", "ups:A15", "dhl:A2", "dhl:A_", "dhl:A\U0010fffe"]
    for limit in (1, 2, 3, 50):
        assert await found(api, limit, external_id="A") == whole
    assert await found(api, external_id="%") == []
    assert await found(api, external_id="Ä") == ["dhl:Ä"]
    assert await found(api, external_id="none") == []


async def test_a_search_by_prefix_has_the_filters_of_every_listing(api: RunningApi, ground: Ground) -> None:
    """By partner, account and state together; a cursor belongs to its prefix."""
    await several(api, ground)
    assert await found(api, external_id="A1", partner="ups") == ["ups:A1", "ups:A15"]
    assert await found(api, external_id="A", account_id="acme", state="waiting") == ["ups:A15"]
    assert await found(api, external_id="A", state="ended") == ["dhl:A2"]
    cursor = (await api.viewer.get("/v1/trackers?external_id=A&limit=1")).json["next"]
    (await api.viewer.get(f"/v1/trackers?external_id=A1&limit=1&cursor={cursor}")).says(400, "invalid_cursor")


async def test_a_page_of_a_search_by_prefix_reads_a_bounded_number_of_trackers(
    api: RunningApi, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that few trackers match costs several bounded pages, some of them empty."""
    monkeypatch.setattr(polling_service, "READ_MAX", 3)
    await several(api, ground)
    first = (await api.viewer.get("/v1/trackers?external_id=A&status=nothing")).json
    assert (first["items"], first["next"] is None) == ([], False)
    assert await found(api, external_id="A", state="waiting") == ["ups:A15"]
    assert await found(api, external_id="A", status="nothing") == []
    assert await found(api, external_id="A", partner="dhl", state="ended") == ["dhl:A2"]


async def test_trackers_are_filtered_by_state(api: RunningApi, ground: Ground) -> None:
    """``waiting``, ``placed`` and ``ended``; ``ended`` as a flag says the same, and both together what fits both."""
    await several(api, ground)
    assert await found(api, state="waiting") == ["ups:A15"]
    assert await found(api, state="ended") == ["dhl:A2"]
    assert len(await found(api, state="placed")) == 10
    assert await found(api, state="placed", account_id="other", limit=50) != []
    assert await found(api, state="ended", ended="false") == []
    assert await found(api, state="ended", ended="true") == ["dhl:A2"]
    (await api.viewer.get("/v1/trackers?state=lost")).says(422, "invalid_parameter")


def text(at: datetime) -> str:
    """An instant for a query."""
    return at.isoformat().replace("+00:00", "Z")


async def test_a_heat_map_counts_the_outcomes_of_each_cell(api: RunningApi, ground: Ground) -> None:
    """Counts add up over partners and minutes, those of unanswered polls and of slots to replay included."""
    slot = await ground.wheel(120)
    now = await ground.turn(slot, 0)
    five = now - timedelta(minutes=30) - timedelta(minutes=now.minute % 5)
    for n in range(5):
        await ground.slice(slot + n, five + n * MINUTE, selected=10, skipped=2, published=9, polled=8)
        await ground.slice(slot + n, five + n * MINUTE, partner="ups", selected=1)
    await api.pool.execute("UPDATE tickwright.poll_slots SET prev_due_at = $2 WHERE slot_id = $1", slot + 1, five)
    said = (await api.viewer.get("/v1/slices:heat")).json
    assert (said["step_minutes"], len(said["cells"])) == (5, 1)
    [cell] = said["cells"]
    assert (cell["from_at"], cell["expected"], cell["selected"], cell["polled"]) == (text(five), 65, 55, 40)
    assert (cell["unanswered"], cell["last_turns"]) == (15, 1)
    only = (await api.viewer.get("/v1/slices:heat?partner=ups&step=1")).json["cells"]
    assert [(one["expected"], one["unanswered"]) for one in only] == [(1, 1)] * 5
    (await api.viewer.get("/v1/slices:heat?partner=nobody")).says(404, "partner_not_found")


async def test_flatness_is_the_fullest_ten_seconds_against_the_average(api: RunningApi, ground: Ground) -> None:
    """1 where every ten seconds have as many trackers, over partners together; 6 where all are in the same ten."""
    slot = await ground.wheel(120)
    now = await ground.turn(slot, 0)
    single = [[60 * (ten == full) for ten in range(6)] for full in range(6)]
    for n, loads in enumerate(([10] * 6, [60, 0, 0, 0, 0, 0], [5] * 6, *single)):
        await ground.slice(slot + n, now - (10 + n) * MINUTE)
        await api.pool.execute("UPDATE tickwright.poll_slices SET loads = $2 WHERE slot_id = $1", slot + n, loads)
    await ground.slice(slot + 2, now - 12 * MINUTE, partner="ups")
    await api.pool.execute(
        "UPDATE tickwright.poll_slices SET loads = '{0,0,0,0,0,30}' WHERE slot_id = $1 AND partner_no = 2", slot + 2
    )
    cells = (await api.viewer.get("/v1/slices:heat?step=1")).json["cells"]
    assert [round(cell["flatness"], 3) for cell in cells] == [*[6.0] * 6, 3.5, 6.0, 1.0]


async def test_a_heat_map_shows_minutes_that_are_to_come(api: RunningApi, ground: Ground) -> None:
    """A minute that is to come counts the trackers of its slot's last selection."""
    slot = await ground.wheel(120)
    due = await ground.turn(slot, 119)
    await ground.slice(slot, due, selected=7)
    said = (await api.viewer.get(f"/v1/slices:heat?to={text(due + 125 * MINUTE)}&step=1")).json
    last = said["cells"][-1]
    assert (last["from_at"], last["expected"], last["selected"]) == (text(due + 120 * MINUTE), 7, 0)


@pytest.mark.parametrize(
    "query",
    [
        "from=2030-01-01T00:00:00Z&to=2030-01-01T00:00:00Z",
        "from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z",
        "from=2030-01-01T00:00:00Z&to=2030-01-13T00:00:00Z&step=60",
        "from=2030-01-01T00:00:00Z&to=2030-01-03T00:00:00Z&step=1",
    ],
)
async def test_a_heat_map_has_a_bound(api: RunningApi, query: str) -> None:
    """No more cells than a screen can show, and no further back than the ledger goes."""
    (await api.viewer.get(f"/v1/slices:heat?{query}")).says(422, "invalid_range")
