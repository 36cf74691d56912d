"""The plugin in runs of pytest of its own: an embedded server in a cache folder, several processes, a killed run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from kit.cli import environment
from kit.processes import is_running, processes_in
from kit.waiting import eventually
from tickwright.testing.databases import ScratchServer, default_home, open_scratch_server, template_name

PROGRAM = """
import pytest
from tickwright import Job, Tickwright
from tickwright.testing import assert_scheduled, perform, travel

app = Tickwright()
ran = []

@app.job("note")
async def note(job: Job, number: int) -> int:
    ran.append(number)
    return number

@pytest.mark.parametrize("number", range(8))
async def test_isolated(tickwright_app, number):
    ran.clear()
    async with tickwright_app(app) as opened:
        assert (await note.options(delay="1d", key="same").schedule(number=number)).created
        await assert_scheduled(opened, note, number=number)
        assert (await opened.drain(until="2d")).results == [number]
    assert ran == [number]

@pytest.mark.parametrize("number", range(4))
async def test_committed(tickwright_app, number):
    async with tickwright_app(app, isolated=False) as opened:
        assert (await note.options(key="same").schedule(number=number)).created
        assert (await opened.drain()).results == [number]

def test_the_schema_of_the_program_is_there(tickwright_database, tickwright_session_database):
    import psycopg
    for database in (tickwright_database, tickwright_session_database):
        with psycopg.connect(database.url) as connection:
            assert connection.execute("SELECT name FROM customers").fetchall() == [("Ada",)]
"""
CONFTEST = """
import psycopg, pytest

@pytest.fixture(scope="session")
def tickwright_prepare():
    def prepare(url):
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE customers AS SELECT 'Ada' AS name")
    return prepare
"""
KILLED = """
import os, signal

def test_it_is_killed(tickwright_database):
    print(tickwright_database.url, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
LIGHT = """
import sys

def test_nothing_is_loaded():
    assert "tickwright.testing.plugin" in sys.modules
    heavy = {"asyncpg", "psycopg", "pydantic", "alembic", "tickwright.app"}
    assert heavy & sys.modules.keys() == set()
"""
INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of a user that has just installed the package."""
    return tmp_path_factory.mktemp("cache") / "server"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with tests of a program."""
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_program.py").write_text(PROGRAM)
    return tmp_path


def run(project: Path, home: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as the user of a project does."""
    own = {"TICKWRIGHT_TEST_HOME": str(home), **variables}
    plugins = ["-p", "tickwright.testing.plugin", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "-q", *options]
    env = {**environment(), **own}
    return subprocess.run(command, cwd=project, env=env, check=False, capture_output=True, text=True, timeout=90)


def test_tests_of_a_project_pass_alone_in_parallel_and_again(project: Path, home: Path) -> None:
    """The second run finds the server's folder and the template; four processes share the server; none stays."""
    for options in ((), (), ("-n", "4")):
        said = run(project, home, *options)
        assert said.returncode == 0, said.stdout + said.stderr
        assert "13 passed" in said.stdout
        assert processes_in(home / "data") == []


def test_two_projects_at_once_share_a_server(project: Path, home: Path) -> None:
    """Neither stops it under the other, and neither drops the other's databases."""
    with open_scratch_server(home=home) as server:
        mine = server.create()
        said = run(project, home)
        assert said.returncode == 0, said.stdout + said.stderr
        with psycopg.connect(mine.url) as connection:
            connection.execute("SELECT FROM tickwright.scheduled_tasks")


def test_a_killed_run_leaves_no_server(project: Path, home: Path) -> None:
    """Its guard stops the server, and the next run drops the databases that it left."""
    (project / "test_program.py").write_text(KILLED)
    said = run(project, home, "-s", "-p", "no:randomly")
    assert said.returncode == -signal.SIGKILL
    left = next(line for line in said.stdout.split() if "tickwright_test_" in line)
    eventually(lambda: not processes_in(home / "data"), what="the guard stops the server")
    with open_scratch_server(home=home) as server:
        names = databases(server)
        assert left.partition("?")[0].rpartition("/")[2] not in names
        assert not [name for name in names if name.startswith("tickwright_test_")]


def test_a_killed_run_beside_another_one_stops_nothing(project: Path, home: Path) -> None:
    """The guard sees that the server is used; the databases of the other run stay."""
    with open_scratch_server(home=home) as server:
        mine = server.create()
        (project / "test_program.py").write_text(KILLED)
        assert run(project, home, "-p", "no:randomly").returncode == -signal.SIGKILL
        guard = f"tickwright.testing.guard {home}"
        eventually(lambda: not processes_with(guard), what="the guard ends")
        with psycopg.connect(mine.url) as connection:
            connection.execute("SELECT 1")
        with open_scratch_server(home=home):
            assert mine.url.partition("?")[0].rpartition("/")[2] in databases(server)


def test_a_server_that_was_killed_with_everything_starts_again(project: Path, home: Path) -> None:
    """After a power failure, too: the folder is recovered, and the template is there or is made again."""
    with open_scratch_server(home=home) as server:
        server.create()
        pids = processes_in(home / "data")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(is_running, pids)), what="the server is gone")
        with pytest.raises(psycopg.OperationalError):
            server.create()
    said = run(project, home)
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_template_of_another_schema_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each schema has a template of its own; of the older ones some stay, for other projects of the user."""
    with open_scratch_server(home=home) as server:
        server.create()
        first = [name for name in databases(server) if name.startswith("tickwright_template_")]
        assert first == [template_name(movable=True)]
    for number in range(6):
        changed = f"tickwright_template_9999_{number}"
        monkeypatch.setattr("tickwright.testing.databases.template_name", lambda *, movable, name=changed: name)
        with open_scratch_server(home=home) as server:
            server.create()
            found = [name for name in databases(server) if name.startswith("tickwright_template_")]
    assert found == [f"tickwright_template_9999_{number}" for number in range(2, 6)]


def test_a_database_that_the_user_keeps_is_migrated_and_used(
    project: Path, home: Path, empty_database_url: str
) -> None:
    """Isolated tests run there and leave nothing; no server is started."""
    (project / "conftest.py").unlink()
    server, _, name = empty_database_url.rpartition("/")
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}_test")
    url = f"{server}/{name}_test"
    (project / "test_program.py").write_text(PROGRAM.replace('until="2d"', "").replace('delay="1d", ', ""))
    said = run(project, home, "-k", "isolated", TICKWRIGHT_TEST_DATABASE_URL=url)
    assert said.returncode == 0, said.stdout + said.stderr
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM tickwright.scheduled_tasks").fetchone()
    assert row == (0,)


def test_the_plugin_costs_a_project_nothing_that_does_not_use_it(tmp_path: Path, home: Path) -> None:
    """It imports neither the product nor a driver at collection."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_light.py").write_text(LIGHT)
    blocked = ["-p", "no:asyncio", "-p", "no:anyio", "-p", "no:hypothesispytest"]
    said = run(tmp_path, home, *blocked)
    assert said.returncode == 0, said.stdout + said.stderr


def test_the_cache_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the variable, or below the cache folder, one per major version of PostgreSQL."""
    monkeypatch.setenv("TICKWRIGHT_TEST_HOME", str(tmp_path / "a"))
    assert default_home() == tmp_path / "a"
    monkeypatch.delenv("TICKWRIGHT_TEST_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_home().parent == tmp_path / "tickwright"


def databases(server: ScratchServer) -> list[str]:
    """Return the names of a server's databases, the oldest first."""
    with psycopg.connect(server.url) as connection:
        return [row[0] for row in connection.execute("SELECT datname FROM pg_database ORDER BY oid")]


def processes_with(text: str) -> list[int]:
    """Return the processes with ``text`` in their command lines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(int(folder.name))
    return found
