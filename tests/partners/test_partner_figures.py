"""Figures of a partner: quota, outcomes, breaker, quiet hours, and waiting polls."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.polling import Ground
from tickwright.capabilities.polling.overview import read_partners
from tickwright.capabilities.polling.partners import CallHistory, Calls
from tickwright.partners.quiet import parse_quiet, quiet_next

NOW = datetime(2030, 5, 17, 13, 7, tzinfo=UTC)
SECOND = timedelta(seconds=1)
WORKER = """
INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts)
VALUES ($1, $2, '{poll-consumer}', '0', now() + interval '1 minute', $3::jsonb)
ON CONFLICT (id) DO UPDATE SET facts = excluded.facts
"""


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the partner ``dhl``, which allows four calls a second and five at once."""
    async with running_api(database_url) as running:
        await Ground(running.pool).partner(settings='{"rate": "4/s", "per_minute": 120, "concurrency": 5}')
        yield running


async def figures(api: RunningApi) -> Any:
    """Return the figures of ``dhl``."""
    answer = await api.viewer.get("/v1/partners/dhl/figures")
    assert answer.status == 200, answer.body
    return answer.json


async def test_a_partner_without_calls_has_figures(api: RunningApi) -> None:
    """The rate is that of the tightest budget; all other figures are empty."""
    said = await figures(api)
    assert (said["state"], said["state_until"], said["calls"]) == ("called", None, None)
    assert said["quota"] == {
        "budgets": [{"calls": 4.0, "window_s": 1}, {"calls": 120.0, "window_s": 60}],
        "rate_per_s": 2.0, "calls_per_s": None, "used": None, "concurrency": 5, "granted": 0,
    }  # fmt: skip
    assert (said["breaker"]["state"], said["waiting"]["polls"], said["waiting"]["capped"]) == ("closed", 0, False)
    (await api.viewer.get("/v1/partners/unknown/figures")).says(404, "partner_not_found")


async def overview(api: RunningApi) -> str:
    """Return the state of ``dhl`` in the overview."""
    async with api.pool.acquire() as connection:
        (partner,) = await read_partners(connection)
    return partner.state


async def test_the_state_names_the_obstacle_that_ranks_highest_in_the_contract(api: RunningApi) -> None:
    """A trial, an open breaker, Retry-After, quiet hours, unreadable settings, a pause: each outranks those before."""
    assert await overview(api) == "called"
    await api.pool.execute("INSERT INTO tickwright.partner_states (partner_no, breaker) VALUES (1, 'half_open')")
    assert ((await figures(api))["state"], await overview(api)) == ("on_trial", "one trial")
    await api.pool.execute(
        "UPDATE tickwright.partner_states "
        "SET breaker = 'open', open_until = now() + interval '1 minute', opened_times = 3"
    )
    said = await figures(api)
    assert (said["state"], said["breaker"]["opened_times"]) == ("breaker_open", 3)
    assert said["state_until"] == said["breaker"]["until"] is not None
    assert await overview(api) == "breaker open"
    await api.pool.execute("UPDATE tickwright.partner_states SET blocked_until = now() + interval '1 hour'")
    assert ((await figures(api))["state"], await overview(api)) == ("retry_after", "asked for silence")
    await api.admin.send("PATCH", "/v1/partners/dhl", {"quiet": "00:00-24:00 UTC"})
    said = await figures(api)
    assert (said["state"], said["quiet"]["until"] is None) == ("quiet", False)
    assert await overview(api) == "quiet hours"
    await api.pool.execute("""UPDATE tickwright.partners SET settings = settings || '{"rate": "fast"}'""")
    assert ((await figures(api))["state"], await overview(api)) == ("settings_invalid", "settings invalid")
    await api.admin.post("/v1/partners/dhl/pause")
    assert ((await figures(api))["state"], await overview(api)) == ("paused", "paused")


async def test_shares_and_waiting_polls_are_counted(api: RunningApi) -> None:
    """Only of live sessions, and of this partner."""
    ground = Ground(api.pool)
    slot = await ground.wheel(120)
    minute = await ground.turn(slot)
    trackers = [await ground.place(slot, n, external=f"E{n}") for n in range(3)]
    for number, granted in ((7, 2), (8, 3)):
        await api.pool.execute(WORKER, number, f"host:{number}", "{}")
        await api.pool.execute("INSERT INTO tickwright.partner_shares VALUES (1, $1, $2)", number, granted)
    await api.pool.execute("UPDATE tickwright.workers SET lost_at = now() WHERE id = 8")
    for tracker, owner in zip(trackers, (None, None, 7), strict=True):
        await ground.queued(tracker, minute, owner)
    said = await figures(api)
    assert (said["quota"]["granted"], said["shares"]) == (2, [{"worker": 7, "name": "host:7", "granted": 2}])
    assert (said["waiting"]["polls"], said["waiting"]["in_hand"]) == (2, 1)
    assert said["waiting"]["oldest_at"] == minute.isoformat().replace("+00:00", "Z")


async def test_calls_are_the_difference_of_two_requests(api: RunningApi) -> None:
    """Of live processes, from their heartbeats; the first request has nothing to compare with."""

    async def beat(**counts: int) -> None:
        await api.pool.execute(WORKER, 7, "host:7", json.dumps({"counters": {"partners": {"dhl": counts}}}))

    await beat(answered=100, throttled=0, failed=0)
    assert (await figures(api))["calls"] is None
    await beat(answered=106, throttled=3, failed=1)
    said = await figures(api)
    calls = said["calls"]
    assert [calls[name] for name in ("answered", "throttled", "failed")] == [6, 3, 1]
    assert (calls["throttled_share"], calls["failed_share"]) == (0.3, 0.1)
    assert said["quota"]["calls_per_s"] > 0
    assert said["quota"]["used"] == pytest.approx(said["quota"]["calls_per_s"] / 2)


def test_a_restarted_process_counts_from_zero() -> None:
    """A process that starts or ends makes no count fall."""
    history = CallHistory()
    assert history.add("dhl", NOW, {"a": Calls(100, 5, 5), "b": Calls(7)}) is None
    counted = history.add("dhl", NOW + 10 * SECOND, {"a": Calls(3, 0, 1), "c": Calls(2)})
    assert counted is not None
    assert (counted.answered, counted.throttled, counted.failed) == (5, 0, 1)


def test_samples_older_than_five_minutes_are_dropped() -> None:
    """So the shares are current; samples close together count as one."""
    history = CallHistory()
    for second in range(0, 601, 1):
        counted = history.add("dhl", NOW + second * SECOND, {"a": Calls(second)})
    assert counted is not None
    assert 290 <= counted.answered <= 300
    assert NOW + 600 * SECOND - counted.since_at <= timedelta(minutes=5)
    assert len(history._samples["dhl"]) <= 61


def test_the_next_quiet_hours_follow_their_own_time_zone() -> None:
    """Today's, the next day's or the next week's; adjacent ones are joined; summer time counts."""
    night, weekend = parse_quiet("22:00-06:00 Europe/Berlin"), parse_quiet("sat,sun 00:00-24:00 Europe/Berlin")

    def following(*windows: Any) -> list[str]:
        found = quiet_next(NOW.timestamp(), windows)
        return [] if found is None else [datetime.fromtimestamp(at, UTC).strftime("%a %H:%M") for at in found]

    assert following(night) == ["Fri 20:00", "Sat 04:00"]
    assert following(night, weekend) == ["Fri 20:00", "Mon 04:00"]
    assert following(parse_quiet("fri 13:00-14:00 UTC")) == ["Fri 13:00", "Fri 14:00"]
    assert following() == []
