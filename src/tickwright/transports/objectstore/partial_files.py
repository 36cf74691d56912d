"""The files of a folder that are not whole yet: under names of their own, locked by whoever writes them.

A name without a lock belongs to somebody who was killed, so it is removed when the next process opens the folder. That
needs no clock, and it never removes what somebody else is writing. The idea of a lock that ends with its owner is
``flock``'s.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tickwright.ports.ids import random_token

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
SWEPT_MAX = 10_000
_TRIES_MAX = 5


class Incoming(NamedTuple):
    """One file that is being written."""

    fd: int
    path: Path


@contextmanager
def incoming(folder: Path) -> Iterator[Incoming]:
    """Give a new file in ``folder``; what was not renamed by the end of the block is removed."""
    file = _create(folder)
    try:
        yield file
    finally:
        with suppress(FileNotFoundError):  # it was renamed
            file.path.unlink()
        os.close(file.fd)


def _create(folder: Path) -> Incoming:
    """Make a file and lock it; somebody who sweeps at that very moment makes us try again."""
    for _ in range(_TRIES_MAX):
        path = folder / random_token(12)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            ours = _lock(fd) and os.fstat(fd).st_nlink > 0
        except OSError:
            os.close(fd)
            raise
        if ours:
            return Incoming(fd, path)
        os.close(fd)
    raise BlockingIOError(f"{folder} is being swept without end")


def sweep(folder: Path) -> None:
    """Remove what killed processes left, at most ten thousand files."""
    with os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(SWEPT_MAX), strict=False):
            with suppress(FileNotFoundError):  # somebody was faster, or it is whole
                _remove_if_dead(Path(entry.path))


def _remove_if_dead(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if _lock(fd) and os.fstat(fd).st_nlink:
            path.unlink()
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
