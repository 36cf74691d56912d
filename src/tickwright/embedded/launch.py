"""Starting a server, whatever state the last one is in.

::

    ready? ── yes ─────────────────────────────────────────────► done
      │ no
      ├─ a postmaster lives (starts, recovers, stops) ─► check again later
      ├─ it lives and reports ready, but its socket is gone ─► stop it
      └─ nothing lives ─► clear the leftovers, launch, check again later

A recovery after a crash can take minutes, so a live server is waited for. Only a server that ends by itself is launched
again, at most three times.
"""

import os
import socket
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from tickwright.domain.errors import Unavailable
from tickwright.embedded.account import Account
from tickwright.embedded.binaries import Binaries
from tickwright.embedded.cluster import STATISTICS_LIBRARY, command_line, server_environment
from tickwright.embedded.home import Home, View
from tickwright.embedded.processes import (
    Postmaster,
    clear_leftovers,
    find_postmaster,
    is_running,
    stop_postmaster,
    wait_until,
)

_LAUNCHES_MAX = 3
_PROBE_TIMEOUT_S = 3
_DETACH = '"$@" </dev/null >&2 & echo $!'  # the server outlives us; init reaps it, so we keep no zombie


class Launch:
    """One attempt to start a server that accepts connections; the caller holds the start lock."""

    def __init__(self, home: Home, binaries: Binaries, settings: Mapping[str, str], *, tcp: bool) -> None:
        self._home = home
        self._binaries = binaries
        self._settings = settings
        self._tcp = tcp
        self._launches = 0
        self._pid: int | None = None

    def bring_up(self, within: timedelta) -> Postmaster:
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
        if accepts_connections(self._binaries, self._home.sockets, postmaster.port):
            return True
        if postmaster.ready and not _socket_file(self._home.sockets, postmaster.port).exists():
            stop_postmaster(self._home, postmaster)  # its socket was removed: no client can reach it
        return False

    def _launch_unless_pending(self) -> None:
        if self._pid is not None and is_running(self._pid):
            return
        if self._launches == _LAUNCHES_MAX:
            raise Unavailable("embedded_start_failed", f"PostgreSQL ended at once: {self._home.log_tail()}")
        clear_leftovers(self._home)
        self._launches += 1
        self._pid = self._launch()

    def _launch(self) -> int:
        log = self._home.open_log()
        try:
            with self._home.view() as view:
                server = [*self._home.account.prefix(), *self._server(view)]
                return _run_detached(server, log, self._home.account, view.descriptors)
        finally:
            os.close(log)

    def _server(self, view: View) -> list[str]:
        settings = command_line(
            self._settings,
            view.path(self._home.sockets),
            tcp_port=_free_port() if self._tcp else None,
            statistics=self._binaries.has_library(STATISTICS_LIBRARY),
        )
        return [self._binaries.program("postgres"), "-D", str(view.path(self._home.data)), *settings]


def accepts_connections(binaries: Binaries, sockets: Path, port: int) -> bool:
    """Return whether the server behind the socket accepts connections; takes at most three seconds."""
    command = [binaries.program("pg_isready"), "-q", "-h", str(sockets), "-p", str(port), "-t", str(_PROBE_TIMEOUT_S)]
    done = subprocess.run(command, check=False, capture_output=True, env=server_environment())
    return done.returncode == 0


def _socket_file(sockets: Path, port: int) -> Path:
    return sockets / f".s.PGSQL.{port}"


def _run_detached(command: list[str], log: int, account: Account, descriptors: tuple[int, ...]) -> int:
    shell = ["sh", "-c", _DETACH, "sh", *command]
    try:
        done = subprocess.run(
            shell,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env=server_environment(),
            cwd="/",
            pass_fds=descriptors,
            **account.run_as(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable("embedded_start_failed", f"PostgreSQL could not be launched: {error}") from error
    return int(done.stdout)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
