"""The example's campaign and its reports, with their three databases on the embedded server.

The campaign: a loan for those of fifty thousand clients that can repay it, once per start. It is slow on purpose, so
that you can watch it. Each selected client becomes a job, released chunk by chunk so that other jobs need not wait. The
job writes an application into the clients' own database.

The reports: users in one database, their withdrawals in another, joined into one CSV file.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

import asyncpg

from tickwright.app import Tickwright
from tickwright.capabilities.batches.executions.states import BatchAction
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.capabilities.jobs.model import Job
from tickwright.domain.errors import TickwrightError, Unavailable
from tickwright.embedded import ensure_database, ensure_reader
from tickwright.plugin.settings import Settings
from tickwright.ports.caller import Caller, Role
from tickwright.process.node import Node
from tickwright.store.pool import UNAVAILABLE
from tickwright.store.queries import load

SOURCE = "example_crm"
NAME, JOB = "example.loan", "example.apply"
AHEAD_S = 5.0
WAIT_S = 0.5
CONNECTIONS_MAX = 4
EXPRESSION = 'client.age > 25 && client.income > 3000 && client.country == "UK"'
TERMS: Mapping[str, Any] = {
    "type": "AUTOMATIC",
    "overlap": "queue",
    "product_codes": ["LOAN"],
    "chunk_rows": 2500,
    "rate": "2500/s",
    "audience": {
        "source": SOURCE,
        "table": "clients",
        "key": "id",
        "fields": {"age": "int", "income": "double", "country": "string"},
        "columns": ["name"],
    },
    "expression": EXPRESSION,
    "action": {"target": f"python:{JOB}", "release": "chunk"},
}
_LOANS = load("tickwright.demo.sql", "loans.sql")
_WORLD = load("tickwright.demo.sql", "world.sql")
_CALLER = Caller("up", Role.ADMIN)


async def _fill(url: str, statement: str) -> None:
    """Fill a database, once."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(statement)
    finally:
        await connection.close()


class Loans:
    """The campaign, and the applications that it creates."""

    def __init__(self) -> None:
        self._clients: asyncpg.Pool | None = None

    def add_handler(self, app: Tickwright) -> None:
        """Register the job of the action."""

        @app.job(JOB, timeout="5s", keep_history=False)
        async def apply(_job: Job, execution_id: int, client_id: str) -> None:
            await self._open.execute(_LOANS["apply"], execution_id, int(client_id))

    @property
    def is_open(self) -> bool:
        """Whether the clients' database is open."""
        return self._clients is not None

    async def open(self, url: str) -> None:
        """Write applications into the database ``url`` from now on."""
        self._clients = await asyncpg.create_pool(url, min_size=0, max_size=CONNECTIONS_MAX)

    async def aclose(self) -> None:
        """Close the database."""
        if self._clients is not None:
            await self._clients.close()

    async def offer(self, node: Node, show: Callable[[str], None]) -> None:
        """Set the campaign up, due in a few seconds, and report its result."""
        await node.supervisor.started()
        with suppress(TickwrightError, *UNAVAILABLE):
            due = await node.installation.pool.fetchval(_WORLD["soon"], AHEAD_S)
            campaigns = node.installation.of(CampaignsService)
            await campaigns.campaigns.put(NAME, {**TERMS, "date_time_execution": due.isoformat()}, caller=_CALLER)
            await campaigns.campaign_batches.act(BatchAction.ACTIVATE, NAME, caller=_CALLER)
            show(f"  example   campaign {NAME}: {EXPRESSION}, due in {AHEAD_S:.0f} s")
            show(f"  loans     {await self._outcome(node, due)}")

    async def _outcome(self, node: Node, due: datetime) -> str:
        """Wait until the execution of ``due`` has ended and all its applications are written."""
        service = node.installation.of(CampaignsService)
        campaign = await service.campaign_batches.get(NAME)
        while campaign.last_slot_at != due or campaign.open_executions:
            await asyncio.sleep(WAIT_S)
            campaign = await service.campaign_batches.get(NAME)
        assert campaign.last_execution_id is not None  # noqa: S101  it has ended
        execution = await service.executions.get(campaign.last_execution_id)
        if execution.status != "FINISHED":
            return f"{execution.status}: {execution.error_message or execution.ended_why}"
        while True:
            made = await self._open.fetchval(_LOANS["applications"], execution.id)
            if made >= execution.selected:
                return f"{execution.selected} of {execution.seen} clients are selected, {made} applications are made"
            await asyncio.sleep(WAIT_S)

    @property
    def _open(self) -> asyncpg.Pool:
        if self._clients is None:
            raise Unavailable("no_clients", "the example's clients are not there: TICKWRIGHT_CONFIG is set")
        return self._clients


TYPE = "example.withdrawals"
COUNTRIES = ("DE", "FR", "NL", "PL")
EVERY_S = 8.0
_WITHDRAWALS = load("tickwright.demo.sql", "withdrawals.sql")


def _report_type() -> str:
    """Return the report type as TOML."""
    merge, *queries = (json.dumps(_WITHDRAWALS[name].rstrip(";\n")) for name in ("joined", "users", "withdrawals"))
    lines = [f'[report_types."{TYPE}"]\nkeep = "1h"\ndeadline = "1m"\nmerge = {merge}\n']
    lines.append(f'[report_types."{TYPE}".parameters]\ncountry = "text"\n')
    for name, source, query in zip(("users", "withdrawals"), (USERS, FUND), queries, strict=True):
        lines.append(f'[report_types."{TYPE}".listeners.{name}]\nsource = "{source}"\nsql = {query}\n')
    return "\n".join(lines)


async def keep_requesting(app: Tickwright, node: Node, show: Callable[[str], None], *, show_link: bool) -> None:
    """Request a report repeatedly, until cancelled; print how to get the first file, as a link if ``show_link``."""
    show(f"  example   reports: users and withdrawals from two databases, joined every {EVERY_S:.0f} s")
    await node.supervisor.started()
    count = 0
    while True:
        with suppress(TickwrightError, *UNAVAILABLE):
            made = await app.request_report(TYPE, {"country": COUNTRIES[count % len(COUNTRIES)]})
            if count == 0:
                show(f"  report    {await _link(app, made.id, node, show_link=show_link)}")
            count += 1
        await asyncio.sleep(EVERY_S)


async def _link(app: Tickwright, report_id: int, node: Node, *, show_link: bool) -> str:
    """Wait for the end of a report; return the link of its file, how to fetch it, or why there is none."""
    report = await app.reports.records.get(report_id)
    while report.finished_at is None:
        await asyncio.sleep(WAIT_S)
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
    settings: Settings, database_url: str, loans: Loans, show: Callable[[str], None]
) -> AsyncIterator[Settings]:
    """Create all three databases, open the clients' one for ``loans``, and give settings with a TOML file of them.

    If the settings already have a TOML file, they stay unchanged, and ``loans`` stay closed.
    """
    if settings.config is not None:
        show("  example   no reports and no campaign: TICKWRIGHT_CONFIG is set, and sources are read from one file")
        yield settings
        return
    urls = {name: await asyncio.to_thread(ensure_database, database_url, name) for name in (USERS, FUND, SOURCE)}
    statements = {
        USERS: _WITHDRAWALS["make_users"],
        FUND: _WITHDRAWALS["make_withdrawals"],
        SOURCE: _LOANS["make_clients"],
    }
    await asyncio.gather(*(_fill(urls[name], statement) for name, statement in statements.items()))
    read = {name: await asyncio.to_thread(ensure_reader, url, READER) for name, url in urls.items()}
    lines = [f"[sources.{name}]\nurl = {json.dumps(url)}\n" for name, url in read.items()]
    text = "# Written by tickwright up for its example, again with each start.\n\n" + "\n".join(lines)
    path = settings.home_folder / FILE
    await asyncio.to_thread(path.write_text, f"{text}\n{_report_type()}", encoding="utf-8")
    await loans.open(urls[SOURCE])
    try:
        yield settings.model_copy(update={"config": path})
    finally:
        await loans.aclose()
