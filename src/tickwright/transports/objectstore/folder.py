"""Objects as files below one folder, for one machine or a file system that all processes share.

An upload writes a file with a random name in ``.uploads``, syncs it, renames it to its key, and syncs the folder. A
reader sees the whole old object or the whole new one, also after a kill or a power failure. obstore's folder store
neither syncs nor removes the files that a killed process leaves, so it is not used.

The writer locks its incomplete file with ``flock``. A file without a lock was left by a killed process; the next
process that opens the folder removes it. This needs no clock and never removes a file that is being written.

Blocking work runs in threads, which cannot be killed, so the work counts beats. Missing beats reveal a stalled disk,
and a cancelled call stops its work at the next beat. A hanging disk blocks its thread, but neither caller nor event
loop.
"""

import asyncio
import fcntl
import os
import shutil
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import NamedTuple, TypeVar

from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import random_token
from tickwright.ports.objects import StoredObject
from tickwright.transports.objectstore.locations import (
    UPLOADS,
    Place,
    check_key,
    clean_prefix,
    folder_errors,
    local_file_errors,
    new_file,
    object_missing,
    unavailable,
    write_all,
)

# ---------------------------------------------------------------------- partial files

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
SWEPT_MAX = 10_000
_TRIES_MAX = 5


class Incoming(NamedTuple):
    """An incomplete file."""

    fd: int
    path: Path


@contextmanager
def incoming(folder: Path) -> Iterator[Incoming]:
    """Yield a new file in ``folder``; remove it after the block unless it was renamed."""
    file = _create(folder)
    try:
        yield file
    finally:
        with suppress(FileNotFoundError):  # it was renamed
            file.path.unlink()
        os.close(file.fd)


def _create(folder: Path) -> Incoming:
    """Create and lock a file; try again if a concurrent sweep removed it before the lock."""
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
    """Remove files left by killed processes, at most ten thousand."""
    with os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(SWEPT_MAX), strict=False):
            with suppress(FileNotFoundError):  # removed by another process, or renamed by its writer
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
    """Counts the progress of work, and stops it."""

    def __init__(self) -> None:
        self.count = 0
        self._stopped = False

    def __call__(self) -> None:
        """Count one step of progress; raise ``AbandonedError`` after :meth:`stop`."""
        self.count += 1
        if self._stopped:
            raise AbandonedError

    def stop(self) -> None:
        """End the work at its next beat."""
        self._stopped = True


class AbandonedError(Exception):
    """The call was cancelled or timed out; the work cleans up and ends."""


Work = Callable[[Beat], T]


class Threads:
    """A small thread pool. Work without a beat for ``stalled_after_s`` is abandoned."""

    def __init__(self, *, stalled_after_s: float = STALLED_AFTER_S) -> None:
        self._stalled_after_s = stalled_after_s
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="objects")

    async def run(self, work: Work[T]) -> T:
        """Return the result of ``work``; a cancelled call ends it and waits up to five seconds for that.

        Raises:
            Unavailable: ``object_store_unavailable``: the work stalled. Retry.
        """
        beat = Beat()
        done = asyncio.get_running_loop().run_in_executor(self._pool, work, beat)
        done.add_done_callback(lambda late: late.cancelled() or late.exception())  # asyncio logs unread errors
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
        """Accept no new work; leave hanging threads alone. May be called twice."""
        self._pool.shutdown(wait=False, cancel_futures=True)


PIECE_BYTES = 1024 * 1024
SYNC_EVERY_BYTES = 64 * PIECE_BYTES  # bounds the time of a single sync
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FolderStore:
    """The store for ``file://`` URLs. Folders have mode 0700, files 0600.

    Args:
        place: Of scheme ``file``. A missing folder is made once, at the start, so that no empty folder replaces a disk
            that is unmounted later.
        stalled_after_s: A call is given up after so many seconds without progress.

    Raises:
        Rejected: ``object_store_refused``. Permanent until an operator acts.
        Unavailable: ``object_store_unavailable``. Retry.

    Invariants:
        OBF-1: an object under a key is whole, also after ``kill -9`` or a power failure.
        OBF-2: an incomplete object has no key, is in no listing, and is removed when the folder is next opened.
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
        """Copy the object to ``path``; remove an incomplete file."""
        check_key(key)
        return await self._threads.run(lambda beat: self._fetch(key, path, beat))

    async def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Yield the object from byte ``start`` in pieces of 1 MiB."""
        check_key(key)
        with await self._threads.run(lambda _: self._open(key)) as source:
            source.seek(start)
            while piece := await self._threads.run(lambda _: self._piece(key, source)):
                yield piece

    async def size(self, key: str) -> int | None:
        """Return the object's size in bytes; ``None`` if it does not exist."""
        check_key(key)
        return await self._threads.run(lambda _: self._size(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, and folders that become empty."""
        for key in keys:
            check_key(key)
        await self._threads.run(lambda beat: self._delete(keys, beat))

    async def listing(self, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects below the folder ``prefix``; ``a/bc`` is not below ``a/b``."""
        below = clean_prefix(prefix)
        return await self._threads.run(lambda beat: self._list(below, limit, beat))

    async def link(self, key: str, *, lasts: timedelta) -> str | None:  # noqa: ARG002  the port's signature
        """Return ``None``: a file has no URL for other users."""
        check_key(key)
        return None

    def close(self) -> None:
        """Close the thread pool. May be called twice."""
        self._threads.close()

    def _put(self, key: str, path: Path, beat: Beat) -> int:
        with local_file_errors(path):
            source = path.open("rb", buffering=0)
        with source, folder_errors(self.address(key)), incoming(self._uploads) as file:
            copied = _copy_in(source, path, file.fd, beat)
            self._publish(file, key)
            target = self._root / key
            size = target.stat().st_size
            if size != copied:
                target.unlink(missing_ok=True)
                raise OSError(f"{size} bytes of {copied} are there")
            return size

    def _publish(self, file: Incoming, key: str) -> None:
        target = self._root / key
        for left in range(_TRIES_MAX, -1, -1):
            self._make_folders(target.parent)
            try:
                file.path.rename(target)
            except FileNotFoundError:  # another process removed the folder while it was empty
                if not left:
                    raise
            else:
                _sync_folder(target.parent)
                return

    def _make_folders(self, folder: Path) -> None:
        """Make the missing folders below the root from the top down, each synced before the next."""
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
                self._root.stat()  # raises if the whole disk is missing, not only the object
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
        with suppress(OSError):  # not empty, or removed by another process
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
        """Yield every file below ``folder``; skip what vanishes meanwhile."""
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
    """Copy the caller's file to disk and sync it; return the number of bytes."""
    copied = 0
    while True:
        with local_file_errors(path):
            piece = source.read(PIECE_BYTES)
        if not piece:
            break
        beat()
        write_all(target, piece)
        copied += len(piece)
        if copied % SYNC_EVERY_BYTES < len(piece):
            os.fdatasync(target)
    os.fsync(target)
    return copied


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---------------------------------------------------------------------- work folder

LOCKS = "locks"


@contextmanager
def work_folder(place: Path) -> Iterator[Path]:
    """Yield a new folder in ``place`` for the block, after removing the folders of dead processes.

    Raises:
        OSError: It cannot be made. Retry when there is room, or permission.
    """
    locks = place / LOCKS
    place.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    locks.mkdir(PRIVATE_FOLDER, exist_ok=True)
    sweep(locks)
    with incoming(locks) as lock:
        _remove_dead(place, locks)
        folder = place / lock.path.name
        folder.mkdir(PRIVATE_FOLDER)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class LazyFolder:
    """A :class:`tickwright.ports.objects.WorkFolder` in ``place``, the folder of all work folders."""

    def __init__(self, place: Path) -> None:
        self._place, self._folders, self._making = place, ExitStack(), threading.Lock()
        self._path: Path | None = None

    def path(self) -> Path:
        """Return the folder; the first call makes it."""
        with self._making:
            if self._path is None:
                self._path = self._folders.enter_context(work_folder(self._place))
            return self._path

    async def opened(self) -> Path:
        """Return the folder without blocking the event loop: removing dead processes' folders may take long."""
        try:
            return await asyncio.to_thread(self.path)
        except OSError as error:
            raise Unavailable("no_space", f"no folder can be made in {self._place}: {error.strerror}") from error

    async def aclose(self) -> None:
        """Remove the folder."""
        await asyncio.to_thread(self._folders.close)


def _remove_dead(place: Path, locks: Path) -> None:
    """Remove folders without a lock. A process makes its lock before its folder."""
    for folder in place.iterdir():
        if folder != locks and not (locks / folder.name).exists():
            shutil.rmtree(folder, ignore_errors=True)
