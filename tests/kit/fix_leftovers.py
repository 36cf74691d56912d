"""At the end of a run no process of ours may be alive; one that is fails the run and is killed."""

import contextlib
import os
import secrets
import signal

import pytest

from kit.processes import RUN_MARK, left_behind
from kit.waiting import eventually

_LEFT = pytest.StashKey[list[str]]()
_MARK = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Mark this process, so that every descendant inherits the mark."""
    config.stash[_MARK] = os.environ[RUN_MARK] = secrets.token_hex(8)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when a process that it started is still alive, and kill that process."""
    mark = session.config.stash[_MARK]
    with contextlib.suppress(AssertionError):
        eventually(lambda: not left_behind(mark), 3)
    left = left_behind(mark)
    session.config.stash[_LEFT] = left
    if not left:
        return
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    for line in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split(":")[0]), signal.SIGKILL)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the processes that were left behind."""
    left = config.stash.get(_LEFT, [])
    if left:
        terminalreporter.section("processes left behind (the run fails; they were killed)", red=True, bold=True)
        terminalreporter.write("".join(f"{line}\n" for line in left))
