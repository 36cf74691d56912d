"""Documents state what the code does: their examples run, and their tables equal the source."""

import ast
import asyncio
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from kit.waiting import eventually_async
from tickwright.domain.states import TRANSITIONS
from tickwright.observe.alerts import CLOCK_JUMP, RULES
from tickwright.wiring.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
JOBS = ROOT / "src/tickwright/capabilities/jobs/README.md"
PAGES = [ROOT / "README.md", JOBS, *sorted(DOCS.rglob("*.md"))]
MADE_LATER = {"performance.md"}  # by make bench
ADR_LINES_MAX = 60


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, str]]:
    """Return a page's fenced blocks of these languages, in order."""
    for language, text in re.findall(
        r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        if language in languages:
            yield language, text


def environment(url: str) -> dict[str, str]:
    """Return this environment with our own variables replaced."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TICKWRIGHT_")}
    return {**clean, "TICKWRIGHT_DATABASE_URL": url, "TICKWRIGHT_METRICS_BIND": "127.0.0.1:0", "PYTHONUNBUFFERED": "1"}


async def run_python(text: str, names: dict[str, Any]) -> None:
    """Run one block as a notebook does, ``await`` included."""
    code = compile(text, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if asyncio.iscoroutine(result):
        await result


def run_sql(url: str, text: str) -> None:
    """Run one block as ``psql`` does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text)


async def test_the_tour_runs_from_top_to_bottom(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python and SQL block of the page, in order, in one program."""
    for name, value in environment(database_url).items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {"__name__": "tour"}
    ran = []
    for language, text in blocks(DOCS / "tour.md", "python", "sql"):
        if language == "python":
            await run_python(text, names)
        else:
            await asyncio.to_thread(run_sql, database_url, text)
        ran.append(language)
    await names["db"].close()
    assert ran.count("python") >= 6
    assert ran.count("sql") >= 3


async def test_the_readmes_first_screen_works(database_url: str, tmp_path: Path) -> None:
    """The Python example reminds of its invoice; the SQL example schedules and cancels."""
    [(_, program)] = blocks(ROOT / "README.md", "python")
    script = tmp_path / "first.py"
    script.write_text(program)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), env=environment(database_url), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            while await process.stdout.readline() != b"reminding of invoice 42, attempt 1\n":
                assert process.returncode is None, "the example ended without reminding anybody"
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)
    [(_, statements)] = blocks(ROOT / "README.md", "sql")
    run_sql(database_url, statements)
    connection = await asyncpg.connect(database_url)
    sql = "SELECT status FROM tickwright.scheduled_tasks WHERE execute_at > now() + interval '1 day'"
    await eventually_async(lambda: connection.fetchval(sql), what="the SQL example's job")
    assert await connection.fetchval(sql) == "cancelled"
    await connection.close()


async def test_the_grants_for_sql_only_users_are_enough(database_url: str) -> None:
    """A role with the page's rights schedules with a key, moves, cancels, reads and publishes, and no more."""
    [(_, grants)] = blocks(DOCS / "operations.md", "sql")
    role = f"shop_jobs_{database_url.rpartition('/')[2]}"
    run_sql(database_url, grants.replace("shop_jobs", role))
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(f"SET ROLE {role}")
        job_id = await connection.fetchval(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, idempotency_key) "
            "VALUES (now() + interval '1 hour', 't', 'k') RETURNING id"
        )
        await connection.execute("UPDATE tickwright.scheduled_tasks SET execute_at = now() WHERE id = $1", job_id)
        await connection.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", job_id)
        status = await connection.fetchval("SELECT status FROM tickwright.scheduled_tasks WHERE id = $1", job_id)
        assert status == "cancelled"
        await connection.execute("INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:t', '1')")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("SELECT * FROM tickwright.api_keys")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("UPDATE tickwright.scheduled_tasks SET attempts = 0")
    finally:
        await connection.execute("RESET ROLE")
        await connection.execute(f"DROP OWNED BY {role}")
        await connection.execute(f"DROP ROLE {role}")
        await connection.close()


def test_the_diagram_of_states_is_the_table_of_transitions() -> None:
    """The page of the jobs capability draws ``domain/states.py``, edge by edge."""
    drawn = set(re.findall(r"^ +(\w+) --> (\w+)(?: :|$)", JOBS.read_text(), re.MULTILINE))
    assert drawn == {(str(old), str(new)) for old, news in TRANSITIONS.items() for new in news}


def test_every_limit_on_the_page_of_jobs_is_a_constant() -> None:
    """A limit that was renamed or removed is found by whoever does it."""
    named = re.findall(r"`([a-z_]+)\.([A-Z][A-Za-z_]+)`", JOBS.read_text().partition("**Limits.**")[2])
    missing = [
        f"{module}.{name}"
        for module, name in named
        if not hasattr(importlib.import_module(f"tickwright.capabilities.jobs.{module}"), name)
    ]
    assert len(named) >= 15
    assert missing == []


def test_every_variable_is_on_the_page_of_operations() -> None:
    """The table of the environment has every setting and no other."""
    named = set(re.findall(r"^\| `TICKWRIGHT_([A-Z_]+)` \|", (DOCS / "operations.md").read_text(), re.MULTILINE))
    assert named == {name.upper() for name in Settings.model_fields}


def test_every_alert_has_a_line_in_the_runbook() -> None:
    """Whoever is called at night finds the alert's name on the page."""
    runbook = (DOCS / "operations.md").read_text().partition("## Alerts")[2]
    named = set(re.findall(r"^\| `(\w+)` \|", runbook, re.MULTILINE))
    assert named == {rule.name for rule in (*RULES, CLOCK_JUMP)}


def test_every_test_that_a_promise_names_exists() -> None:
    """A promise without its test is a wish."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "promises.md").read_text())
    missing = [
        f"{file}::{test}" for file, test in named if not re.search(rf"\bdef {test}\(", (ROOT / file).read_text())
    ]
    assert len(named) > 20
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    """A page that moved is found by whoever moves it."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    broken = [
        link
        for link in links
        if "://" not in link and Path(link).name not in MADE_LATER and not (page.parent / link).exists()
    ]
    assert broken == []


def test_decisions_are_short_indexed_and_say_how_they_could_be_wrong() -> None:
    """At most 60 lines, ending with how we would notice, and listed in the index."""
    index = (DOCS / "adr/README.md").read_text()
    records = sorted(path for path in (DOCS / "adr").glob("*.md") if path.name != "README.md")
    assert records
    for record in records:
        text = record.read_text()
        assert len(text.splitlines()) <= ADR_LINES_MAX, record.name
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings[-1] == "How we would notice we were wrong", record.name
        assert record.name in index, record.name
