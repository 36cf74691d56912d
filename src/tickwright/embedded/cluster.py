"""Creating the data directory atomically.

``initdb`` works in a folder beside the final one, which is then renamed. After a crash the next start removes the
unfinished folder, so it never uses half a cluster. The folder's name is new each time, because an ``initdb`` whose
parent was killed can still be writing to the old one.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.embedded.binaries import Binaries
from tickwright.embedded.home import Home
from tickwright.ports.ids import random_token

# Settings of the server: defaults, then the caller's, then a few that cannot be changed. They are passed on the command
# line, so they apply from the first query on, and the data directory contains none. The client that starts the server
# decides; a client that joins a running server uses its settings.

DEFAULTS: Mapping[str, str] = {
    "shared_buffers": "256MB",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "autovacuum": "on",
    "fsync": "on",
    "synchronous_commit": "on",
}
STATISTICS_LIBRARY = "pg_stat_statements"
RESERVED = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "port",
        "unix_socket_directories",
        "unix_socket_permissions",
    }
)
DEFAULT_PORT = 5432
_NAME = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse settings that would open the server to others or make it unreachable.

    Raises:
        Rejected: ``embedded_setting_reserved`` or ``embedded_setting_invalid``. Permanent.
    """
    for name, value in settings.items():
        if name in RESERVED:
            raise Rejected("embedded_setting_reserved", f"The embedded server decides {name} itself: leave it out.")
        if _NAME.fullmatch(name) is None or "\0" in value:
            raise Rejected("embedded_setting_invalid", f"{name!r} is not the name of a PostgreSQL setting.")


def command_line(settings: Mapping[str, str], sockets: Path, *, statistics: bool) -> list[str]:
    """Return the arguments that start a server with the checked ``settings`` on top of ours.

    ``sockets`` is the folder of the Unix socket, mode 0700. ``statistics`` preloads ``pg_stat_statements``, if this
    installation has it.
    """
    preloaded = {"shared_preload_libraries": STATISTICS_LIBRARY} if statistics else {}
    ours = {
        "listen_addresses": "",
        "port": str(DEFAULT_PORT),
        "unix_socket_directories": '"' + str(sockets).replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
    }
    chosen = {**DEFAULTS, **preloaded, **settings, **ours}
    return [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]


_INITDB_TIMEOUT_S = 300
_PASSED_ON = ("PATH", "TZ", "LD_LIBRARY_PATH")  # the last one for programs in TICKWRIGHT_PG_BIN
_LOCALES = ("C.UTF-8", "C")  # the second for systems whose C library has no C.UTF-8


def server_environment() -> Mapping[str, str]:
    """Return the environment of the server's processes, without the caller's secrets.

    A superuser of the database can read these variables, and ``PG…`` variables would change the server.
    """
    return {**{name: os.environ[name] for name in _PASSED_ON if name in os.environ}, "LC_ALL": "C"}


def make_cluster(home: Home, binaries: Binaries) -> None:
    """Create the data directory of ``home``; the caller holds the start lock.

    Connections through the socket need no password (``trust``): the socket's folder has mode 0700, so only its owner
    can reach it. There are no others.

    Raises:
        Unavailable: ``embedded_initdb_failed``, for example because the disk is full. Retry.
    """
    output = ""
    for locale in _LOCALES:
        for leftover in home.unfinished_data():
            shutil.rmtree(leftover, ignore_errors=True)
        unfinished = home.path / f"data.new.{random_token(6)}"
        unfinished.mkdir(mode=0o700)
        if home.account.drops:
            home.account.own(unfinished)
        done = _initdb(home, binaries, unfinished, locale)
        if done.returncode == 0:
            unfinished.rename(home.data)
            _flush_folder(home)
            return
        output = (done.stdout + done.stderr).strip()
        if "invalid locale" not in output:
            break
    raise Unavailable("embedded_initdb_failed", f"initdb failed in {home.path}: {output[-2000:]}")


def _initdb(home: Home, binaries: Binaries, folder: Path, locale: str) -> subprocess.CompletedProcess[str]:
    with home.view() as view:
        command = [
            *home.account.prefix(),
            binaries.program("initdb"),
            *("--pgdata", str(view.path(folder)), "--username", "postgres"),
            *("--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", f"--locale={locale}", "--data-checksums"),
        ]
        try:
            return subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=_INITDB_TIMEOUT_S,
                env=server_environment(),
                cwd="/",
                pass_fds=view.descriptors,
                **home.account.run_as(),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable("embedded_initdb_failed", f"initdb did not finish: {error}") from error


def _flush_folder(home: Home) -> None:
    descriptor = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
