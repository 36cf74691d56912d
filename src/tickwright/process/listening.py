"""Listening sockets of a process, with errors that say which address is wrong."""

import errno
import socket

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.plugin.settings import Bind
from tickwright.rest.listener import bind


def listen(at: Bind, *, or_any: bool = False) -> socket.socket:
    """Return a listening socket; with ``or_any`` at a free port if the wanted one is taken.

    Raises:
        Unavailable: ``address_in_use``. Retry, or choose another port.
        Rejected: ``address_unusable``: no such host here, or no right to the port. Permanent.
    """
    try:
        return _bind(at)
    except Unavailable:
        if not or_any:
            raise
    return _bind(Bind(at.host, 0))


def _bind(at: Bind) -> socket.socket:
    try:
        return bind(at.host, at.port)
    except (OSError, UnicodeError) as error:  # the latter for an invalid host name
        reason = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise Unavailable("address_in_use", f"cannot listen at {at}: {reason}") from error
        raise Rejected("address_unusable", f"cannot listen at {at}: {reason}") from error
