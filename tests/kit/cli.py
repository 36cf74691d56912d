"""The command line as users have it: a process of its own, its exit code, and what it said where."""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from tickwright.cli import main

_BYTECODE = Path(tempfile.gettempdir()) / f"tickwright-bytecode-{os.geteuid()}"
"""Compiled once for all commands of all runs, whatever the environment says about writing bytecode."""
_WITHIN_S = 60
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["kit.cli", "tickwright.cli.program", "tickwright.wiring.api"])


@dataclass(frozen=True)
class Said:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The JSON error on standard error."""
        return json.loads(self.err)["error"]


def environment(**given: str) -> dict[str, str]:
    """Return an environment with the variables given and no other one of ours that would change what happens."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TICKWRIGHT_") or name.startswith(("TICKWRIGHT_TEST_", "TICKWRIGHT_PG_BIN"))
    }
    clean.pop("PYTHONDONTWRITEBYTECODE", None)
    return {
        **clean,
        "PYTHONPYCACHEPREFIX": str(_BYTECODE),
        "PYTHONUNBUFFERED": "1",
        **{f"TICKWRIGHT_{name}": value for name, value in given.items()},
    }


def tickwright(*words: str, env: Mapping[str, str], stdin: str | None = None, cwd: str = "/") -> Said:
    """Run one command to its end.

    It is forked from a process that has imported the command line: an interpreter that imports it anew for each of
    many hundred commands took a seventh of the run.
    """
    with tempfile.TemporaryDirectory(prefix="tw-cli-") as name:
        folder = Path(name)
        (folder / "in").write_text(stdin or "", encoding="utf-8")
        process = _FORKING.Process(target=_run, args=(words, dict(env), cwd, name))
        process.start()
        process.join(_WITHIN_S)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"tickwright {' '.join(words)} did not end within {_WITHIN_S} s")
        out, err = ((folder / one).read_text(encoding="utf-8") for one in ("out", "err"))
        return Said(process.exitcode, out, err)


def stop_forking() -> None:
    """End the process that commands are forked from; the next one starts another."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # as CPython's own tests do
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def _run(words: Sequence[str], env: Mapping[str, str], cwd: str, folder: str) -> None:
    for number, (name, mode) in enumerate((("in", os.O_RDONLY), ("out", _WRITE), ("err", _WRITE))):
        os.dup2(os.open(f"{folder}/{name}", mode), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115  for the process's life
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    sys.argv = ["tickwright", *words]
    main()
