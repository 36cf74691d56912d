"""Errors as RFC 9457 problem details: one shape, a stable ``code``, and advice. Never a stack trace."""

from http import HTTPStatus
from typing import Any

import asyncpg
import msgspec

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.views import shown
from tickwright.store.bounds import CHECK_OR_SEND_AGAIN, TookTooLong
from tickwright.store.pool import NO_ROOM, UNAVAILABLE, NotificationQueueFullError

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
DETAIL_CHARS_MAX = 1000
Headers = list[tuple[bytes, bytes]]

SAFE_HEADERS: Headers = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


class Problem(msgspec.Struct, kw_only=True):
    """The body of every error answer. Some codes add fields, such as ``pointer``, ``line`` or ``state``."""

    type: str
    title: str
    status: int
    detail: str
    code: str


def problem(error: TickwrightError) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of an error's answer, without data that the caller may not see."""
    status = error.http_status
    details = {name: value for name, value in error.details.items() if name not in {"retry_after_s", "headers"}}
    body = msgspec.json.encode(
        {
            "type": f"urn:tickwright:problem:{error.code}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": shown(error.message)[:DETAIL_CHARS_MAX],
            "code": error.code,
            **shown(details),
        }
    )
    headers: Headers = [(b"content-type", PROBLEM_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    headers += SAFE_HEADERS
    if status in {429, 503, 504}:
        wait_s = max(1, round(error.details.get("retry_after_s", RETRY_AFTER_S)))
        headers.append((b"retry-after", str(wait_s).encode()))
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="tickwright"'))
    headers += error.details.get("headers", [])
    return status, headers, body


_BUSY = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_NO_ANSWER = Unavailable("database_unavailable", "the database does not answer; try again")
_NO_ANSWER_TO_A_CHANGE = Unavailable(
    "database_unavailable",
    f"the database does not answer, and may have done this before it stopped answering: {CHECK_OR_SEND_AGAIN}",
)
_FOREIGN: tuple[tuple[tuple[type[BaseException], ...], TickwrightError], ...] = (
    ((asyncpg.DiskFullError,), Unavailable("disk_full", NO_ROOM)),
    (
        (asyncpg.QueryCanceledError, TookTooLong),
        Unavailable(
            "query_too_slow",
            "the database did not answer this in time; narrow the filter or the time range, or try again",
        ),
    ),
    (
        (asyncpg.ProgramLimitExceededError, NotificationQueueFullError),
        Unavailable(
            "database_limit_reached",
            "the database has reached a limit of its own, such as a full queue of notifications; see the alerts",
        ),
    ),
    (_BUSY, Unavailable("busy", "another client holds what this needs; try again")),
    (
        (asyncpg.ReadOnlySQLTransactionError,),
        Unavailable("database_read_only", "the database takes no writes now; try again"),
    ),
    (UNAVAILABLE, _NO_ANSWER),
    (
        (asyncpg.DataError, asyncpg.CheckViolationError),
        Rejected("invalid_value", "a value is outside of what can be kept"),
    ),
)


def translate(error: BaseException, *, of_a_change: bool) -> TickwrightError | None:
    """Return a foreign error as one of ours; ``None`` for an unexpected one.

    When a connection breaks during a change, the outcome is unknown; ``of_a_change`` makes the answer say so.
    """
    if isinstance(error, TickwrightError):
        return error
    found = next((ours for kinds, ours in _FOREIGN if isinstance(error, kinds)), None)
    return _NO_ANSWER_TO_A_CHANGE if of_a_change and found is _NO_ANSWER else found


def unexpected() -> TickwrightError:
    """Return the answer to an internal error, which shows no details."""
    return TickwrightError("internal_error", "something broke on our side; the log has more")


def of_status(status: int, message: str, **details: Any) -> TickwrightError:
    """Return the error for a status of the framework, such as no such route or method."""
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, f"http_{status}")
    return Rejected(code, message, status=status, **details)
