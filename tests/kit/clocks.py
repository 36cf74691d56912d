"""A wall clock of child processes that jumps while they run; the machine's own and every monotonic clock stay."""

import subprocess
import sys
from pathlib import Path
from time import time

from kit.preloads import preloading

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
