"""The server's settings: ours, the caller's on top, and the few that nobody may change.

Settings are given on the command line, so they hold from the first query on and a data
directory carries none of them. Whoever starts the server decides; a client that joins a
running one gets it as it is.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from tickwright.domain.errors import Rejected

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
    """Refuse settings that would open the server or lose it.

    Raises:
        Rejected: ``embedded_setting_reserved`` or ``embedded_setting_invalid``. Permanent.
    """
    for name, value in settings.items():
        if name in RESERVED:
            raise Rejected("embedded_setting_reserved", f"The embedded server decides {name} itself: leave it out.")
        if _NAME.fullmatch(name) is None or "\0" in value:
            raise Rejected("embedded_setting_invalid", f"{name!r} is not the name of a PostgreSQL setting.")


def command_line(settings: Mapping[str, str], sockets: Path, *, tcp_port: int | None, statistics: bool) -> list[str]:
    """Return the arguments that start a server with ``settings`` on top of ours.

    Args:
        settings: The caller's, already checked.
        sockets: Folder of the Unix socket, mode 0700.
        tcp_port: Also listen on 127.0.0.1 at this port; ``None`` for the socket only.
        statistics: Preload ``pg_stat_statements``, because this installation has it.
    """
    preloaded = {"shared_preload_libraries": STATISTICS_LIBRARY} if statistics else {}
    ours = {
        "listen_addresses": "" if tcp_port is None else "127.0.0.1",
        "port": str(DEFAULT_PORT if tcp_port is None else tcp_port),
        "unix_socket_directories": '"' + str(sockets).replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
    }
    chosen = {**DEFAULTS, **preloaded, **settings, **ours}
    return [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
