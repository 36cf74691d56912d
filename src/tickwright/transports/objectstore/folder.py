"""Objects as files below one folder: for a single machine, or a file system that all processes share.

An object is written under a name of its own in ``.uploads``, synced, and renamed to its key; then the folder is synced.
So a reader sees the old object or the new one, whole, also after a kill or a power failure. Written by hand, because
obstore's own folder store neither syncs nor removes what a killed process leaves beside the object.

A file that is not whole yet is locked with ``flock`` by its writer. A file without a lock is left by a killed process,
and is removed when the next process opens the folder. That needs no clock, and never removes a file that is being
written.

The blocking work runs in threads. A thread cannot be killed, so the work beats: a disk that stalls is noticed by the
missing beats, and a cancelled call stops its work at the next one. A disk that hangs keeps its thread, but neither its
caller nor the event loop.
"""

import asyncio
import fcntl
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import NamedTuple, TypeVar

from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import random_token
from tickwright.ports.objects import StoredObject
from tickwright.transports.objectstore.errors import (
    folder_errors,
    local_file_errors,
    new_file,
    object_missing,
    unavailable,
    write_all,
)
from tickwright.transports.objectstore.locations import UPLOADS, Place, check_key, clean_prefix

# ---------------------------------------------------------------------- partial files

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
SWEPT_MAX = 10_000
_TRIES_MAX = 5


class Incoming(NamedTuple):
    """One file that is being written."""

    fd: int
    path: Path


@contextmanager
def incoming(folder: Path) -> Iterator[Incoming]:
    """Give a new file in ``folder``; what was not renamed by the end of the block is removed."""
    file = _create(folder)
    try:
        yield file
    finally:
        with suppress(FileNotFoundError):  # it was renamed
            file.path.unlink()
        os.close(file.fd)


def _create(folder: Path) -> Incoming:
    """Make a file and lock it; somebody who sweeps at that very moment makes us try again."""
    for _ in range(_TRIES_MAX):
        path = folder / random_token(12)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            ours = _lock(fd) and os.fstat(fd).st_nlink > 0
        except OSError:
            os.close(fd)
            raise
        if ours:
            return Incoming(fd, path)
        os.close(fd)
    raise BlockingIOError(f"{folder} is being swept without end")


def sweep(folder: Path) -> None:
    """Remove what killed processes left, at most ten thousand files."""
    with os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(SWEPT_MAX), strict=False):
            with suppress(FileNotFoundError):  # somebody was faster, or it is whole
                _remove_if_dead(Path(entry.path))


def _remove_if_dead(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if _lock(fd) and os.fstat(fd).st_nlink:
            path.unlink()
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ---------------------------------------------------------------------- threads

THREADS_MAX = 4
STALLED_AFTER_S = 30.0
GONE_WITHIN_S = 5.0
"""How long a cancelled call waits for its work to clean up."""

T = TypeVar("T")


class Beat:
    """Told by the work that it goes on."""

    def __init__(self) -> None:
        self.count = 0
        self._stopped = False

    def __call__(self) -> None:
        """Say so; raises ``Abandoned`` when nobody waits for the work any more."""
        self.count += 1
        if self._stopped:
            raise AbandonedError

    def stop(self) -> None:
        """Let the work end at its next beat."""
        self._stopped = True


class AbandonedError(Exception):
    """Nobody waits for this work any more; it cleans up and ends."""


Work = Callable[[Beat], T]


class Threads:
    """A few threads. ``stalled_after_s``: work without a beat for that long is given up."""

    def __init__(self, *, stalled_after_s: float = STALLED_AFTER_S) -> None:
        self._stalled_after_s = stalled_after_s
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="objects")

    async def run(self, work: Work[T]) -> T:
        """Return what ``work`` returns; cancelling ends the work as well, and waits for it up to five seconds.

        Raises:
            Unavailable: ``object_store_unavailable``, it stood still. Retry.
        """
        beat = Beat()
        done = asyncio.get_running_loop().run_in_executor(self._pool, work, beat)
        done.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody looks when it is late
        try:
            return await self._wait(done, beat)
        except asyncio.CancelledError:
            beat.stop()
            await asyncio.wait({done}, timeout=GONE_WITHIN_S)
            raise

    async def _wait(self, done: asyncio.Future[T], beat: Beat) -> T:
        while True:
            seen = beat.count
            await asyncio.wait({done}, timeout=self._stalled_after_s)
            if done.done():
                return done.result()
            if beat.count == seen:
                beat.stop()
                raise Unavailable(
                    "object_store_unavailable", f"the disk has not moved for {self._stalled_after_s:g} seconds"
                )

    def close(self) -> None:
        """Let no new work begin; a thread that hangs is left alone. Twice is harmless."""
        self._pool.shutdown(wait=False, cancel_futures=True)


PIECE_BYTES = 1024 * 1024
SYNC_EVERY_BYTES = 64 * PIECE_BYTES  # so that no single sync takes long
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FolderStore:
    """``file://``. Everything belongs to the user of the process: folders 0700, files 0600.

    Args:
        place: Of scheme ``file``. Its folder is made if it is missing, once: a disk that is unmounted later is not
            replaced by an empty folder.
        stalled_after_s: A disk that has not moved for so long is given up.

    Raises:
        Rejected: ``object_store_refused``. Permanent until an operator acts.
        Unavailable: ``object_store_unavailable``. Retry.

    Invariants:
        OBF-1: what is under a key is whole, also after ``kill -9`` or a power failure.
        OBF-2: what is not whole has no key, is in no listing, and is gone once the folder is opened again.
    """

    def __init__(self, place: Place, *, stalled_after_s: float = STALLED_AFTER_S) -> None:
        self._place = place
        self._root = Path(place.path)
        self._uploads = self._root / UPLOADS
        with folder_errors(place.path):
            self._uploads.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            sweep(self._uploads)
        self._threads = Threads(stalled_after_s=stalled_after_s)

    def address(self, key: str) -> str:
        """Return ``file:///folder/key``."""
        return self._place.address(key)

    async def put_file(self, key: str, path: Path) -> int:
        """Copy the file at ``path``; the old object stays until the new one is whole and on disk."""
        check_key(key)
        return await self._threads.run(lambda beat: self._put(key, path, beat))

    async def fetch_file(self, key: str, path: Path) -> int:
        """Copy the object to ``path``; a file that is not whole is removed."""
        check_key(key)
        return await self._threads.run(lambda beat: self._fetch(key, path, beat))

    async def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Give the object from byte ``start`` on in pieces of 1 MiB."""
        check_key(key)
        with await self._threads.run(lambda _: self._open(key)) as source:
            source.seek(start)
            while piece := await self._threads.run(lambda _: self._piece(key, source)):
                yield piece

    async def size(self, key: str) -> int | None:
        """Return the object's bytes; ``None`` if there is none."""
        check_key(key)
        return await self._threads.run(lambda _: self._size(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, and the folders that are empty without them."""
        for key in keys:
            check_key(key)
        await self._threads.run(lambda beat: self._delete(keys, beat))

    async def listing(self, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects in the folder ``prefix`` or below; ``a/b`` is not below ``a/bc``."""
        below = clean_prefix(prefix)
        return await self._threads.run(lambda beat: self._list(below, limit, beat))

    async def link(self, key: str, *, lasts: timedelta) -> str | None:  # noqa: ARG002  the port's shape
        """Return ``None``: a file has no URL that others may read."""
        check_key(key)
        return None

    def close(self) -> None:
        """Let the threads go. Twice is harmless."""
        self._threads.close()

    def _put(self, key: str, path: Path, beat: Beat) -> int:
        with local_file_errors(path):
            source = path.open("rb", buffering=0)
        with source, folder_errors(self.address(key)), incoming(self._uploads) as file:
            copied = _copy_in(source, path, file.fd, beat)
            self._publish(file, key)
            return _kept(self._root / key, copied)

    def _publish(self, file: Incoming, key: str) -> None:
        target = self._root / key
        for left in range(_TRIES_MAX, -1, -1):
            self._make_folders(target.parent)
            try:
                file.path.rename(target)
            except FileNotFoundError:  # somebody removed the folder, because it was empty
                if not left:
                    raise
            else:
                _sync_folder(target.parent)
                return

    def _make_folders(self, folder: Path) -> None:
        """Make what is missing below the root, from the top down, each on disk before the next."""
        missing = [each for each in (folder, *folder.parents) if each.is_relative_to(self._root) and not each.is_dir()]
        for each in reversed(missing):
            with suppress(FileExistsError):
                each.mkdir(PRIVATE_FOLDER)
            _sync_folder(each.parent)

    def _fetch(self, key: str, path: Path, beat: Beat) -> int:
        with self._open(key) as source, new_file(path) as target:
            fetched = 0
            while piece := self._piece(key, source):
                beat()
                with local_file_errors(path):
                    write_all(target, piece)
                fetched += len(piece)
            if fetched != (size := os.fstat(source.fileno()).st_size):
                raise unavailable(self.address(key), f"{fetched} bytes of {size} could be read")
            return fetched

    def _open(self, key: str) -> FileIO:
        with folder_errors(self.address(key)):
            try:
                fd = os.open(self._root / key, _READ)
            except (FileNotFoundError, NotADirectoryError):
                self._root.stat()  # the disk may be gone, not the object
                raise object_missing(self.address(key)) from None
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise object_missing(self.address(key))
            return FileIO(fd)

    def _piece(self, key: str, source: FileIO) -> bytes:
        with folder_errors(self.address(key)):
            return source.read(PIECE_BYTES) or b""

    def _size(self, key: str) -> int | None:
        with folder_errors(self.address(key)):
            try:
                found = (self._root / key).lstat()
            except (FileNotFoundError, NotADirectoryError):
                self._root.stat()
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None

    def _delete(self, keys: Sequence[str], beat: Beat) -> None:
        for key in keys:
            beat()
            target = self._root / key
            with folder_errors(self.address(key)):
                self._root.stat()
                with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    target.unlink()
            self._remove_empty(target.parent)

    def _remove_empty(self, folder: Path) -> None:
        with suppress(OSError):  # it is not empty, or somebody else was faster
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent

    def _list(self, below: str, limit: int, beat: Beat) -> list[StoredObject]:
        found: list[StoredObject] = []
        with folder_errors(self.address(below)):
            self._root.stat()
            for entry in self._walk(self._root / below, beat):
                if len(found) >= limit:
                    break
                with suppress(FileNotFoundError):
                    key = os.path.relpath(entry.path, self._root)
                    found.append(StoredObject(key, entry.stat(follow_symlinks=False).st_size))
        return found

    def _walk(self, folder: Path, beat: Beat) -> Iterator[os.DirEntry[str]]:
        """Give every file below ``folder``; what vanishes meanwhile is left out."""
        waiting = [os.fspath(folder)]
        while waiting:
            try:
                entries = os.scandir(waiting.pop())
            except (FileNotFoundError, NotADirectoryError):
                continue
            with entries:
                for entry in entries:
                    beat()
                    if entry.is_file(follow_symlinks=False):
                        yield entry
                    elif entry.is_dir(follow_symlinks=False) and entry.path != os.fspath(self._uploads):
                        waiting.append(entry.path)


def _copy_in(source: FileIO, path: Path, target: int, beat: Beat) -> int:
    """Copy all bytes of the caller's file and put them on disk; return their number."""
    copied = 0
    while piece := _read_local(source, path):
        beat()
        write_all(target, piece)
        copied += len(piece)
        if copied % SYNC_EVERY_BYTES < len(piece):
            os.fdatasync(target)
    os.fsync(target)
    return copied


def _read_local(source: FileIO, path: Path) -> bytes:
    with local_file_errors(path):
        return source.read(PIECE_BYTES) or b""


def _kept(target: Path, copied: int) -> int:
    """Return the bytes that are there now; an object that lost some is no object."""
    size = target.stat().st_size
    if size != copied:
        target.unlink(missing_ok=True)
        raise OSError(f"{size} bytes of {copied} are there")
    return size


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
