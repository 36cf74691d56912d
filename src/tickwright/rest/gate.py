"""What the API provides to a capability's routes: authentication and the body."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Protocol, TypeVar

from tickwright.ports.caller import Role

T = TypeVar("T")


class Gate(Protocol):
    """Authentication, roles, and bodies within their limits. Requests are Starlette's."""

    def allow(self, role: Role, scope: str | None = None) -> Any:
        """Return a FastAPI dependency that returns the :class:`Caller`, or refuses one below ``role``.

        A key with scopes passes only where ``scope`` is one of them.
        """

    async def read(self, request: Any, kind: type[T], *, default: T | None = None, bytes_max: int | None = None) -> T:
        """Return the JSON body as ``kind``; ``default`` where there is no body."""

    async def read_bytes(self, request: Any, bytes_max: int | None = None) -> bytes:
        """Return a JSON body as bytes; at most ``bytes_max``, or the limit of any body."""

    def check_role(self, request: Any, role: Role, scope: str | None = None) -> None:
        """Refuse the caller of an ASGI request (its scope) as :meth:`allow` does, for a route without the framework."""

    async def read_raw(self, request: Any, receive: Any, bytes_max: int | None = None) -> bytes:
        """Return the JSON body of an ASGI request (its scope) as bytes, for a route without the framework."""

    def stream(self, request: Any, *, csv: bool = False) -> AsyncIterator[bytes]:
        """Yield an NDJSON body piece by piece; with ``csv`` also CSV."""

    def now(self) -> datetime | None:
        """Return a time that the database's clock has reached, if known."""

    def forget_keys(self) -> None:
        """Look up every key again at its next use, after a key was changed."""
