"""Explain: every reason for the state of a tracker, from the intake to the last answer."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from kit.api import RunningApi, running_api
from kit.polling import Ground
from tickwright.capabilities.polling.wheels.loops import SQL
from tickwright.domain.time_texts import instant_text


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the partner ``dhl``, a live selector and a live consumer."""
    async with running_api(database_url) as running:
        await Ground(running.pool).partner()
        await running.pool.execute(
            "INSERT INTO tickwright.job_config (job_name, running, version, owner, lease_until) "
            "SELECT unnest('{selector,registrar}'::text[]), true, 1, 'test', now() + interval '1 hour'"
        )
        await running.pool.execute(
            "INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts) "
            "VALUES (7, 'host:1', '{poll-consumer}', '0', now() + interval '1 hour', '{\"partners\": [\"dhl\"]}')"
        )
        yield running


@pytest.fixture
def ground(api: RunningApi) -> Ground:
    """The API's database, for writes by hand."""
    return Ground(api.pool)


async def why(api: RunningApi, tracker: int) -> dict[str, str]:
    """Return the reasons for a tracker by their codes, in their order; the first is the summary."""
    answer = (await api.viewer.get(f"/v1/trackers/{tracker}/explain")).json
    assert answer["summary"] == answer["reasons"][0]["text"]
    return {reason["code"]: reason["text"] for reason in answer["reasons"]}


async def test_a_tracker_without_a_place_is_explained(api: RunningApi) -> None:
    """The reason says since when it waits."""
    body = {"account_id": "acme", "partner": "dhl", "external_id": "W"}
    tracker = (await api.operator.post("/v1/trackers", body)).json["tracker"]
    said = await why(api, tracker["id"])
    assert list(said) == ["not_placed"]
    assert instant_text(datetime.fromisoformat(tracker["created_at"])) in said["not_placed"]


async def test_a_missing_registrar_is_explained(api: RunningApi) -> None:
    """A tracker waits for its place, and no process holds the registrar's lease."""
    await api.pool.execute("DELETE FROM tickwright.job_config WHERE job_name = 'registrar'")
    body = {"account_id": "acme", "partner": "dhl", "external_id": "W"}
    tracker = (await api.operator.post("/v1/trackers", body)).json["tracker"]
    assert list(await why(api, tracker["id"])) == ["not_placed", "no_registrar"]


async def test_a_mistyped_partner_is_one_that_no_consumer_can_call(api: RunningApi, ground: Ground) -> None:
    """From the intake on, until its settings have ``http`` or a live consumer has a function; partners show agrees."""
    slot = await ground.wheel(5)
    tracker = await ground.place(slot + 1, 17, partner="dlh")
    await api.pool.execute(
        "INSERT INTO tickwright.shipment_polling_tracker (id, account_id, partner) VALUES (99, 'a', 'dlh')"
    )
    assert list(await why(api, 99)) == ["not_placed", "partner_not_callable"]
    assert list(await why(api, tracker)) == ["partner_not_callable", "in_slot"]
    assert (await api.viewer.get("/v1/partners/dlh")).json["called_by"] is None
    assert (await api.viewer.get("/v1/partners/dhl")).json["called_by"] == "function"
    http = {"url": "https://courier.example/{external_id}", "status": "status"}
    assert (await api.admin.send("PUT", "/v1/partners/dlh", {"http": http})).status == 200
    assert list(await why(api, tracker)) == ["in_slot"]
    assert (await api.viewer.get("/v1/partners/dlh")).json["called_by"] == "http"
    await api.pool.execute("UPDATE tickwright.partners SET settings = '{}' WHERE name = 'dlh'")
    await api.pool.execute("UPDATE tickwright.workers SET lost_at = now()")
    assert list(await why(api, tracker)) == ["no_consumer", "in_slot"]
    assert (await api.viewer.get("/v1/partners/dhl")).json["called_by"] is None


async def test_a_tracker_in_its_slot_is_explained_with_its_next_poll(api: RunningApi, ground: Ground) -> None:
    """The same instant as ``next_poll_at``, with slot and second."""
    slot = await ground.wheel(5)
    tracker = await ground.place(slot + 1, 17)
    due = (await api.viewer.get(f"/v1/trackers/{tracker}")).json["next_poll_at"]
    said = await why(api, tracker)
    assert list(said) == ["in_slot"]
    assert instant_text(datetime.fromisoformat(due)) in said["in_slot"]
    assert f"slot {slot + 1}, second 17, every 5 minutes" in said["in_slot"]
    await api.admin.send("PUT", "/v1/accounts/acme", {"polling_interval_minutes": 30})
    assert "every 30 minutes" in (await why(api, tracker))["moves"]


@pytest.fixture
async def placed(ground: Ground) -> tuple[int, int]:
    """A slot of a wheel of 120 minutes and a tracker at its second 7."""
    slot = await ground.wheel(120)
    return slot, await ground.place(slot, 7)


async def test_the_last_poll_of_a_tracker_is_followed_to_its_answer(
    api: RunningApi, ground: Ground, placed: tuple[int, int]
) -> None:
    """Waiting in the outbox, frozen, published, in the queue, in flight, answered: each with its instants."""
    slot, tracker = placed
    minute = await ground.turn(slot)
    due = minute + timedelta(seconds=7)
    await ground.slice(slot, minute)
    await ground.waiting(tracker, due)
    said = await why(api, tracker)
    assert list(said) == ["in_outbox", "in_slot"]
    assert f"selected for {instant_text(due)}" in said["in_outbox"]
    await api.pool.execute("UPDATE tickwright.scheduler_outbox SET release_at = now() - interval '1 minute'")
    assert "the relay is behind" in (await why(api, tracker))["in_outbox"]
    await api.pool.execute("UPDATE tickwright.scheduler_outbox SET batch_no = 42")
    assert "batch 42" in (await why(api, tracker))["in_batch"]
    await api.pool.execute("DELETE FROM tickwright.scheduler_outbox")
    await api.pool.execute("INSERT INTO tickwright.poll_relays VALUES (0, 42, 42, '2026-01-01T00:00:00Z')")
    assert "published at or before 2026-01-01T00:00:00Z" in (await why(api, tracker))["published"]
    await ground.queued(tracker, due)
    assert next(iter(await why(api, tracker))) == "in_queue"
    await api.pool.execute("UPDATE tickwright.poll_queue SET owner = 7, taken_at = '2026-01-01T00:00:01Z'")
    assert "in flight on host:1 since 2026-01-01T00:00:01Z" in (await why(api, tracker))["in_flight"]
    await api.pool.execute("DELETE FROM tickwright.poll_queue")
    await ground.done(tracker, due)
    assert list(await why(api, tracker)) == ["in_slot", "answered"]


async def test_every_reason_that_holds_up_a_tracker_is_explained(
    api: RunningApi, ground: Ground, placed: tuple[int, int]
) -> None:
    """Paused, skipped, missed, moving, too old, a partner that is not called, no selector."""
    slot, tracker = placed
    pool = api.pool
    await api.admin.post("/v1/accounts/acme/pause")
    await api.admin.post("/v1/partners/dhl/pause")
    assert list(await why(api, tracker)) == ["account_paused", "partner_paused"]
    await api.admin.post("/v1/accounts/acme/enable")
    await api.admin.post("/v1/partners/dhl/enable")
    await pool.execute(
        "INSERT INTO tickwright.partner_states (partner_no, breaker, open_until, blocked_until, last_error) "
        "SELECT partner_no, 'open', now() + interval '1 hour', now() + interval '1 hour', 'HTTP 503' "
        "FROM tickwright.partners"
    )
    said = await why(api, tracker)
    assert list(said) == ["partner_asked_to_wait", "breaker_open", "in_slot"]
    assert "HTTP 503" in said["breaker_open"]
    await pool.execute("UPDATE tickwright.partner_states SET breaker = 'half_open', blocked_until = NULL")
    assert list(await why(api, tracker)) == ["breaker_half_open", "in_slot"]
    await pool.execute("UPDATE tickwright.partner_states SET breaker = 'closed', next_free_at = '2990-01-01T00:00:00Z'")
    assert "until 2990-01-01T00:00:00Z" in (await why(api, tracker))["budget_taken"]
    await pool.execute("DELETE FROM tickwright.partner_states")
    await api.admin.send("PUT", "/v1/partners/dhl", {"quiet": ["00:00-24:00 UTC"]})
    assert list(await why(api, tracker)) == ["partner_quiet", "in_slot"]
    await api.admin.send("PUT", "/v1/partners/dhl", {})
    await pool.execute("UPDATE tickwright.workers SET lost_at = now()")
    assert list(await why(api, tracker)) == ["no_consumer", "in_slot"]
    await pool.execute("UPDATE tickwright.workers SET lost_at = NULL")
    await api.operator.post(f"/v1/trackers/{tracker}/events", {"status": "Customs", "at": "2026-01-01T00:00:00Z"})
    assert list(await why(api, tracker)) == ["skipped", "in_slot", "status_known"]
    await pool.execute("UPDATE tickwright.trackers SET skip_until = NULL, status_at = NULL")
    await pool.execute("UPDATE tickwright.poll_slots SET missed_due_at = '2026-01-01' WHERE slot_id = $1", slot)
    assert list(await why(api, tracker)) == ["turn_missed", "in_slot"]
    await pool.execute("UPDATE tickwright.poll_slots SET missed_due_at = NULL")
    await pool.execute("UPDATE tickwright.job_config SET lease_until = now()")
    assert list(await why(api, tracker)) == ["no_selector", "in_slot"]
    await pool.execute("DELETE FROM tickwright.job_config")
    assert list(await why(api, tracker)) == ["no_selector", "in_slot"]
    await pool.execute("UPDATE tickwright.trackers SET tracking_until = now() + interval '1 second'")
    assert list(await why(api, tracker)) == ["no_selector", "last_turn_over"]


async def test_settings_that_cannot_be_read_are_explained(api: RunningApi, ground: Ground) -> None:
    """Written by plain SQL: no consumer calls the partner, and the reason names the wrong setting."""
    tracker = await ground.place(await ground.wheel(5), 17)
    await api.pool.execute("""UPDATE tickwright.partners SET settings = '{"rate": "fast"}' WHERE name = 'dhl'""")
    said = await why(api, tracker)
    assert list(said) == ["settings_invalid", "in_slot"]
    assert "no consumer calls dhl: its settings cannot be read: settings.rate" in said["settings_invalid"]


async def test_the_end_of_a_tracker_is_explained(api: RunningApi, ground: Ground) -> None:
    """A terminal status, its age or a request, as it was then, whatever the settings are afterwards."""
    slot = await ground.wheel(2)
    one, two, three, four = [await ground.place(slot, n, external=f"E{n}") for n in range(4)]
    await api.operator.post(f"/v1/trackers/{one}/events", {"status": "Delivered", "at": "2026-01-01T00:00:00Z"})
    await api.pool.execute("UPDATE tickwright.trackers SET tracking_until = now() WHERE id = $1", two)
    async with api.pool.acquire() as connection:
        await connection.execute(SQL["end_aged"], slot, 10, "pg:events")
    await api.operator.post(f"/v1/trackers/{three}/end")
    await api.pool.execute("UPDATE tickwright.trackers SET ended_at = now(), place = NULL WHERE id = $1", four)
    settings = '{"terminal_statuses": ["Returned", "registered"]}'
    for changed in (None, settings):
        if changed is not None:
            await api.pool.execute("UPDATE tickwright.partners SET settings = $1::jsonb", changed)
        assert list(await why(api, one)) == ["ended_terminal", "status_known"]
        assert list(await why(api, two)) == ["ended_aged"]
        assert list(await why(api, three)) == ["ended_by_request"]
        assert list(await why(api, four)) == ["ended_unknown" if changed is None else "ended_terminal"]
    assert "was terminal then" in (await why(api, one))["ended_terminal"]


async def test_a_poll_that_was_skipped_is_not_called_published(
    api: RunningApi, ground: Ground, placed: tuple[int, int]
) -> None:
    """A tracker with an event before its minute was left out; one that was placed since was not in the slot."""
    slot, tracker = placed
    minute = await ground.turn(slot)
    await ground.slice(slot, minute, selected=0, skipped=1)
    await api.operator.post(f"/v1/trackers/{tracker}/events", {"status": "Customs", "at": "2026-01-01T00:00:00Z"})
    assert "published" not in await why(api, tracker)
    await api.pool.execute("UPDATE tickwright.trackers SET skip_until = NULL, created_at = now()")
    assert "published" not in await why(api, tracker)


async def test_a_poll_that_a_cap_may_have_deferred_is_explained(
    api: RunningApi, ground: Ground, placed: tuple[int, int]
) -> None:
    """The ledger does not say which trackers of the slot were deferred, and neither does the reason."""
    slot, tracker = placed
    minute = await ground.turn(slot)
    await ground.slice(slot, minute, selected=3)
    assert "deferred" not in await why(api, tracker)
    await api.pool.execute("UPDATE tickwright.poll_slices SET deferred = 9")
    await api.pool.execute("UPDATE tickwright.polling_schedule_config SET polls_per_slice_max = 15")
    said = await why(api, tracker)
    assert list(said)[:2] == ["deferred", "published"]
    assert "at most 15 polls in five minutes" in said["deferred"]
    assert "deferred 9 trackers of dhl, perhaps this one" in said["deferred"]
