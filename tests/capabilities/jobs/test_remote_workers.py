"""Workers in other languages: the calls of the worker protocol against a real api process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.remote import RemoteSite, ended, register, remote_site


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """A running api."""
    async with remote_site(database_url, tmp_path) as site:
        yield site


async def test_a_job_is_claimed_and_completed_with_its_result(site: RemoteSite) -> None:
    """The claim has what a handler needs; the result is kept with the job."""
    [job_id] = await site.add(max_attempts=2)
    worker = await register(site.client)
    assert worker.registered["types"] == [{"name": "work", "state": "ready"}]
    [job] = await worker.claim()
    assert (job["id"], job["type"], job["payload"], job["attempt"], job["max_attempts"]) == (
        job_id,
        "work",
        {"n": 0},
        1,
        2,
    )
    assert (job["start_in_ms"], job["begin"], job["timeout_ms"]) == (0, False, 30_000)
    assert await worker.results(ended(job, result={"sent": 1.5})) == {"done": 1, "stale": [], "locked": []}
    seen = await site.job(job_id)
    assert (seen["status"], seen["result"]) == ("completed", {"sent": 1.5})


async def test_a_waiting_claim_gets_the_job_that_is_scheduled_meanwhile(site: RemoteSite) -> None:
    """A notification ends the wait."""
    worker = await register(site.client)
    waiting = asyncio.create_task(worker.claim(wait="30s"))
    await asyncio.sleep(0.3)
    [job_id] = await site.add()
    [job] = await waiting
    assert job["id"] == job_id
    assert (await worker.results(ended(job)))["done"] == 1
