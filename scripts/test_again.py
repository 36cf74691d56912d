"""Run the tests of this folder that failed in the run before once more, alone, in one process, with more patience.

What passes now is printed as ``flaky: NAME`` and does not fail the run: it is repaired or deleted in the next change.
What fails twice fails the run. A run that broke off, left a process behind, or had more failures than
``FAILURES_MAX`` is not flaky, and is not run again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CACHE = Path(".pytest_cache/v")
FAILURES_MAX = 25
TESTS_FAILED = 1
PATIENCE = "6"
"""Times the bounds of waits in the tests (``tests/kit/waiting.py``): what a busy machine broke holds now."""


def main() -> int:
    """Judge the run before; run again what may be flaky."""
    refusal, failed = judge(_read("tickwright/run"), _read("cache/lastfailed"))
    if refusal:
        print(f"test-again: {refusal}", file=sys.stderr)
        return 1
    print(f"test-again: {len(failed)} failed; once more, alone", flush=True)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:randomly", *failed]
    if subprocess.run(command, check=False, env={**os.environ, "TICKWRIGHT_TEST_PATIENCE": PATIENCE}).returncode:
        return 1
    print("".join(f"flaky: {name}\n" for name in failed), end="", flush=True)
    return 0


def judge(run: dict[str, Any], last_failed: dict[str, Any]) -> tuple[str, list[str]]:
    """Return why nothing is run again, or an empty text and the names of the tests that are."""
    failed = sorted(name for name, is_failed in last_failed.items() if is_failed)
    if run.get("exit_code") != TESTS_FAILED:
        return f"the run did not come to its end (exit code {run.get('exit_code')})", []
    if run.get("left_behind"):
        return "the run left processes behind", []
    if not failed:
        return "the run failed, and no test did", []
    if len(failed) > FAILURES_MAX:
        return f"{len(failed)} tests failed; more than {FAILURES_MAX} are not run again", []
    return "", failed


def _read(name: str) -> dict[str, Any]:
    path = CACHE / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
