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


def unix_seconds() -> int:
    """Return whole seconds since 1970 by the local clock, where a protocol demands it (webhook timestamps)."""
    return int(time.time())
