"""The user that runs the server.

PostgreSQL refuses to run as root, but a container's user often *is* root. An ordinary user runs the server as itself.
If we are root, the server gets an unprivileged user id and only the group of that user, which also owns the files that
the server writes.

=================================  =======================================================
the home belongs to                the server runs as
=================================  =======================================================
us, and we are not root            us
another user, and we are root      that user
root, and we are root              the owner of the data directory, where that is not root;
                                   else the account ``tickwright``, else ``nobody``
=================================  =======================================================

The account ``postgres`` is not used, because another server of the machine can run under it.
"""

import os
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

from tickwright.domain.errors import Rejected

_ACCOUNTS = ("tickwright", "nobody")
_NO_NEW_PRIVILEGES = ("setpriv", "--no-new-privs")
_TRY_TIMEOUT_S = 30


class RunAs(TypedDict, total=False):
    """``subprocess`` arguments that drop root."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    """The user that runs the server and owns its data; never root. ``drops``: we are root and become this user."""

    uid: int
    gid: int
    drops: bool

    def run_as(self) -> RunAs:
        """Return the ``subprocess`` arguments that run a program as this user, without other groups."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.drops else {}

    def prefix(self) -> tuple[str, ...]:
        """Return the command words before the server that keep set-user-id programs from regaining root."""
        return _NO_NEW_PRIVILEGES if self.drops and _runs(_NO_NEW_PRIVILEGES) else ()

    def can(self, *command: str) -> bool:
        """Return whether ``command`` succeeds as this user."""
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, timeout=_TRY_TIMEOUT_S, cwd="/", **self.run_as()
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0

    def own(self, folder: Path) -> None:
        """Make this user the owner of ``folder`` and of everything in it; links are changed, not followed.

        The folder itself is changed last, so that the next start repeats an interrupted change.

        Raises:
            Rejected: ``embedded_root_not_dropped``: root may not change owners here. Permanent.
        """
        try:
            for _, folders, files, descriptor in os.fwalk(folder):
                for name in (*folders, *files):
                    os.chown(name, self.uid, self.gid, dir_fd=descriptor, follow_symlinks=False)
            os.chown(folder, self.uid, self.gid, follow_symlinks=False)
        except OSError as error:
            raise _not_dropped(self.uid, str(error)) from error


def account_for(home: Path) -> Account:
    """Return the user that runs the server in ``home``; ``home`` exists.

    Raises:
        Rejected: ``embedded_home_not_ours``: the home is another user's; ``embedded_root_not_dropped``: we are root and
            may not become another user. Permanent.
    """
    owner = home.stat()
    if os.geteuid() == owner.st_uid and owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid, drops=False)
    if os.geteuid() != 0:
        raise Rejected(
            "embedded_home_not_ours",
            f"{home} belongs to user {owner.st_uid}, we are {os.geteuid()}: choose another TICKWRIGHT_HOME.",
        )
    account = _owner_of(home) or _owner_of(home / "data") or _unprivileged()
    if not account.can("true"):
        raise _not_dropped(account.uid, "a program cannot be run as that user")
    return account


def _owner_of(folder: Path) -> Account | None:
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return Account(found.st_uid, found.st_gid, drops=True) if found.st_uid != 0 else None


def _unprivileged() -> Account:
    account = next(_accounts(), None)
    if account is None:
        raise Rejected(
            "embedded_root_not_dropped",
            "PostgreSQL does not run as root, and there is no account to run it as: add the user tickwright.",
        )
    return account


def _accounts() -> Iterator[Account]:
    for name in _ACCOUNTS:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        if found.pw_uid != 0 and found.pw_gid != 0:
            yield Account(found.pw_uid, found.pw_gid, drops=True)


@cache
def _runs(words: tuple[str, ...]) -> bool:
    try:
        return subprocess.run([*words, "true"], check=False, capture_output=True, cwd="/").returncode == 0
    except OSError:
        return False


def _not_dropped(uid: int, why: str) -> Rejected:
    return Rejected(
        "embedded_root_not_dropped",
        f"PostgreSQL does not run as root, and we may not run it as user {uid} ({why}). "
        "Start Tickwright as an ordinary user, or with the capabilities CHOWN, SETUID and SETGID, "
        "or set TICKWRIGHT_DATABASE_URL to use a server of your own.",
    )
