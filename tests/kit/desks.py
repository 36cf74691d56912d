"""An installation in which no loop moves a tracker or publishes: what a test puts there stays until the page acts."""

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta

import asyncpg

from kit.pages import Site
from kit.polling import Ground
from kit.servers import PostgresServer

_numbers = itertools.count(1)
TRACKERS = ("AWB-lost", "AWB-lost2", "AWB-done")


@contextmanager
def quiet_site(server: PostgresServer, template: str) -> Iterator[Site]:
    """Run workers and the API, without scheduler and relay."""
    name = f"desk{next(_numbers)}"
    made = Site(server.create_database(name, template=template), roles=("worker", "api"))
    try:
        made.start()
        yield made
    finally:
        made.destroy()
        server.drop_database(name)


def fill(site: Site) -> datetime:
    """Place three trackers of ``acme`` at dhl, whose turn was five minutes ago: one was polled, two were lost.

    Returns:
        The minute of that turn.
    """
    with ThreadPoolExecutor(1) as aside:  # the browser's loop runs in this thread
        return aside.submit(asyncio.run, _fill(site.database_url)).result()


async def _fill(url: str) -> datetime:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        ground = Ground(pool)
        await ground.partner("dhl", '{"rate": "50/s", "concurrency": 10}')
        slot = await ground.wheel(120)
        ids = [await ground.place(slot, second, external=name) for second, name in enumerate(TRACKERS)]
        minute = await ground.turn(slot, 5)
        await ground.slice(slot, minute, selected=3, published=3, polled=1)
        await ground.done(ids[2], minute + timedelta(seconds=2))
        return minute
