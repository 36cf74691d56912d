"""A real PgBouncer in transaction mode, in front of a PostgreSQL of the kit."""

import contextlib
import shutil
from pathlib import Path
from urllib.parse import quote

import psycopg

from kit.postgres import READER, PostgresServer
from kit.processes import is_running, missing, spawn, unprivileged
from kit.server_process import ServerProcess
from kit.waiting import eventually


class PgBouncer(ServerProcess):
    """One pooler on a free loopback port; passes every database of ``server`` on.

    Args:
        server: The running server to which it connects.
        pool_size: Server connections per database.
    """

    def __init__(self, server: PostgresServer, *, pool_size: int = 10) -> None:
        program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
        if program is None:
            missing("PgBouncer")
        super().__init__("pgb")
        self._program = program
        self.server = server
        self._pool_size = pool_size

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

    def add_user(self, name: str, password: str) -> None:
        """Let a role of the server connect."""
        with (self.folder / "users.txt").open("a") as users:
            users.write(f'"{name}" "{password}"\n')
        with psycopg.connect(self.database_url("pgbouncer"), autocommit=True, prepare_threshold=None) as admin:
            admin.execute("RELOAD")

    def _write_configuration(self) -> Path:
        users = self.folder / "users.txt"
        users.write_text("".join(f'"{role}" "{self.server.password}"\n' for role in ("postgres", READER)))
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
