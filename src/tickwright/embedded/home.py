"""The layout of the home directory, and the access to it.

The home is created with mode 0700. An existing home is used as it is, unless all users can write to it: then any user
could replace our files, so it is refused. Everything that we create inside has mode 0700 or 0600, so a readable home
does not open the server.

PostgreSQL refuses to run as root, but a container's user often *is* root. Root's server gets an unprivileged user and
only the group of that user, which also owns the files that the server writes. Root's home stays root's, with the log
and the locks, and gets mode 0710 with that user's group. The server can pass through it to its data directory
and its socket, but cannot add, rename or replace a file there. If a folder above the home is closed to the server's
user, such as ``/root``, the server inherits the home as an open descriptor and finds its files through
``/proc/self/fd``.

A socket's path has at most 107 bytes on Linux. If the home's path is too long for that, the socket is in a private
folder below ``/tmp``. Its name is derived from user and home, so that every process finds the same one.
"""

import hashlib
import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

from tickwright.domain.errors import Rejected

_ACCOUNTS = ("tickwright", "nobody")
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
        return ("setpriv", "--no-new-privs") if self.drops and _has_setpriv() else ()

    def can(self, *command: str) -> bool:
        """Return whether ``command`` succeeds as this user."""
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_TRY_TIMEOUT_S, cwd="/", **self.run_as())
        except (OSError, subprocess.SubprocessError):
            return False
        return True

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

    An ordinary user is that user itself. For root it is the first of these that is not root: the owner of the home, the
    owner of the data directory, the account ``tickwright``, ``nobody``. Not ``postgres``: another server of the machine
    can run under it.

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
            f"{home} belongs to user {owner.st_uid}, this process runs as user {os.geteuid()}: "
            "choose another TICKWRIGHT_HOME.",
        )
    account = _owner_of(home) or _owner_of(home / "data") or next(_accounts(), None)
    if account is None:
        raise Rejected(
            "embedded_root_not_dropped",
            "PostgreSQL does not run as root, and there is no account to run it as: add the user tickwright.",
        )
    if not account.can("true"):
        raise _not_dropped(account.uid, "a program cannot be run as that user")
    return account


def _owner_of(folder: Path) -> Account | None:
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return Account(found.st_uid, found.st_gid, drops=True) if found.st_uid != 0 else None


def _accounts() -> Iterator[Account]:
    for name in _ACCOUNTS:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        if found.pw_uid != 0 and found.pw_gid != 0:
            yield Account(found.pw_uid, found.pw_gid, drops=True)


@cache
def _has_setpriv() -> bool:
    command = ["setpriv", "--no-new-privs", "true"]
    try:
        return subprocess.run(command, check=False, capture_output=True, cwd="/").returncode == 0
    except OSError:
        return False


def _not_dropped(uid: int, why: str) -> Rejected:
    return Rejected(
        "embedded_root_not_dropped",
        f"PostgreSQL does not run as root, and we may not run it as user {uid} ({why}). "
        "Start Tickwright as an ordinary user, or with the capabilities CHOWN, SETUID and SETGID, "
        "or set TICKWRIGHT_DATABASE_URL to use a server of your own.",
    )


SOCKET_PATH_BYTES_MAX = 103
_LOG_BYTES_MAX = 16 * 1024 * 1024
_LONGEST_SOCKET_NAME = ".s.PGSQL.65535.lock"
_SHORT_ROOT = Path("/tmp")  # noqa: S108  shared on purpose; owner and mode of the folder below it are checked


@dataclass(frozen=True, slots=True)
class View:
    """How the server's processes find the files of the home: they enter it by ``root`` and inherit ``descriptors``."""

    home: Path
    root: Path
    descriptors: tuple[int, ...] = ()

    def path(self, path: Path) -> Path:
        """Return the server's path of ``path``; a path outside the home stays the same."""
        return self.root / path.relative_to(self.home) if path.is_relative_to(self.home) else path


@dataclass(frozen=True, slots=True)
class Home:
    """The files of one embedded server; all paths are absolute.

    ``account`` runs the server and owns ``data`` and ``sockets``. The home's owner owns the rest.
    """

    path: Path
    account: Account

    @property
    def data(self) -> Path:
        """PostgreSQL's data directory."""
        return self.path / "data"

    def unfinished_data(self) -> list[Path]:
        """Return the folders of interrupted ``initdb`` runs."""
        return sorted(self.path.glob("data.new.*"))

    @property
    def log(self) -> Path:
        """The server's log; at each start it is at most 16 MiB, with one older file."""
        return self.path / "postgres.log"

    @property
    def start_lock(self) -> Path:
        """Locked exclusively while a process starts or stops the server."""
        return self.path / "start.lock"

    @property
    def users_lock(self) -> Path:
        """Locked in shared mode by every client during its life."""
        return self.path / "users.lock"

    @property
    def sockets(self) -> Path:
        """The folder of the Unix socket, mode 0700: a user that can enter it is the superuser."""
        near = self.path / "run"
        if len(os.fsencode(near / _LONGEST_SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX:
            return near
        name = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return _SHORT_ROOT / f"tickwright-{self.account.uid}-{name}"

    def cluster_major(self) -> int | None:
        """Return the major version of the data directory; ``None`` if there is none yet."""
        try:
            return int((self.data / "PG_VERSION").read_text().strip())
        except FileNotFoundError:
            return None

    def open_private(self, path: Path, flags: int = os.O_RDWR) -> int:
        """Open ``path`` with mode 0600, create it if missing, and return the descriptor.

        Raises:
            Rejected: ``embedded_home_unsafe``: the file has a second name, so it may be another user's. Permanent.
        """
        descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(descriptor).st_nlink > 1:
            os.close(descriptor)
            raise Rejected("embedded_home_unsafe", f"{path} is a hard link to another file: remove it.")
        owner = self.path.stat()
        _change_owner(descriptor, owner.st_uid, owner.st_gid)
        return descriptor

    def make_socket_folder(self) -> None:
        """Create the socket's folder; refuse one that is not ours alone.

        Raises:
            Rejected: ``embedded_socket_folder_unsafe``: it is another user's, or open. Permanent.
        """
        folder = self.sockets
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _unsafe_folder(folder) from error
        try:
            _change_owner(descriptor, self.account.uid, self.account.gid)
            found = os.fstat(descriptor)
            if found.st_uid != self.account.uid or stat.S_IMODE(found.st_mode) & 0o077:
                raise _unsafe_folder(folder)
        finally:
            os.close(descriptor)

    def open_log(self) -> int:
        """Open the log for appending; a log above 16 MiB is first renamed to ``postgres.log.1``."""
        descriptor = self.open_private(self.log, os.O_WRONLY | os.O_APPEND)
        if os.fstat(descriptor).st_size <= _LOG_BYTES_MAX:
            return descriptor
        os.close(descriptor)
        self.log.replace(self.path / "postgres.log.1")
        return self.open_private(self.log, os.O_WRONLY | os.O_APPEND)

    def log_tail(self) -> str:
        """Return the end of the server's log, at most 2,000 characters, for an error message."""
        try:
            return self.log.read_text(errors="replace")[-2000:].strip()
        except OSError:
            return "(no log)"

    def take_over(self) -> None:
        """Let the server's user pass through root's home, and own a data directory that is still root's.

        Earlier releases ran root's server in a user namespace, where its files were root's. The caller holds the start
        lock, and no server runs.

        Raises:
            Rejected: ``embedded_root_not_dropped``: root may not change owners here. Permanent.
        """
        if not self.account.drops or self.path.stat().st_uid != 0:
            return
        os.chown(self.path, 0, self.account.gid)
        self.path.chmod(0o710)
        if self.data.is_dir() and self.data.stat().st_uid == 0:
            self.account.own(self.data)

    @contextmanager
    def view(self) -> Iterator[View]:
        """Give the server's path into the home, while a process of the server is being started."""
        if not self.account.drops or self.account.can("test", "-x", str(self.path)):
            yield View(self.path, self.path)
            return
        descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield View(self.path, Path(f"/proc/self/fd/{descriptor}"), (descriptor,))
        finally:
            os.close(descriptor)


def open_home(path: Path) -> Home:
    """Create the home directory if it is missing, and return its layout.

    Raises:
        Rejected: ``embedded_home_unsafe``: all users can write to it, it is not a folder, or it cannot be created;
            ``embedded_home_not_ours``: it is another user's. Both permanent.
    """
    home = path.expanduser().absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = home.resolve()
        mode = home.stat().st_mode
        _ = list(os.scandir(home))
    except OSError as error:
        raise Rejected("embedded_home_unsafe", f"{home} cannot be used as home: {error}") from error
    if mode & stat.S_IWOTH:
        raise Rejected(
            "embedded_home_unsafe", f"All users can write to {home}: choose another TICKWRIGHT_HOME or chmod 700 it."
        )
    return Home(home, account_for(home))


def _change_owner(descriptor: int, uid: int, gid: int) -> None:
    if os.geteuid() == 0 and uid != 0 and os.fstat(descriptor).st_uid == 0:
        os.fchown(descriptor, uid, gid)


def _unsafe_folder(folder: Path) -> Rejected:
    return Rejected(
        "embedded_socket_folder_unsafe",
        f"{folder} is not a folder of ours with mode 0700; remove it, or choose a shorter TICKWRIGHT_HOME.",
    )
