"""What callers get to see of how a partner is called now."""

from datetime import datetime

import msgspec


class Budget(msgspec.Struct):
    """So many calls in any window of so many seconds."""

    calls: float
    window_s: int


class Quota(msgspec.Struct, kw_only=True):
    """How much of what a partner allows is used.

    Attributes:
        rate_per_s: What the tightest budget allows; none without one.
        calls_per_s: That are made: as processes counted them, or in the breaker's window where they were looked at
            once only. None while nobody calls.
        used: The one against the other.
        concurrency: Calls at once that are allowed; none for no limit.
        granted: That living sessions may use, together.
    """

    budgets: list[Budget]
    rate_per_s: float | None
    calls_per_s: float | None
    used: float | None
    concurrency: int | None
    granted: int


class Share(msgspec.Struct):
    """How much of the concurrency one session may use."""

    worker: int
    name: str
    granted: int


class CallCounts(msgspec.Struct, kw_only=True):
    """Calls by outcome since an instant of the last five minutes.

    ``throttled``: it asked for silence (``Retry-After``), or said 429 alone.
    """

    since_at: datetime
    answered: int
    throttled: int
    failed: int
    throttled_share: float | None
    failed_share: float | None


class BreakerNow(msgspec.Struct, kw_only=True):
    """The breaker, which all processes share.

    Attributes:
        since: Of this state.
        until: While ``open``: nobody calls before.
        opened_times: Pauses in a row; each is twice as long as the one before.
        window_answered: Calls of the window that decides whether it opens.
    """

    state: str
    since: datetime | None
    until: datetime | None
    opened_times: int
    failing_since: datetime | None
    window_since: datetime | None
    window_answered: int
    window_failed: int


class QuietNow(msgspec.Struct, kw_only=True):
    """Quiet hours: when the present ones end, and the next ones."""

    until: datetime | None
    next_from: datetime | None
    next_until: datetime | None


class WaitingPolls(msgspec.Struct, kw_only=True):
    """Polls inside PostgreSQL; with Kafka most of them wait there. ``capped``: that many or more wait."""

    polls: int
    capped: bool
    oldest_at: datetime | None
    in_hand: int


class PartnerFigures(msgspec.Struct, kw_only=True):
    """How a partner is called now.

    Attributes:
        state: ``called``, or why not: ``paused``, ``quiet``, ``retry_after``, ``breaker_open``, ``on_trial``,
            ``settings_invalid``.
        state_until: When that ends, where it is known.
        calls: None until this process has been asked twice within five minutes.
    """

    name: str
    at: datetime
    state: str
    state_until: datetime | None
    quota: Quota
    shares: list[Share]
    calls: CallCounts | None
    breaker: BreakerNow
    quiet: QuietNow
    blocked_until: datetime | None
    waiting: WaitingPolls
    last_error: str | None
    last_error_at: datetime | None
