"""The command line as a separate process, with its exit code and its output."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from kit.forks import Forked, Start

_WITHIN_S = 60
_KEPT = ("TICKWRIGHT_TEST_", "TICKWRIGHT_PG_BIN", "TICKWRIGHT_HOME")


@dataclass(frozen=True)
class Said:
    """The output of a command."""

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
    """Return an environment with the given variables, and no other ones of Tickwright that would change the result."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TICKWRIGHT_") or name.startswith(_KEPT)
    }
    return {
        **clean,
        "PYTHONUNBUFFERED": "1",
        **{f"TICKWRIGHT_{name}": value for name, value in given.items()},
    }


def tickwright(*arguments: str, env: Mapping[str, str], stdin: str | None = None, cwd: str = "/") -> Said:
    """Run one command to its end."""
    with tempfile.TemporaryDirectory(prefix="tw-cli-") as name:
        stdin_file, stdout_file, stderr_file = (Path(name) / one for one in ("in", "out", "err"))
        stdin_file.write_text(stdin or "", encoding="utf-8")
        child = Forked(
            Start(("-m", "tickwright", *arguments), dict(env), cwd, str(stdout_file), str(stdin_file), str(stderr_file))
        )
        try:
            code = child.wait(_WITHIN_S)
        except TimeoutExpired:
            child.kill()
            raise
        return Said(code, stdout_file.read_text(encoding="utf-8"), stderr_file.read_text(encoding="utf-8"))
