"""Two lock files say who may start or stop the server, and whether anybody uses it.

The kernel drops a lock when its holder dies, however it dies. That is the whole reason for
locks instead of a list of process ids: a list outlives those it names.

The home must be on a local file system: network file systems keep ``flock`` per host or not at all.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from tickwright.domain.errors import Unavailable
from tickwright.embedded.home import Home
from tickwright.embedded.waiting import wait_until


@contextmanager
def start_lock(home: Home, within: timedelta) -> Iterator[None]:
    """Be the only one who starts or stops the server of ``home``.

    Raises:
        Unavailable: ``embedded_busy``, another process held the lock all the time. Retry.
    """
    descriptor = home.open_private(home.start_lock)
    try:
        if not wait_until(lambda: _try(descriptor, fcntl.LOCK_EX), within):
            raise Unavailable(
                "embedded_busy",
                f"Another process has been starting or stopping the server in {home.path} for {within}.",
            )
        yield
    finally:
        os.close(descriptor)


def join_users(home: Home) -> int:
    """Count as a user of the server; the caller holds the start lock. Close the descriptor to leave."""
    descriptor = home.open_private(home.users_lock)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # cannot block: the exclusive lock is only held under the start lock
    return descriptor


def is_only_user(descriptor: int) -> bool:
    """Return whether nobody but the holder of ``descriptor`` uses the server.

    The caller holds the start lock and is about to leave: its own lock may be lost by asking.
    """
    return _try(descriptor, fcntl.LOCK_EX)


def has_users(home: Home) -> bool:
    """Return whether any client is alive; the caller holds the start lock and is not one itself."""
    descriptor = home.open_private(home.users_lock)
    try:
        return not _try(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
