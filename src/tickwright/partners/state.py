"""Whether a partner is called, for operators: read from its row, with the rules and in the order of the contract."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tickwright.domain.time_texts import instant_text
from tickwright.partners.model import BreakerState, SharedState, blocks
from tickwright.partners.settings import read_kept
from tickwright.ports.views import Reason

PROBLEM_CHARS_MAX = 500


def state_of(row: Mapping[str, Any]) -> tuple[str, datetime | None]:
    """Return ``called``, or what prevents calls and until when, if that is known.

    ``row`` has ``now``, ``paused_at``, ``settings`` as text, ``breaker``, ``open_until`` and ``blocked_until``.
    """
    if row["paused_at"] is not None:
        return "paused", None
    return next(_blocks(row), ("called", None))


def reasons_not_called(partner: str, row: Mapping[str, Any], error: str | None) -> Iterator[Reason]:
    """Yield every reason except a pause why a partner is not called now; ``error`` is its last one.

    ``row`` as for :func:`state_of`, without ``paused_at``.
    """
    for state, until in _blocks(row):
        end = "" if until is None else instant_text(until)
        match state:
            case "settings_invalid":
                problem = read_kept(row["settings"])[1][:PROBLEM_CHARS_MAX]
                yield Reason(state, f"no consumer calls {partner}: its settings cannot be read: {problem}")
            case "quiet":
                yield Reason("partner_quiet", f"{partner} has quiet hours until {end}")
            case "retry_after":
                yield Reason("partner_asked_to_wait", f"{partner} asked for silence until {end}")
            case "breaker_open":
                last = f"; the last error: {error}" if error else ""
                yield Reason(state, f"calls to {partner} fail, and none is made until {end}{last}")
            case _:
                yield Reason("breaker_half_open", f"calls to {partner} failed; single trial calls are made")


def _blocks(row: Mapping[str, Any]) -> Iterator[tuple[str, datetime | None]]:
    settings, problem = read_kept(row["settings"])
    if problem:
        yield "settings_invalid", None
    breaker: BreakerState = row["breaker"] or "closed"
    open_until_s, now_s = _seconds(row["open_until"]), row["now"].timestamp()
    shared = SharedState(0.0, _seconds(row["blocked_until"]), breaker, open_until_s)
    for why, until_s in blocks(shared, settings, paused=False, now_s=now_s):
        yield why, datetime.fromtimestamp(until_s, UTC)
    if breaker == "half_open" or (breaker == "open" and open_until_s <= now_s):
        yield "on_trial", None


def _seconds(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()
