"""A run of tests, in one process and in two: processes left behind, the time limit of a test, the order."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kit.processes import is_running

_KIT = Path(__file__).parents[2]
_CONFTEST = 'pytest_plugins = ["kit.fix_leftovers"]\n'
_LEAVES = """
import os, pathlib, signal, subprocess


def test_leaves():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pathlib.Path(__file__).with_name("pid").write_text(str(child.pid))
"""
_LEAVES_A_FORKED_ONE = """
import pathlib, sys

from kit.processes import spawn


def test_leaves():
    folder = pathlib.Path(__file__).parent
    (folder / "sleeps.py").write_text("import time; time.sleep(600)")
    child = spawn([sys.executable, str(folder / "sleeps.py")], folder / "log")
    (folder / "pid").write_text(str(child.pid))
"""
_IS_KILLED = f"{_LEAVES}    os.kill(os.getpid(), signal.SIGKILL)\n"
_HANGS = """
import time


def test_hangs():
    time.sleep(600)
"""
_NOT_NEEDED = ("schemathesis", "hypothesispytest", "anyio", "asyncio", "cacheprovider")
"""Plug-ins that three processes would need ten seconds to import."""
_FAILS_ONCE = """
import pathlib


def test_fails_once():
    mark = pathlib.Path(__file__).with_name("mark")
    was_there = mark.exists()
    mark.touch()
    assert was_there
"""
_FAILS = "def test_fails():\n    raise AssertionError\n"
_AGAIN = _KIT.parent / "scripts/test_again.py"
_GOOD = "".join(f"def test_good_{number}():\n    pass\n\n\n" for number in range(4))


def _run(folder: Path, bad: str, *arguments: str, without: Sequence[str] = _NOT_NEEDED) -> tuple[int, str]:
    """Run two files of tests, one of them bad, and return the exit code and the output."""
    for name, text in {"conftest": _CONFTEST, "test_bad": bad, "test_good": _GOOD}.items():
        (folder / f"{name}.py").write_text(text)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    plugins = [option for name in without for option in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-v", "-ra", *plugins, f"--rootdir={folder}"]
    return _output_of([*command, *arguments, str(folder)], folder, environ)


def _output_of(command: list[str], folder: Path, environ: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environ, "PYTHONPATH": str(_KIT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_process_that_is_left_behind_fails_the_run_and_is_killed(tmp_path: Path, processes: str) -> None:
    """All tests passed but the run fails: its summary names the process, which is killed."""
    code, output = _run(tmp_path, _LEAVES, "-n", processes)
    pid = int((tmp_path / "pid").read_text())
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "5 passed" in output
    assert "processes left behind" in output
    assert output.count(f"{pid}: sleep 600") == 1, output
    assert not is_running(pid)


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_forked_process_that_is_left_behind_is_killed_before_its_parent_is_waited_for(
    tmp_path: Path, processes: str
) -> None:
    """The process that others are forked from ends after them: a wait for it first would have no end."""
    code, output = _run(tmp_path, _LEAVES_A_FORKED_ONE, "-n", processes)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert output.count(f"{(tmp_path / 'pid').read_text()}: ") == 1, output
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_processes_of_a_killed_worker_are_found_by_the_run(tmp_path: Path) -> None:
    """The controlling process checks when the workers have ended: a killed worker cannot."""
    code, output = _run(tmp_path, _IS_KILLED, "-n", "2", "--max-worker-restart=0")
    pid = int((tmp_path / "pid").read_text())
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert f"{pid}: sleep 600" in output
    assert not is_running(pid)


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_that_leaves_nothing_behind_passes(tmp_path: Path, processes: str) -> None:
    """The servers and workers of the run itself are no leftovers."""
    code, output = _run(tmp_path, _GOOD, "-n", processes)
    assert code == pytest.ExitCode.OK, output
    assert "left behind" not in output


def test_a_hanging_test_ends_in_a_worker_too(tmp_path: Path) -> None:
    """It fails by its own time limit, the others pass, and the run names it."""
    code, output = _run(tmp_path, _HANGS, "-n", "2", "--timeout=1")
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "4 passed" in output
    assert "1 failed" in output
    assert re.search(r"^FAILED test_bad.py::test_hangs - Failed: Timeout", output, re.MULTILINE), output


def test_one_seed_gives_one_order_in_every_worker(tmp_path: Path) -> None:
    """The order is random, the same in all workers, and is repeated with the seed that the run prints."""
    orders = []
    for _ in range(2):
        code, output = _run(tmp_path, _GOOD, "-n", "2", "--dist", "loadfile", "--randomly-seed=7")
        assert code == pytest.ExitCode.OK, output
        assert "--randomly-seed=7" in output
        orders.append(re.findall(r"PASSED (test_good.py::\S+)", output))
    assert len(orders[0]) == 4
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("bad", "code", "output"),
    [
        (_FAILS_ONCE, 0, "flaky: test_bad.py::test_fails_once"),
        (_FAILS, 1, "1 failed"),
        (_LEAVES, 1, "left processes behind"),
        (_IS_KILLED, 1, "left processes behind"),
    ],
)
def test_a_test_that_fails_once_is_flaky_and_one_that_fails_twice_fails_the_run(
    tmp_path: Path, bad: str, code: int, output: str
) -> None:
    """A test that passes when it is repeated is named; a second failure or a process left behind fails the run."""
    needed = [name for name in _NOT_NEEDED if name != "cacheprovider"]
    assert _run(tmp_path, bad, "-n", "2", "--max-worker-restart=0", without=needed)[0] == pytest.ExitCode.TESTS_FAILED
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    again = _output_of([sys.executable, str(_AGAIN)], tmp_path, environ)
    assert again[0] == code, again[1]
    assert output in again[1]
