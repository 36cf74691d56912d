"""Libraries that a child process preloads, to simulate a machine with faults."""

import shutil
import subprocess
import sys
from pathlib import Path
from time import time

from kit.processes import missing


def preloading(name: str, folder: Path) -> dict[str, str]:
    """Compile ``name``.c of this folder into ``folder``; return the variables for a child's environment."""
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


# A wall clock of child processes that jumps while they run; the machine's own and every monotonic clock stay.

_DO = "import time; print(time.time())"


class WorkerClock:
    """The wall clock of children that are started with ``environment``; made in about half a second.

    Args:
        folder: For the library that they preload, and the file with the offset of their clock.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(bytes(8))
        self.environment = {**preloading("clock_shift", folder), "CLOCK_SHIFT_FILE": str(self._file)}
        self._check()

    def jump(self, hours: float) -> None:
        """Set the clock so far ahead of the true one, or behind it."""
        with self._file.open("r+b") as file:
            file.write(round(hours * 3600).to_bytes(8, sys.byteorder, signed=True))

    def _check(self) -> None:
        self.jump(2)
        printed = subprocess.run(
            [sys.executable, "-c", _DO], env=self.environment, capture_output=True, check=True
        ).stdout
        assert 7100 < float(printed) - time() < 7300, "the children's clock cannot be set"
        self.jump(0)
