"""Which server processes exist.

``postmaster.pid`` names the process that *was* the server. It may be gone, a zombie, or an unrelated process with the
same number. A process is our server if and only if it is live, its name is ``postgres`` and its working directory is
our data directory.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tickwright.domain.errors import Unavailable
from tickwright.embedded.cluster import DEFAULT_PORT
from tickwright.embedded.home import Home
from tickwright.ports.ids import monotonic

_PAUSE_S = 0.02


def wait_until(condition: Callable[[], bool], within: timedelta) -> bool:
    """Check ``condition`` every 20 ms, and once more after the time is over; return whether it held."""
    deadline = monotonic() + within.total_seconds()
    while not condition():
        if monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


# Locks: one file for the right to start or stop the server, one for its users. The kernel drops a lock when its holder
# ends, however it ends; a list of process ids would outlive the processes.
#
# The home must be on a local file system: network file systems keep ``flock`` per host or not at all.


@contextmanager
def start_lock(home: Home, within: timedelta) -> Iterator[None]:
    """Hold the right to start or stop the server of ``home``. Raises ``Unavailable`` (``embedded_busy``): retry."""
    descriptor = home.open_private(home.start_lock)
    try:
        if not wait_until(lambda: _try(descriptor, fcntl.LOCK_EX), within):
            raise Unavailable(
                "embedded_busy",
                f"Another process has been starting or stopping the server in {home.path} for {within}.",
            )
        yield
    finally:
        os.close(descriptor)


def join_users(home: Home) -> int:
    """Register as a user of the server; the caller holds the start lock. Close the descriptor to leave."""
    descriptor = home.open_private(home.users_lock)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # cannot block: the exclusive lock needs the start lock
    return descriptor


def is_only_user(descriptor: int) -> bool:
    """Return whether only the holder of ``descriptor`` uses the server.

    The caller holds the start lock and is about to leave, because this check can lose its own lock.
    """
    return _try(descriptor, fcntl.LOCK_EX)


def has_users(home: Home) -> bool:
    """Return whether any client is alive; the caller holds the start lock and is not a client."""
    descriptor = home.open_private(home.users_lock)
    try:
        return not _try(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_PROC = Path("/proc")
_GONE = (None, "Z", "X")
_FAST_STOP_WITHIN = timedelta(seconds=60)
_HARD_STOP_WITHIN = timedelta(seconds=15)
_ORPHANS_LEAVE_WITHIN = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The live main process of a server.

    Attributes:
        port: Its port, also part of its socket's name.
        ready: Whether it reports that it accepts connections.
    """

    pid: int
    port: int
    ready: bool


def is_running(pid: int) -> bool:
    """Return whether ``pid`` is a process other than a zombie."""
    return _state(pid) not in _GONE


def find_postmaster(home: Home) -> Postmaster | None:
    """Return the live server of ``home``, or ``None``."""
    lines = _pid_file(home)
    if not lines or not lines[0].isdigit() or not _works_in(int(lines[0]), home.data):
        return None
    port, status = (lines[index] if len(lines) > index else "" for index in (3, 7))
    port_number = int(port) if port.isdigit() else DEFAULT_PORT
    return Postmaster(pid=int(lines[0]), port=port_number, ready=status == "ready")


def stop_postmaster(home: Home, postmaster: Postmaster) -> None:
    """Stop the server: fast shutdown for a minute, then immediate (the write-ahead log makes that safe).

    Raises:
        Unavailable: ``embedded_stop_timeout``: it still runs. Retry.
    """
    for signal_number, within in ((signal.SIGINT, _FAST_STOP_WITHIN), (signal.SIGQUIT, _HARD_STOP_WITHIN)):
        _send(postmaster.pid, signal_number)
        if wait_until(lambda: not is_running(postmaster.pid), within):
            return
    raise Unavailable("embedded_stop_timeout", f"The server in {home.path} (process {postmaster.pid}) will not stop.")


def stop_roots_server(home: Home) -> None:
    """Stop a server that an earlier release runs as root; the caller holds the start lock and is not a user.

    Raises:
        Unavailable: ``embedded_home_in_use``: processes of that release still use it. Retry when they have ended;
            ``embedded_stop_timeout``. Retry.
    """
    postmaster = find_postmaster(home) if home.account.drops else None
    if postmaster is None or _user(postmaster.pid) != 0:
        return
    if has_users(home):
        raise Unavailable(
            "embedded_home_in_use",
            f"An earlier release runs PostgreSQL in {home.path} as root; end its processes, then start this one.",
        )
    stop_postmaster(home, postmaster)


def clear_leftovers(home: Home) -> None:
    """Remove files of a killed server that would block the next one.

    The caller holds the start lock, is not a user itself, and has found no live postmaster.

    Raises:
        Unavailable: ``embedded_home_in_use``: clients are alive, and the server may run where we cannot see it (another
            container). Retry.
    """
    _let_orphans_leave(home)
    if find_postmaster(home) is not None:
        return  # it was still starting at the first check
    _remove_stale_pid_file(home)
    for path in home.sockets.glob(".s.PGSQL.*"):
        path.unlink(missing_ok=True)


def _let_orphans_leave(home: Home) -> None:
    """Wait for the processes of a killed server, which end by themselves; kill those that do not."""

    def settled() -> bool:
        return find_postmaster(home) is not None or next(_servers(home), None) is None

    if wait_until(settled, _ORPHANS_LEAVE_WITHIN):
        return
    for pid in _servers(home):
        _send(pid, signal.SIGKILL)
    wait_until(settled, _ORPHANS_LEAVE_WITHIN)


def _remove_stale_pid_file(home: Home) -> None:
    """Remove a pid file that PostgreSQL would trust although its process is a zombie or unrelated."""
    if _holder_state(home) is None:
        return  # no such process: PostgreSQL detects that itself
    if has_users(home) and not wait_until(lambda: _holder_state(home) in _GONE, _ORPHANS_LEAVE_WITHIN):
        raise Unavailable(
            "embedded_home_in_use",
            f"Clients use {home.path}, but their server is not among our processes: another container's?",
        )
    if find_postmaster(home) is None:
        (home.data / "postmaster.pid").unlink(missing_ok=True)


def _holder_state(home: Home) -> str | None:
    """Return the state of the pid file's process; a killed one becomes a zombie after a moment."""
    lines = _pid_file(home)
    return _state(int(lines[0])) if lines and lines[0].isdigit() else None


def _servers(home: Home) -> Iterator[int]:
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return (pid for pid in pids if _works_in(pid, home.data))


def _works_in(pid: int, folder: Path) -> bool:
    try:
        if (_PROC / str(pid) / "comm").read_text().strip() != "postgres":
            return False
        return is_running(pid) and os.path.samefile(_PROC / str(pid) / "cwd", folder)  # noqa: PTH121  follows /proc
    except OSError:
        return False


def _state(pid: int) -> str | None:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def _user(pid: int) -> int | None:
    try:
        return int((_PROC / str(pid) / "status").read_text().partition("\nUid:")[2].split()[0])
    except (OSError, IndexError):
        return None


def _pid_file(home: Home) -> list[str]:
    try:
        return [line.strip() for line in (home.data / "postmaster.pid").read_text().splitlines()]
    except OSError:
        return []


def _send(pid: int, signal_number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)
