"""mypy and pyright read a typed call like a call of the handler: right ones pass, wrong ones are refused."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import tickwright

SOURCE = Path(__file__).with_name("typed_calls.txt").read_text(encoding="utf-8")
PACKAGE = Path(tickwright.__file__).parents[1]
EXPECTED = {
    number: comment for number, line in enumerate(SOURCE.splitlines(), 1) if (comment := line.partition("  # ")[2])
}


def by_mypy(program: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of what mypy finds."""
    command = ["-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent", program.name]
    found = _run([sys.executable, *command], program)
    for line in found.splitlines():
        if parts := re.fullmatch(rf"{program.name}:(\d+): (error|note): (.*)", line):
            yield int(parts[1]), "refused" if parts[2] == "error" else parts[3]


def by_pyright(program: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of what pyright finds."""
    pyright = str(Path(sys.executable).with_name("basedpyright"))
    found = json.loads(_run([pyright, "--outputjson", "--pythonpath", sys.executable, program.name], program))
    for one in found["generalDiagnostics"]:
        if one["severity"] in {"error", "information"}:
            text = "refused" if one["severity"] == "error" else one["message"]
            yield one["range"]["start"]["line"] + 1, text


def _run(command: list[str], program: Path) -> str:
    env = {"PATH": "/usr/bin:/bin", "MYPYPATH": str(PACKAGE), "PYTHONPATH": str(PACKAGE), "HOME": str(program.parent)}
    done = subprocess.run(command, env=env, cwd=program.parent, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.stdout


CHECKERS = {"mypy": by_mypy, "pyright": by_pyright}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_knows_the_arguments_and_the_result_of_a_job(checker: str, tmp_path: Path) -> None:
    """Each line with a comment has the type in it, or is refused; no other line is."""
    program = tmp_path / "calls.py"
    program.write_text(SOURCE, encoding="utf-8")
    found: dict[int, str] = {}
    for number, text in CHECKERS[checker](program):
        found.setdefault(number, _type_in(text))
    assert _named(found) == EXPECTED


def _type_in(text: str) -> str:
    revealed = re.search(r'(?:Revealed type is|Type of ".*" is) "(.*)"', text)
    return revealed[1].replace("tickwright.app.jobs.", "") if revealed else text


def _named(found: Mapping[int, str]) -> Mapping[int, str]:
    return {number: text for number, text in found.items() if text == "refused" or number in EXPECTED}
