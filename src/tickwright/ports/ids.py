"""The only source of randomness and wall-clock time in the package."""

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
"""The local monotonic clock in seconds; only for waiting, never for promises. Not wrapped: hot loops call it."""


class _Wall:
    """How far the database's clock is ahead of the monotonic one, if known."""

    ahead_s: float | None = None


def record_database_time(now_s: float) -> None:
    """Record the database's time from an answer that has just arrived."""
    _Wall.ahead_s = now_s - monotonic()


def database_seconds() -> float | None:
    """Return the database's time in seconds since 1970, late by the way of its last answer, if there was one."""
    return None if _Wall.ahead_s is None else _Wall.ahead_s + monotonic()


def unix_seconds() -> int:
    """Return whole seconds since 1970, for protocols that need them (webhook timestamps).

    By the database's clock, as this process's session last received it; before that, by the clock of this machine.
    """
    return local_unix_seconds() if _Wall.ahead_s is None else int(_Wall.ahead_s + monotonic())


def local_unix_seconds() -> int:
    """Return whole seconds since 1970 by the clock of this machine, for comparison."""
    return int(time.time())
