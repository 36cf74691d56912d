"""The error tree. Everything Tickwright raises on purpose is one of these.

::

    TickwrightError
    ├─ Rejected          the caller's mistake: change the request, then send it again
    ├─ Contended         another caller was first: try again
    ├─ Unavailable       a server does not answer: retry with back-off
    └─ InvariantBroken   our mistake: a promise does not hold, report it

Each error carries a stable ``code`` (``snake_case``, part of the public contract), a
``message`` that says what to do, and ``retriable``. Expected outcomes such as a lost
lease are values, never errors. Foreign errors are translated once, where they enter.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class TickwrightError(Exception):
    """Root of the tree; catch it to catch everything that is ours."""

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
        """The HTTP status that the API answers with."""
        return self._status if self._status is not None else self.status


class Rejected(TickwrightError):
    """The caller's mistake. Permanent: retrying the same request cannot help."""

    status = 422


class Contended(TickwrightError):
    """Two callers wanted the same thing, and neither made a mistake; retry after reading again."""

    retriable = True
    status = 409


class Unavailable(TickwrightError):
    """Something that we need does not answer. Retry with back-off."""

    retriable = True
    status = 503


class InvariantBroken(TickwrightError):
    """A promise of ours does not hold. Never retry; it is reported and counted."""

    status = 500
