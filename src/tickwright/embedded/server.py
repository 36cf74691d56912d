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
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from tickwright.domain.errors import Unavailable
from tickwright.embedded.binaries import find_binaries, programs_for
from tickwright.embedded.cluster import check_settings, make_cluster
from tickwright.embedded.home import Home, open_home
from tickwright.embedded.launch import Launch
from tickwright.embedded.processes import (
    Postmaster,
    find_postmaster,
    is_only_user,
    join_users,
    start_lock,
    stop_postmaster,
    stop_roots_server,
)

_LEAVE_WITHIN = timedelta(seconds=10)
_START_WITHIN = timedelta(minutes=10)


class EmbeddedServer:
    """A PostgreSQL that needs no set-up; all clients that name the same home share it.

    Each object is one client, in any process. The first client to start launches the server, the last one to stop stops
    it. Not for concurrent use by several threads. Calls block, so an event loop calls them in a thread.

    Security: connections through the Unix socket need no password, because the folder of the socket has mode 0700 and
    only its owner (and root) can enter it. With ``tcp`` the server also listens on 127.0.0.1 and requires the random
    password in the home (SCRAM).

    Args:
        home: The home directory, on a local file system; created with mode 0700 if missing.
        settings: PostgreSQL settings on top of ours. Only the client that launches the server applies them.
        tcp: Also listen on 127.0.0.1, at a free port. Only the client that launches the server applies it.
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
        tcp: bool = False,
        start_within: timedelta = _START_WITHIN,
    ) -> None:
        self._path = home
        self._settings = dict(settings or {})
        check_settings(self._settings)
        self._tcp = tcp
        self._start_within = start_within
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

    def tcp_url(self, database: str = "postgres") -> str:
        """Return the URL of ``database`` through 127.0.0.1, with the password. A secret: do not log it.

        Raises:
            Unavailable: ``embedded_no_tcp``: the running server was launched without ``tcp``; ``embedded_not_started``.
        """
        if not self._running.tcp:
            raise Unavailable("embedded_no_tcp", "The running server was launched without TCP; stop all its clients.")
        password = quote(self._started.password.read_text().strip(), safe="")
        address = f"127.0.0.1:{self._running.port}"
        return f"postgresql://postgres:{password}@{address}/{quote(database, safe='')}"

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
        launch = Launch(home, binaries, self._settings, tcp=self._tcp)
        return launch.bring_up(self._start_within)

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
