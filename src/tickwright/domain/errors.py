"""The error tree. Everything that Tickwright raises on purpose is one of these.

::

    TickwrightError
    ├─ Rejected          the caller's mistake: change the request, then send it again
    ├─ Contended         another caller was first: try again
    ├─ Unavailable       a server does not answer: retry with back-off
    └─ InvariantBroken   a bug: an invariant does not hold, report it

Each error has a stable ``code`` (``snake_case``, part of the public contract), a ``message`` with what to do, and
``retriable``. Expected outcomes such as a lost lease are values, never errors. Errors of other libraries are translated
once, where they enter.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class TickwrightError(Exception):
    """Root of the tree; catch it to catch every error of Tickwright."""

    retriable: ClassVar[bool] = False
    status: ClassVar[int] = 500

    def __init__(self, code: str, message: str, *, status: int | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: Mapping[str, Any] = details
        self._status = status

    @property
    def http_status(self) -> int:
        """The HTTP status of the API's answer."""
        return self._status if self._status is not None else self.status


class Rejected(TickwrightError):
    """The caller's mistake. Permanent: retrying the same request cannot help."""

    status = 422


class Contended(TickwrightError):
    """Another caller changed the same object first. Retry after reading again."""

    retriable = True
    status = 409


class Unavailable(TickwrightError):
    """A required server does not answer. Retry with back-off."""

    retriable = True
    status = 503


class InvariantBroken(TickwrightError):
    """An invariant does not hold. Never retry; it is reported and counted."""

    status = 500
