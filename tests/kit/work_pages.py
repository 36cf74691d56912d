"""An installation for tests of the dashboard: fan-out, reports and campaigns, over its own source."""

import asyncio
import itertools
import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg

from kit.pages import ROLES, Site
from kit.polling import Ground
from kit.servers import PostgresServer
from tickwright.dashboard.page import STATIC

# An installation in which no loop moves a tracker or publishes: rows of a test stay until the dashboard acts.

_site_numbers = itertools.count(1)
TRACKERS = ("AWB-lost", "AWB-lost2", "AWB-done")


@contextmanager
def quiet_site(server: PostgresServer, template: str) -> Iterator[Site]:
    """Run workers and the API, without scheduler and relay."""
    name = f"quiet{next(_site_numbers)}"
    made = Site(server.create_database(name, template=template), roles=("worker", "api"))
    try:
        made.start()
        yield made
    finally:
        made.destroy()
        server.drop_database(name)


def fill(site: Site) -> datetime:
    """Place three trackers of ``acme`` at dhl, due five minutes ago: one was polled, two were lost.

    Returns:
        That minute.
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


_numbers = count(1)
VIEWS = STATIC.parent / "web/src/views"
CLIENTS = 2_000
AUDIENCE: dict[str, Any] = {
    "source": "crm",
    "table": "clients",
    "key": "id",
    "fields": {"age": "int", "country": "string"},
}
LOAN: dict[str, Any] = {
    "type": "MANUAL",
    "audience": AUDIENCE,
    "expression": "client.age > 49",
    "action": {"target": "pg:applications"},
}
"""Selects half of the clients, of ages from 0 to 99."""


class WorkSite(Site):
    """A site whose processes have the source ``crm``; ``crm`` is its file."""

    crm: Path

    def change(self, statement: str, *values: Any) -> None:
        """Change the source."""
        with closing(sqlite3.connect(self.crm)) as source:
            source.execute(statement, values)
            source.commit()

    def make_clients(self, table: str) -> None:
        """Make a table of clients in the source."""
        self.change(f"CREATE TABLE {table} (id integer PRIMARY KEY, age integer, country text)")
        with closing(sqlite3.connect(self.crm)) as source:
            rows = [(number, number % 100, "NL" if number % 2 else "DE") for number in range(CLIENTS)]
            source.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
            source.commit()

    def campaign(self, name: str, **words: Any) -> None:
        """Set a campaign."""
        self.ask("PUT", f"/v1/campaigns/{name}", {**LOAN, **words})

    def one(self, statement: str, *values: Any) -> Any:
        """Return the single value of a statement."""
        (row,) = self.sql(statement, *values)
        (value,) = row.values()
        return value

    def gives(self, value: Any, statement: str, *values: Any) -> bool:
        """Whether a statement returns this single value."""
        return bool(self.one(statement, *values) == value)


@contextmanager
def work_site(pg_server: PostgresServer, template: str, folder: Path, **settings: str) -> Iterator[WorkSite]:
    """Run one, with clients in its source; ``settings`` are further ``TICKWRIGHT_…`` variables."""
    name = f"work{next(_numbers)}"
    crm = folder / "crm.db"
    config = folder / "tickwright.toml"
    config.write_text(f'[sources.crm]\nurl = "sqlite://{crm}"\n', encoding="utf-8")
    roles = (*ROLES, "fanout-consumer", "report-listener", "campaign-consumer")
    made = WorkSite(pg_server.create_database(name, template=template), roles, CONFIG=str(config), **settings)
    made.crm = crm
    try:
        made.make_clients("clients")
        made.start()
        yield made
    finally:
        made.destroy()
        pg_server.drop_database(name)


def every_view(*, admins: bool = False) -> list[str]:
    """Return every address of a view; those for admins only on request."""
    files = sorted(VIEWS.glob("*/view.ts"))
    infos = [info for file in files for info in re.split(r"(?=path: )", file.read_text(encoding="utf-8"))[1:]]
    found = [re.match(r'path: "([^"]+)"', info) for info in infos if admins or 'role: "admin"' not in info]
    return [one[1] for one in found if one is not None]
