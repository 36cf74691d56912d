"""What a disk says, in our words: whose fault it is, and whether to try again."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tickwright.domain.errors import InvariantBroken, Rejected, Unavailable

_NEEDS_AN_OPERATOR = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST}
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_AS_PROMISED = _NEEDS_AN_OPERATOR | {errno.ENOENT}


def refused(where: str, reason: str) -> Rejected:
    """Return the store's no, for good until an operator acts."""
    return Rejected("object_store_refused", f"{where}: {reason}")


def unavailable(where: str, reason: str) -> Unavailable:
    """Return that the store did not do it this time."""
    return Unavailable("object_store_unavailable", f"{where}: {reason}")


def object_missing(where: str) -> Rejected:
    """Return that there is no such object."""
    return Rejected("object_missing", f"there is no object {where}")


@contextmanager
def of_folder(where: str) -> Iterator[None]:
    """Translate what the disk under a folder of objects says."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise (refused if error.errno in _NEEDS_AN_OPERATOR else unavailable)(where, reason) from None


@contextmanager
def of_local_file(path: Path) -> Iterator[None]:
    """Translate what the disk says of a file that the caller gave."""
    try:
        yield
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
        if error.errno in _FULL:
            raise Unavailable("no_space", reason) from None
        if error.errno in _NOT_AS_PROMISED:
            raise InvariantBroken("file_unusable", reason) from None
        raise Unavailable("disk_failed", reason) from None
