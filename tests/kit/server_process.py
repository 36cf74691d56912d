"""The common part of the kit's servers of one process: how they are stopped, killed, restarted and removed."""

import shutil
import signal
import subprocess

from kit.forks import Child
from kit.ports import free_port
from kit.processes import kill_group, make_folder


class ServerProcess:
    """One process on a free loopback port, with its own folder. A subclass defines ``start``.

    Args:
        name: Prefix of its folder's name.
        stop_s: Seconds for an orderly end; then it is killed.
    """

    def __init__(self, name: str, *, stop_s: float = 20) -> None:
        self.folder = make_folder(name)
        self.log = self.folder / "log"
        self.port = free_port()
        self._stop_s = stop_s
        self._child: Child | None = None

    def start(self) -> None:
        """Return when the server answers."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the server as an operator would. A second call is harmless."""
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout=self._stop_s)
            except subprocess.TimeoutExpired:
                kill_group(child)

    def kill9(self) -> None:
        """``kill -9`` the server with all its children."""
        child, self._child = self._child, None
        if child is not None:
            kill_group(child)

    def restart(self) -> None:
        """Stop and start on the same port, with the same data."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill the server and remove its folder."""
        self.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)
