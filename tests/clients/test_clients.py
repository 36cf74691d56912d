"""The client packages of other languages: their own tests, against a real server."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from kit.api import ADMIN
from kit.consumers import seed
from kit.postgres import as_reader
from kit.remote import POOL, RemoteSite, remote_site
from kit.waiting import eventually_async
from tickwright.capabilities.batches.executions.states import BatchAction
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.capabilities.fanout.entities.schemas import EntityRequest, ModuleRequest
from tickwright.capabilities.fanout.service import FanoutService

CLIENTS = Path(__file__).parents[2] / "clients"
ROLES = ("poll-consumer", "fanout-consumer", "campaign-consumer", "scheduler", "relay")
CALLS_DONE = """
SELECT (SELECT sum(cardinality(ids)) FROM tickwright.poll_done)::integer, (SELECT status FROM tickwright.trackers),
       (SELECT jsonb_array_length(events) FROM tickwright.trackers),
       (SELECT sum(succeeded) FROM tickwright.fanout_windows WHERE task_type = 'CLIENT_TASK')::integer,
       e.status, e.seen, e.selected, e.skipped,
       (SELECT string_agg(client_id, ',' ORDER BY client_id) FROM tickwright.execution_actions)
  FROM tickwright.executions e"""
TYPES = ("client.echo", "client.fails", "client.last", "client.slow")
WITHIN_S = 240


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """A running api with the types that the clients' tests use."""
    config = f'[sources.ledger]\nurl = "{as_reader(database_url)}"\n'
    async with remote_site(database_url, tmp_path, *ROLES, config=config) as site:
        for name in TYPES:
            await site.type(name)
        yield site


async def begin_calls(site: RemoteSite) -> None:
    """Make one poll, one task and one chunk due for the clients' tests."""
    target, ports = f"remote:{POOL}", site.node.installation.context.ports
    await site.pool.execute("CREATE TABLE entries (id bigint PRIMARY KEY, amount bigint NOT NULL)")
    await site.pool.execute("INSERT INTO entries SELECT n, n * 10 FROM generate_series(1, 3) AS n")
    await site.pool.execute("GRANT SELECT ON entries TO PUBLIC")
    batches, fanout = ports.get(CampaignsService), ports.get(FanoutService)
    audience = {"source": "ledger", "table": "entries", "key": "id", "fields": {"amount": "int"}}
    batch = {"target": target, "audience": audience, "action": "pg:exported"}
    await batches.put_remote("client.chunk", batch, caller=ADMIN)
    await batches.programs.act(BatchAction.START, "client.chunk", caller=ADMIN)
    await fanout.modules.put("CLIENT_TASK", ModuleRequest(every="1h", target=target), caller=ADMIN)
    party = {"url": "https://hub.example"}
    wanted = EntityRequest(party=party, is_polling_enabled=True, polling_enabled_modules="CLIENT_TASK")
    await fanout.entities.put("HUB-1", wanted, caller=ADMIN)
    await seed(site.pool, 1, name="client.partner", target=target)


async def check_calls(site: RemoteSite) -> None:
    """Check what has become of them: each is done once, with what its handler returned."""
    row = await site.pool.fetchrow(CALLS_DONE)
    assert tuple(row) == (1, "picked_up", 1, 1, "FINISHED", 3, 2, 1, "2,3")


async def run(site: RemoteSite, folder: Path, *command: str, more: Mapping[str, str] | None = None) -> str:
    """Run a command of a client to its end; return its output."""
    env = {
        **os.environ,
        "TICKWRIGHT_TEST_URL": site.client.base,
        "TICKWRIGHT_TEST_KEY": str(site.client.key),
        **(more or {}),
    }
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(WITHIN_S):
        output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output[-8000:]
    return output


async def test_the_typescript_client_works_against_the_real_server(site: RemoteSite, tmp_path: Path) -> None:
    """Its own tests pass: schedule, read, cancel and wait; work, retry, snooze, cancel, stop and a lost session."""
    folder = tmp_path / "typescript"
    shutil.copytree(CLIENTS / "typescript", folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    await run(site, folder, "npm", "ci", "--silent", "--no-audit", "--no-fund")
    await begin_calls(site)
    output = await run(site, folder, "npm", "test")
    assert "fail 0" in output
    assert "skipped 0" in output
    await check_calls(site)


async def test_the_go_client_works_against_the_real_server(site: RemoteSite, tmp_path: Path) -> None:
    """Its own tests pass: schedule, read, cancel and wait; work, retry, snooze, cancel, stop and a lost session."""
    await begin_calls(site)
    flags = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    output = await run(site, CLIENTS / "go", "go", "test", "-count=1", "-v", "./...", more=flags)
    assert "--- FAIL" not in output
    assert "--- SKIP" not in output
    await check_calls(site)


async def test_the_example_on_the_page_of_the_protocol_works(site: RemoteSite) -> None:
    """The page shows the example as it is, and it does a job."""
    path = CLIENTS.parent / "examples/remote_worker.py"
    page = (CLIENTS.parent / "docs/worker-protocol.md").read_text(encoding="utf-8")
    assert f"```python\n{path.read_text(encoding='utf-8')}```" in page
    await site.type("greet", target="remote:examples")
    made = await site.client.post("/v1/jobs", {"task_type": "greet", "payload": {"name": "Ada"}})
    process = await asyncio.create_subprocess_exec(sys.executable, str(path), site.client.base, str(site.client.key))
    try:

        async def result() -> object:
            return (await site.job(made.json["id"]))["result"]

        assert await eventually_async(result, 30, what="the job is done") == "Hello, Ada!"
    finally:
        process.kill()
        await process.wait()
