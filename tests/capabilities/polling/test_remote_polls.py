"""Polls of trackers by remote workers: the consumer keeps poll, permit and retries, and hands the call over."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.consumers import all_done, queue_empty, seed
from kit.remote import POOL, RemoteSite, ended, register, remote_site
from kit.waiting import eventually_async

TARGET = f"remote:{POOL}"
PARTNER = {"partners": ["acme"]}


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """An api and a consumer of polls."""
    async with remote_site(database_url, tmp_path, "poll-consumer") as site:
        yield site


async def test_a_remote_worker_polls_a_tracker(site: RemoteSite) -> None:
    """It gets what a courier gets, and its answer changes the tracker and the ledger once."""
    worker = await register(site.client, **PARTNER)
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
