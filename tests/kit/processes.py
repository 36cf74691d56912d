"""Child processes of a test run: started as a plain user, stopped by pid, and counted at the end."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from kit.forks import Child, Forked, Start, can_fork
from kit.waiting import eventually

NOBODY = 65534
RUN_MARK = "TICKWRIGHT_TEST_RUN"
"""Environment variable by which every descendant of the run is recognised, also as an orphan."""

_PROC = Path("/proc")
_MEMORY_DISK = Path("/dev/shm")
_MEMORY_NEEDED_BYTES = 8 << 30


def missing(what: str, *, installer: str = "scripts/test-servers.sh") -> NoReturn:
    """Skip the test on a laptop and fail it in CI, because ``what`` is not installed."""
    message = f"{what} is not installed; {installer} installs it"
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(message)
    pytest.skip(message)


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes by SIGSTOP for the length of the block: they read nothing, and data sent to them is kept."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def unprivileged() -> tuple[str, ...]:
    """Return the arguments that run a command as another user than root; empty if the test does not run as root."""
    return as_unprivileged() if os.geteuid() == 0 else ()


def as_unprivileged() -> tuple[str, ...]:
    """Return the arguments with which root runs a command as the user ``nobody``."""
    return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def make_folder(name: str) -> Path:
    """Make a private folder with a short path, usable by the account of ``unprivileged``.

    In memory if there is enough of it: a fresh database for each test is a thousand files made and removed, and
    ext4, which does not reuse an inode for five seconds, took a third of the run's time to search for one.
    Files of a killed server are there afterwards, as on a disk.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"tw-{name}-", dir=_roomy_disk()))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    return folder


def _roomy_disk() -> Path:
    with contextlib.suppress(OSError):
        if os.path.ismount(_MEMORY_DISK) and shutil.disk_usage(_MEMORY_DISK).free > _MEMORY_NEEDED_BYTES:
            return _MEMORY_DISK
    return Path("/tmp")


def spawn(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, cwd: Path | str = "/"
) -> Child:
    """Start a child in its own process group; its output goes to ``log``. Python programs of the tests are forked."""
    environment = {**os.environ, **(environment or {})}
    if can_fork(command, environment):
        log.touch()
        return Forked(Start(command[1:], environment, str(cwd), str(log)))
    with log.open("ab") as sink:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            cwd=cwd,
            env=environment,
        )


def kill_group(child: Child) -> None:
    """``kill -9`` the child and everything in its process group, and reap the child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(timeout=10)


def is_running(pid: int) -> bool:
    """Return whether ``pid`` lives; a zombie does not."""
    try:
        state = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def processes_in(folder: Path) -> list[int]:
    """Return the live processes whose working directory is ``folder`` or below it."""
    return [pid for pid in _all_pids() if _is_below(_folder_of(pid), folder)]


def left_behind(mark: str) -> list[str]:
    """Return a line for every live process whose mark of the run begins with ``mark``."""
    ancestors = {os.getpid(), *_ancestors(os.getpid())}
    needle = f"{RUN_MARK}={mark}".encode()
    return [_describe(pid) for pid in _all_pids() if pid not in ancestors and _carries(pid, needle)]


def wait_for_port(port: int, child: Child, log: Path, greeting: bytes, within_s: float) -> None:
    """Wait until the server at ``port`` answers ``greeting`` with anything but Redis's ``-LOADING``."""

    def answers() -> bool:
        if child.poll() is not None:
            pytest.fail(f"server ended with {child.returncode}: {log.read_text(errors='replace')[-2000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as link:
            link.sendall(greeting)
            return link.recv(1) not in {b"", b"-"}
        return False

    eventually(answers, within_s, what=f"the server at port {port} answers ({log})")


def _all_pids() -> list[int]:
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if is_running(pid)]


def _carries(pid: int, beginning: bytes) -> bool:
    try:
        parts = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(part.startswith(beginning) for part in parts)


def _folder_of(pid: int) -> Path | None:
    try:
        return (_PROC / str(pid) / "cwd").readlink()
    except OSError:
        return None


def _is_below(path: Path | None, folder: Path) -> bool:
    return path is not None and path.is_relative_to(folder)


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        try:
            pid = int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            break
        found.append(pid)
    return found


def _describe(pid: int) -> str:
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        command = "?"
    return f"{pid}: {command.strip()[:200]}"
