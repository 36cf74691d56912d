"""Making the data directory, whole or not at all.

``initdb`` works in a folder beside the final one, which is then renamed. A crash in between leaves a
folder that the next start removes, never half a cluster that it would believe in. The folder's name
is new each time, because an ``initdb`` whose parent was killed may still be writing to the old one.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tickwright.domain.errors import Unavailable
from tickwright.embedded.binaries import Binaries
from tickwright.embedded.home import Home
from tickwright.ports.ids import random_token

_INITDB_TIMEOUT_S = 300
_LOCALES = ("C.UTF-8", "C")  # the second for systems whose C library has no C.UTF-8


def server_environment() -> Mapping[str, str]:
    """Return our environment without the ``PG…`` variables, which would change the server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}


def make_cluster(home: Home, binaries: Binaries) -> None:
    """Make the data directory of ``home``; the caller holds the start lock.

    Connections through the socket need no password (``trust``): the socket's folder has mode
    0700, so whoever gets there is the owner. Connections through TCP need the random password
    that is kept in the home (SCRAM).

    Raises:
        Unavailable: ``embedded_initdb_failed``, for instance a full disk. Retry.
    """
    _write_password(home)
    said = ""
    for locale in _LOCALES:
        for leftover in home.unfinished_data():
            shutil.rmtree(leftover, ignore_errors=True)
        unfinished = home.path / f"data.new.{random_token(6)}"
        done = _run(_initdb(home, binaries, unfinished, locale))
        if done.returncode == 0:
            unfinished.rename(home.data)
            _flush_folder(home)
            return
        said = (done.stdout + done.stderr).strip()
        if "invalid locale" not in said:
            break
    raise Unavailable("embedded_initdb_failed", f"initdb failed in {home.path}: {said[-2000:]}")


def _initdb(home: Home, binaries: Binaries, folder: Path, locale: str) -> list[str]:
    return [
        *home.account.prefix,
        binaries.program("initdb"),
        *("--pgdata", str(folder), "--username", "postgres"),
        *("--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile", str(home.password)),
        *("--encoding=UTF8", f"--locale={locale}", "--data-checksums"),
    ]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_INITDB_TIMEOUT_S,
            env=server_environment(),
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable("embedded_initdb_failed", f"initdb did not finish: {error}") from error


def _write_password(home: Home) -> None:
    descriptor = home.open_private(home.password, os.O_WRONLY | os.O_TRUNC)
    with os.fdopen(descriptor, "w") as file:
        file.write(random_token(24))


def _flush_folder(home: Home) -> None:
    descriptor = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
