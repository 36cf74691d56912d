"""The work folder of one process, for rows and merges that are useless after its end.

Its name is random, because processes that share a disk may have equal process ids. The process locks a file of that
name, so any process recognizes the folder of a killed process without a clock. Other users of the machine cannot read
it.
"""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tickwright.domain.errors import Unavailable
from tickwright.transports.objectstore.folder import PRIVATE_FOLDER, incoming, sweep

LOCKS = "locks"


@contextmanager
def work_folder(place: Path) -> Iterator[Path]:
    """Yield a new folder in ``place`` for the block, after removing the folders of dead processes.

    Raises:
        OSError: It cannot be made. Retry when there is room, or permission.
    """
    locks = place / LOCKS
    place.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    locks.mkdir(PRIVATE_FOLDER, exist_ok=True)
    sweep(locks)
    with incoming(locks) as lock:
        _remove_dead(place, locks)
        folder = place / lock.path.name
        folder.mkdir(PRIVATE_FOLDER)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class LazyFolder:
    """A :class:`tickwright.ports.objects.WorkFolder` in ``place``, the folder of all work folders."""

    def __init__(self, place: Path) -> None:
        self._place, self._folders, self._making = place, ExitStack(), threading.Lock()
        self._path: Path | None = None

    def path(self) -> Path:
        """Return the folder; the first call makes it."""
        with self._making:
            if self._path is None:
                self._path = self._folders.enter_context(work_folder(self._place))
            return self._path

    async def opened(self) -> Path:
        """Return the folder without blocking the event loop: removing dead processes' folders may take long."""
        try:
            return await asyncio.to_thread(self.path)
        except OSError as error:
            raise Unavailable("no_space", f"no folder can be made in {self._place}: {error.strerror}") from error

    async def aclose(self) -> None:
        """Remove the folder."""
        await asyncio.to_thread(self._folders.close)


def _remove_dead(place: Path, locks: Path) -> None:
    """Remove folders without a lock. A process makes its lock before its folder."""
    for folder in place.iterdir():
        if folder != locks and not (locks / folder.name).exists():
            shutil.rmtree(folder, ignore_errors=True)
