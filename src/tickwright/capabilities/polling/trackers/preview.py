"""What a change of an account's interval or cap would do to the load, before anybody makes it.

Trackers stand evenly on their wheel by construction, so an account of N trackers makes N polls an interval, each second
as many. What all accounts make is what the next hour's slots counted in their last turns. Only reads.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tickwright.capabilities.polling.trackers.accounts import account_row
from tickwright.capabilities.polling.trackers.requests import PreviewRequest
from tickwright.capabilities.polling.wheels.load_views import AccountLoad, LoadPreview, PartnerLoad, WholeLoad
from tickwright.partners.contract import settings_of
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.polling.sql", "load.sql")
COUNTED_MAX = 10_000
"""Trackers of an account that are counted one by one; more are taken from a sample."""
PAGES_SAMPLED = 1_000
SLICE_S = 300
SLICES = 12


class _Pace(NamedTuple):
    """How often, and how many at most in a slice."""

    minutes: int
    cap: int | None

    def per_s(self, trackers: float) -> float:
        """Return the polls a second that so many trackers make."""
        wanted = trackers / (self.minutes * 60)
        return wanted if self.cap is None else min(wanted, self.cap / SLICE_S)

    def load(self, trackers: float) -> AccountLoad:
        """Return the same for callers."""
        made, wanted = self.per_s(trackers), trackers / (self.minutes * 60)
        return AccountLoad(
            polling_interval_minutes=self.minutes,
            polls_per_slice_max=self.cap,
            polls_per_s=made,
            deferred_share=1 - made / wanted if wanted else 0.0,
        )


async def preview_load(pool: Pool, account_id: str, change: PreviewRequest) -> LoadPreview:
    """Return what the load is, and what it would be.

    Raises:
        Rejected: ``account_not_found`` (404). Permanent.
    """
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        account = await account_row(connection, account_id)
        trackers, estimated = await _trackers(connection, account["account_no"])
        coming = await connection.fetch(_SQL["coming"])
        rates = {row["name"]: _rate(row["settings"]) for row in await connection.fetch(_SQL["limits"])}
    now = _Pace(account["placed_interval_minutes"], account["polls_per_slice_max"])
    then = _then(account, change)
    total = sum(trackers.values())
    change_per_s = then.per_s(total) - now.per_s(total)
    whole = _whole(coming, now.per_s(total))
    return LoadPreview(
        account_id=account_id,
        trackers=round(total),
        trackers_estimated=estimated,
        now=now.load(total),
        then=then.load(total),
        all_now=whole,
        all_then=_changed(whole, change_per_s),
        partners=_partners(trackers, coming, rates, (now, then)),
    )


async def _trackers(connection: Connection, account_no: int) -> tuple[dict[str, float], bool]:
    rows = await connection.fetch(_SQL["counted"], account_no, COUNTED_MAX + 1)
    estimated = sum(row["trackers"] for row in rows) > COUNTED_MAX
    if estimated:
        rows = await connection.fetch(_SQL["sampled"], account_no, PAGES_SAMPLED) or rows
    return {row["partner"]: row["trackers"] for row in rows}, estimated


def _then(account: Mapping[str, Any], change: PreviewRequest) -> _Pace:
    given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
    return _Pace(
        given.get("polling_interval_minutes", account["polling_interval_minutes"]),
        given.get("polls_per_slice_max", account["polls_per_slice_max"]),
    )


def _rate(settings: str) -> float | None:
    """Return how many calls a second a partner's tightest budget allows."""
    read = settings_of(settings)
    return min((calls / window_s for calls, window_s in read.budgets), default=None) if read is not None else None


def _whole(coming: Sequence[Any], least_per_s: float) -> WholeLoad:
    """Return what comes; no less than the account itself makes, whose first turns may not have come yet."""
    slices: dict[Any, int] = defaultdict(int)
    for row in coming:
        slices[row["slice_at"]] += row["polls"]
    mean = max(sum(slices.values()) / SLICES, least_per_s * SLICE_S)
    peak = max(max(slices.values(), default=0), mean)
    return WholeLoad(polls_per_s=mean / SLICE_S, slice_peak=round(peak), slice_mean=round(mean))


def _changed(whole: WholeLoad, change_per_s: float) -> WholeLoad:
    more = change_per_s * SLICE_S
    return WholeLoad(
        polls_per_s=max(0.0, whole.polls_per_s + change_per_s),
        slice_peak=max(0, round(whole.slice_peak + more)),
        slice_mean=max(0, round(whole.slice_mean + more)),
    )


def _partners(
    trackers: Mapping[str, float], coming: Sequence[Any], rates: Mapping[str, float | None], paces: tuple[_Pace, _Pace]
) -> list[PartnerLoad]:
    """Return the load of each partner that this account has trackers at; a cap is shared out as they are."""
    total = sum(trackers.values())
    found = []
    for name, count in trackers.items():
        mine_now, mine_then = (pace.per_s(total) * count / total for pace in paces)
        all_now = max(mine_now, sum(row["polls"] for row in coming if row["partner"] == name) / (SLICES * SLICE_S))
        all_then, rate = all_now - mine_now + mine_then, rates.get(name)
        found.append(
            PartnerLoad(
                partner=name,
                trackers=round(count),
                account_now=mine_now,
                account_then=mine_then,
                all_now=all_now,
                all_then=all_then,
                rate_per_s=rate,
                used_now=all_now / rate if rate else None,
                used_then=all_then / rate if rate else None,
                over=rate is not None and all_then > rate,
            )
        )
    return found
