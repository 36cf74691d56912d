"""One address for the API and the dashboard: ``/v1`` and the probes are the API's, other paths the dashboard's.

The path prefix is removed here, so neither part knows it. A request without the prefix is accepted, because a proxy in
front may have removed it.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tickwright.api.openapi import OPEN_PATHS

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Any, Send], Awaitable[None]]
API = "/v1"


class Front:
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
    return path in OPEN_PATHS or path == API or path.startswith(f"{API}/")
