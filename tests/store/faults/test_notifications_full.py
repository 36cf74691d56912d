"""A full queue of notifications refuses every commit that notifies: what cannot be written waits until it is empty."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import asyncpg
import pytest
from structlog.testing import capture_logs

from kit.consumers import all_done, done_times, http_of, queue_empty, running_consumer, seed
from kit.partners import Courier
from kit.postgres import PostgresServer
from kit.servers import started
from kit.waiting import eventually_async
from tickwright.embedded.binaries import find_binaries
from tickwright.store import pool as pool_module
from tickwright.store.migrate import migrate
from tickwright.store.pool import open_pool

RELAY_SLEEPS = "SELECT pg_advisory_lock(7313, 3)"
FILL = "SELECT pg_notify('tickwright_outbox', repeat('a', 7900) || n) FROM generate_series(1, 10) n"


@pytest.fixture
def small_queue_url() -> Iterator[str]:
    """A database of a server whose queue holds half a megabyte instead of eight gigabytes."""
    server = PostgresServer({"max_notify_queue_pages": "64"}, binaries=find_binaries().folder)
    with started(server):
        url = server.create_database("shop")
        migrate(url)
        yield url


async def _full(url: str) -> asyncpg.Connection:
    """Fill the queue, until the session that is returned ends: it listens inside a transaction."""
    holder, other = await asyncpg.connect(url), await asyncpg.connect(url)
    await holder.execute(RELAY_SLEEPS)  # so that inserts into the outbox notify
    await holder.execute("LISTEN tickwright_outbox")
    await holder.execute("BEGIN; SELECT count(*) FROM pg_class")
    with suppress(asyncpg.ProgramLimitExceededError):
        while True:
            await other.execute(FILL)
    await other.close()
    return holder


async def check_events_wait_for_room(url: str) -> None:
    """Five answers with events: none is given up, and each has its effect once."""
    holder = await _full(url)
    pool = await open_pool(url, max_size=2)
    async with Courier() as courier:
        with capture_logs() as logs:
            trackers = await seed(pool, 5, http=http_of(courier))
            async with running_consumer(url):
                await eventually_async(
                    lambda: any(log["event"].startswith(("polls.results_not", "polls.answer_un")) for log in logs), 30
                )
                await holder.close()
                await eventually_async(lambda: queue_empty(pool), 30)
        assert not [log for log in logs if log["event"] == "polls.answer_unwritable"], "an answer was given up"
        assert await all_done(pool, trackers)
        assert await done_times(pool, trackers) == Counter(trackers.ids)
    await pool.close()


async def test_events_of_polls_wait_for_room(small_queue_url: str) -> None:
    """The error has the SQLSTATE of a value that is too large, but it passes."""
    await check_events_wait_for_room(small_queue_url)


async def test_the_suite_notices_events_that_a_full_queue_loses(
    small_queue_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the guard: an answer with this SQLSTATE is never written."""
    monkeypatch.setattr(pool_module, "NotificationQueueFullError", asyncpg.ProgramLimitExceededError)
    with pytest.raises(AssertionError, match="an answer was given up"):
        await check_events_wait_for_room(small_queue_url)
