"""The caller's own file: written whole or removed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tickwright.transports.objectstore.errors import of_local_file


@contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Give an open, empty file at ``path``; it is removed when the block fails."""
    with of_local_file(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(fd)


def write_all(fd: int, piece: bytes) -> None:
    """Write every byte, however few the system takes at once."""
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(fd, rest) :]
