"""Accounts: how often their trackers are polled, how fresh they are, and a preview of a change's load.

Nothing here moves a tracker: the corrector finds an interval that differs from the placed one, and every selection
reads which accounts are paused. So a change counts from the next slot on, in every process, without a restart.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tickwright.capabilities.polling.trackers.freshness import (
    BudgetLine,
    Freshness,
    FreshSeries,
    read_budgets,
    read_freshness,
    read_series,
)
from tickwright.capabilities.polling.trackers.requests import (
    AccountChange,
    AccountRequest,
    PreviewRequest,
    check_account,
)
from tickwright.partners.contract import list_partners, settings_of
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import AuditedRows
from tickwright.store.paging import LIMIT_DEFAULT, Cursors, checked_limit, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load


class AccountView(msgspec.Struct, kw_only=True):
    """How often an account's trackers are polled.

    Attributes:
        placed_interval_minutes: Of its trackers' wheel; the corrector moves them when the two differ.
        max_age_days: How long new trackers are polled, unless their registration sets another end.
        polls_per_slice_max: Trackers that are polled in five minutes at most; the others are deferred in rotation.
        freshness_objective: The share of its polls that is to be made within 1.1 intervals of the one before.
        paused_at: Since when its trackers are not selected.
        lag_ratio: The greatest age of its trackers within the last interval, in intervals: 1 when all are polled at
            their second, above 1.1 when one was late. None when nothing was judged lately.
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
    """An account in a listing, with a summary of its freshness.

    Attributes:
        recent_share: The share of the last interval's polls that was fresh.
        error_budget_left: The unused share of what may be stale in a month; below 0 it is overdrawn.
        burn_rate: How fast it was used within the last judged hour: at 1 it lasts for a month exactly.
    """

    recent_share: float | None
    error_budget_left: float | None
    burn_rate: float | None


class AccountDetail(AccountView, kw_only=True):
    """One account; ``trackers`` includes ended ones, and is PostgreSQL's estimate above 10,000."""

    trackers: int
    trackers_estimated: bool
    freshness: Freshness


class StoredAccount(msgspec.Struct):
    """The answer to a put."""

    account: AccountView
    created: bool


class AccountLoad(msgspec.Struct, kw_only=True):
    """The polls of an account under one setting.

    Attributes:
        polls_per_s: Average, after the cap.
        deferred_share: The part of its polls that the cap defers.
    """

    polling_interval_minutes: int
    polls_per_slice_max: int | None
    polls_per_s: float
    deferred_share: float


class PartnerLoad(msgspec.Struct, kw_only=True):
    """The load of one partner before and after the change.

    Attributes:
        trackers: Of this account.
        all_now: Polls a second of all accounts, as the next hour's slots were last counted.
        rate_per_s: What the tightest budget of the partner allows; none without one.
        used_now: ``all_now`` divided by it.
        over: More polls than the partner allows: they get later and later.
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
    """The polls of all accounts.

    Attributes:
        polls_per_s: Average of the next hour.
        slice_peak: Polls in the fullest slice of five minutes of the next hour.
    """

    polls_per_s: float
    slice_peak: int
    slice_mean: int


class LoadPreview(msgspec.Struct, kw_only=True):
    """What a change of an account would do to the load.

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


_RAW = load("tickwright.capabilities.polling.sql", "accounts.sql")
_SHOWN = "\n".join(_RAW["shown"].splitlines()[1:])
_SQL = {name: sql.replace("{shown}", _SHOWN) for name, sql in _RAW.items()}
COUNTED_MAX = 10_000
ACCOUNTS_READ_MAX = 10_000
"""Accounts that a page reads when it filters or sorts."""
BEST = (float("inf"), "")
PAGES_SAMPLED = 1_000
SLICE_S = 300
SLICES = 12


class Accounts:
    """The rows of ``tickwright.polling_schedule_config``.

    Raises:
        Rejected: ``account_not_found`` (404) from every method that names an account, except ``put``. Permanent.
    """

    def __init__(self, pool: Pool, cursors: Cursors) -> None:
        self._pool, self._cursors = pool, cursors
        switches = {action: _SQL[f"{action}_account"] for action in ("pause", "enable")}
        lock, read = _SQL["lock_account"], _SQL["get_account"]
        self._rows = AuditedRows(pool, "account", partial(view, AccountView), lock=lock, read=read, switches=switches)
        self.switch = self._rows.switch

    async def list(
        self, *, sort: str = "id", text: str | None = None, cursor: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> Page[AccountLine]:
        """Return one page of accounts by id, or with ``sort="lag"`` the worst first, of the first 10,000 by id.

        With ``text``, part of their ids in any case, a page reads 10,000 accounts, and may be short.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit, listing = checked_limit(limit), ("accounts", sort, text)
        if sort == "lag":
            rank, after = BEST if cursor is None else await self._cursors.read(cursor, tuple[float, str], *listing)
            rows = await self._pool.fetch(_SQL["list_lagging"], rank, after, limit + 1, text, ACCOUNTS_READ_MAX)
        else:
            after = "" if cursor is None else await self._cursors.read(cursor, str, *listing)
            rows = await fetch_page(self._pool, _SQL["list_accounts"], after, limit + 1, text, ACCOUNTS_READ_MAX)
        found = [row for row in rows[:limit] if row["account_id"] is not None]
        budgets = await read_budgets(self._pool, [row["account_id"] for row in found])
        none = BudgetLine(None, None, None)  # for an account that was deleted in between
        items = [view(AccountLine, row, **budgets.get(row["account_id"], none)._asdict()) for row in found]
        position: Any = None
        if len(rows) > limit:
            position = (rows[limit - 1]["rank"], items[-1].account_id) if sort == "lag" else items[-1].account_id
        elif rows and sort != "lag":
            position = rows[0]["last_id"]
        return Page(items, None if position is None else await self._cursors.make(position, *listing))

    async def get(self, account_id: str) -> AccountDetail:
        """Return one account and about how many trackers it has."""
        row = await self._rows.row(account_id)
        found = await self._pool.fetchrow(_SQL["count_trackers"], row["account_no"], COUNTED_MAX + 1)
        estimated = found["counted"] > COUNTED_MAX
        trackers = max(COUNTED_MAX, round(found["estimated"])) if estimated else found["counted"]
        freshness = await read_freshness(self._pool, row["account_no"])
        return view(AccountDetail, row, trackers=trackers, trackers_estimated=estimated, freshness=freshness)

    async def series(self, account_id: str, hours: int) -> FreshSeries:
        """Return how fresh an account was: slices of the last ``hours``, as far as they are kept, and days before."""
        row = await self._rows.row(account_id)
        slices = await read_series(self._pool, row["account_no"], row["now"] - timedelta(hours=hours))
        return FreshSeries(account_id, row["freshness_objective"], slices)

    async def preview(self, account_id: str, change: PreviewRequest) -> LoadPreview:
        """Return the load that an account makes now, and would make with ``change``; nothing is changed."""
        async with self._pool.acquire() as connection, connection.transaction(readonly=True):
            account = await self._rows.row(account_id, connection)
            rows = await connection.fetch(_SQL["placed_trackers"], account["account_no"], COUNTED_MAX + 1)
            estimated = sum(row["trackers"] for row in rows) > COUNTED_MAX
            if estimated:
                rows = await connection.fetch(_SQL["sampled_trackers"], account["account_no"], PAGES_SAMPLED) or rows
            coming = await connection.fetch(_SQL["coming_polls"])
            rates = {
                partner.name: None if (settings := settings_of(partner.settings)) is None else settings.rate_per_s
                for partner in await list_partners(connection)
            }
        now = _Pace(account["placed_interval_minutes"], account["polls_per_slice_max"])
        changed = msgspec.structs.asdict(change).items()
        then = _Pace(*(account[name] if value is msgspec.UNSET else value for name, value in changed))
        trackers: dict[str, float] = {row["partner"]: row["trackers"] for row in rows}
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

    async def put(self, account_id: str, settings: AccountRequest, *, caller: Caller) -> StoredAccount:
        """Create an account or replace its settings; its trackers are moved within minutes, without a restart.

        Raises:
            Rejected: ``invalid_account``. Permanent.
        """
        check_account(account_id)
        async with self._rows.changing("put", account_id, caller, creates=True) as change:
            await _write(change.connection, account_id, settings)
        return StoredAccount(change.after, change.before is None)

    async def change(self, account_id: str, changes: AccountChange, *, caller: Caller) -> AccountView:
        """Change the given settings of an account; concurrent changes of others are kept."""
        async with self._rows.changing("change", account_id, caller) as change:
            await _write(change.connection, account_id, changes.of(change.before))
        return change.after


async def _write(connection: Connection, account_id: str, settings: AccountRequest) -> None:
    await connection.execute(
        _SQL["put_account"], account_id, settings.polling_interval_minutes, settings.max_age_days,
        settings.polls_per_slice_max, settings.freshness_objective,
    )  # fmt: skip


class _Pace(NamedTuple):
    """An interval and a cap; trackers are spread evenly, so N trackers make N polls an interval."""

    minutes: int
    cap: int | None

    def per_s(self, trackers: float) -> float:
        """Return the polls a second of so many trackers."""
        wanted = trackers / (self.minutes * 60)
        return wanted if self.cap is None else min(wanted, self.cap / SLICE_S)

    def load(self, trackers: float) -> AccountLoad:
        made, wanted = self.per_s(trackers), trackers / (self.minutes * 60)
        return AccountLoad(
            polling_interval_minutes=self.minutes,
            polls_per_slice_max=self.cap,
            polls_per_s=made,
            deferred_share=1 - made / wanted if wanted else 0.0,
        )


def _whole(coming: Sequence[Any], least_per_s: float) -> WholeLoad:
    """Return the coming load, at least that of the account itself, whose first slots may not be counted yet."""
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
    """Return the load of each partner of the account's trackers; a cap is divided in proportion."""
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
