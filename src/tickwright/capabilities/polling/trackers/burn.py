"""Burn rates: how fast an account uses up the error budget of its freshness. Pure.

The windows and thresholds are those of Google's *Site Reliability Workbook*, chapter 5: a rate counts when a long
window and one of a twelfth of it are both above it, so that neither a short trouble nor a trouble that is over calls
anybody. What is counted are slices of five minutes, and whole days where these are folded: a window begins at
the border of a slice, the longest one at midnight (UTC).
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tickwright.capabilities.polling.trackers.views import BurnRate

SLICE = timedelta(minutes=5)
MONTH = timedelta(days=30)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


class Counted(NamedTuple):
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


def burn_rates(judged_until: datetime, objective: float, counts: Sequence[Counted]) -> list[BurnRate]:
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


def _rate(window: BurnWindow, from_at: datetime, objective: float, long: Counted, short: Counted) -> BurnRate:
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


def burnt(counted: Counted, objective: float) -> float | None:
    """Return the rate at which a window used up the budget; nothing where nothing was judged."""
    if not counted.polls:
        return None
    return (counted.polls - counted.fresh) / counted.polls / (1 - objective)
