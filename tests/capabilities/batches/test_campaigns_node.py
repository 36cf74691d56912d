"""Campaigns and a program's batches in real processes: scheduled, executed, and acted upon once."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from kit.campaigns import CLIENTS, LOAN
from kit.nodes import running, settings_of, started
from kit.postgres import as_reader
from kit.waiting import eventually_async
from tickwright import BatchChunk, BatchRun, Job
from tickwright.app.declarations import Declarations
from tickwright.capabilities.batches.executions.states import BatchAction
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.plugin.settings import Settings
from tickwright.ports.caller import Caller, Role
from tickwright.process.node import Node
from tickwright.store.pool import Pool

ADMIN = Caller("me", Role.ADMIN)
DUE = "SELECT (date_trunc('second', now()) + interval '10 s')::text"
WRONG = """
SELECT count(*) FROM public.clients c LEFT JOIN public.copies d USING (id) WHERE d.income IS DISTINCT FROM c.income
"""
REPAIR = """
INSERT INTO public.copies SELECT id, income FROM public.clients WHERE id = ANY ($1::bigint[])
ON CONFLICT (id) DO UPDATE SET income = excluded.income
"""


class Program(Declarations):
    """A user's program: the handler of the action, a reconciliation, and a batch with its own plan."""

    def __init__(self) -> None:
        super().__init__()
        self.applied: Counter[str] = Counter()
        self.months: list[Any] = []

        @self.job("loan.apply")
        async def apply(job: Job, client_id: str, client: dict[str, Any]) -> None:
            self.applied[f"{client_id}:{client['country']}"] += 1

        audience = {"source": "crm", "query": "SELECT id, income FROM public.clients", "key": "id"}

        @self.batch("copies.repair", audience=audience | {"fields": {"income": "double"}}, action="pg:repaired")
        async def repair(chunk: BatchChunk) -> None:
            members = {member.id: member.fields["income"] async for member in chunk.members()}
            async with self.pool.acquire() as connection:
                rows = await connection.fetch("SELECT id, income FROM public.copies")
            there = {str(row["id"]): row["income"] for row in rows}
            wrong = [one for one, income in members.items() if there.get(one) != income]
            for one in wrong:
                chunk.act(one, {"income": members[one], "was": there.get(one)})
            async with chunk.transaction() as connection:
                await connection.execute(REPAIR, [int(one) for one in wrong])

        async def plan(run: BatchRun) -> AsyncIterator[Any]:
            for month in (1, 2, 3):
                yield {"month": month, "batch": run.batch}

        @self.batch("months.close", plan=plan)
        async def close(chunk: BatchChunk) -> None:
            self.months.append(chunk.value)

    pool: Any = None


@asynccontextmanager
async def working(url: str, folder: Path, program: Program, *roles: str) -> AsyncIterator[Node]:
    """Run a process's roles on a database with clients and their copies, for the length of the block."""
    settings = settings_of(url, folder, f'[sources.crm]\nurl = "{as_reader(url)}"\n')
    async with running(settings, program, *roles) as node:
        program.pool = node.installation.pool
        await node.installation.pool.execute(CLIENTS)
        await node.installation.pool.execute(
            "CREATE TABLE public.copies AS SELECT id, income FROM public.clients WHERE id < 4"
        )
        await node.installation.pool.execute("ALTER TABLE public.copies ADD PRIMARY KEY (id)")
        await node.installation.pool.execute("UPDATE public.copies SET income = 1 WHERE id = 2")
        yield node


async def ended(node: Node, execution_id: int) -> Any:
    """Wait until an execution has ended; return its row."""
    sql = "SELECT * FROM tickwright.executions WHERE id = $1 AND finished_at IS NOT NULL"
    return await eventually_async(lambda: node.installation.pool.fetchrow(sql, execution_id), 30)


async def test_a_due_campaign_runs_and_acts_once_per_client(database_url: str, tmp_path: Path) -> None:
    """From its definition to the handler, which is called for the one client that the expression selects."""
    program = Program()
    async with working(database_url, tmp_path, program, "scheduler", "campaign-consumer", "worker") as node:
        campaigns = node.installation.of(CampaignsService)
        due = (await node.installation.pool.fetchval(DUE)).replace(" ", "T") + ":00"
        definition = {**LOAN, "name": "loans", "type": "AUTOMATIC", "date_time_execution": due}
        await campaigns.campaigns.create({**definition, "action": {"target": "python:loan.apply"}}, caller=ADMIN)
        await campaigns.campaign_batches.act(BatchAction.ACTIVATE, "loans", caller=ADMIN)
        await eventually_async(lambda: program.applied, 30)
        row = await node.installation.pool.fetchrow("SELECT * FROM tickwright.executions")
        assert (row["status"], row["started_by"], row["missing"], row["selected"]) == ("FINISHED", "schedule", 1, 1)
        assert row["created_at"] >= row["slot_at"]
        assert program.applied == {"1:UK": 1}


async def test_a_reconciliation_repairs_differences_and_sends_their_clients(database_url: str, tmp_path: Path) -> None:
    """The handler's writes are committed with its chunk; a second run finds no difference."""
    program = Program()
    async with AsyncExitStack() as stack:
        opened = working(database_url, tmp_path, program, "scheduler", "campaign-consumer")
        node = await stack.enter_async_context(opened)
        start = partial(node.installation.of(CampaignsService).programs.act, BatchAction.START)
        first = await ended(node, (await start("copies.repair", caller=ADMIN)).executions[0].id)
        assert (first["status"], first["seen"], first["actions"]) == ("FINISHED", 5, 3)
        assert await node.installation.pool.fetchval(WRONG) == 0
        released = "SELECT payload::text FROM tickwright.outbox WHERE destination = 'pg:repaired' ORDER BY id"
        rows = await eventually_async(lambda: node.installation.pool.fetch(released))
        assert {json.loads(row["payload"])["client_id"] for row in rows} == {"2", "4", "5"}
        again = await ended(node, (await start("copies.repair", caller=ADMIN)).executions[0].id)
        assert (again["seen"], again["actions"]) == (5, 0)


async def test_a_programs_own_plan_has_a_chunk_for_each_value(database_url: str, tmp_path: Path) -> None:
    """Whatever JSON it yields."""
    program = Program()
    async with working(database_url, tmp_path, program, "campaign-consumer") as node:
        made = await node.installation.of(CampaignsService).programs.act(
            BatchAction.START, "months.close", caller=ADMIN
        )
        row = await ended(node, made.executions[0].id)
        assert (row["status"], row["chunks"]) == ("FINISHED", 3)
        months = sorted(value["month"] for value in program.months)
        assert months == [1, 2, 3]


async def test_a_process_leaves_batches_that_it_does_not_serve_to_others(database_url: str, tmp_path: Path) -> None:
    """A consumer without the program's batch works on campaigns only."""
    async with working(database_url, tmp_path, Program(), "scheduler") as node:
        made = await node.installation.of(CampaignsService).programs.act(
            BatchAction.START, "months.close", caller=ADMIN
        )
    settings = settings_of(database_url, tmp_path, f'[sources.crm]\nurl = "{as_reader(database_url)}"\n')
    async with running(settings, Declarations(), "campaign-consumer") as node:
        campaign_batches = node.installation.of(CampaignsService).campaign_batches
        await node.installation.of(CampaignsService).campaigns.create({**LOAN, "name": "loans"}, caller=ADMIN)
        mine = await campaign_batches.act(BatchAction.START, "loans", caller=ADMIN)
        assert (await ended(node, mine.executions[0].id))["status"] == "FINISHED"
        sql = "SELECT status FROM tickwright.executions WHERE id = $1"
        assert await node.installation.pool.fetchval(sql, made.executions[0].id) == "NEW"


async def test_the_settings_of_the_lock_apply_to_the_producer_only(pool: Pool) -> None:
    """A lock that is kept for an hour delays no action."""
    hour = timedelta(hours=1)
    settings = Settings(lock_at_most_for=hour, lock_at_least_for=hour)
    async with started(pool, settings, "scheduler") as context:
        terms = {loop.name: loop.lease_terms for loop in context.leased}
    assert (terms["campaign-producer"].ttl, terms["campaign-producer"].at_least) == (hour, hour)
    assert (terms["campaign-checker"].ttl, terms["campaign-checker"].at_least) == (timedelta(seconds=20), timedelta())
