"""Versions of messages that processes of several releases exchange."""

from typing import Any

from tickwright.domain.errors import Rejected


class FutureVersionError(Exception):
    """A message of a newer release, which a process of that release can read."""


def check_version(version: Any, newest: int, *, field: str) -> None:
    """Check the version of a message, a whole number from 1 to ``newest``.

    Raises:
        Rejected: ``unknown_version``: dead-letter the message. Permanent for this message.
        FutureVersionError: It is above ``newest``. Retry elsewhere.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise Rejected("unknown_version", f"{field}: write 1")
    if version > newest:
        raise FutureVersionError(f"version {version}"[:60])
