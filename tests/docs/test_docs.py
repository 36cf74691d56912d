"""Documents state what the code does: their examples run, and their tables equal the source."""

import ast
import asyncio
import importlib.util
import json
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from html import unescape
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from kit.alerts import RULES
from kit.cli import environment, tickwright
from kit.waiting import eventually_async
from tickwright import Tickwright
from tickwright.capabilities.fanout.messages import write_task
from tickwright.capabilities.fanout.windows import Window
from tickwright.capabilities.jobs.states import TRANSITIONS
from tickwright.capabilities.reports.handlers import ReportRegistry
from tickwright.observe.alerts import OWN_RULES
from tickwright.process.configfile import load_config
from tickwright.process.settings import parts
from tickwright.transports.rabbitmq.topology import fanout_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
JOBS = ROOT / "src/tickwright/capabilities/jobs/README.md"
POLLING = ROOT / "src/tickwright/capabilities/polling/README.md"
FANOUT = ROOT / "src/tickwright/capabilities/fanout/README.md"
REPORTS = ROOT / "src/tickwright/capabilities/reports/README.md"
BATCH = ROOT / "src/tickwright/capabilities/batches/README.md"
OPERATIONS = ROOT / "src/tickwright/capabilities/operations/README.md"
PAGES = [ROOT / "README.md", JOBS, POLLING, FANOUT, REPORTS, BATCH, OPERATIONS, *sorted(DOCS.rglob("*.md"))]
MADE_LATER = {"performance.md"}  # by make bench
ADR_LINES_MAX = 60


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, str]]:
    """Return a page's fenced blocks of these languages, in order."""
    for language, text in re.findall(
        r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        if language in languages:
            yield language, text


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
    for name, value in environment(DATABASE_URL=database_url, METRICS_BIND="127.0.0.1:0").items():
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


async def test_the_page_of_jobs_runs_from_top_to_bottom(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of the page, in order, in one program."""
    for name, value in environment(DATABASE_URL=database_url, METRICS_BIND="127.0.0.1:0").items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {"__name__": "jobs"}
    for _, text in blocks(DOCS / "jobs.md", "python"):
        await run_python(text, names)
    assert names["Mailer"].sent == ["ann"]


async def test_the_readmes_first_screen_works(database_url: str, tmp_path: Path) -> None:
    """The Python example reminds of its invoice, its report can be declared; the SQL examples do what they say."""
    [(_, program), (_, report)] = blocks(ROOT / "README.md", "python")
    app = Tickwright(database_url)
    exec(report, {"app": app})
    assert [one.name for one in app.registrations.of(ReportRegistry).all()] == ["withdrawals"]
    script = tmp_path / "first.py"
    script.write_text(program)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        env=environment(DATABASE_URL=database_url, METRICS_BIND="127.0.0.1:0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            while await process.stdout.readline() != b"reminding of invoice 42, attempt 1\n":
                assert process.returncode is None, "the example ended without a reminder"
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)
    for _, statements in blocks(ROOT / "README.md", "sql"):
        run_sql(database_url, statements)
    connection = await asyncpg.connect(database_url)
    sql = "SELECT status FROM tickwright.scheduled_tasks WHERE execute_at > now() + interval '1 day'"
    await eventually_async(lambda: connection.fetchval(sql), what="the SQL example's job")
    assert await connection.fetchval(sql) == "cancelled"
    sql = "SELECT status FROM tickwright.shipment_polling_tracker WHERE external_id = 'AWB4711'"
    assert await connection.fetchval(sql) == "registered"
    sql = "SELECT polling_enabled_modules FROM tickwright.entities WHERE code = 'NL-TNM'"
    assert await connection.fetchval(sql) == "LOCATIONS,TARIFFS"
    await connection.close()


async def test_the_table_of_rights_is_what_an_app_role_gets(database_url: str) -> None:
    """Relation by relation, right by right, column by column."""
    table = (DOCS / "operations.md").read_text().partition("| relation | rights |\n|---|---|\n")[2].partition("\n\n")[0]
    told = set()
    for relations, rights in re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE):
        for relation in re.findall(r"`(\w+)`", relations):
            for privilege, columns in re.findall(r"([A-Z]{4,})(?: \(([\w, ]+)\))?", rights):
                told.add((relation, privilege, columns))
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("SELECT relation, privilege, columns FROM tickwright.app_rights")
    types = "SELECT attname FROM pg_attribute WHERE attrelid = 'tickwright.task_types'::regclass AND attnum > 0"
    columns = {row["attname"] for row in await connection.fetch(types)}
    await connection.close()
    given = {(row["relation"], row["privilege"]): row["columns"] for row in rows}
    assert set(given[("task_types", "SELECT")]) == columns - {"target"}
    given[("task_types", "SELECT")] = None  # the page says it in prose
    assert told == {(*right, ", ".join(names or ())) for right, names in given.items()}


def test_the_diagram_of_states_is_the_table_of_transitions() -> None:
    """The page of the jobs capability draws ``capabilities/jobs/states.py``, edge by edge."""
    drawn = set(re.findall(r"^ +(\w+) --> (\w+)(?: :|$)", JOBS.read_text(), re.MULTILINE))
    assert drawn == {(str(old), str(new)) for old, following in TRANSITIONS.items() for new in following}


@pytest.mark.parametrize("page", [POLLING, FANOUT, REPORTS], ids=["polling", "fanout", "reports"])
def test_every_probe_on_the_page_of_a_capability_is_reached_somewhere(page: Path) -> None:
    """A step that a test can wait at has the name that the page gives it."""
    named = re.findall(r"\(`([a-z_]+\.[a-z_]+)`\)", page.read_text())
    code = "".join(path.read_text() for path in page.parent.rglob("*.py"))
    assert len(named) >= 4
    assert [name for name in named if f'"{name}"' not in code] == []


def test_the_invariants_on_the_page_of_fan_out_are_those_of_the_code() -> None:
    """Each one is stated where it is kept, and on the page."""
    code = "".join(path.read_text() for path in FANOUT.parent.rglob("*.py"))
    stated = set(re.findall(r"^ +(FAN-\d+):", code, re.MULTILINE))
    assert stated == set(re.findall(r"^\| (FAN-\d+) \|", FANOUT.read_text(), re.MULTILINE))


def test_the_invariants_on_the_page_of_reports_are_those_of_the_code() -> None:
    """Each one is stated where it is kept, or where both sides of a contract read it, and on the page."""
    files = [*REPORTS.parent.rglob("*.py"), ROOT / "src/tickwright/ports/reports.py"]
    stated = set(re.findall(r"^ +(R[A-Z]{2}-\d+):", "".join(path.read_text() for path in files), re.MULTILINE))
    table = REPORTS.read_text().partition("**Invariants.**")[2].partition("**Limits.**")[0]
    assert stated == set(re.findall(r"R[A-Z]{2}-\d+", table))


def test_invariants_and_probes_of_batches_are_those_of_the_code() -> None:
    """Each invariant is stated where it is kept and on the page; each step that a test can kill at has its row."""
    code = "".join(path.read_text() for path in BATCH.parent.rglob("*.py"))
    table = BATCH.read_text().partition("**Invariants.**")[2].partition("**Limits.**")[0]
    assert set(re.findall(r"^ +([A-Z]{3}-\d+):", code, re.MULTILINE)) == set(re.findall(r"[A-Z]{3}-\d+", table))
    steps = set(re.findall(r'reached\(\s*"([a-z]+\.\w+)"', code))
    assert steps == set(re.findall(r"\(`([a-z]+\.\w+)`\)", BATCH.read_text()))


def test_every_probe_of_reports_is_on_their_page() -> None:
    """A step between two effects that a test can kill at has its row of what is left."""
    code = "".join(path.read_text() for path in REPORTS.parent.rglob("*.py"))
    reached = set(re.findall(r'reached\("(reports\.\w+)"', code))
    assert reached == set(re.findall(r"`(reports\.\w+)`", REPORTS.read_text()))


def test_the_task_on_the_page_of_messages_is_what_a_scheduler_writes() -> None:
    """Member by member, in their order; and every member has its line."""
    section = (DOCS / "messages.md").read_text().partition("\n## Tasks of entities\n")[2].partition("\n## ")[0]
    [shown] = re.findall(r"```json\n(.*)\n```", section)
    said = json.loads(shown)
    window = Window(int(said["MessageId"].rpartition(":")[2]), 900)
    party = json.dumps(said["EntityParty"], separators=(",", ":")).encode()
    last_s = datetime.fromisoformat(said["LastExecutedAt"]).timestamp()
    written = write_task("NL-TNM", "LOCATIONS", party, window, last_s, said["TimeoutMs"], None, said["ConfigVersion"])
    assert written == (said["MessageId"], shown.encode())
    named = [
        word
        for line in re.findall(r"^\| (`[A-Z].*?) \|", section, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", line)
    ]
    assert sorted(named) == sorted(said)


def test_the_queues_on_the_page_of_messages_are_those_that_are_made() -> None:
    """Names and arguments of the table, and of the line below it."""
    section = (DOCS / "messages.md").read_text().partition("\n## Tasks of entities\n")[2].partition("\n## ")[0]
    names = fanout_names()
    for queue, arguments in names.queues.items():
        shown = queue.removeprefix(names.delays[1][: -len(".1s")])
        assert f"`{shown}`" in section or f"`{queue}`" in section, queue
        for argument, value in arguments.items():
            said = f"{value:,}" if isinstance(value, int) else f"`{value}`"
            assert argument == "x-queue-type" or (said in section and f"`{argument}`" in section) or (
                argument == "x-dead-letter-exchange" and f"dead letters to `{value}`" in section
            ), (queue, argument)  # fmt: skip


def test_the_picture_of_fan_out_is_drawn_from_its_report() -> None:
    """The picture contains its report; drawn from it again, not one character differs."""
    spec = importlib.util.spec_from_file_location("fanout_picture", ROOT / "bench/fanout_picture.py")
    assert spec is not None
    assert spec.loader is not None
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    shown = (DOCS / "fanout-before-after.svg").read_text(encoding="utf-8")
    [report] = re.findall(r"<metadata>(.*)</metadata>", shown)
    assert shown == drawing.picture(json.loads(unescape(report)))


@pytest.mark.matrix
@pytest.mark.parametrize("title", ["Trackers", "Entities", "Reports", "Campaigns"])
def test_the_commands_of_the_tours_sections_work(database_url: str, tmp_path: Path, title: str) -> None:
    """Every line of the section's shell block, in order, on one database."""
    (tmp_path / "trackers.csv").write_text("account_id,partner,external_id\nshop,dhl,JD014600002\n")
    (tmp_path / "scored.toml").write_text('listeners = ["scores"]\nparameters = { least = "integer" }\n')
    (tmp_path / "entities.csv").write_text("code,polling_enabled_modules\nBE-BCA,LOCATIONS\n")
    section = tmp_path / "section.md"
    section.write_text(
        (DOCS / "tour.md").read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    )
    [(_, block)] = blocks(section, "sh")
    for _, text in blocks(section, "json"):
        (tmp_path / "loans.json").write_text(text)
    with sqlite3.connect(tmp_path / "crm.sqlite") as crm:
        crm.execute("CREATE TABLE clients (id integer PRIMARY KEY, age integer, income real, country text)")
    crm.close()
    config = tmp_path / "tickwright.toml"
    config.write_text(f'[sources.crm]\nurl = "sqlite://{tmp_path}/crm.sqlite"\n')
    env = environment(DATABASE_URL=database_url, CONFIG=str(config))
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(lines) >= 8
    for program, *words in lines:
        assert program == "tickwright"
        said = tickwright(*words, env=env, cwd=str(tmp_path))
        assert said.code == 0, (words, said)


@pytest.mark.parametrize(
    ("page", "number", "text"),
    [
        (page.name, n, text)
        for page in PAGES
        for n, (_, text) in enumerate(blocks(page, "toml"), start=1)
        if "[project" not in text
    ],
)
def test_a_toml_file_on_the_pages_is_valid(tmp_path: Path, page: str, number: int, text: str) -> None:
    """A process starts with each of them as it is: every key is known."""
    file = tmp_path / f"{page}-{number}.toml"
    file.write_text(text, encoding="utf-8")
    assert load_config(file)


def test_every_variable_is_on_the_page_of_operations() -> None:
    """The table of the environment has every setting and no other."""
    named = set(re.findall(r"^\| `TICKWRIGHT_([A-Z_]+)` \|", (DOCS / "operations.md").read_text(), re.MULTILINE))
    assert named == {name.upper() for part in parts() for name in part.model_fields}


def test_every_alert_has_a_line_in_the_runbook() -> None:
    """The runbook lists every alert by its name."""
    runbook = (DOCS / "operations.md").read_text().partition("## Alerts")[2]
    named = set(re.findall(r"^\| `(\w+)` \|", runbook, re.MULTILINE))
    assert named == {rule.name for rule in (*RULES, *OWN_RULES)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    """The target of every relative link exists."""
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


def test_the_files_of_the_page_of_testing_pass(tmp_path: Path) -> None:
    """Each Python block is a file with the name of its first line; pytest runs them as its reader does."""
    names = []
    for _, text in blocks(DOCS / "testing.md", "python"):
        name = text.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
        names.append(name)
    assert names == ["shop.py", "test_remind.py", "test_order.py", "conftest.py"]
    ini = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{ini}")
    plugins = ["-p", "tickwright.testing.plugin", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    env = {**environment(), "TICKWRIGHT_TEST_HOME": str(tmp_path / "server")}
    command = [sys.executable, "-m", "pytest", "-q", *plugins]
    said = subprocess.run(command, cwd=tmp_path, env=env, check=False, capture_output=True, text=True, timeout=90)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "10 passed" in said.stdout
