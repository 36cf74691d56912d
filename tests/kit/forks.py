"""Processes of the tests, forked from one that has imported everything.

A new interpreter takes one to two seconds of a processor to import the product. Tests start thousands of them, and
kill most of them soon afterwards. Forked processes are like any other: with their own pid, session and exit code.
If the interpreter or the loader reads the environment at its start, a new interpreter is started.
"""

import contextlib
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Protocol

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["kit.forked"])
_AT_THE_START = ("LD_", "PYTHON", "MALLOC_")
_WITHOUT_EFFECT = {"PYTHONUNBUFFERED"}
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Child(Protocol):
    """The interface of a started process; ``subprocess.Popen`` has it, too."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """Its exit code, once ``poll`` or ``wait`` has seen its end; negative for the signal that killed it."""

    def poll(self) -> int | None:
        """Return its exit code, or ``None`` while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; ``subprocess.TimeoutExpired`` if it does not end in time."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, unless it has ended."""

    def terminate(self) -> None:
        """Ask it to stop."""

    def kill(self) -> None:
        """Kill it."""


class Forked:
    """A process that was forked; see :class:`Child`."""

    def __init__(self, start: "Start") -> None:
        self._start = start
        _ensure_running()
        self._process = _FORKING.Process(target=start.run, daemon=False)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        with contextlib.suppress(ProcessLookupError):  # it has ended
            while os.getpgid(self.pid) != self.pid:  # a kill of its group finds it from here on
                time.sleep(0.001)

    @property
    def returncode(self) -> int | None:
        """Its exit code."""
        return self.poll()

    def poll(self) -> int | None:
        """Return its exit code, if it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._start.words, timeout or 0)
        return code

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True)
class Start:
    """What is started: ``-m MODULE`` or a script, with its arguments, as after ``python``."""

    words: Sequence[str]
    environment: Mapping[str, str]
    cwd: str
    said: str
    heard: str = os.devnull
    erred: str | None = None

    def run(self) -> None:
        """Run it in this process."""
        assert "kit.forked" in sys.modules, "the process that others are forked from has not imported what they need"
        os.setsid()
        names = (self.heard, self.said, self.erred or self.said)
        for number, (name, mode) in enumerate(zip(names, (os.O_RDONLY, _APPEND, _APPEND), strict=True)):
            opened = os.open(name, mode, 0o644)
            os.dup2(opened, number)
            os.close(opened)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, buffering=1) for number, mode in enumerate(("r", "w", "w"))
        )
        os.environ.clear()
        os.environ.update(self.environment)
        time.tzset()
        os.chdir(self.cwd)
        first, *more = self.words
        if first == "-m":
            module = importlib.import_module(f"{more[0]}.cli")
            sys.argv = more
            module.main()
        else:
            sys.argv = [first, *more]
            sys.path.insert(0, str(Path(first).parent))
            runpy.run_path(first, run_name="__main__")


def can_fork(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command is one of the tests', and nothing in its environment is read before its code runs."""
    if command[0] != sys.executable or not (command[1].endswith(".py") or command[1:3] == ["-m", "tickwright"]):
        return False
    changed = {name for name in {*environment, *os.environ} if environment.get(name) != os.environ.get(name)}
    return not any(name.startswith(_AT_THE_START) for name in changed - _WITHOUT_EFFECT)


def _ensure_running() -> None:
    """Start the process that others are forked from; CPython 3.11 gives it no path for what it imports."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def forking() -> set[int]:
    """Return the processes that :func:`stop_forking` ends."""
    pids = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
    return {pid for pid in pids if pid is not None}


def stop_forking() -> None:
    """End the process that others are forked from; the next fork starts another.

    It ends after the processes that were forked from it, and this waits for it, without a limit while one is alive.
    """
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # as CPython's own tests do
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
