"""The client's side of the embedded server: join, get an address, leave.

Joining and leaving happen under the start lock, everything in between without it. A ``kill -9`` can happen at any
point; the table shows the result.

=============================  ==================================================
killed                         what the next start finds and does
=============================  ==================================================
a client                       its lock is gone; the others continue
the last client                the server runs on; the next last client stops it
during ``initdb``              a ``data.new.*`` folder; removes it, starts over
during the server's start      a live server without users; joins it
the postmaster                 a stale pid file; clears it, recovers the data
everything at once             the same
=============================  ==================================================
"""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import errors, sql

from tickwright.domain.errors import Unavailable
from tickwright.embedded.binaries import Binaries, find_binaries, programs_for
from tickwright.embedded.cluster import (
    STATISTICS_LIBRARY,
    check_settings,
    command_line,
    make_cluster,
    server_environment,
)
from tickwright.embedded.home import Account, Home, View, open_home
from tickwright.embedded.processes import (
    Postmaster,
    clear_leftovers,
    find_postmaster,
    is_only_user,
    is_running,
    join_users,
    start_lock,
    stop_postmaster,
    stop_roots_server,
    wait_until,
)

_LAUNCHES_MAX = 3
_PROBE_TIMEOUT_S = "3"
_DETACH = '"$@" </dev/null >&2 & echo $!'  # the server outlives us; init reaps it, so we keep no zombie


class Launch:
    """Starts a server, whatever state the last one is in, until it accepts connections.

    ::

        ready? ── yes ─────────────────────────────────────────────► done
          │ no
          ├─ a postmaster lives (starts, recovers, stops) ─► check again later
          ├─ it lives and reports ready, but its socket is gone ─► stop it
          └─ nothing lives ─► clear the leftovers, launch, check again later

    A recovery after a crash can take minutes, so a live server is waited for. Only a server that ends by itself is
    launched again, at most three times. The caller holds the start lock.
    """

    def __init__(self, home: Home, binaries: Binaries, settings: Mapping[str, str]) -> None:
        self._home, self._binaries, self._settings = home, binaries, settings
        self._launches = 0
        self._pid: int | None = None

    def start(self, within: timedelta) -> Postmaster:
        """Return the server once it accepts connections.

        Raises:
            Unavailable: ``embedded_start_failed``: it ended by itself; the text has the end of its log;
                ``embedded_start_timeout``: its recovery continues. Retry both.
        """
        self._home.make_socket_folder()
        if wait_until(self._is_up, within):
            postmaster = find_postmaster(self._home)
            if postmaster is not None:
                return postmaster
        raise Unavailable(
            "embedded_start_timeout",
            f"PostgreSQL in {self._home.path} accepts no connections after {within}; "
            "it goes on with its recovery, so try again later.",
        )

    def _is_up(self) -> bool:
        postmaster = find_postmaster(self._home)
        if postmaster is None:
            self._launch_unless_pending()
            return False
        sockets, port = self._home.sockets, str(postmaster.port)
        command = [self._binaries.program("pg_isready"), "-q", "-h", str(sockets), "-p", port, "-t", _PROBE_TIMEOUT_S]
        if subprocess.run(command, check=False, capture_output=True, env=server_environment()).returncode == 0:
            return True
        if postmaster.ready and not (sockets / f".s.PGSQL.{port}").exists():
            stop_postmaster(self._home, postmaster)  # its socket was removed: no client can reach it
        return False

    def _launch_unless_pending(self) -> None:
        if self._pid is not None and is_running(self._pid):
            return
        if self._launches == _LAUNCHES_MAX:
            raise Unavailable("embedded_start_failed", f"PostgreSQL ended at once: {self._home.log_tail()}")
        clear_leftovers(self._home)
        self._launches += 1
        log = self._home.open_log()
        try:
            with self._home.view() as view:
                server = [*self._home.account.prefix(), *self._server(view)]
                self._pid = _run_detached(server, log, self._home.account, view.descriptors)
        finally:
            os.close(log)

    def _server(self, view: View) -> list[str]:
        settings = command_line(
            self._settings,
            view.path(self._home.sockets),
            statistics=self._binaries.has_library(STATISTICS_LIBRARY),
        )
        return [self._binaries.program("postgres"), "-D", str(view.path(self._home.data)), *settings]


def _run_detached(command: list[str], log: int, account: Account, descriptors: tuple[int, ...]) -> int:
    try:
        done = subprocess.run(
            ["sh", "-c", _DETACH, "sh", *command],
            check=True,
            text=True,
            start_new_session=True,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=server_environment(),
            cwd="/",
            **account.run_as(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable("embedded_start_failed", f"PostgreSQL could not be launched: {error}") from error
    return int(done.stdout)


_LEAVE_WITHIN = timedelta(seconds=10)
_START_WITHIN = timedelta(minutes=10)


class EmbeddedServer:
    """A PostgreSQL that needs no set-up; all clients that name the same home share it.

    Each object is one client, in any process. The first client to start launches the server, the last one to stop stops
    it. Not for concurrent use by several threads. Calls block, so an event loop calls them in a thread.

    Security: connections through the Unix socket need no password, because the folder of the socket has mode 0700 and
    only its owner (and root) can enter it. The server does not listen on TCP.

    Args:
        home: The home directory, on a local file system; created with mode 0700 if missing.
        settings: PostgreSQL settings on top of ours. Only the client that launches the server applies them.
        start_within: Bound of ``start``, including recovery after a crash. Above zero.

    Raises:
        Rejected: ``embedded_setting_reserved``, ``embedded_setting_invalid``. Permanent.

    Invariants:
        EMB-1: while a started client lives, no other client stops the server.
        EMB-2: at most one server works on a home, however many clients start at once.
        EMB-3: committed data survives ``kill -9`` of any set of processes.
    """

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, str] | None = None,
        *,
        start_within: timedelta = _START_WITHIN,
    ) -> None:
        self._path, self._settings, self._start_within = home, dict(settings or {}), start_within
        check_settings(self._settings)
        self._home: Home | None = None
        self._postmaster: Postmaster | None = None
        self._users_descriptor: int | None = None
        self._owner_pid = os.getpid()

    def start(self) -> None:
        """Return when the server accepts connections; launch, repair or wait for it as needed.

        A repeated call is harmless, and restarts a server that was killed in the meantime.

        Raises:
            Unavailable: ``embedded_no_binaries``, ``embedded_path_closed``, ``embedded_busy``,
                ``embedded_initdb_failed``, ``embedded_start_failed``, ``embedded_start_timeout``,
                ``embedded_home_in_use``. Retry.
            Rejected: ``embedded_home_unsafe``, ``embedded_home_not_ours``, ``embedded_root_not_dropped``,
                ``embedded_socket_folder_unsafe``, ``embedded_version_mismatch``. Permanent.
        """
        home = self._home or open_home(self._path)
        with start_lock(home, self._start_within):
            self._close_users()  # rejoins below; the start lock prevents a stop meanwhile
            self._postmaster = self._bring_up(home)
            self._users_descriptor = join_users(home)
        self._home = home
        self._owner_pid = os.getpid()

    def stop(self) -> bool:
        """Leave, and stop the server if no other client uses it. Repeated calls are harmless.

        Returns:
            Whether the server was stopped.

        Raises:
            Unavailable: ``embedded_stop_timeout``; this client has left anyway. Do not retry.
        """
        descriptor, home = self._users_descriptor, self._home
        if descriptor is None or home is None:
            return False
        try:
            return self._owner_pid == os.getpid() and self._stop_if_last(home, descriptor)
        finally:
            self._close_users()

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives; valid between ``start`` and ``stop``."""
        return self._users_descriptor is not None and find_postmaster(self._started) is not None

    @property
    def dsn(self) -> str:
        """The URL of database ``postgres`` through the socket. Raises ``Unavailable`` (``embedded_not_started``)."""
        return self.url("postgres")

    def url(self, database: str) -> str:
        """Return the URL of ``database`` through the socket; errors as ``dsn``."""
        folder = quote(str(self._started.sockets), safe="/")
        return f"postgresql://postgres@/{quote(database, safe='')}?host={folder}&port={self._running.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _bring_up(self, home: Home) -> Postmaster:
        stop_roots_server(home)
        home.take_over()
        binaries = programs_for(home.account, find_binaries(home.cluster_major()))
        if home.cluster_major() is None:
            make_cluster(home, binaries)
        return Launch(home, binaries, self._settings).start(self._start_within)

    def _stop_if_last(self, home: Home, descriptor: int) -> bool:
        try:
            with start_lock(home, _LEAVE_WITHIN):
                if not is_only_user(descriptor):
                    return False
                postmaster = find_postmaster(home)
                if postmaster is not None:
                    stop_postmaster(home, postmaster)
                return postmaster is not None
        except Unavailable as busy:
            if busy.code != "embedded_busy":
                raise
            return False  # the holder of the lock is starting, and will stop the server

    def _close_users(self) -> None:
        descriptor, self._users_descriptor = self._users_descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    @property
    def _started(self) -> Home:
        if self._home is None or self._users_descriptor is None:
            raise Unavailable("embedded_not_started", "The embedded server has no address before start().")
        return self._home

    @property
    def _running(self) -> Postmaster:
        if self._postmaster is None:
            raise Unavailable("embedded_not_started", "The embedded server has no address before start().")
        return self._postmaster


_CONNECT_TIMEOUT_S = 10
_STATEMENTS = files("tickwright.embedded") / "sql"


def ensure_database(server_url: str, name: str = "tickwright") -> str:
    """Create the database ``name`` (at most 63 bytes, quoted) if it is missing, and return its URL.

    Any number of processes can call it concurrently; one of them creates it. The user of ``server_url`` may create
    databases. Raises ``Unavailable`` (``embedded_database_failed``: the server does not answer or refuses). Retry.
    """
    try:
        with psycopg.connect(server_url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
            _create_if_missing(connection, name)
    except psycopg.Error as error:
        raise Unavailable("embedded_database_failed", f"Database {name!r} could not be made: {error}") from error
    parts = urlsplit(server_url)
    return urlunsplit(parts._replace(path="/" + quote(name, safe="")))


def ensure_reader(database_url: str, name: str) -> str:
    """Create a plain role that reads the tables in a database's schema ``public``; return its URL for a source.

    The user of ``database_url`` owns the tables. The role's password is derived from the one in ``database_url``, so
    each call returns the same; if that has no password, the role has none. Any number of processes can call it
    concurrently. If the user may not create roles, its own URL is returned, because it is plain enough. Raises
    ``Unavailable`` (``embedded_database_failed``: the server does not answer or refuses). Retry.
    """
    parts = urlsplit(database_url)
    password = sha256(f"{name}:{parts.password}".encode()).hexdigest() if parts.password else ""
    try:
        with psycopg.connect(database_url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
            connection.execute(_statement("one_at_a_time"))
            _put_reader(connection, name, password)
    except errors.InsufficientPrivilege:
        return database_url
    except psycopg.Error as error:
        raise Unavailable("embedded_database_failed", f"Role {name!r} could not be made: {error}") from error
    user = quote(name, safe="") + (f":{password}" if password else "")
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}"))


def _put_reader(connection: psycopg.Connection, name: str, password: str) -> None:
    role = sql.Identifier(name)
    with suppress(errors.DuplicateObject):
        connection.execute(sql.SQL(_statement("make_reader")).format(name=role))
    if password:
        text = _statement("set_reader_password")
        connection.execute(sql.SQL(text).format(name=role, password=sql.Literal(password)))
    connection.execute(sql.SQL(_statement("let_reader_in")).format(name=role))


def _create_if_missing(connection: psycopg.Connection, name: str) -> None:
    found = connection.execute(_statement("database_exists"), {"name": name}).fetchone()
    if found is not None and found[0]:
        return
    create = sql.SQL(_statement("create_database")).format(name=sql.Identifier(name))
    try:
        connection.execute(create)
    except (errors.DuplicateDatabase, errors.UniqueViolation):
        return  # another process was faster


def _statement(name: str) -> str:
    return (_STATEMENTS / f"{name}.sql").read_text(encoding="utf-8")
