"""What callers get to see of load: how many polls an account, a partner and everything make, and when."""

from datetime import datetime

import msgspec

from tickwright.capabilities.polling.trackers.views import SliceCounts


class AccountLoad(msgspec.Struct, kw_only=True):
    """What an account's trackers make under one setting.

    Attributes:
        polls_per_s: On the average; the cap is taken off.
        deferred_share: The part of its polls that the cap leaves to a later turn.
    """

    polling_interval_minutes: int
    polls_per_slice_max: int | None
    polls_per_s: float
    deferred_share: float


class PartnerLoad(msgspec.Struct, kw_only=True):
    """What one partner gets of it, now and then.

    Attributes:
        trackers: Of this account.
        account_now: Polls a second of this account.
        all_now: Of all accounts, as the next hour's turns counted them last.
        rate_per_s: What the tightest budget of the partner allows; none without one.
        used_now: ``all_now`` against that.
        over: Then more is asked than the partner allows: polls come later and later.
    """

    partner: str
    trackers: int
    account_now: float
    account_then: float
    all_now: float
    all_then: float
    rate_per_s: float | None
    used_now: float | None
    used_then: float | None
    over: bool


class WholeLoad(msgspec.Struct, kw_only=True):
    """What all accounts make together.

    Attributes:
        polls_per_s: On the average of the next hour.
        slice_peak: Polls in the fullest slice of five minutes of the next hour.
        slice_mean: On the average of its slices.
    """

    polls_per_s: float
    slice_peak: int
    slice_mean: int


class LoadPreview(msgspec.Struct, kw_only=True):
    """What a change of an account would do to the load; nothing is changed.

    Attributes:
        trackers: Placed ones of the account.
        trackers_estimated: From a sample: it has more than 10,000.
    """

    account_id: str
    trackers: int
    trackers_estimated: bool
    now: AccountLoad
    then: AccountLoad
    all_now: WholeLoad
    all_then: WholeLoad
    partners: list[PartnerLoad]


class HeatCell(SliceCounts, kw_only=True):
    """One cell of a heat map.

    Attributes:
        unanswered: Selected, and neither answered nor given up; on their way still, where the cell is young.
        flatness: Its fullest ten seconds against its average ones, 1 when level; none where nothing stood.
        last_turns: Slots whose last turn lies here: those are what a replay can look at.
    """

    from_at: datetime
    unanswered: int
    flatness: float | None
    last_turns: int


class SliceHeat(msgspec.Struct, kw_only=True):
    """A range of the slice ledger in cells of equal length, the oldest first; those without a turn are left out."""

    from_at: datetime
    to_at: datetime
    now: datetime
    step_minutes: int
    flatness: float | None
    cells: list[HeatCell]
