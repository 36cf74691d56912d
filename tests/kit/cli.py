"""The command line as users have it: a process of its own, its exit code, and what it said where."""

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
    return {
        **clean,
        "PYTHONUNBUFFERED": "1",
        **{f"TICKWRIGHT_{name}": value for name, value in given.items()},
    }


def tickwright(*words: str, env: Mapping[str, str], stdin: str | None = None, cwd: str = "/") -> Said:
    """Run one command to its end."""
    with tempfile.TemporaryDirectory(prefix="tw-cli-") as name:
        heard, out, err = (Path(name) / one for one in ("in", "out", "err"))
        heard.write_text(stdin or "", encoding="utf-8")
        child = Forked(Start(("-m", "tickwright", *words), dict(env), cwd, str(out), str(heard), str(err)))
        try:
            code = child.wait(_WITHIN_S)
        except TimeoutExpired:
            child.kill()
            raise
        return Said(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))
