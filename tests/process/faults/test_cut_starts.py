"""A process whose database connection is cut while it starts reports that in one sentence, at any statement."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kit.cli import environment, tickwright
from kit.database_faults import AnswerCuts, first_line
from kit.nodes import settings_of
from kit.servers import PostgresServer
from tickwright import Answer, BatchChunk, EntityTask, Job, Poll, ReportRequest, Tickwright, Unavailable
from tickwright.plugin.settings import Settings
from tickwright.process.database import Database
from tickwright.process.installation import ensure_schema
from tickwright.process.node import open_node, roles_of
from tickwright.store.migrate import migrate

ANY = " "
PREFIXES = first_line("engine", "outbox.sql", "reserve_prefixes")
REVISION = "CREATE TABLE tickwright.scheduled_tasks"
CONFIG = """
[task_types."from.file"]
target = "https://example.com/hook"

[partners.dhl]
rate = "5/s"

[modules.TARIFFS]
every = "1h"

[report_types.sales]
merge = "SELECT * FROM users"
listeners.users = {}
"""


def program() -> Tickwright:
    """Return a program that declares something of each kind that a start registers."""
    app = Tickwright()

    @app.job("mail")
    async def mail(_: Job) -> None:
        """Do nothing."""

    @app.partner("ups", rate="5/s")
    async def ups(_: Poll) -> Answer:
        return Answer("moving")

    @app.module("LOCATIONS", every="1h", timeout="5s")
    async def locations(_: EntityTask) -> None:
        """Do nothing."""

    @app.listener("users")
    async def users(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        yield {"id": request.report_id}

    @app.report("users", listeners=["users"])
    def merged() -> str:
        return "SELECT * FROM users"

    @app.batch("months.close", cron="0 3 1 * *")
    async def close(_: BatchChunk) -> None:
        """Do nothing."""

    return app


async def start_all_roles(settings: Settings) -> None:
    """Build a process with every role; it does not run."""
    app = program()
    async with open_node(settings, roles_of(app.registrations), registrations=app.registrations, any_port=True):
        pass


async def start_a_program(settings: Settings) -> None:
    """Open a program that runs no role."""
    async with program().using(settings):
        pass


async def check_the_schema(settings: Settings) -> None:
    """Do what a command does that works on the database itself."""
    assert settings.database_url is not None
    url = settings.database_url.get_secret_value()
    await ensure_schema(Database(url, url))


@pytest.mark.matrix
@pytest.mark.parametrize("start", [start_all_roles, start_a_program, check_the_schema])
async def test_a_start_that_is_cut_at_any_statement_says_that_the_database_does_not_answer(
    database_url: str, tmp_path: Path, start: Callable[[Settings], Awaitable[None]]
) -> None:
    """Each statement is cut once; a cut of one that a start can do without stops nothing."""
    codes: list[str] = []
    for spared in count():
        async with AnswerCuts(database_url) as cuts:
            cuts.cut(ANY, "unsent", spared=spared)
            try:
                await start(settings_of(cuts.url, tmp_path, CONFIG, object_store=tmp_path.as_uri()))
            except Unavailable as error:
                codes.append(error.code)
        if not cuts.made:
            break
    assert set(codes) == {"database_unavailable"}


async def test_a_role_whose_start_is_cut_is_one_line(database_url: str) -> None:
    """One, and no traceback, as where the database cannot be reached at all."""
    async with AnswerCuts(database_url) as cuts:
        cuts.cut(PREFIXES, "unsent")
        env = environment(DATABASE_URL=cuts.url, METRICS_BIND="127.0.0.1:0")
        said = await asyncio.to_thread(tickwright, "worker", env=env)
    assert (cuts.made, said.code, said.out, said.err.count("\n")) == (1, 1, "", 1), said.err
    assert "database_unavailable" in said.err


async def test_a_migration_that_is_cut_says_that_the_database_does_not_answer(pg_server: PostgresServer) -> None:
    """Also inside a revision, whose text goes to the driver as it is."""
    url = pg_server.create_database("cut_migration")
    async with AnswerCuts(url) as cuts:
        cuts.cut(REVISION, "unsent")
        with pytest.raises(Unavailable) as said:
            await asyncio.to_thread(migrate, cuts.url)
    pg_server.drop_database("cut_migration")
    assert (cuts.made, said.value.code) == (1, "database_unavailable")
