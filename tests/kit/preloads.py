"""Libraries of ours that a child process preloads, so that its machine is not as good as the one it runs on."""

import shutil
import subprocess
import sys
from pathlib import Path
from time import time

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


# A wall clock of child processes that jumps while they run; the machine's own and every monotonic clock stay.

_DO = "import time; print(time.time())"


class WorkerClock:
    """What children that are started with ``environment`` believe the time to be; made in about half a second.

    Args:
        folder: For the library that they preload, and the file that says how far their clock is off.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(bytes(8))
        self.environment = {**preloading("clock_shift", folder), "CLOCK_SHIFT_FILE": str(self._file)}
        self._check()

    def jump(self, hours: float) -> None:
        """Let the clock be so far ahead of the true one from now on, or behind."""
        with self._file.open("r+b") as file:
            file.write(round(hours * 3600).to_bytes(8, sys.byteorder, signed=True))

    def _check(self) -> None:
        self.jump(2)
        said = subprocess.run([sys.executable, "-c", _DO], env=self.environment, capture_output=True, check=True).stdout
        assert 7100 < float(said) - time() < 7300, "the children's clock cannot be set"
        self.jump(0)
