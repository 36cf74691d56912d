"""The plugin of ``docs/plugins.md`` runs as the page says."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from kit.cli import environment
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async

PAGE = (Path(__file__).parents[2] / "docs/plugins.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the page's blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def installed(tmp_path: Path, database_url: str) -> dict[str, str]:
    """The environment of a process in which the page's package and program are installed."""
    for text in blocks("python"):
        path = tmp_path / text.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    [project] = blocks("toml")
    points = tomllib.loads(project)["project"]["entry-points"]["tickwright.capabilities"]
    info = tmp_path / "sagas-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sagas\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[tickwright.capabilities]\n{lines}")
    own = environment(DATABASE_URL=database_url, METRICS_BIND=f"127.0.0.1:{free_port()}")
    return {**own, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}


async def test_the_plugin_of_the_page_does_what_it_says(
    installed: dict[str, str], database_url: str, tmp_path: Path
) -> None:
    """Its step is done once, counted, shown and examined; a step that no function does waits and is listed."""
    db = await asyncpg.connect(database_url)
    await db.execute(f"{''.join(blocks('sql'))}; CREATE TABLE sagas.charges (step bigint PRIMARY KEY)")
    charge = await db.fetchval("INSERT INTO sagas.steps (step) VALUES ('charge') RETURNING id")
    waits = await db.fetchval("INSERT INTO sagas.steps (step) VALUES ('other') RETURNING id")
    command = [sys.executable, "-m", "tickwright", "run", "saga-runner", "--app", "shop:app"]
    runner = await asyncio.to_thread(spawn, command, tmp_path / "log", installed, cwd=tmp_path)
    try:
        sql = "SELECT array_agg(step) FROM sagas.charges"
        await eventually_async(lambda: db.fetchval(sql), 60, what=f"the step; {(tmp_path / 'log').read_text()}")
        assert await db.fetchval(sql) == [charge]
        await eventually_async(lambda: _shows(installed, "sagas_done_total 1.0", "sagas_waiting 1.0"), 60)
        assert await db.fetchval("SELECT count(*) FROM tickwright.job_config WHERE job_name = 'sagas' AND running") == 1
        said = await asyncio.to_thread(_run, installed, "sagas", "list")
        assert said.stdout.split()[-2:] == [str(waits), "other"], said.stderr
        said = await asyncio.to_thread(_run, installed, "doctor", "--json")
        names: dict[str, Any] = {}
        exec(_block("sagas/__init__.py"), names)
        [late] = await db.fetch(names["PLUGIN"].alert_rules()[0].sql, timedelta())
        assert tuple(late) == ("other", '{"count": 1}')
        assert [one["verdict"] for one in _findings(said.stdout) if one["check"] == "saga-runner"] == ["ok"]
    finally:
        kill_group(runner)
        await db.close()


def test_the_field_of_the_overview_is_what_was_read() -> None:
    """A snapshot has the count of the reading of the same name."""
    names: dict[str, Any] = {}
    exec(_block("sagas/overview.py"), names)
    shown = names["SagasPart"]().show({"sagas": 7}, None)
    assert shown.fields["sagas"].waiting == 7


def _block(name: str) -> str:
    [text] = [text for text in blocks("python") if text.startswith(f"# {name}\n")]
    return text


async def _shows(installed: dict[str, str], *lines: str) -> bool:
    url = f"http://{installed['TICKWRIGHT_METRICS_BIND']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return {*lines} <= {*(await answer.text()).splitlines()}


def _run(installed: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tickwright", *words]
    return subprocess.run(command, env=installed, capture_output=True, text=True, check=False, timeout=100)


def _findings(said: str) -> list[dict[str, str]]:
    found = json.loads(said)
    return found if isinstance(found, list) else found["findings"]
