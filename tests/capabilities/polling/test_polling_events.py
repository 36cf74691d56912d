"""Events that a courier sends by webhook count at once, in the order of their instants, and postpone polls."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit.api import ADMIN, RunningApi, running_api
from kit.polling import Ground
from kit.waiting import eventually_async
from kit.wheels import open_wheels
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.polling.trackers.events import StatusEvent
from tickwright.capabilities.polling.trackers.requests import NewTracker

AT = "2026-01-01T10:00:00Z"
LATER = "2026-01-01T11:00:00Z"
EARLIER = "2026-01-01T09:00:00Z"


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


async def send_event(api: RunningApi, tracker: int, status: str, at: str, event_id: str | None = None) -> Any:
    """Send an event; return the answer."""
    body = {"status": status, "at": at} | ({} if event_id is None else {"event_id": event_id})
    answer = await api.operator.post(f"/v1/trackers/{tracker}/events", body)
    assert answer.status == 200, answer.body
    return answer.json


async def test_an_event_is_written_and_published_and_postpones_the_next_poll(api: RunningApi, ground: Ground) -> None:
    """Status and instant in the row, one message, and no poll before one whole interval has passed."""
    slot = await ground.wheel(120)
    tracker = await ground.place(slot, 3)
    before = datetime.fromisoformat((await api.viewer.get(f"/v1/trackers/{tracker}")).json["next_poll_at"])
    said = await send_event(api, tracker, "InTransit", AT, "e1")
    assert (said["outcome"], said["status"], said["ended"]) == ("applied", "InTransit", False)
    row = await ground.row(tracker)
    assert (row["status"], row["status_at"]) == ("InTransit", datetime(2026, 1, 1, 10, tzinfo=UTC))
    wait = row["skip_until"] - await api.pool.fetchval("SELECT clock_timestamp()")
    assert timedelta(minutes=119) < wait <= timedelta(minutes=120)
    after = datetime.fromisoformat((await api.viewer.get(f"/v1/trackers/{tracker}")).json["next_poll_at"])
    assert after == before + timedelta(minutes=120)
    [message] = await ground.events()
    assert (message["destination"], message["key"]) == ("pg:tickwright.poll-events", str(tracker))
    assert json.loads(message["payload"]) == {
        "version": 1, "event": "status", "reason": "event", "tracker_id": tracker, "account_id": "acme",
        "partner": "dhl", "external_id": "A1", "status": "InTransit", "previous_status": "registered",
        "at": AT, "event_id": "e1",
    }  # fmt: skip


async def test_stale_and_duplicate_events_change_nothing(api: RunningApi, ground: Ground) -> None:
    """Older than the status is stale; the same id or event is a duplicate; neither has a message or postpones."""
    tracker = await ground.place(await ground.wheel(2))
    await send_event(api, tracker, "InTransit", AT, "e1")
    row = await ground.row(tracker)
    for status, at, event_id, outcome in [
        ("Created", EARLIER, None, "stale"),
        ("Created", EARLIER, "e0", "stale"),
        ("Created", EARLIER, "e0", "duplicate"),
        ("InTransit", AT, None, "duplicate"),
        ("Customs", LATER, "e1", "duplicate"),
    ]:
        said = await send_event(api, tracker, status, at, event_id)
        assert (said["outcome"], said["status"], said["skip_until"]) == (outcome, "InTransit", None), (status, event_id)
    assert await ground.row(tracker) == row
    assert len(await ground.events()) == 1
    assert (await send_event(api, tracker, "Customs", LATER, "e2"))["outcome"] == "applied"


async def test_of_two_statuses_of_one_instant_the_last_to_arrive_counts(api: RunningApi, ground: Ground) -> None:
    """A courier may send only the day or the minute: its events count in the order in which they arrive."""
    tracker = await ground.place(await ground.wheel(2))
    for n, status in enumerate(["InTransit", "Customs", "Released"]):
        assert (await send_event(api, tracker, status, AT, f"e{n}"))["outcome"] == "applied"
    assert (await send_event(api, tracker, "InTransit", AT, "e0"))["outcome"] == "duplicate"
    assert (await send_event(api, tracker, "Released", AT))["outcome"] == "duplicate"
    assert (await ground.row(tracker))["status"] == "Released"
    assert len(await ground.events()) == 3


async def test_a_clock_that_runs_ahead_hides_no_later_event(api: RunningApi, ground: Ground) -> None:
    """An instant ahead of the database's clock counts as that of the receipt; the same status again is a duplicate."""
    tracker = await ground.place(await ground.wheel(2))
    now: datetime = await api.pool.fetchval("SELECT clock_timestamp()")
    ahead = (now + timedelta(minutes=4)).isoformat()
    assert (await send_event(api, tracker, "Ahead", ahead))["outcome"] == "applied"
    row = await ground.row(tracker)
    assert now <= row["status_at"] <= await api.pool.fetchval("SELECT clock_timestamp()")
    assert (await send_event(api, tracker, "Ahead", ahead))["outcome"] == "duplicate"
    later = (row["status_at"] + timedelta(microseconds=1)).isoformat()
    assert (await send_event(api, tracker, "Later", later))["outcome"] == "applied"
    assert (await ground.row(tracker))["status"] == "Later"


async def test_a_terminal_status_wins_over_a_later_scan(api: RunningApi, ground: Ground) -> None:
    """It ends the tracker, placed or waiting, and is the status from then on; ``status_at`` does not go back."""
    placed = await ground.place(await ground.wheel(2))
    body = {"account_id": "acme", "partner": "dhl", "external_id": "W1"}
    waiting = (await api.operator.post("/v1/trackers", body)).json["tracker"]["id"]
    for tracker in (placed, waiting):
        await send_event(api, tracker, "Depot", LATER)
        said = await send_event(api, tracker, "Delivered", AT)
        assert (said["outcome"], said["ended"], said["status_at"]) == ("applied", True, LATER)
        shown = (await api.viewer.get(f"/v1/trackers/{tracker}")).json
        assert (shown["state"], shown["status"], shown["status_at"]) == ("ended", "Delivered", LATER)
        assert (await send_event(api, tracker, "Returned", "2026-01-01T12:00:00Z"))["outcome"] == "ended"
        message = json.loads((await ground.events())[-1]["payload"])
        assert (message["event"], message["status"], message["at"]) == ("ended", "Delivered", LATER)


async def test_a_status_that_is_terminal_now_ends_a_tracker_that_has_it(api: RunningApi, ground: Ground) -> None:
    """A status that the partner's settings list later ends a tracker with the next event of that status."""
    tracker = await ground.place(await ground.wheel(2))
    await send_event(api, tracker, "Returned", AT)
    await api.pool.execute("""UPDATE tickwright.partners SET settings = '{"terminal_statuses": ["Returned"]}'""")
    assert (await send_event(api, tracker, "Returned", AT))["ended"] is True


async def test_of_concurrent_events_the_latest_one_wins(api: RunningApi, ground: Ground) -> None:
    """Whatever the order of arrival: the status is the latest one, and messages are in the order of instants."""
    tracker = await ground.place(await ground.wheel(2))
    events = [(f"S{n}", (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n)).isoformat()) for n in range(12)]
    order = [5, 11, 0, 7, 3, 9, 1, 10, 2, 8, 4, 6]
    await asyncio.gather(*(send_event(api, tracker, *events[n], f"e{n}") for n in order))
    assert (await ground.row(tracker))["status"] == "S11"
    instants = [json.loads(row["payload"])["at"] for row in await ground.events()]
    assert instants == sorted(instants)
    assert instants[-1].startswith("2026-01-01T00:11")


async def test_an_event_waits_while_another_session_holds_the_tracker(api: RunningApi, ground: Ground) -> None:
    """A later event that is being written delays an earlier one, which is stale then."""
    tracker = await ground.place(await ground.wheel(2))
    async with api.pool.acquire() as other:
        writing = other.transaction()
        await writing.start()
        await other.execute(
            "UPDATE tickwright.trackers SET status = 'Newer', status_at = '2026-01-01T12:00:00Z' WHERE id = $1", tracker
        )
        asked = asyncio.create_task(send_event(api, tracker, "Older", AT))
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        await eventually_async(lambda: api.pool.fetchval(sql))
        await writing.commit()
    assert (await asked)["outcome"] == "stale"
    assert (await ground.row(tracker))["status"] == "Newer"


async def test_a_terminal_status_ends_the_tracker(api: RunningApi, ground: Ground) -> None:
    """By the partner's own list, compared as written; ``Delivered`` where it has none; no event counts afterwards."""
    await ground.partner("ups", '{"terminal_statuses": ["Zugestellt"]}')
    slot = await ground.wheel(2)
    ours = await ground.place(slot, external="D")
    theirs = await ground.place(slot, partner="ups", external="Z")
    assert (await send_event(api, theirs, "Delivered", AT))["ended"] is False
    assert (await send_event(api, theirs, "zugestellt", "2026-01-01T10:30:00Z"))["ended"] is False
    assert (await send_event(api, theirs, "Zugestellt", LATER))["ended"] is True
    said = await send_event(api, ours, "Delivered", AT, "d1")
    assert (said["ended"], said["skip_until"]) == (True, None)
    shown = (await api.viewer.get(f"/v1/trackers/{ours}")).json
    assert (shown["state"], shown["status"], shown["next_poll_at"]) == ("ended", "Delivered", None)
    assert (await ground.row(ours))["place"] is None
    assert json.loads((await ground.events())[-1]["payload"])["event"] == "ended"
    assert (await send_event(api, ours, "Delivered", AT, "d1"))["outcome"] == "duplicate"
    assert (await send_event(api, ours, "Returned", LATER))["outcome"] == "ended"
    assert (await ground.row(ours))["status"] == "Delivered"


async def test_an_event_of_a_tracker_without_a_place_is_kept(api: RunningApi, ground: Ground) -> None:
    """It keeps status, instant and postponement; a terminal status ends it before it has a place."""
    body = {"account_id": "acme", "partner": "dhl", "external_id": "W1"}
    waiting = (await api.operator.post("/v1/trackers", body)).json["tracker"]["id"]
    assert (await send_event(api, waiting, "InTransit", AT))["outcome"] == "applied"
    assert (await send_event(api, waiting, "Created", EARLIER))["outcome"] == "stale"
    shown = (await api.viewer.get(f"/v1/trackers/{waiting}")).json
    assert (shown["state"], shown["status"], shown["skip_until"] is not None) == ("waiting", "InTransit", True)
    assert (await send_event(api, waiting, "Delivered", LATER))["ended"] is True
    assert (await api.viewer.get(f"/v1/trackers/{waiting}")).json["state"] == "ended"
    assert len(await ground.events()) == 2


async def test_an_event_that_ends_a_tracker_leaves_a_line_in_the_audit(api: RunningApi, ground: Ground) -> None:
    """The line has the caller and the status; other events leave none, because there are thousands."""
    tracker = await ground.place(await ground.wheel(2))
    await send_event(api, tracker, "InTransit", AT)
    await send_event(api, tracker, "Delivered", LATER)
    await send_event(api, tracker, "Delivered", LATER)
    [line] = (await api.operator.get("/v1/audit?action=trackers.end")).json["items"]
    assert (line["actor"], line["subject"]) == ("operator", f"tracker:{tracker}")
    assert line["before"] == {"status": "InTransit"}
    ended_at = (await api.viewer.get(f"/v1/trackers/{tracker}")).json["ended_at"]
    assert (line["after"]["status"], line["after"]["ended_at"]) == ("Delivered", ended_at)


async def test_the_registrar_keeps_the_events_of_a_waiting_tracker(database_url: str) -> None:
    """A tracker that gets its place has the status, instant and postponement from before."""
    async with open_wheels(database_url) as wheels:
        service = PollingService(wheels.pool)
        await Ground(wheels.pool).partner()
        new = NewTracker("acme", "dhl", "W1", None, None)
        made = (await service.register(new, caller=ADMIN)).tracker.id
        await service.take_event(made, StatusEvent("InTransit", datetime(2026, 1, 1, tzinfo=UTC)), caller=ADMIN)
        before = await service.get(made)
        await wheels.register(1)
        after = await service.get(made)
    assert (before.state, after.state) == ("waiting", "placed")
    assert (after.status, after.status_at, after.skip_until) == (before.status, before.status_at, before.skip_until)
    assert after.next_poll_at is not None
    assert after.skip_until is not None
    assert after.next_poll_at >= after.skip_until


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"status": "x"}, 422, "invalid_value"),
        ({"at": AT}, 422, "invalid_value"),
        ({"status": "", "at": AT}, 422, "invalid_value"),
        ({"status": "a\tb", "at": AT}, 422, "invalid_status"),
        ({"status": "x" * 101, "at": AT}, 422, "invalid_value"),
        ({"status": "x", "at": "2026-01-01T10:00:00"}, 422, "naive_datetime"),
        ({"status": "x", "at": "2999-01-01T10:00:00Z"}, 422, "time_in_future"),
        ({"status": "x", "at": AT, "event_id": ""}, 422, "invalid_value"),
        ({"status": "x", "at": AT, "ended_at": AT}, 400, "unknown_field"),
    ],
)
async def test_a_bad_event_is_refused_by_its_code(
    api: RunningApi, ground: Ground, body: Any, status: int, code: str
) -> None:
    """Each mistake has its own code, an instant far in the future included."""
    tracker = await ground.place(await ground.wheel(2))
    (await api.operator.post(f"/v1/trackers/{tracker}/events", body)).says(status, code)
    assert await ground.events() == []


async def test_the_refusal_of_an_event_from_far_ahead_names_clock_and_remedy(api: RunningApi, ground: Ground) -> None:
    """Also of a terminal status: nothing is applied; the same event with a correct instant is."""
    tracker = await ground.place(await ground.wheel(2))
    now: datetime = await api.pool.fetchval("SELECT clock_timestamp()")
    body = {"status": "Delivered", "at": (now + timedelta(hours=1)).isoformat(), "event_id": "d1"}
    refused = await api.operator.post(f"/v1/trackers/{tracker}/events", body)
    refused.says(422, "time_in_future")
    assert "the database's clock; nothing was applied" in refused.json["detail"]
    assert "send it again" in refused.json["detail"]
    assert (await send_event(api, tracker, "Delivered", now.isoformat(), "d1"))["ended"] is True


async def test_event_ids_are_kept_for_a_week(api: RunningApi, ground: Ground) -> None:
    """Each new id deletes two old ones, so that the table holds a week without a loop that cleans it up."""
    tracker = await ground.place(await ground.wheel(2))
    await api.pool.execute(
        "INSERT INTO tickwright.tracker_events "
        "SELECT 1, 'old' || n, now() - interval '8 days' FROM generate_series(1, 5) AS n"
    )
    for n in range(3):
        await send_event(api, tracker, f"S{n}", f"2026-01-01T1{n}:00:00Z", f"e{n}")
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.tracker_events") == 3
