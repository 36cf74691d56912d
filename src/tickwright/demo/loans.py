"""The example's campaign: a loan for those of fifty thousand clients that can repay it, once per start.

It is due after a few seconds and slow on purpose, so that you can watch it. Each selected client becomes a job,
released chunk by chunk so that other jobs need not wait. The job writes an application into the clients' own database.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import asyncpg

from tickwright.app import Tickwright
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.capabilities.batches.views import BatchDetail
from tickwright.capabilities.jobs.model import Job
from tickwright.domain.errors import TickwrightError, Unavailable
from tickwright.ports.caller import Caller, Role
from tickwright.process.node import Node
from tickwright.store.pool import UNAVAILABLE
from tickwright.store.queries import load

SOURCE = "example_crm"
NAME, JOB = "example.loan", "example.apply"
AHEAD_S = 5.0
LOOK_S = 0.5
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
_SQL = load("tickwright.demo.sql", "loans.sql")
_WORLD = load("tickwright.demo.sql", "world.sql")
_CALLER = Caller("up", Role.ADMIN)


async def make_clients(url: str) -> None:
    """Fill the clients' database, once."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_SQL["make_clients"])
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
            await self._open.execute(_SQL["apply"], execution_id, int(client_id))

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

    async def offer(self, node: Node, say: Callable[[str], None]) -> None:
        """Set the campaign up, due in a few seconds, and report its result."""
        await node.supervisor.started()
        with suppress(TickwrightError, *UNAVAILABLE):
            due = await node.installation.pool.fetchval(_WORLD["soon"], AHEAD_S)
            campaigns = node.installation.of(CampaignsService)
            await campaigns.campaigns.put(NAME, {**TERMS, "date_time_execution": due.isoformat()}, caller=_CALLER)
            await campaigns.campaign_batches.activate(NAME, caller=_CALLER)
            say(f"  example   campaign {NAME}: {EXPRESSION}, due in {AHEAD_S:.0f} s")
            say(f"  loans     {await self._outcome(node, due)}")

    async def _outcome(self, node: Node, due: datetime) -> str:
        """Wait until the execution of ``due`` has ended and all its applications are written."""
        campaign = await self._ended(node, due)
        assert campaign.last_execution_id is not None  # noqa: S101  it has ended
        execution = await node.installation.of(CampaignsService).executions.get(campaign.last_execution_id)
        if execution.status != "FINISHED":
            return f"{execution.status}: {execution.error_message or execution.ended_why}"
        while True:
            made = await self._open.fetchval(_SQL["applications"], execution.id)
            if made >= execution.selected:
                return f"{execution.selected} of {execution.seen} clients are selected, {made} applications are made"
            await asyncio.sleep(LOOK_S)

    async def _ended(self, node: Node, due: datetime) -> BatchDetail:
        while True:
            campaign = await node.installation.of(CampaignsService).campaign_batches.get(NAME)
            if campaign.last_slot_at == due and not campaign.open_executions:
                return campaign
            await asyncio.sleep(LOOK_S)

    @property
    def _open(self) -> asyncpg.Pool:
        if self._clients is None:
            raise Unavailable("no_clients", "the example's clients are not there: TICKWRIGHT_CONFIG is set")
        return self._clients
