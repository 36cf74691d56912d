"""What callers get to see of polling: the answers of the REST API and of ``--json``."""

from datetime import datetime
from typing import Any, ClassVar, Self

import msgspec

from tickwright.domain.masking import masked_document
from tickwright.ports.user_data import Doors, UserData


class AccountView(msgspec.Struct, kw_only=True):
    """How often an account's trackers are polled.

    Attributes:
        polling_interval_minutes: What was asked for.
        placed_interval_minutes: By what its trackers stand on the wheels; the corrector moves them when the two differ.
        max_age_days: How long a tracker that is registered from now on is polled, unless it says so itself.
        polls_per_slice_max: So many of its trackers are polled in five minutes at most; the others take turns.
        freshness_objective: The share of its polls that is to be made within 1.1 intervals of the one before.
        paused_at: Since when its trackers are not selected.
        lag_ratio: How old one of its trackers got within its last interval, in intervals: 1 when all are polled at
            their second, above 1.1 when one was not polled in time. None where nothing was judged lately.
        stale_since: Since when more of its last interval is stale than the objective allows.
    """

    account_id: str
    polling_interval_minutes: int
    placed_interval_minutes: int
    max_age_days: int
    polls_per_slice_max: int | None
    freshness_objective: float
    paused_at: datetime | None
    lag_ratio: float | None
    stale_since: datetime | None
    created_at: datetime
    updated_at: datetime


class AccountLine(AccountView, kw_only=True):
    """An account in a listing, with what its freshness comes to; :class:`AccountDetail` has all of it.

    Attributes:
        recent_share: The share of the last interval's polls that was fresh.
        error_budget_left: Of what may be stale in a month, the share that is not used up; below 0 it is overdrawn.
        burn_rate: How fast it was used up within the last hour that was judged: at 1 it lasts for a month exactly.
    """

    recent_share: float | None
    error_budget_left: float | None
    burn_rate: float | None


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


class AccountDetail(AccountView, kw_only=True):
    """One account; ``trackers`` counts ended ones too, and above 10,000 it is PostgreSQL's estimate."""

    trackers: int
    trackers_estimated: bool
    freshness: Freshness


class StoredAccount(msgspec.Struct):
    """The answer to a put."""

    account: AccountView
    created: bool


class PartnerView(msgspec.Struct, Doors, kw_only=True):
    """Whom we poll, and what all processes know together of it.

    Attributes:
        settings: As they were set.
        called_by: ``function`` of a consumer that lives, else ``http`` where the settings have it; else nobody can.
        breaker: ``closed``, ``open`` (nobody calls until ``open_until``) or ``half_open`` (single calls try).
        blocked_until: The partner asked for silence until then.
    """

    name: str
    settings: Any
    called_by: str | None
    paused_at: datetime | None
    breaker: str
    open_until: datetime | None
    blocked_until: datetime | None
    failing_since: datetime | None
    last_error: str | None
    last_error_at: datetime | None
    created_at: datetime
    updated_at: datetime

    def masked(self) -> Self:
        """Return it without what its settings have in addresses and headers."""
        settings = msgspec.json.decode(self.settings) if isinstance(self.settings, msgspec.Raw) else self.settings
        return msgspec.structs.replace(self, settings=masked_document({"settings": settings})["settings"])


class StoredPartner(msgspec.Struct):
    """The answer to a put."""

    partner: PartnerView
    created: bool


class TrackerView(msgspec.Struct, kw_only=True):
    """A tracker.

    Attributes:
        state: ``waiting`` (for its place), ``placed`` or ``ended``.
        status_at: When its status came to be, as whoever brought it says.
        next_poll_at: Its next turn; nothing while it waits, is paused or has ended.
        skip_until: Somebody else brought news, so it is not polled before.
    """

    id: int
    account_id: str
    partner: str
    external_id: str
    state: str
    status: str
    status_at: datetime | None
    created_at: datetime
    last_polled_at: datetime | None
    next_poll_at: datetime | None
    skip_until: datetime | None
    tracking_until: datetime
    ended_at: datetime | None


class TrackerEvent(msgspec.Struct):
    """A scan event that the courier told, with the instant that it gave."""

    at: datetime
    text: str


class TrackerDetail(TrackerView, UserData, kw_only=True):
    """One tracker; ``events`` are the last ten that polls brought, newest last."""

    USER_DATA: ClassVar[tuple[str, ...]] = ("events",)
    events: list[TrackerEvent] | None
    payload_hidden: bool = False


class RegisteredTracker(msgspec.Struct):
    """The answer to a registration; ``created`` is false when the partner's external id was registered before."""

    tracker: TrackerView
    created: bool


class EndedTracker(msgspec.Struct):
    """The answer to an end; ``outcome`` is ``ended``, or ``already_ended``."""

    id: int
    outcome: str
    ended_at: datetime


class EventOutcome(msgspec.Struct):
    """What became of news that somebody brought.

    ``outcome`` is ``applied``, ``stale`` (newer news are there), ``duplicate`` (these are there) or ``ended`` (the
    tracker is tracked no more). ``ended`` is true where these news ended it.
    """

    id: int
    outcome: str
    status: str
    status_at: datetime | None
    skip_until: datetime | None = None
    ended: bool = False


class SliceCounts(msgspec.Struct, kw_only=True):
    """What became of a slice's trackers.

    Attributes:
        expected: Trackers that stood there; of a turn that is not selected yet, as its slot's last turn counted them.
        selected: Put into the outbox.
        skipped: Not wanted: paused, too old, or somebody else brought news.
        deferred: Left to a later turn, because their account has had its polls of these five minutes.
        published: Sent.
        polled: Answered.
        late: Answered more than a tenth of their interval behind their due second.
        superseded: Given up because the next turn had come.
        coalesced: Turns, not trackers, that were missed and made good by a later one.
    """

    expected: int = 0
    selected: int = 0
    skipped: int = 0
    deferred: int = 0
    published: int = 0
    polled: int = 0
    late: int = 0
    superseded: int = 0
    coalesced: int = 0


class SliceView(msgspec.Struct):
    """One slice of time: in total, and per partner."""

    due_at: datetime
    total: SliceCounts
    partners: dict[str, SliceCounts]


class Replay(msgspec.Struct):
    """What a replay did, or would do.

    Attributes:
        turns: Last turns of their slots in the range.
        trackers: Polled again; of a dry run, would be.
        superseded_turns: Turns in the range that have a later one, so that there is nothing left to replay.
        unread_turns: Of which some or all trackers are left out, because their polls may be in Kafka still.
        unread_trackers: Left out, because the consumers have not passed the batches that their polls may be in.
        unknown_trackers: Left out, because nobody knows where such a batch stands in Kafka.
        released_until: When the last of them is released.
    """

    dry_run: bool
    turns: int
    trackers: int
    superseded_turns: int
    unread_turns: int
    unread_trackers: int
    unknown_trackers: int
    released_until: datetime | None
