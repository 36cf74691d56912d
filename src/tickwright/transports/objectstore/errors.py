"""Translate disk errors, and write the caller's files whole or remove them."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tickwright.domain.errors import InvariantBroken, Rejected, Unavailable

_NEEDS_AN_OPERATOR = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST}
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_AS_PROMISED = _NEEDS_AN_OPERATOR | {errno.ENOENT}


def refused(where: str, reason: str) -> Rejected:
    """Return the error of a refusal by the store. Permanent until an operator acts."""
    return Rejected("object_store_refused", f"{where}: {reason}")


def unavailable(where: str, reason: str) -> Unavailable:
    """Return the error of a failure that may pass. Retry."""
    return Unavailable("object_store_unavailable", f"{where}: {reason}")


def object_missing(where: str) -> Rejected:
    """Return the error of a missing object. Permanent."""
    return Rejected("object_missing", f"there is no object {where}")


@contextmanager
def folder_errors(where: str) -> Iterator[None]:
    """Translate disk errors of a folder of objects."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise (refused if error.errno in _NEEDS_AN_OPERATOR else unavailable)(where, reason) from None


@contextmanager
def local_file_errors(path: Path) -> Iterator[None]:
    """Translate disk errors of the caller's file."""
    try:
        yield
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
        if error.errno in _FULL:
            raise Unavailable("no_space", reason) from None
        if error.errno in _NOT_AS_PROMISED:
            raise InvariantBroken("file_unusable", reason) from None
        raise Unavailable("disk_failed", reason) from None


# ---------------------------------------------------------------------- the caller's files


@contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Yield an open, empty file at ``path``; remove it if the block fails."""
    with local_file_errors(path):
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
    """Write every byte; one system call may write fewer."""
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(fd, rest) :]
