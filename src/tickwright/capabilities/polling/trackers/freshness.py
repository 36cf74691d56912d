"""How fresh accounts are kept: every turn is judged when its time is over, from what really was polled.

A poll is *fresh* when it was made within a tenth of its interval behind its second, so that no tracker gets older than
1.1 intervals. The judge does not believe counters on the way: it compares who stood in the slot with the ledger of
polls that are done. So a turn that nobody selected, a poll that was dropped, deferred or lost, and a partner that does
not answer all count, whatever the reason. Counts are kept per account, in slices of five minutes
and, later, in days.

The objective and its error budget are those of Google's *Site Reliability Workbook*, chapter 2.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from tickwright.capabilities.polling.wheels.store import WANTED
from tickwright.ports.lease import HeldLease
from tickwright.ports.views import view
from tickwright.store.pool import Pool
from tickwright.store.queries import load

# Burn rates: how fast an account uses up the error budget of its freshness. Pure.
#
# The windows and thresholds are those of Google's *Site Reliability Workbook*, chapter 5: a rate counts when a long
# window and one of a twelfth of it are both above it, so that neither a short trouble nor a trouble that is over calls
# anybody. What is counted are slices of five minutes, and whole days where these are folded: a window begins at
# the border of a slice, the longest one at midnight (UTC).

SLICE = timedelta(minutes=5)
MONTH = timedelta(days=30)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FreshCounts(msgspec.Struct, kw_only=True):
    """Turns that were judged; ``share`` is that of the fresh ones, nothing when there are none."""

    polls: int
    fresh: int
    share: float | None


class BurnRate(msgspec.Struct, kw_only=True):
    """How fast an account uses up its error budget: at 1 it lasts for a month exactly, at 14.4 for two days.

    Attributes:
        window: ``1h``, ``6h`` or ``3d``, up to the last minute that was judged.
        from_at: Where it begins: up to five minutes earlier, of the longest one at midnight (UTC).
        rate: The part of its polls that was stale, against the part that may be; nothing when nothing was judged.
        budget_used: What that takes out of a budget of thirty days.
        short_window: A twelfth of the window, so that an alert ends soon after the trouble.
        threshold: Somebody should look when both rates are above it.
        burning: They are.
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
    """How well an account's promise is kept. A poll is fresh within a tenth of its interval behind its second.

    Attributes:
        objective: The share that is to be fresh.
        lag_ratio: As in the account.
        judged_until: The last minute whose turns were judged: about a tenth of the interval ago.
        stale_since: Since when more of its last interval is stale than the objective allows; the alert ``account_lag``.
        recent: Of the last interval.
        month: Of the last 31 days.
        error_budget_left: Of what may be stale in a month, the share that is not used up; below 0 it is overdrawn.
        burn: How fast it is used up, over an hour, six hours and three days.
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
    """How fresh an account was: whole days first, then what is kept in slices, each from the oldest on."""

    account_id: str
    objective: float
    slices: list[FreshSlice]


class BurnWindow(NamedTuple):
    """A window, the short one beside it, and above which rate both say that somebody should look."""

    name: str
    length: timedelta
    short_name: str
    short_length: timedelta
    threshold: float


WINDOWS = (
    BurnWindow("1h", timedelta(hours=1), "5m", timedelta(minutes=5), 14.4),
    BurnWindow("6h", timedelta(hours=6), "30m", timedelta(minutes=30), 6.0),
    BurnWindow("3d", timedelta(days=3), "6h", timedelta(hours=6), 1.0),
)


class JudgedCounts(NamedTuple):
    """Turns that were judged, and how many of them were fresh."""

    polls: int
    fresh: int


def begins(judged_until: datetime) -> list[datetime]:
    """Return where the windows begin that end at an instant: of each the long one, then the short one."""
    return [_begin(judged_until, length) for one in WINDOWS for length in (one.length, one.short_length)]


def _begin(judged_until: datetime, length: timedelta) -> datetime:
    begin = judged_until - length
    width = timedelta(days=1) if length >= timedelta(days=1) else SLICE
    return begin - (begin - _EPOCH) % width


def burn_rates(judged_until: datetime, objective: float, counts: Sequence[JudgedCounts]) -> list[BurnRate]:
    """Return the rate of every window.

    Args:
        judged_until: The last minute that was judged.
        objective: The share that is to be fresh, below 1.
        counts: Of the windows that :func:`begins` names, in that order.
    """
    starts = begins(judged_until)
    return [
        _rate(window, starts[2 * n], objective, counts[2 * n], counts[2 * n + 1]) for n, window in enumerate(WINDOWS)
    ]


def _rate(window: BurnWindow, from_at: datetime, objective: float, long: JudgedCounts, short: JudgedCounts) -> BurnRate:
    rate, short_rate = (burnt(one, objective) for one in (long, short))
    return BurnRate(
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


def burnt(counted: JudgedCounts, objective: float) -> float | None:
    """Return the rate at which a window used up the budget; nothing where nothing was judged."""
    if not counted.polls:
        return None
    return (counted.polls - counted.fresh) / counted.polls / (1 - objective)


LOOK_S = 5.0
SLICES_MAX = 3_000
"""More than a week and two hours of slices, and a month of days: what there can be of an account."""
FOLD_MAX = 5000

_SQL = {
    name: sql.replace("{wanted}", WANTED)
    for name, sql in load("tickwright.capabilities.polling.sql", "freshness.sql").items()
}


class BudgetLine(NamedTuple):
    """What the freshness of one account comes to; see :class:`.views.AccountLine`."""

    recent_share: float | None
    error_budget_left: float | None
    burn_rate: float | None


class FreshnessJudge:
    """Judges turns, each once, and folds slices whose time is over into days.

    Invariants:
        FRS-1: each tracker that stood in a slot since one interval before its turn counts once for it, as fresh or not.
    """

    async def round(self, lease: HeldLease) -> float:
        """Judge the next turn of every wheel; at once again while there are more."""
        async with lease.transaction() as connection:
            if connection is None:
                return 0.0
            turns = await connection.fetch(_SQL["to_judge"])
            folded = await connection.fetchval(_SQL["fold"], FOLD_MAX)
            await connection.execute(_SQL["forget"], FOLD_MAX)
            await connection.execute(_SQL["forget_caps"])
        for turn in turns:
            async with lease.transaction() as connection:
                if connection is None:
                    return 0.0
                await connection.execute(_SQL["judge"], turn["slot_id"], turn["due_at"], turn["interval_minutes"])
        return 0.0 if turns or folded == FOLD_MAX else LOOK_S


async def read_freshness(pool: Pool, account_no: int) -> Freshness:
    """Return how fresh one account is, and how fast it uses up its error budget."""
    row = await pool.fetchrow(_SQL["show"], account_no)
    burn: list[BurnRate] = []
    if row["judged_until"] is not None:
        counted = await pool.fetch(_SQL["burn"], account_no, begins(row["judged_until"]))
        burn = burn_rates(row["judged_until"], row["objective"], [JudgedCounts(*one) for one in counted])
    return freshness_of(row, burn)


async def read_budgets(pool: Pool, account_ids: Sequence[str]) -> dict[str, BudgetLine]:
    """Return what the freshness of some accounts comes to, in one statement."""
    return {row["account_id"]: _budget_of(row) for row in await pool.fetch(_SQL["budgets"], list(account_ids))}


def _budget_of(row: Any) -> BudgetLine:
    return BudgetLine(
        recent_share=_counts(row["recent_polls"], row["recent_fresh"]).share,
        error_budget_left=_budget_left(_counts(row["polls"], row["fresh"]), row["objective"]),
        burn_rate=burnt(JudgedCounts(row["hour_polls"], row["hour_fresh"]), row["objective"]),
    )


async def read_series(pool: Pool, account_no: int, since: datetime) -> list[FreshSlice]:
    """Return how fresh one account was since an instant."""
    return [view(FreshSlice, row) for row in await pool.fetch(_SQL["series"], account_no, since, SLICES_MAX)]


def freshness_of(row: Any, burn: list[BurnRate]) -> Freshness:
    """Return what a row of the query ``show`` says; ``burn`` is empty where nothing was judged lately."""
    month = _counts(row["polls"], row["fresh"])
    return Freshness(
        objective=row["objective"],
        lag_ratio=row["lag_ratio"],
        judged_until=row["judged_until"],
        stale_since=row["stale_since"],
        recent=_counts(row["recent_polls"], row["recent_fresh"]),
        month=month,
        error_budget_left=_budget_left(month, row["objective"]),
        burn=burn,
    )


def _budget_left(month: FreshCounts, objective: float) -> float | None:
    return None if month.share is None else 1 - (1 - month.share) / (1 - objective)


def _counts(polls: int, fresh: int) -> FreshCounts:
    return FreshCounts(polls=polls, fresh=fresh, share=fresh / polls if polls else None)
