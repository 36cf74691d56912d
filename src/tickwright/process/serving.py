"""The API as a service: a socket of its own, bounded requests, a graceful end."""

import errno
import socket
from typing import Any

import structlog

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.engine.service import LoopService
from tickwright.plugin.settings import Bind
from tickwright.rest.admission import ListenerLimits
from tickwright.rest.listener import Listener, bind

_log = structlog.get_logger("tickwright.api")


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


class ApiService(LoopService):
    """Serves the API until stopped; a :class:`tickwright.ports.service.Service`.

    The socket listens already, so the port is known before the first request.
    """

    name = "api"

    def __init__(self, app: Any, listening: socket.socket, limits: ListenerLimits | None = None) -> None:
        super().__init__()
        self._app, self._socket, self._limits = app, listening, limits
        self.host, self.port = listening.getsockname()[:2]
        self._server: Listener | None = None

    @property
    def url(self) -> str:
        """The URL of the API."""
        return f"http://{Bind(self.host, self.port)}"

    async def _work(self) -> None:
        if self.stopping.is_set():
            return
        if self._socket.fileno() == -1:  # an earlier run has closed it
            self._socket = bind(self.host, self.port)
        self._server = server = Listener(self._app, limits=self._limits)
        _log.info("api.listening", url=self.url)
        try:
            await server.serve(sockets=[self._socket])
        finally:
            self._server = None
        if not self.stopping.is_set():
            raise Unavailable("api_ended", "the API server ended by itself")

    async def quiesce(self) -> None:
        """Accept no more connections, and let requests finish."""
        if self._server is not None:
            self._server.should_exit = True
        else:
            self._socket.close()
        await super().quiesce()

    async def stop(self) -> None:
        """Close connections with requests in progress."""
        if self._server is not None:
            self._server.force_exit = True
        await self.quiesce()

    def last_tick_age_s(self) -> float | None:
        """Return zero while it listens: it has no loop."""
        return 0.0 if self._server is not None and self._server.started else None
