"""A real Redis for tests, with an append-only file."""

import shutil
import signal
import subprocess
from collections.abc import Mapping

from kit.processes import free_port, kill_group, make_folder, missing, spawn, wait_for_port

SETTINGS: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}


class RedisServer:
    """One server on a free loopback port, database 0, no password."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        if shutil.which("redis-server") is None:
            missing("Redis")
        self.settings = {**SETTINGS, **(settings or {})}
        self.folder = make_folder("redis")
        self.log = self.folder / "log"
        self.port = free_port()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Return when the server answers a PING."""
        place = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "daemonize": "no"}
        words = [word for name, value in {**self.settings, **place}.items() for word in (f"--{name}", value)]
        self._child = spawn(["redis-server", *words], self.log)
        wait_for_port(self.port, self._child, self.log, b"PING\r\n", 20)

    def stop(self) -> None:
        """Stop the server with its data written. Twice is harmless."""
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                kill_group(child)

    def kill9(self) -> None:
        """``kill -9`` the server."""
        child, self._child = self._child, None
        if child is not None:
            kill_group(child)

    def restart(self) -> None:
        """Stop and start on the same port with the same data."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill the server and remove its folder."""
        self.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)
