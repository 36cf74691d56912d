"""The environment of a bench: a database of its own on a server of its own, and worker processes.

Without ``TICKWRIGHT_DATABASE_URL`` the bench starts a server from the embedded binaries with the settings that
``docs/performance.md`` names; with it, it makes a database on that server and drops it. It never touches a
database that it did not make.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from tickwright.embedded import EmbeddedServer, ensure_reader
from tickwright.store.migrate import migrate
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "ground.sql")
SETTINGS = {
    "shared_buffers": "2GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "synchronous_commit": "on",
    "fsync": "on",
    "max_connections": "200",
}
SHOWN = (
    "fsync",
    "synchronous_commit",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
    "server_version",
)
DATABASE = f"tickwright_bench_{os.getpid()}"
READER = "tickwright_bench_reader"
PROGRAM = "tickwright.bench.program"
CHECK_S = 0.02
COMPILING = "PYTHONDONTWRITEBYTECODE"
"""With it each process would compile all modules; an installation has them compiled."""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass
class Ground:
    """A migrated database, a folder for logs, and the processes that work on it."""

    url: str
    folder: Path
    connection: Connection
    pgbench_program: Path
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    started: int = 0

    def start(
        self, *, keep: bool = True, program: str = PROGRAM, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start one worker with default settings; returns when it has registered."""
        newest = self.one("SELECT coalesce(max(id), 0) FROM tickwright.workers")
        own = {"BENCH_KEEP": "1" if keep else "0", "BENCH_LOG": str(self.log()), **(environment or {})}
        process = self.launch("worker", "--app", f"{program}:app", environment=own)
        wait_until(lambda: self._registered(process, newest), 30, "the worker to register")
        return process

    def launch(self, *words: str, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Start one long-running ``tickwright`` command."""
        self.started += 1
        with (self.folder / f"worker{self.started}.out").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tickwright", *words],
                env=self._variables() | dict(environment or {}),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )
        self.workers.append(process)
        return process

    def command(self, *words: str) -> str:
        """Run one short ``tickwright`` command; return what it printed."""
        command = [sys.executable, "-m", "tickwright", *words]
        return subprocess.run(command, env=self._variables(), capture_output=True, text=True, check=True).stdout

    def _variables(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TICKWRIGHT_", COMPILING))},
            "TICKWRIGHT_DATABASE_URL": self.url,
            "TICKWRIGHT_METRICS_BIND": "127.0.0.1:0",
        }

    def _registered(self, process: "subprocess.Popen[bytes]", newest: int) -> bool:
        if process.poll() is not None:
            raise RuntimeError((self.folder / f"worker{self.started}.out").read_text()[-2000:])
        return bool(self.one("SELECT max(id) > %s FROM tickwright.workers", newest))

    def log(self) -> Path:
        """The file into which handlers write."""
        return self.folder / "events.log"

    def events(self) -> list[list[str]]:
        """What handlers wrote, whole lines only."""
        if not self.log().exists():
            return []
        return [line.split() for line in self.log().read_text().splitlines()]

    def stop_one(self, process: "subprocess.Popen[bytes]") -> None:
        """Stop one process by SIGTERM first."""
        self.workers.remove(process)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill_one(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill one process."""
        self.workers.remove(process)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stop the workers by SIGTERM first."""
        for process in self.workers:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.workers:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.workers.clear()

    def kill9(self) -> None:
        """Kill the workers."""
        for process in self.workers:
            process.kill()
            process.wait()
        self.workers.clear()

    def reader_url(self, url: str | None = None) -> str:
        """Return the URL of the database, or of another one, for a source: a role that reads the tables of now."""
        return ensure_reader(url or self.url, READER)

    def clear(self) -> None:
        """Empty the live and the finished jobs and the log."""
        self.run("TRUNCATE tickwright.scheduled_tasks, tickwright.job_keys")
        self.run("DELETE FROM tickwright.task_types")
        self.log().unlink(missing_ok=True)

    def pause(self, task_type: str) -> None:
        """Let jobs of a type wait, as an operator does."""
        self.run("UPDATE tickwright.task_types SET paused_at = now() WHERE name = %s", task_type)

    def enable(self, task_type: str) -> None:
        """Let them go on."""
        self.run("UPDATE tickwright.task_types SET paused_at = NULL WHERE name = %s", task_type)

    def pgbench(self, script: str, *, clients: int, transactions: int, variables: tuple[str, ...] = ()) -> float:
        """Run a pgbench script; return transactions a second."""
        path = self.folder / "script.sql"
        path.write_text(script)
        defined = [word for variable in variables for word in ("-D", variable)]
        command = [
            str(self.pgbench_program), "-n", "-f", str(path), "-c", str(clients), "-j", str(min(clients, 2)),
            "-t", str(transactions), "-M", "prepared", *defined, self.url,
        ]  # fmt: skip
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.search(r"tps = ([\d.]+)", output)
        if found is None:
            raise RuntimeError(f"pgbench said: {output}")
        return float(found.group(1))

    def run(self, text: str, *values: Any) -> None:
        """Run one statement."""
        self.connection.execute(text.encode(), values or None)

    def one(self, text: str, *values: Any) -> Any:
        """Return one value."""
        row = self.connection.execute(text.encode(), values or None).fetchone()
        return None if row is None else row[0]

    def row(self, text: str, *values: Any) -> tuple[Any, ...]:
        """Return the row of one statement whose parameters are written ``$1``."""
        found = psycopg.RawCursor(self.connection).execute(text.encode(), values).fetchone()
        if found is None:
            raise RuntimeError(f"no row: {text[:80]}")
        return found

    def now_s(self) -> float:
        """Return the database's clock in seconds since 1970."""
        return float(self.row(SQL["now"])[0])

    def message_key(self) -> bytes:
        """Return the key that tasks of fan-out are signed with."""
        return bytes(self.one(SQL["message_key"]))

    def left(self, task_type: str | None = None) -> int:
        """How many jobs are not finished, of all types or of one."""
        if task_type is None:
            return int(self.one("SELECT count(*) FROM ONLY tickwright.scheduled_tasks"))
        return int(self.one("SELECT count(*) FROM ONLY tickwright.scheduled_tasks WHERE task_type = %s", task_type))

    def facts(self) -> dict[str, str]:
        """The server's version and the settings that decide figures."""
        return {name: str(self.one("SELECT current_setting(%s)", name)) for name in SHOWN}


@contextmanager
def open_ground() -> Iterator[Ground]:
    """Make the database, and at the end drop it and stop everything that works on it."""
    folder = Path(tempfile.mkdtemp(prefix="twb"))
    given = os.environ.get("TICKWRIGHT_DATABASE_URL")
    server = None if given else EmbeddedServer(folder / "home", SETTINGS)
    try:
        if server is not None:
            server.start()
        with (
            _database(given or server.dsn if server else given or "") as url,
            psycopg.connect(url, autocommit=True) as own,
        ):
            ground = Ground(url, folder, own, _pgbench())
            try:
                yield ground
            finally:
                ground.kill9()
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _database(server_url: str) -> Iterator[str]:
    name = sql.Identifier(DATABASE)
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        try:
            url = make_url(server_url).set(database=DATABASE).render_as_string(hide_password=False)
            migrate(url)
            yield url
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def _pgbench() -> Path:
    found = shutil.which("pgbench")
    folders = [path.parent for path in [Path(found)] if found] if found else []
    from tickwright.embedded.binaries import find_binaries

    with suppress(Exception):
        folders.insert(0, find_binaries().folder)
    for folder in folders:
        if (folder / "pgbench").exists():
            return folder / "pgbench"
    raise RuntimeError("pgbench is missing: it measures the limit that the figures are compared with")


def wait_until(there: Callable[[], Any], within_s: float, what: str, *, check_s: float = CHECK_S) -> Any:
    """Return the first true value of ``there``."""
    deadline = time.monotonic() + within_s
    while not (value := there()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within_s} s for {what}")
        time.sleep(check_s)
    return value
