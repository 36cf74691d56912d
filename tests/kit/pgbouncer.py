"""A real PgBouncer in transaction mode, in front of a PostgreSQL of the kit."""

import contextlib
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.parse import quote

import psycopg

from kit.postgres import PostgresServer
from kit.processes import free_port, is_running, kill_group, make_folder, missing, spawn, unprivileged
from kit.waiting import eventually


class PgBouncer:
    """One pooler on a free loopback port; passes every database of ``server`` on.

    Args:
        server: Where it connects to; running.
        pool_size: Server connections per database.
    """

    def __init__(self, server: PostgresServer, *, pool_size: int = 10) -> None:
        program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
        if program is None:
            missing("PgBouncer")
        self._program = program
        self.server = server
        self.folder = make_folder("pgb")
        self.log = self.folder / "log"
        self.port = free_port()
        self._pool_size = pool_size
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL of the ``postgres`` database through the pooler."""
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        """Return the URL of the database ``name`` through the pooler."""
        return f"postgresql://postgres:{self.server.password}@127.0.0.1:{self.port}/{quote(name)}"

    def start(self) -> None:
        """Return when the pooler passes a connection on."""
        command = [*unprivileged(), self._program, str(self._write_configuration())]
        self._child = spawn(command, self.log)
        eventually(self._accepts, 20, what=f"PgBouncer accepts connections ({self.log})")

    def stop(self) -> None:
        """Stop the pooler; connections are cut. Twice is harmless."""
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                kill_group(child)

    def kill9(self) -> None:
        """``kill -9`` the pooler."""
        child, self._child = self._child, None
        if child is not None:
            kill_group(child)

    def restart(self) -> None:
        """Stop and start on the same port."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill the pooler and remove its folder."""
        self.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_configuration(self) -> Path:
        users = self.folder / "users.txt"
        users.write_text(f'"postgres" "{self.server.password}"\n')
        file = self.folder / "pgbouncer.ini"
        file.write_text(
            f"[databases]\n* = host=127.0.0.1 port={self.server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {users}\npool_mode = transaction\n"
            f"default_pool_size = {self._pool_size}\nmax_client_conn = 500\nserver_reset_query =\n"
            "ignore_startup_parameters = extra_float_digits\nadmin_users = postgres\n"
        )
        for path in (users, file):
            path.chmod(0o644)  # the folder is private
        return file

    def _accepts(self) -> bool:
        assert self._child is not None
        assert is_running(self._child.pid), self.log.read_text(errors="replace")[-2000:]
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url, connect_timeout=5):
            return True
        return False
