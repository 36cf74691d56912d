"""``tickwright run --app`` runs a program with the settings that the program was made with."""

import asyncio
import sys
from pathlib import Path

from kit.cli import environment
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from tickwright import Tickwright

PROGRAM = """
from tickwright import Job, Tickwright

app = Tickwright({url!r}, connections_max=7)


@app.job("own.settings")
async def handle(job: Job) -> None:
    print(f"handled with {{app.settings.connections_max}} connections", flush=True)
"""
INSERT = """
    INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload)
    VALUES (now(), 'own.settings', '{}') RETURNING id
"""
UNUSED = (
    "aiohttp",
    "alembic",
    "fastapi",
    "prometheus_client",
    "psycopg",
    "pydantic_settings",
    "tickwright.capabilities.batches.executions.producer",
    "tickwright.capabilities.reports.parts.spool",
    "tickwright.cli.commands.jobs",
    "tickwright.partners.contract",
    "tickwright.sources.named",
    "tickwright.transports.objectstore.folder",
    "tickwright.transports.postgres.broker",
)
LOADED = """
import sys

from tickwright import Job, Tickwright

app = Tickwright()


@app.job("loaded")
async def handle(job: Job) -> None:
    print(f"loaded: {{[name for name in {names!r} if name in sys.modules]}}", flush=True)
"""


async def test_a_program_keeps_its_own_settings_under_run(database_url: str, tmp_path: Path) -> None:
    """The database of the program outranks the environment's, as it does where the program runs itself."""
    (tmp_path / "mine.py").write_text(PROGRAM.format(url=database_url))
    nowhere = "postgresql://user@127.0.0.1:1/nowhere"
    command = [sys.executable, "-m", "tickwright", "run", "worker", "--app", "mine:app"]
    env = {**environment(DATABASE_URL=nowhere, METRICS_BIND="127.0.0.1:0"), "PYTHONPATH": str(tmp_path)}
    log = tmp_path / "log"
    child = spawn(command, log, env)
    try:
        async with Tickwright(database_url, metrics_bind="127.0.0.1:0") as app:

            async def completed() -> bool:
                assert child.poll() is None, log.read_text()
                return (await app.get(job_id)).status == "completed"

            job_id = await app.pool.fetchval(INSERT)
            await eventually_async(completed, 60, what=f"the program's worker handles the job: {log}")
    finally:
        await asyncio.to_thread(kill_group, child)
    assert "handled with 7 connections" in log.read_text()


async def test_a_worker_loads_nothing_that_its_first_job_does_not_use(database_url: str, tmp_path: Path) -> None:
    """Loading is most of the time from the start of a worker to its first job."""
    (tmp_path / "mine.py").write_text(LOADED.format(names=UNUSED))
    env = environment(DATABASE_URL=database_url, METRICS_BIND="127.0.0.1:0")
    command = [sys.executable, "-m", "tickwright", "worker", "--app", "mine:app"]
    async with Tickwright(database_url, metrics_bind="127.0.0.1:0") as app:
        await app.pool.execute(INSERT.replace("own.settings", "loaded"))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, env=env, cwd=tmp_path, stdout=pipe)
    try:
        assert child.stdout is not None
        async with asyncio.timeout(60):
            assert await child.stdout.readline() == b"loaded: []\n"
    finally:
        child.kill()
        await child.wait()
