"""Accounts as operators see them: how often their trackers are polled, how fresh that keeps them, and whether at all.

Nothing here moves a tracker: an interval that differs from the placed one is what the corrector looks for, and who is
paused is read with every selection. So a change counts from the next turn on, in every process, without a restart.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from tickwright.capabilities.polling.trackers.freshness import BudgetLine, read_budgets, read_freshness, read_series
from tickwright.capabilities.polling.trackers.requests import AccountChange, AccountRequest, check_account
from tickwright.capabilities.polling.trackers.views import (
    AccountDetail,
    AccountLine,
    AccountView,
    FreshSeries,
    StoredAccount,
)
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, Cursors, bounded, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_RAW = load("tickwright.capabilities.polling.sql", "accounts.sql")
_SHOWN = "\n".join(_RAW["shown"].splitlines()[1:])
_SQL = {name: sql.replace("{shown}", _SHOWN) for name, sql in _RAW.items()}
COUNTED_MAX = 10_000
LOOKED_MAX = 10_000
"""Accounts that a page looks at, when it filters or sorts."""
BEST = (float("inf"), "")


class Accounts:
    """The rows of ``tickwright.polling_schedule_config``."""

    def __init__(self, pool: Pool, cursors: Cursors) -> None:
        self._pool, self._cursors = pool, cursors

    async def list(
        self, *, sort: str = "id", text: str | None = None, cursor: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> Page[AccountLine]:
        """Return one page of accounts, each with what its freshness comes to.

        Args:
            sort: ``id``, or ``lag``: the worst first, of the first 10,000 accounts by their ids.
            text: That their ids hold, in any case; a page looks at 10,000 accounts, and may be short for it.
            cursor: From the page before.
            limit: 1 to 200.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit, listing = bounded(limit), ("accounts", sort, text)
        if sort == "lag":
            rank, after = BEST if cursor is None else await self._cursors.read(cursor, tuple[float, str], *listing)
            rows = await self._pool.fetch(_SQL["list_lagging"], rank, after, limit + 1, text, LOOKED_MAX)
        else:
            after = "" if cursor is None else await self._cursors.read(cursor, str, *listing)
            rows = await fetch_page(self._pool, _SQL["list_accounts"], after, limit + 1, text, LOOKED_MAX)
        found = [row for row in rows[:limit] if row["account_id"] is not None]
        budgets = await read_budgets(self._pool, [row["account_id"] for row in found])
        items = [view(AccountLine, row, **_budget(budgets, row)) for row in found]
        position = _position(rows, items, limit, sort)
        return Page(items, None if position is None else await self._cursors.make(position, *listing))

    async def get(self, account_id: str) -> AccountDetail:
        """Return one account and about how many trackers it has.

        Raises:
            Rejected: ``account_not_found`` (404). Permanent.
        """
        row = await account_row(self._pool, account_id)
        found = await self._pool.fetchrow(_SQL["count_trackers"], row["account_no"], COUNTED_MAX + 1)
        estimated = found["counted"] > COUNTED_MAX
        trackers = max(COUNTED_MAX, round(found["estimated"])) if estimated else found["counted"]
        freshness = await read_freshness(self._pool, row["account_no"])
        return view(AccountDetail, row, trackers=trackers, trackers_estimated=estimated, freshness=freshness)

    async def series(self, account_id: str, hours: int) -> FreshSeries:
        """Return how fresh an account was: slices of the last ``hours``, as far as they are kept, and days before.

        Raises:
            Rejected: ``account_not_found`` (404). Permanent.
        """
        row = await account_row(self._pool, account_id)
        slices = await read_series(self._pool, row["account_no"], row["now"] - timedelta(hours=hours))
        return FreshSeries(account_id, row["freshness_objective"], slices)

    async def put(self, account_id: str, settings: AccountRequest, *, caller: Caller) -> StoredAccount:
        """Create an account or set it whole; its trackers follow within minutes, without a restart.

        Raises:
            Rejected: ``invalid_account``. Permanent.
        """
        check_account(account_id)
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, account_id)
            await _write(connection, account_id, settings)
            after = await self._written(connection, caller, "put", account_id, before)
        return StoredAccount(after, before is None)

    async def change(self, account_id: str, changes: AccountChange, *, caller: Caller) -> AccountView:
        """Set what is given of an account, and nothing else: nobody else's edit is written over.

        Raises:
            Rejected: ``account_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, account_id)
            if before is None:
                raise _no_account(account_id)
            await _write(connection, account_id, changes.of(before))
            return await self._written(connection, caller, "change", account_id, before)

    async def pause(self, account_id: str, *, caller: Caller) -> AccountView:
        """Select its trackers no more; what is selected already goes out. Twice is harmless.

        Raises:
            Rejected: ``account_not_found`` (404). Permanent.
        """
        return await self._change("pause", account_id, caller)

    async def enable(self, account_id: str, *, caller: Caller) -> AccountView:
        """Select its trackers again, each at its own next turn; nothing is made up for.

        Raises:
            Rejected: ``account_not_found`` (404). Permanent.
        """
        return await self._change("enable", account_id, caller)

    async def _change(self, action: str, account_id: str, caller: Caller) -> AccountView:
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, account_id)
            if before is None:
                raise _no_account(account_id)
            await connection.execute(_SQL[f"{action}_account"], account_id)
            return await self._written(connection, caller, action, account_id, before)

    async def _locked(self, connection: Connection, account_id: str) -> AccountView | None:
        await connection.execute(_SQL["lock_account"], account_id)
        row = await connection.fetchrow(_SQL["get_account"], account_id)
        return None if row is None else view(AccountView, row)

    async def _written(
        self, connection: Connection, caller: Caller, action: str, account_id: str, before: AccountView | None
    ) -> AccountView:
        after = view(AccountView, await connection.fetchrow(_SQL["get_account"], account_id))
        await write_audit(connection, caller, f"accounts.{action}", f"account:{account_id}", before=before, after=after)
        return after


async def account_row(connection: Connection | Pool, account_id: str) -> Any:
    """Return the row of an account, with the database's clock.

    Raises:
        Rejected: ``account_not_found`` (404). Permanent.
    """
    row = await connection.fetchrow(_SQL["get_account"], account_id)
    if row is None:
        raise _no_account(account_id)
    return row


async def _write(connection: Connection, account_id: str, settings: AccountRequest) -> None:
    await connection.execute(
        _SQL["put_account"], account_id, settings.polling_interval_minutes, settings.max_age_days,
        settings.polls_per_slice_max, settings.freshness_objective,
    )  # fmt: skip


def _budget(budgets: Mapping[str, BudgetLine], row: Any) -> dict[str, float | None]:
    """Return what was found for a row; an account that is deleted in between has nothing."""
    return budgets.get(row["account_id"], BudgetLine(None, None, None))._asdict()


def _position(rows: Sequence[Any], items: Sequence[AccountView], limit: int, sort: str) -> Any:
    """Return where a listing goes on; ``None`` at its end."""
    if len(rows) <= limit:
        return rows[0]["last_id"] if rows and sort != "lag" else None
    return (rows[limit - 1]["rank"], items[-1].account_id) if sort == "lag" else items[-1].account_id


def _no_account(account_id: str) -> Rejected:
    return Rejected("account_not_found", f"there is no account {account_id[:50]!r}", status=404)
