"""Where randomness and wall clocks enter; nothing else in the package may ask for them."""

import random
import secrets
import time


def random_unit() -> float:
    """Return a number in ``[0, 1)`` for jitter."""
    return random.random()  # noqa: S311  jitter needs speed, not secrecy


def random_token(bytes_count: int) -> str:
    """Return a URL-safe secret of ``bytes_count`` random bytes."""
    return secrets.token_urlsafe(bytes_count)


def random_bytes(count: int) -> bytes:
    """Return ``count`` random bytes from the operating system."""
    return secrets.token_bytes(count)


monotonic = time.monotonic
"""The local monotonic clock in seconds; for waiting only, never for promises. Bare, because hot loops ask it."""


class _Wall:
    """What this process has heard of the database's clock: how far that is ahead of the monotonic one."""

    ahead_s: float | None = None


def hear_database(now_s: float) -> None:
    """Note what the database's clock said in an answer that has just come."""
    _Wall.ahead_s = now_s - monotonic()


def unix_seconds() -> int:
    """Return whole seconds since 1970, where a protocol demands it (webhook timestamps).

    By the database's clock, as this process's session last heard of it; one that has heard nothing yet goes by its own.
    """
    return local_unix_seconds() if _Wall.ahead_s is None else int(_Wall.ahead_s + monotonic())


def local_unix_seconds() -> int:
    """Return the same by the clock of this machine, to compare it."""
    return int(time.time())
