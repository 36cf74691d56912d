"""As whom the server runs.

PostgreSQL refuses to run as root, and a container's user usually *is* root. The rule is one
sentence: the server runs as the owner of its home. When that is root, it runs in a user
namespace of its own, in which root carries the number of ``nobody``: no account is made, no
file changes its owner, a home of mode 0700 in a closed folder works. Where the kernel forbids
namespaces (some container runtimes do), the home is given to ``nobody`` and stays with it.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tickwright.domain.errors import Rejected, Unavailable

_NOBODY = 65534
_IN_NAMESPACE = ("unshare", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}")
_TRY_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Account:
    """The user that owns the home and runs the server.

    Attributes:
        uid: Owner of every file that we make.
        gid: Group of every file that we make.
        prefix: Command words that turn our process into that user; empty when we are it.
    """

    uid: int
    gid: int
    prefix: tuple[str, ...]


def account_for(home: Path) -> Account:
    """Decide as whom the server in ``home`` runs; ``home`` exists.

    Raises:
        Rejected: ``embedded_home_not_ours``, the home is another user's, or root may not use it. Permanent.
    """
    owner = home.stat()
    if os.geteuid() == owner.st_uid and owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid, ())
    if os.geteuid() != 0:
        raise Rejected(
            "embedded_home_not_ours",
            f"{home} belongs to user {owner.st_uid}, we are {os.geteuid()}: choose another TICKWRIGHT_HOME.",
        )
    if owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid, _become(owner.st_uid, owner.st_gid))
    if _works((*_IN_NAMESPACE, "true")):
        return Account(0, 0, _IN_NAMESPACE)
    return _give_to_nobody(home)


def check_reach(account: Account, *paths: Path) -> None:
    """Make sure that the server's user can get at ``paths``, whose parents may be closed to it.

    Raises:
        Unavailable: ``embedded_path_closed``. Retry after opening or moving the path.
    """
    if account.prefix[:1] != ("setpriv",):
        return
    for path in paths:
        if not _works((*account.prefix, "test", "-x", str(path))):
            raise Unavailable(
                "embedded_path_closed",
                f"PostgreSQL runs as user {account.uid} here, which may not enter {path}. "
                "Choose a TICKWRIGHT_HOME, and an installation, outside folders that are closed to others.",
            )


def _become(uid: int, gid: int) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups")


def _works(command: tuple[str, ...]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    try:
        return subprocess.run(command, check=False, capture_output=True, timeout=_TRY_TIMEOUT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _give_to_nobody(home: Path) -> Account:
    """Change the owner of the home and of everything in it; links are changed, not followed."""
    for folder, folders, files in os.walk(home):
        for name in (*folders, *files):
            os.chown(Path(folder) / name, _NOBODY, _NOBODY, follow_symlinks=False)
    os.chown(home, _NOBODY, _NOBODY)
    return Account(_NOBODY, _NOBODY, _become(_NOBODY, _NOBODY))
