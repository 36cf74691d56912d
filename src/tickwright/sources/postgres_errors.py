"""What PostgreSQL says when it does not do what a query asks, in our words: what may pass, and what never will."""

from collections.abc import Callable

from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.placeholders import Bound
from tickwright.sources.pieces import row_too_large

MESSAGE_CHARS_MAX = 1000
_TIMEOUT = "57014"
_TOO_LARGE = ("tickwright row_too_large", "invalid memory alloc request size")
"""What ``bounded`` says of a row, and what PostgreSQL says of one beyond a GB; never translated."""
_ONE_QUERY_HINT = "a source answers one query: a single select, values or with that only reads"
_UNTYPED = "write its type behind the name, as :name::text"
_HINTS = {"42P08": _UNTYPED, "42P18": _UNTYPED, "42601": _ONE_QUERY_HINT, "0A000": _ONE_QUERY_HINT}
_PASSING = ("08", "28", "3D", "40", "53", "55", "57", "58", "XX", "25P")
"""Classes of SQLSTATE that say nothing of the query: the connection, who may connect, conflicts, the server's needs."""


def lost(name: str, text: str) -> Unavailable:
    """Return the error for a server that cannot be reached or that broke off."""
    first = text.strip().partition("\n")[0] or "the connection was closed"
    return Unavailable("source_unavailable", f"source {name} is not available: {first[:MESSAGE_CHARS_MAX]}")


def refused(
    name: str, result: PGresult, bound: Bound, sql: str, mask: Callable[[str], str], *, ahead: int = 0
) -> TickwrightError:
    """Return the error that a failed result stands for, with the place in what was written, where there is one.

    Args:
        name: Of the source.
        result: What PostgreSQL answered.
        bound: What was sent.
        sql: What was written.
        mask: Takes secrets out of a text.
        ahead: So many characters of ours were sent before it.
    """
    state = _field(result, DiagnosticField.SQLSTATE)
    said = mask(_field(result, DiagnosticField.MESSAGE_PRIMARY) or "no reason given")[:MESSAGE_CHARS_MAX]
    if state == _TIMEOUT and "statement timeout" in said:
        return Unavailable("source_timeout", f"source {name} did not finish the query in time")
    if any(text in said for text in _TOO_LARGE):
        return row_too_large(f"source {name}")
    if not state or state.startswith(_PASSING):
        return lost(name, said)
    told = mask(_field(result, DiagnosticField.MESSAGE_HINT))[:MESSAGE_CHARS_MAX]
    hint = _HINTS.get(state, told)
    text = f"source {name} refuses the query{_place(result, bound, sql, ahead)}: {said}{f' ({hint})' if hint else ''}"
    return Rejected("source_refused", text, sqlstate=state)


def _place(result: PGresult, bound: Bound, sql: str, ahead: int) -> str:
    position = _field(result, DiagnosticField.STATEMENT_POSITION)
    if not position.isdigit() or int(position) <= ahead:
        return ""
    at = bound.original(int(position) - 1 - ahead)
    line = sql.count("\n", 0, at) + 1
    return f" at line {line}, column {at - (sql.rfind(chr(10), 0, at) + 1) + 1}"


def _field(result: PGresult, field: DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode("utf-8", "replace")
