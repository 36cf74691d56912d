"""A folder of one process's own, for rows and merges that nobody needs when it is gone.

Its name is random, because processes that share a disk may have equal process ids, and it belongs to whoever holds the
lock of that name. So what a killed process left is known by anybody, without a clock, and what lives is left alone.
No other user of the machine reads it.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from tickwright.domain.errors import Unavailable
from tickwright.process.settings import Settings
from tickwright.transports.objectstore.folder import PRIVATE_FOLDER, incoming, sweep

LOCKS = "locks"


def work_place(settings: Settings) -> Path:
    """Return where the folders of all processes are; nothing else is in it, for what has no owner there is removed."""
    return (settings.report_folder or settings.home_folder / "reports") / "work"


@contextmanager
def work_folder(place: Path) -> Iterator[Path]:
    """Give a new folder in ``place`` for the length of the block; those of dead processes are removed first.

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


@asynccontextmanager
async def open_work_folder(settings: Settings) -> AsyncIterator[Path]:
    """Do the same at the place that the settings say, without holding up the loop: what dead ones left may be much.

    Raises:
        Unavailable: ``no_space``. Retry when there is room, or permission.
    """
    place, folders = work_place(settings), ExitStack()
    try:
        folder = await asyncio.to_thread(folders.enter_context, work_folder(place))
    except OSError as error:
        raise Unavailable("no_space", f"no folder can be made in {place}: {error.strerror}") from error
    try:
        yield folder
    finally:
        await asyncio.to_thread(folders.close)


def _remove_dead(place: Path, locks: Path) -> None:
    """Remove folders without a lock: one that lives has made its lock before its folder."""
    for folder in place.iterdir():
        if folder != locks and not (locks / folder.name).exists():
            shutil.rmtree(folder, ignore_errors=True)
