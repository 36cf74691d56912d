"""A real Redis for tests, with an append-only file."""

import shutil
from collections.abc import Mapping

from kit.processes import missing, spawn, wait_for_port
from kit.server_process import ServerProcess

SETTINGS: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}


class RedisServer(ServerProcess):
    """One server on a free loopback port, database 0, no password."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        if shutil.which("redis-server") is None:
            missing("Redis")
        super().__init__("redis")
        self.settings = {**SETTINGS, **(settings or {})}

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Return when the server answers a PING."""
        place = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "daemonize": "no"}
        options = [option for name, value in {**self.settings, **place}.items() for option in (f"--{name}", value)]
        self._child = spawn(["redis-server", *options], self.log)
        wait_for_port(self.port, self._child, self.log, b"PING\r\n", 20)
