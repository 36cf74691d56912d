"""Freshness of accounts: each slot's minute is judged when its time is over, by the polls that were made.

A poll is *fresh* when it is made within a tenth of its interval after its second, so that no tracker gets older than
1.1 intervals. The check uses no counters: it compares the trackers of the slot with the ledger of done polls. So all
causes count: a slot that was not selected, a poll that was dropped, deferred or lost, a partner that does not answer.
Counts are kept per account, in slices of five minutes and, later, in days.

The objective and its error budget are those of Google's *Site Reliability Workbook*, chapter 2, the windows and
thresholds of burn rates those of chapter 5: a rate counts when a long window and one of a twelfth of it are both above
it. Windows begin at the border of a slice, the longest one at midnight (UTC), because whole days are folded.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from tickwright.capabilities.polling.wheels.loops import WANTED
from tickwright.ports.session import HeldLease
from tickwright.ports.views import view
from tickwright.store.pool import Pool
from tickwright.store.queries import load

SLICE = timedelta(minutes=5)
MONTH = timedelta(days=30)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FreshCounts(msgspec.Struct, kw_only=True):
    """Polls that were judged; ``share`` is that of the fresh ones, null without polls."""

    polls: int
    fresh: int
    share: float | None


class BurnRate(msgspec.Struct, kw_only=True):
    """How fast an account uses its error budget: at 1 it lasts for a month exactly, at 14.4 for two days.

    Attributes:
        window: ``1h``, ``6h`` or ``3d``, up to the last judged minute.
        from_at: Begin: up to five minutes earlier; of the longest window at midnight (UTC).
        rate: The share of stale polls, divided by the share that may be stale; null when nothing was judged.
        budget_used: The part of a budget of thirty days that this uses.
        short_window: A twelfth of the window, so that an alert ends soon after the problem.
        threshold: An alert fires when both rates are above it.
        burning: Both rates are above it.
    """

    window: str
    from_at: datetime
    polls: int
    fresh: int
    rate: float | None
    budget_used: float | None
    short_window: str
    short_rate: float | None
    threshold: float
    burning: bool


class Freshness(msgspec.Struct, kw_only=True):
    """How fresh an account is. A poll is fresh within a tenth of its interval after its second.

    Attributes:
        objective: The share that is to be fresh.
        judged_until: The last judged minute, about a tenth of the interval ago.
        stale_since: Since when more of its last interval is stale than the objective allows; the alert ``account_lag``.
        recent: Of the last interval.
        month: Of the last 31 days.
        error_budget_left: The unused share of what may be stale in a month; below 0 it is overdrawn.
        burn: How fast it is used, over an hour, six hours and three days.
    """

    objective: float
    lag_ratio: float | None
    judged_until: datetime | None
    stale_since: datetime | None
    recent: FreshCounts
    month: FreshCounts
    error_budget_left: float | None
    burn: list[BurnRate]


class FreshSlice(msgspec.Struct, kw_only=True):
    """How fresh an account was in one slice of five ``minutes``, or on one day (1,440); ``lag`` is its greatest."""

    from_at: datetime
    minutes: int
    polls: int
    fresh: int
    lag: float


class FreshSeries(msgspec.Struct):
    """How fresh an account was: whole days first, then slices, each from the oldest on."""

    account_id: str
    objective: float
    slices: list[FreshSlice]


class BurnWindow(NamedTuple):
    """A window, its short window (a twelfth of it), and the rate above which both raise an alert."""

    name: str
    length: timedelta
    short_name: str
    threshold: float


WINDOWS = (
    BurnWindow("1h", timedelta(hours=1), "5m", 14.4),
    BurnWindow("6h", timedelta(hours=6), "30m", 6.0),
    BurnWindow("3d", timedelta(days=3), "6h", 1.0),
)


class JudgedCounts(NamedTuple):
    """Polls that were judged, and how many of them were fresh."""

    polls: int
    fresh: int


def begins(judged_until: datetime) -> list[datetime]:
    """Return where the windows that end at an instant begin: of each the long one, then the short one."""
    found = []
    for length in (length for window in WINDOWS for length in (window.length, window.length / 12)):
        begin = judged_until - length
        width = timedelta(days=1) if length >= timedelta(days=1) else SLICE
        found.append(begin - (begin - _EPOCH) % width)
    return found


def burn_rates(judged_until: datetime, objective: float, counts: Sequence[JudgedCounts]) -> list[BurnRate]:
    """Return the rate of every window; ``counts`` are those of the windows of :func:`begins`, in that order.

    The ``objective`` is below 1.
    """
    found = []
    for window, from_at, long, short in zip(WINDOWS, begins(judged_until)[::2], counts[::2], counts[1::2], strict=True):
        rate, short_rate = burnt(long, objective), burnt(short, objective)
        burn = BurnRate(
            window=window.name,
            from_at=from_at,
            polls=long.polls,
            fresh=long.fresh,
            rate=rate,
            budget_used=None if rate is None else rate * (window.length / MONTH),
            short_window=window.short_name,
            short_rate=short_rate,
            threshold=window.threshold,
            burning=min(rate or 0.0, short_rate or 0.0) > window.threshold,
        )
        found.append(burn)
    return found


def burnt(counted: JudgedCounts, objective: float) -> float | None:
    """Return the rate at which a window used the budget; ``None`` when nothing was judged."""
    if not counted.polls:
        return None
    return (counted.polls - counted.fresh) / counted.polls / (1 - objective)


IDLE_S = 10.0
SLICES_MAX = 3_000
"""More than an account can have: a week and two hours of slices, and a month of days."""
FOLD_MAX = 5000

_SQL = {
    name: sql.replace("{wanted}", WANTED)
    for name, sql in load("tickwright.capabilities.polling.sql", "freshness.sql").items()
}


class BudgetLine(NamedTuple):
    """Summary of an account's freshness; see :class:`.accounts.AccountLine`."""

    recent_share: float | None
    error_budget_left: float | None
    burn_rate: float | None


class FreshnessJudge:
    """Judges each slot's minute once, and folds old slices into days.

    Invariants:
        FRS-1: each tracker that was in a slot since one interval before its minute counts once for it, fresh or not.
    """

    async def round(self, lease: HeldLease) -> float:
        """Judge the next minute of every wheel; again at once while there are more."""
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            due = await connection.fetch(_SQL["to_judge"])
            folded = await connection.fetchval(_SQL["fold"], FOLD_MAX)
            await connection.execute(_SQL["forget"], FOLD_MAX)
            await connection.execute(_SQL["forget_caps"])
        for slot in due:
            async with lease.transaction() as connection:
                if connection is None:
                    return 0.0
                await connection.execute(_SQL["judge"], slot["slot_id"], slot["due_at"], slot["interval_minutes"])
        return 0.0 if due or folded == FOLD_MAX else IDLE_S


async def read_freshness(pool: Pool, account_no: int) -> Freshness:
    """Return how fresh one account is, and how fast it uses its error budget."""
    row = await pool.fetchrow(_SQL["show"], account_no)
    burn: list[BurnRate] = []
    if row["judged_until"] is not None:
        counted = await pool.fetch(_SQL["burn"], account_no, begins(row["judged_until"]))
        burn = burn_rates(row["judged_until"], row["objective"], [JudgedCounts(*counts) for counts in counted])
    month, recent = _counts(row["polls"], row["fresh"]), _counts(row["recent_polls"], row["recent_fresh"])
    left = _budget_left(month, row["objective"])
    return view(Freshness, row, recent=recent, month=month, error_budget_left=left, burn=burn)


async def read_budgets(pool: Pool, account_ids: Sequence[str]) -> dict[str, BudgetLine]:
    """Return the summaries of accounts, in one statement."""
    return {
        row["account_id"]: BudgetLine(
            recent_share=_counts(row["recent_polls"], row["recent_fresh"]).share,
            error_budget_left=_budget_left(_counts(row["polls"], row["fresh"]), row["objective"]),
            burn_rate=burnt(JudgedCounts(row["hour_polls"], row["hour_fresh"]), row["objective"]),
        )
        for row in await pool.fetch(_SQL["budgets"], list(account_ids))
    }


async def read_series(pool: Pool, account_no: int, since: datetime) -> list[FreshSlice]:
    """Return how fresh one account was since an instant."""
    return [view(FreshSlice, row) for row in await pool.fetch(_SQL["series"], account_no, since, SLICES_MAX)]


def _budget_left(month: FreshCounts, objective: float) -> float | None:
    return None if month.share is None else 1 - (1 - month.share) / (1 - objective)


def _counts(polls: int, fresh: int) -> FreshCounts:
    return FreshCounts(polls=polls, fresh=fresh, share=fresh / polls if polls else None)
