"""How a partner is called now: its quota, its outcomes, its breaker, its quiet hours, and what waits for it.

The database knows what all processes share; what each has called is in its heartbeat, as numbers that only rise. Two
looks make a rate, so this process remembers what it saw within the last five minutes. Nothing is counted by a query.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from tickwright.capabilities.polling.partners.views import (
    BreakerNow,
    Budget,
    CallCounts,
    PartnerFigures,
    QuietNow,
    Quota,
    Share,
    WaitingPolls,
)
from tickwright.domain.errors import Rejected
from tickwright.partners.quiet import quiet_next, quiet_until
from tickwright.partners.settings import PartnerSettings, read_kept
from tickwright.ports.views import view
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.polling.sql", "figures.sql")
ROWS_LOOKED_MAX = 1_000
REMEMBERED = timedelta(minutes=5)
APART = timedelta(seconds=5)
PARTNERS_MAX = 1_000
Row = Mapping[str, Any]


class Calls(NamedTuple):
    """Calls by their outcome."""

    answered: int = 0
    throttled: int = 0
    failed: int = 0


class _Look(NamedTuple):
    """What processes had counted at an instant."""

    at: datetime
    by_process: Mapping[str, Calls]


class CallHistory:
    """What was seen of the processes' counters, per partner; at most a look every five seconds, for five minutes."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[_Look]] = {}

    def look(self, partner: str, at: datetime, by_process: Mapping[str, Calls]) -> CallCounts | None:
        """Return what was called since the oldest look that is remembered; ``None`` at the first one.

        A process that counts less than before began anew: what it counts now is all new. So is one that was not there.
        """
        looks = self._looks.setdefault(partner, deque())
        while looks and at - looks[0].at > REMEMBERED:
            looks.popleft()
        counted = _since(looks, at, by_process)
        if not looks or at - looks[-1].at >= APART:
            looks.append(_Look(at, dict(by_process)))
        while len(self._looks) > PARTNERS_MAX:
            del self._looks[next(iter(self._looks))]
        return counted


def _since(looks: Sequence[_Look], at: datetime, by_process: Mapping[str, Calls]) -> CallCounts | None:
    if not looks or at <= looks[0].at:
        return None
    total = Calls()
    for before, after in zip(looks, [*list(looks)[1:], _Look(at, by_process)], strict=True):
        for name, now in after.by_process.items():
            then = before.by_process.get(name, Calls())
            new = Calls(*(n - t for n, t in zip(now, then, strict=True))) if sum(now) >= sum(then) else now
            total = Calls(*(t + n for t, n in zip(total, new, strict=True)))
    whole = sum(total)
    return CallCounts(
        **total._asdict(),
        since_at=looks[0].at,
        throttled_share=total.throttled / whole if whole else None,
        failed_share=total.failed / whole if whole else None,
    )


async def partner_figures(pool: Pool, history: CallHistory, name: str) -> PartnerFigures:
    """Return how a partner is called now.

    Raises:
        Rejected: ``partner_not_found`` (404). Permanent.
    """
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        row = await connection.fetchrow(_SQL["standing"], name)
        if row is None:
            raise Rejected("partner_not_found", f"there is no partner {name[:50]!r}", status=404)
        shares = [view(Share, one) for one in await connection.fetch(_SQL["shares"], row["partner_no"])]
        waiting = view(WaitingPolls, await connection.fetchrow(_SQL["waiting"], row["partner_no"], ROWS_LOOKED_MAX))
        counted = await connection.fetch(_SQL["counted"], name)
    calls = history.look(name, row["now"], {one["name"]: Calls(*tuple(one)[1:]) for one in counted})
    settings, problem = read_kept(row["settings"])
    quiet = _quiet(settings, row["now"])
    state, until = ("settings_invalid", None) if problem and row["paused_at"] is None else _state(row, quiet)
    return PartnerFigures(
        name=name,
        at=row["now"],
        state=state,
        state_until=until,
        quota=_quota(settings, row, calls, sum(one.granted for one in shares)),
        shares=shares,
        calls=calls,
        breaker=_breaker(row),
        quiet=quiet,
        blocked_until=row["blocked_until"],
        waiting=waiting,
        last_error=row["last_error"],
        last_error_at=row["last_error_at"],
    )


def _state(row: Row, quiet: QuietNow) -> tuple[str, datetime | None]:
    """Return what stands in the way of a call, in the order of the contract's own decision."""
    if row["paused_at"] is not None:
        return "paused", None
    if quiet.until is not None:
        return "quiet", quiet.until
    if row["blocked_until"] is not None and row["blocked_until"] > row["now"]:
        return "retry_after", row["blocked_until"]
    if row["breaker"] == "open":
        return "breaker_open", row["open_until"]
    return ("on_trial", None) if row["breaker"] == "half_open" else ("called", None)


def _quiet(settings: PartnerSettings, now: datetime) -> QuietNow:
    until = quiet_until(now.timestamp(), settings.quiet)
    following = quiet_next(now.timestamp() if until is None else until, settings.quiet)
    begins, ends = (None, None) if following is None else (_at(following[0]), _at(following[1]))
    return QuietNow(until=None if until is None else _at(until), next_from=begins, next_until=ends)


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _breaker(row: Row) -> BreakerNow:
    return BreakerNow(
        state=row["breaker"],
        since=row["changed_at"],
        until=row["open_until"] if row["breaker"] == "open" else None,
        opened_times=row["opened_times"],
        failing_since=row["failing_since"],
        window_since=row["window_at"],
        window_answered=row["window_ok"],
        window_failed=row["window_failed"],
    )


def _quota(settings: PartnerSettings, row: Row, calls: CallCounts | None, granted: int) -> Quota:
    rate = min((calls / window_s for calls, window_s in settings.budgets), default=None)
    made = _calls_per_s(settings, row, calls)
    return Quota(
        budgets=[Budget(*budget) for budget in settings.budgets],
        rate_per_s=rate,
        calls_per_s=made,
        used=None if rate is None or made is None else made / rate,
        concurrency=settings.concurrency,
        granted=granted,
    )


def _calls_per_s(settings: PartnerSettings, row: Row, calls: CallCounts | None) -> float | None:
    now: datetime = row["now"]
    if calls is not None:
        return (calls.answered + calls.throttled + calls.failed) / (now - calls.since_at).total_seconds()
    if row["window_at"] is None or now - row["window_at"] > 2 * settings.breaker.window:
        return None
    return float((row["window_ok"] + row["window_failed"]) / max(1.0, (now - row["window_at"]).total_seconds()))
