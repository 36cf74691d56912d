"""Polls of trackers by remote workers: the consumer keeps poll, permit and retries, and hands the call over."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.consumers import all_done, queue_empty, seed
from kit.remote import POOL, RemoteSite, ended, register, remote_site
from kit.waiting import eventually_async
from tickwright.domain.errors import Rejected
from tickwright.partners.settings import check_settings

TARGET = f"remote:{POOL}"
STATE = "SELECT blocked_until, breaker, failing_since FROM tickwright.partner_states"
BLOCKED = "SELECT blocked_until IS NOT NULL FROM tickwright.partner_states"
FAILING = "SELECT breaker <> 'closed' FROM tickwright.partner_states"
LAST_ERROR = "SELECT last_error FROM tickwright.partner_states"


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """An api and a consumer of polls."""
    async with remote_site(database_url, tmp_path, "poll-consumer") as site:
        yield site


async def test_a_remote_worker_polls_a_tracker(site: RemoteSite) -> None:
    """It gets what a courier gets, and its answer changes the tracker and the ledger once."""
    worker = await register(site.client, partners=["acme"])
    trackers = await seed(site.pool, 1, target=TARGET)
    [poll] = await worker.claim_calls(wait="30s")
    assert (poll["kind"], poll["name"], poll["timeout_ms"]) == ("poll", "acme", 10_000)
    due = trackers.due_at.isoformat().replace("+00:00", "Z")
    assert poll["payload"] == {
        "poll_id": f"poll_{trackers.ids[0]}_{int(trackers.due_at.timestamp())}", "tracker_id": trackers.ids[0],
        "external_id": "T1", "account_id": "shop", "partner": "acme", "due_at": due,
    }  # fmt: skip
    answer = {
        "status": "picked_up",
        "at": "2026-01-02T03:04:05Z",
        "events": [{"at": "2026-01-02T03:04:05Z", "text": "hub"}],
    }
    assert await worker.results(ended(poll, result=answer)) == {"done": 1, "stale": [], "locked": []}
    await eventually_async(lambda: all_done(site.pool, trackers))
    await eventually_async(lambda: queue_empty(site.pool))
    assert await site.pool.fetchval("SELECT status FROM tickwright.trackers") == "picked_up"
    assert await worker.results(ended(poll, result=answer)) == {"done": 0, "stale": [poll["id"]], "locked": []}


async def test_a_throttled_poll_silences_the_partner_for_all_processes(site: RemoteSite) -> None:
    """As ``Retry-After`` of HTTP does: other polls of the partner wait, too, and no failure is counted."""
    worker = await register(site.client, partners=["acme"])
    await seed(site.pool, 2, target=TARGET, concurrency=1)
    [poll] = await worker.claim_calls(wait="30s")
    await worker.results(ended(poll, "throttled", retry_after="3s"))
    await eventually_async(lambda: site.pool.fetchval(BLOCKED), 30, what="the partner is blocked")
    blocked_until, breaker, failing_since = await site.pool.fetchrow(STATE)
    [other] = await worker.claim_calls(wait="60s")
    assert await site.pool.fetchval("SELECT clock_timestamp()") >= blocked_until
    assert (breaker, failing_since) == ("closed", None)
    assert other["payload"]["external_id"] != poll["payload"]["external_id"]
    await worker.results(ended(other, result={"status": "x"}))
    [again] = await worker.claim_calls(wait="60s")
    assert again["payload"] == poll["payload"]
    await worker.results(ended(again, result={"status": "x"}))
    await eventually_async(lambda: queue_empty(site.pool), 30)


async def test_failed_polls_count_against_the_partner_and_are_retried(site: RemoteSite) -> None:
    """Failures open its breaker; a snooze is none, and the poll is made again."""
    worker = await register(site.client, partners=["acme"])
    breaker = {"failures": 2, "share": 0.5, "window": "1m", "open": "500ms"}
    await seed(site.pool, 1, target=TARGET, breaker=breaker)
    [poll] = await worker.claim_calls(wait="30s")
    await worker.results(ended(poll, "snooze", wait="50ms"))
    for _ in range(2):
        [again] = await worker.claim_calls(wait="60s")
        assert again["payload"] == poll["payload"]
        await worker.results(ended(again, "fail", code="unreachable", message="no route"))
    await eventually_async(lambda: site.pool.fetchval(FAILING), 30, what="the failures are counted")
    assert await site.pool.fetchval("SELECT last_error FROM tickwright.partner_states") == "unreachable: no route"
    [last] = await worker.claim_calls(wait="60s")
    await worker.results(ended(last, result={"status": None}))
    await eventually_async(lambda: queue_empty(site.pool), 30)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"state": "x"}, "unknown field"),
        ("x", "Expected `object`"),
        ({"status": ""}, "1 to 100 characters"),
        ({"status": "x", "at": "yesterday"}, "RFC3339"),
        ({"status": "x", "events": [{"at": "2026-01-01T00:00:00Z", "text": "y" * 501}]}, "at most 500"),
    ],
)
async def test_an_answer_that_is_none_is_a_failed_call(site: RemoteSite, result: object, says: str) -> None:
    """It changes nothing of the tracker, and the partner's last error says what is wrong."""
    worker = await register(site.client, partners=["acme"])
    await seed(site.pool, 1, target=TARGET)
    [poll] = await worker.claim_calls(wait="30s")
    assert (await worker.results(ended(poll, result=result)))["done"] == 1
    error = await eventually_async(lambda: site.pool.fetchval(LAST_ERROR), 30, what="the error is shown")
    assert "invalid_answer" in error
    assert says in error
    assert await site.pool.fetchval("SELECT status FROM tickwright.trackers") == "registered"


async def test_a_partner_without_a_live_remote_worker_is_not_called(site: RemoteSite) -> None:
    """Its polls stay in the queue, unowned, and operators see that nothing calls it; a worker that comes gets them."""
    trackers = await seed(site.pool, 3, target=TARGET)
    assert (await site.client.get("/v1/partners/acme")).json["called_by"] is None
    worker = await register(site.client, partners=["acme"])
    for _ in range(3):
        [poll] = await worker.claim_calls(most=1, wait="60s")
        await worker.results(ended(poll, result={"status": "moving"}))
    await eventually_async(lambda: all_done(site.pool, trackers))

    async def is_shown() -> bool:
        return bool((await site.client.get("/v1/partners/acme")).json["called_by"] == "remote")

    await eventually_async(is_shown, 30, what="the next heartbeat shows it")


def test_settings_name_remote_workers_or_http() -> None:
    """Only a pool is a target, and only one of the two makes the calls."""
    http = {"url": "https://x.example/{external_id}", "status": "s"}
    for settings, says in (
        ({"target": "https://x.example"}, "remote:POOL"),
        ({"target": "remote:"}, "remote"),
        ({"target": 7}, "remote:POOL"),
        ({"target": "remote:x", "http": http}, "one of them"),
    ):
        with pytest.raises(Rejected, match=says):
            check_settings(settings)
