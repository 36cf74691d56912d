"""Parse object store URLs, check keys, and translate disk errors: pure, but for errors of the caller's own files.

A URL never holds a password. Credentials of a bucket come from the usual environment variables
(``AWS_ACCESS_KEY_ID``, ...). An invalid key is a bug, never a user's mistake: Tickwright makes all keys itself.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

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


UPLOADS = ".uploads"
"""First segment of incomplete files in a folder. No key begins with it."""

KEY_BYTES_MAX = 800
SEGMENT_BYTES_MAX = 200  # a file name may have 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_FORMS = "write file:///FOLDER, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, without a password, a query or a fragment"


class Place(NamedTuple):
    """The location of an object store.

    Attributes:
        scheme: ``file``, ``s3`` or ``gs``.
        bucket: Empty for ``file``.
        path: The absolute folder; or the prefix of every key, without slashes at its ends.
    """

    scheme: str
    bucket: str
    path: str

    def address(self, key: str) -> str:
        """Return the address of an object, for people."""
        if self.scheme == "file":
            return f"file://{self.path}/{key}"
        return "/".join(part for part in (f"{self.scheme}://{self.bucket}", self.path, key) if part)


def parse_place(url: str) -> Place:
    """Parse ``url``. The error repeats nothing of it, because it may hold a password.

    Raises:
        Rejected: ``invalid_object_store``. Permanent.
    """
    try:
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict")
        sound = not (parts.query or parts.fragment or parts.username or parts.password) and not _CONTROL.search(path)
        prefix = path.strip("/")
        is_prefix = not prefix or _fault(prefix) is None
    except ValueError:
        raise Rejected("invalid_object_store", _FORMS) from None
    if sound and parts.scheme == "file" and parts.netloc in ("", "localhost") and prefix:
        return Place("file", "", path.rstrip("/"))
    if sound and parts.scheme in ("s3", "gs") and _BUCKET.fullmatch(parts.netloc) and is_prefix:
        return Place(parts.scheme, parts.netloc, prefix)
    raise Rejected("invalid_object_store", _FORMS)


def check_key(key: str) -> None:
    """Refuse a key that could leave its location or that some store cannot keep.

    Raises:
        InvariantBroken: ``invalid_object_key``. Permanent: a bug.
    """
    fault = _fault(key)
    if fault is not None:
        raise InvariantBroken("invalid_object_key", f"the key {key[:200]!a} {fault}")


def _fault(key: str) -> str | None:
    segments = key.split("/")
    if _CONTROL.search(key):
        return "has a control character"
    if any(segment in ("", ".", "..") for segment in segments):
        return "has an empty part, . or .."
    if segments[0] == UPLOADS:
        return f"begins with {UPLOADS}"
    if len(key.encode()) > KEY_BYTES_MAX or any(len(segment.encode()) > SEGMENT_BYTES_MAX for segment in segments):
        return f"is longer than {KEY_BYTES_MAX} bytes, or a part of it than {SEGMENT_BYTES_MAX}"
    return None


def clean_prefix(prefix: str) -> str:
    """Return the prefix of a listing without a trailing slash; the empty prefix matches everything.

    Raises:
        InvariantBroken: ``invalid_object_key``. Permanent: a bug.
    """
    cleaned = prefix.removesuffix("/")
    if cleaned:
        check_key(cleaned)
    return cleaned


def content_headers(key: str) -> dict[str, str]:
    """Return the headers that give a browser the object's type and make it save the file, never show it."""
    name = key.rpartition("/")[2]
    kind = _KINDS.get(name.rpartition(".")[2].lower(), "application/octet-stream")
    plain = re.sub(r"[^ !#-\[\]-~]", "_", name)  # printable ASCII without quote and backslash
    return {
        "Content-Type": kind,
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
    }


_KINDS = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
