"""The example's reports: users in one database, their withdrawals in another, joined into one CSV file.

Both databases are on the embedded server.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import asyncpg

from tickwright.app import Tickwright
from tickwright.demo.loans import SOURCE as CRM
from tickwright.demo.loans import Loans, make_clients
from tickwright.domain.errors import TickwrightError
from tickwright.embedded import ensure_database, ensure_reader
from tickwright.plugin.settings import Settings
from tickwright.process.node import Node
from tickwright.store.pool import UNAVAILABLE
from tickwright.store.queries import load

TYPE = "example.withdrawals"
COUNTRIES = ("DE", "FR", "NL", "PL")
EVERY_S = 8.0
LOOK_S = 0.5
_SQL = load("tickwright.demo.sql", "withdrawals.sql")


async def make_withdrawals(users_url: str, fund_url: str) -> None:
    """Fill both databases, once."""
    for url, statement in ((users_url, "make_users"), (fund_url, "make_withdrawals")):
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await connection.execute(_SQL[statement])
        finally:
            await connection.close()


def report_words(users: str, fund: str) -> str:
    """Return the report type as TOML, for sources with these names."""
    listeners = {
        "users": {"source": users, "sql": _SQL["users"].rstrip(";\n")},
        "withdrawals": {"source": fund, "sql": _SQL["withdrawals"].rstrip(";\n")},
    }
    merge = _SQL["joined"].rstrip(";\n")
    lines = [f'[report_types."{TYPE}"]\nkeep = "1h"\ndeadline = "1m"\nmerge = {json.dumps(merge)}\n']
    lines.append(f'[report_types."{TYPE}".parameters]\ncountry = "text"\n')
    for name, words in listeners.items():
        said = "\n".join(f"{word} = {json.dumps(value)}" for word, value in words.items())
        lines.append(f'[report_types."{TYPE}".listeners.{name}]\n{said}\n')
    return "\n".join(lines)


async def keep_asking(app: Tickwright, node: Node, say: Callable[[str], None], *, show_link: bool) -> None:
    """Request a report repeatedly, until cancelled; print how to get the first file, as a link if ``show_link``."""
    say(f"  example   reports: users and withdrawals from two databases, joined every {EVERY_S:.0f} s")
    await node.supervisor.started()
    turn = 0
    while True:
        with suppress(TickwrightError, *UNAVAILABLE):
            made = await app.request_report(TYPE, {"country": COUNTRIES[turn % len(COUNTRIES)]})
            if turn == 0:
                say(f"  report    {await _link(app, made.id, node, show_link=show_link)}")
            turn += 1
        await asyncio.sleep(EVERY_S)


async def _link(app: Tickwright, report_id: int, node: Node, *, show_link: bool) -> str:
    """Wait for the end of a report; return the link of its file, how to fetch it, or why there is none."""
    report = await app.reports.records.get(report_id)
    while report.finished_at is None:
        await asyncio.sleep(LOOK_S)
        report = await app.reports.records.get(report_id)
    if report.status != "finished":
        return f"{report.status}: {report.error}"
    if not show_link:  # logs and journals keep their input
        return f"finished, {report.rows} rows: tickwright reports download {report_id}"
    link = await app.reports.files.link(report_id)
    where = f"{node.api.url}{link.url}" if node.api is not None and link.url.startswith("/") else link.url
    return f"{where}   ({link.rows} rows, for 15 minutes)"


FILE = "example.toml"
USERS, FUND = "example_users", "example_fund"
READER = "example_reader"
"""The plain role that reports and campaigns read with, so that no source is queried as a superuser."""


@asynccontextmanager
async def open_databases(
    settings: Settings, database_url: str, loans: Loans, say: Callable[[str], None]
) -> AsyncIterator[Settings]:
    """Create all three databases, open the clients' one for ``loans``, and give settings with a TOML file of them.

    If the settings already have a TOML file, they stay unchanged, and ``loans`` stay closed.
    """
    if settings.config is not None:
        say("  example   no reports and no campaign: TICKWRIGHT_CONFIG is set, and sources stand in one file")
        yield settings
        return
    urls = {name: await asyncio.to_thread(ensure_database, database_url, name) for name in (USERS, FUND, CRM)}
    await asyncio.gather(make_withdrawals(urls[USERS], urls[FUND]), make_clients(urls[CRM]))
    read = {name: await asyncio.to_thread(ensure_reader, url, READER) for name, url in urls.items()}
    lines = [f"[sources.{name}]\nurl = {json.dumps(url)}\n" for name, url in read.items()]
    text = "# Written by tickwright up for its example, again with each start.\n\n" + "\n".join(lines)
    path = settings.home_folder / FILE
    await asyncio.to_thread(path.write_text, f"{text}\n{report_words(USERS, FUND)}", encoding="utf-8")
    await loans.open(urls[CRM])
    try:
        yield settings.model_copy(update={"config": path})
    finally:
        await loans.aclose()
