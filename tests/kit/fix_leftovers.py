"""At the end of a run no process that it started may be alive; a live one fails the run and is killed.

With ``-n 2`` each of the two workers checks for its own processes when its servers have stopped, and reports to the
controlling process; that one checks again when both have ended, for processes of a worker that was killed. The result
of the run is kept in pytest's cache for ``scripts/test_again.py``.
"""

import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from kit.forks import forking, stop_forking
from kit.processes import RUN_MARK, left_behind, make_folder
from kit.waiting import eventually

_LEFT = pytest.StashKey[list[str]]()
_MARK = pytest.StashKey[str]()
_HOME = pytest.StashKey[Path]()
_LEAVE_WITHIN_S = 3


def pytest_configure(config: pytest.Config) -> None:
    """Mark this process, so that every descendant inherits the mark; a worker's begins with the run's."""
    worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
    mark = secrets.token_hex(8) if worker_input is None else f"{worker_input[RUN_MARK]}.{worker_input['workerid']}."
    config.stash[_MARK] = os.environ[RUN_MARK] = mark
    config.stash[_LEFT] = []
    config.stash[_HOME] = make_folder("home")
    os.environ["TICKWRIGHT_HOME"] = str(config.stash[_HOME])  # the user's own files are never touched


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the run's mark to a worker."""
    node.workerinput[RUN_MARK] = node.config.stash[_MARK]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive what a worker left behind; a killed worker sends nothing."""
    node.config.stash[_LEFT] += getattr(node, "workeroutput", {}).get(RUN_MARK, [])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when a process that it started is still alive, and kill that process."""
    config = session.config
    left = [*config.stash[_LEFT], *_kill_leftovers(config.stash[_MARK], forking())]  # stop_forking would wait for them
    stop_forking()
    shutil.rmtree(config.stash[_HOME], ignore_errors=True)
    left = config.stash[_LEFT] = [*left, *_kill_leftovers(config.stash[_MARK], set())]
    if hasattr(config, "workeroutput"):
        config.workeroutput[RUN_MARK] = left
        return
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    cache = getattr(config, "cache", None)
    if cache is not None:
        cache.set("tickwright/run", {"exit_code": int(session.exitstatus), "left_behind": left})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the processes that were left behind."""
    left = config.stash[_LEFT]
    if left:
        terminalreporter.section("processes left behind (the run fails; they were killed)", red=True, bold=True)
        terminalreporter.write("".join(f"{line}\n" for line in left))


def _kill_leftovers(mark: str, needed: Collection[int]) -> list[str]:
    def left() -> dict[int, str]:
        lines = {int(line.split(":")[0]): line for line in left_behind(mark)}
        return {pid: line for pid, line in lines.items() if pid not in needed}

    with contextlib.suppress(AssertionError):
        eventually(lambda: not left(), _LEAVE_WITHIN_S)
    found = left()
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return list(found.values())
