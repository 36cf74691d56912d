"""The API and the dashboard as a service: one address and socket, bounded requests, a graceful end.

``/v1`` and the probes are the API's, other paths the dashboard's. The path prefix is removed here, so neither part
knows it. A request without the prefix is accepted, because a proxy in front may have removed it.
"""

import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from tickwright.api.openapi import OPEN_PATHS
from tickwright.domain.errors import Unavailable
from tickwright.engine.service import LoopService
from tickwright.plugin.settings import Bind
from tickwright.rest.admission import ListenerLimits
from tickwright.rest.listener import Listener, bind

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Any, Send], Awaitable[None]]
API_PATH = "/v1"


class ApiAndDashboard:
    """An ASGI application that joins two; ``prefix`` is such as ``/tickwright``, or empty at the root."""

    def __init__(self, api: Application, page: Application, prefix: str = "") -> None:
        self._api, self._page, self._prefix = api, page, prefix

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
        """Pass one request to its application."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        if self._prefix:
            scope["path"] = self._without_prefix(scope["path"])  # the listener reads this scope, not a copy
            send = self._with_prefix(send)
        await (self._api if is_api(scope["path"]) else self._page)(scope, receive, send)

    def _without_prefix(self, path: str) -> str:
        rest = path.removeprefix(self._prefix)
        return path if rest == path or rest[:1] not in {"", "/"} else rest or "/"

    def _with_prefix(self, send: Send) -> Send:
        """Add the prefix to ``Location`` headers."""
        prefix = self._prefix.encode()

        async def moved(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    (name, prefix + value if name == b"location" and value.startswith(b"/v1/") else value)
                    for name, value in message["headers"]
                ]
            await send(message)

        return moved


def is_api(path: str) -> bool:
    """Return whether the API answers at ``path``."""
    return path in OPEN_PATHS or path == API_PATH or path.startswith(f"{API_PATH}/")


_log = structlog.get_logger("tickwright.api")


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
