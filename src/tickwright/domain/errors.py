"""The error tree: everything that Tickwright raises on purpose. And the exceptions of users' functions as text.

::

    TickwrightError
    ├─ Rejected          the caller's mistake: change the request, then send it again
    │  ├─ JobFailed      the awaited job has failed
    │  └─ JobCancelled   the awaited job was cancelled
    ├─ Contended         another caller was first: try again
    ├─ Unavailable       a server does not answer: retry with back-off
    └─ InvariantBroken   a bug: an invariant does not hold, report it

Each error has a stable ``code`` (``snake_case``, part of the public contract), a ``message`` with what to do, and
``retriable``. Expected outcomes such as a lost lease are values, never errors. Errors of other libraries are translated
once, where they enter. A user's function may raise anything, such as an exit, or an error that cannot be printed or
stored; none of that may block other work.
"""

import inspect
from collections.abc import Callable, Mapping
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


class JobFailed(Rejected):
    """The last attempt of an awaited job failed; ``details`` has ``job_id`` and ``attempts``. Permanent."""

    status = 409


class JobCancelled(Rejected):
    """An awaited job was cancelled, or it expired; ``details`` has ``job_id``. Permanent."""

    status = 409


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


CODE_CHARS = 100


def takes_one(function: Callable[..., Any]) -> bool:
    """Return whether it can be called with one positional argument and nothing else."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True


def failure_text(error: BaseException, mask: Callable[[str], str]) -> tuple[str, str]:
    """Return the code and the text of an exception of a user's function, both storable in PostgreSQL.

    The code is that of a ``TickwrightError``, otherwise ``exception``; ``mask`` removes secrets from a text.
    """
    if isinstance(error, TickwrightError):
        code = safe_text(lambda: f"{error.code}", "exception")
        text = safe_text(lambda: f"{error.message}", type(error).__name__)
    else:
        code, text = "exception", error_text(error)
    return storable(mask(code))[:CODE_CHARS], storable(mask(text))


def error_text(error: BaseException) -> str:
    """Return an error's class and, if it can be printed, its text."""
    return safe_text(lambda: f"{type(error).__name__}: {error}", type(error).__name__)


def safe_text(text_of: Callable[[], str], otherwise: str) -> str:
    """Return the text of ``text_of``, which runs code of a user's class; if that raises anything, ``otherwise``."""
    try:
        return text_of()
    except BaseException:  # noqa: BLE001  the user's class
        return otherwise


def storable(text: str) -> str:
    """Return a text without characters that PostgreSQL refuses: NUL and halves of surrogate pairs."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()
