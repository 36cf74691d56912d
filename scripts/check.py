"""Run every check that needs no server, all at once: format, lint, types, layers, the page's build.

Each check prints what it found when it ends. The exit code is 1 when one of them failed.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CHECKS = {
    "types": [sys.executable, "-m", "mypy", "--explicit-package-bases", "src/tickwright", "tests"],
    "layers": [str(BIN / "lint-imports"), "--no-logo"],
    "format": [str(BIN / "ruff"), "format", "--check", "."],
    "lint": [str(BIN / "ruff"), "check", "."],
    "page": [sys.executable, "scripts/page.py", "check"],
}
ENVIRONMENT = {**os.environ, "MYPYPATH": "src:tests", "MYPY_NUM_WORKERS": str(min(4, os.cpu_count() or 1))}


async def main() -> int:
    """Run the checks side by side; return the exit code."""
    codes = await asyncio.gather(*(run(name, command) for name, command in CHECKS.items()))
    return 1 if any(codes) else 0


async def run(name: str, command: list[str]) -> int:
    """Run one check and print its output in one piece."""
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    outcome = "ok" if process.returncode == 0 else f"FAILED ({process.returncode})"
    print(f"== {name}: {outcome} in {time.monotonic() - started:.0f} s\n{output.decode()}", end="", flush=True)
    return process.returncode or 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
