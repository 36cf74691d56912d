"""An installation for the page that fans out, makes reports and executes campaigns, over a source of its own."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from kit.pages import ROLES, Site
from kit.servers import PostgresServer
from tickwright.dashboard.page import STATIC

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
"""Selects half of the clients, whose ages go from 0 to 99."""


class WorkSite(Site):
    """A site whose processes know the source ``crm``; ``crm`` is its file."""

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
        """Return the one value that a statement gives."""
        (row,) = self.sql(statement, *values)
        (value,) = row.values()
        return value

    def gives(self, value: Any, statement: str, *values: Any) -> bool:
        """Whether a statement gives this one value."""
        return bool(self.one(statement, *values) == value)


@contextmanager
def work_site(pg_server: PostgresServer, template: str, folder: Path, **settings: str) -> Iterator[WorkSite]:
    """Run one, with clients in its source; ``settings`` are more of ``TICKWRIGHT_…``."""
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
    """Every address that a view of ours has; those that are for admins alone only if they are asked for."""
    files = sorted(VIEWS.glob("*/view.ts"))
    infos = [info for file in files for info in re.split(r"(?=path: )", file.read_text(encoding="utf-8"))[1:]]
    found = [re.match(r'path: "([^"]+)"', info) for info in infos if admins or 'role: "admin"' not in info]
    return [one[1] for one in found if one is not None]
