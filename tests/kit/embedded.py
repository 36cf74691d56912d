"""Clients of the embedded server as separate processes, and what they leave on the machine."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kit.processes import processes_in

_clients: "list[Client]" = []
_PROGRAM = Path(__file__).with_name("embedded_client.py")


class Client:
    """A process that uses the server in ``home``, in its own process group.

    Args:
        home: The server's home.
        command: See ``embedded_client.py``.
        prefix: Arguments in front of the command, such as those that change the user.
        environment: Added to the environment of the test.
    """

    def __init__(
        self,
        home: Path,
        command: str = "hold",
        *,
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(_PROGRAM), str(home), command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
        )
        _clients.append(self)

    def says(self) -> str:
        """Return the next line, without its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> str:
        """End a holding client's input; return its last line."""
        output, _ = self.process.communicate(timeout=60)
        return output.strip()

    def kill9(self) -> None:
        """``kill -9`` the client and its process group. A second call is harmless."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(timeout=10)


def kill_clients() -> None:
    """``kill -9`` every client that a failed test left running."""
    while _clients:
        _clients.pop().kill9()


def server_pids(home: Path) -> list[int]:
    """Return every live process of the server in ``home``."""
    return processes_in(home / "data")


def postmaster_pid(home: Path) -> int:
    """Return the main process of the server in ``home``."""
    return int((home / "data" / "postmaster.pid").read_text().split()[0])


def kill_server(home: Path) -> None:
    """``kill -9`` every process of the server and remove the home, at the end of a test."""
    for pid in server_pids(home):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(home, ignore_errors=True)
