"""The client packages of other languages: their own tests, against a real server."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from kit.remote import RemoteSite, remote_site
from kit.waiting import eventually_async

CLIENTS = Path(__file__).parents[2] / "clients"
TYPES = ("client.echo", "client.fails", "client.last", "client.slow")
WITHIN_S = 240


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """A running api with the types that the clients' tests use."""
    async with remote_site(database_url, tmp_path) as site:
        for name in TYPES:
            await site.type(name)
        yield site


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
    output = await run(site, folder, "npm", "test")
    assert "fail 0" in output
    assert "skipped 0" in output


async def test_the_go_client_works_against_the_real_server(site: RemoteSite, tmp_path: Path) -> None:
    """Its own tests pass: schedule, read, cancel and wait; work, retry, snooze, cancel, stop and a lost session."""
    flags = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    output = await run(site, CLIENTS / "go", "go", "test", "-count=1", "-v", "./...", more=flags)
    assert "--- FAIL" not in output
    assert "--- SKIP" not in output


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
