"""Libraries of ours that a child process preloads, so that its machine is not as good as the one it runs on."""

import shutil
import subprocess
from pathlib import Path

from kit.processes import missing


def preloading(name: str, folder: Path) -> dict[str, str]:
    """Compile ``name``.c of this folder into ``folder``; return what to put into a child's environment."""
    compiler = shutil.which("cc") or missing("a C compiler")
    source, library = Path(__file__).with_name(f"{name}.c"), folder / f"{name}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def full_disk(folder: Path) -> tuple[dict[str, str], Path]:
    """Return the environment of a PostgreSQL whose disk is full while a file exists, and that file."""
    mark = folder / "full"
    environment = preloading("full_disk", folder)
    (folder / "full_disk.so").chmod(0o755)
    return {**environment, "FULL_DISK_FILE": str(mark)}, mark


def slow_disk(folder: Path, *, by_ms: int) -> dict[str, str]:
    """Return the environment of a child whose disk takes that much longer for each write."""
    return {**preloading("slow_disk", folder), "SLOW_DISK_MS": str(by_ms)}
