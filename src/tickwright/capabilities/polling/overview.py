"""The part of polling in the overview: trackers, coming polls, freshness, partners."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from tickwright.observe.metrics import Sample
from tickwright.plugin.overview import ANSWER_S, COUNT_MAX, OverviewBase, OverviewPart, Rates, Reading, Shown, spark
from tickwright.ports.views import view
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.polling.sql", "overview.sql")
ACCOUNTS_SHOWN = 20
WORST_SHOWN = 3
_TEXTS = {
    "quiet": "quiet hours",
    "retry_after": "asked for silence",
    "breaker_open": "breaker open",
    "on_trial": "one trial",
    "settings_invalid": "settings invalid",
}
_STATES = {"called": "green", "breaker open": "red", "paused": "yellow"}


class PartnerNow(msgspec.Struct, frozen=True):
    """What became of one partner's time slots of the last ten minutes, and whether it is called."""

    name: str
    state: str
    selected: int
    polled: int
    late: int
    superseded: int
    polls_per_s: float
    allowed: str


class PollsNow(msgspec.Struct, frozen=True):
    """Polling. ``ahead``: polls released in each second of the next minute; ``trackers`` is estimated above 50,000."""

    trackers: int
    unplaced: int
    waiting: int
    oldest_s: float
    unread_records: int
    published_per_s: float | None
    answered_per_s: float | None
    fresh_ratio: float | None
    lagging_accounts: int
    judged_accounts: int
    worst_accounts: list[str]
    ahead: list[int]
    partners: list[PartnerNow]


async def read_freshness(connection: Connection) -> Any:
    """Return how fresh the polls of accounts are."""
    return await connection.fetchrow(SQL["freshness"], ACCOUNTS_SHOWN, timeout=ANSWER_S)


async def read_poll_lags(connection: Connection) -> Sequence[Any]:
    """Return the lag of the consumers per partition."""
    rows: Sequence[Any] = await connection.fetch(SQL["poll_lags"], timeout=ANSWER_S)
    return rows


async def read_polls(connection: Connection) -> Any:
    """Return the trackers and the waiting and coming polls."""
    return await connection.fetchrow(SQL["polls"], COUNT_MAX, timeout=ANSWER_S)


async def read_partners(connection: Connection) -> list[PartnerNow]:
    """Return what became of each partner's last time slots."""
    from tickwright.partners.state import state_of  # every process has this part, and most never show it

    rows = await connection.fetch(SQL["partners"], timeout=ANSWER_S)
    states = [state_of(row)[0] for row in rows]
    return [view(PartnerNow, row, state=_TEXTS.get(state, state)) for row, state in zip(rows, states, strict=True)]


class PollingPart(OverviewPart):
    """Trackers, polls, freshness and partners."""

    fields: ClassVar = {"polls": PollsNow}
    counters: ClassVar = {"polls": dict[str, int]}
    series: ClassVar = {"answered_per_s": float | None}
    lists = ("accounts", "partners")

    def readings(self) -> Mapping[str, Reading]:
        """Return the readings of polling."""
        return {
            "freshness": read_freshness,
            "polls": read_polls,
            "poll_lags": read_poll_lags,
            "partners": read_partners,
        }

    def show(self, read: Mapping[str, Any], rates: Rates) -> Shown:
        """Return the figures of polling."""
        polls, fresh, lags = read["polls"], read["freshness"], read["poll_lags"]
        worst = zip(fresh["accounts"], fresh["intervals"], fresh["ratios"], strict=True)
        now = PollsNow(
            trackers=polls["trackers"],
            unplaced=polls["unplaced"],
            waiting=polls["waiting"],
            oldest_s=round(max([polls["oldest_s"], *(row["oldest_s"] for row in lags)]), 3),
            unread_records=sum(row["lag"] for row in lags),
            published_per_s=rates.per_s(lambda counters: int(counters.polls.get("published", 0))),
            answered_per_s=rates.per_s(lambda counters: int(counters.polls.get("answered", 0))),
            fresh_ratio=fresh["share"],
            lagging_accounts=fresh["lagging"],
            judged_accounts=fresh["judged"],
            worst_accounts=[f"{name} ({minutes} min) {lag:.0%}" for name, minutes, lag in worst][:WORST_SHOWN],
            ahead=polls["ahead"],
            partners=read["partners"],
        )
        accounts = (now.fresh_ratio, now.lagging_accounts, now.judged_accounts, now.worst_accounts)
        lists = {"accounts": accounts, "partners": now.partners}
        return Shown({"polls": now}, lists, points={"answered_per_s": now.answered_per_s})

    async def gauges(self, connection: Connection) -> Sequence[Sample]:
        """Return the lags of consumers and of accounts."""
        samples = []
        for row in await read_poll_lags(connection):
            label = (row["topic"], str(row["partition"]))
            samples.append(Sample("tickwright_poll_lag_records", row["lag"], label))
            samples.append(Sample("tickwright_poll_oldest_seconds", row["oldest_s"], label))
        fresh = await read_freshness(connection)
        samples.append(Sample("tickwright_accounts_judged", fresh["judged"]))
        samples.append(Sample("tickwright_accounts_lagging", fresh["lagging"]))
        if fresh["share"] is not None:
            samples.append(Sample("tickwright_polls_fresh_ratio", fresh["share"]))
        worst = zip(fresh["accounts"], fresh["ratios"], strict=True)
        return samples + [Sample("tickwright_account_lag_ratio", ratio, (account,)) for account, ratio in worst]

    def lines(self, view: OverviewBase) -> Sequence[str]:
        """Return one line where there are trackers."""
        return [line_of(view.polls)] if _is_used(view.polls) else ()

    def draw(self, view: OverviewBase) -> Sequence[Any]:
        """Return the coming minute, and the partners."""
        return [draw_polls(view.polls)] if _is_used(view.polls) else ()


def _is_used(polls: PollsNow) -> bool:
    return bool(polls.trackers or polls.unplaced)


def line_of(polls: PollsNow) -> str:
    """Return the polls in one line."""
    polled, late = (sum(getattr(one, name) for one in polls.partners) for name in ("polled", "late"))
    return (
        f"trackers ≈{polls.trackers} · next minute {sum(polls.ahead)} polls, at most {max(polls.ahead)}/s · "
        f"last ten minutes: polled {polled}, late {late} · {_fresh(polls)}"
    )


def _fresh(polls: PollsNow) -> str:
    if polls.fresh_ratio is None:
        return "fresh: no poll is judged yet"
    return f"fresh {polls.fresh_ratio:.2%}, {polls.lagging_accounts} of {polls.judged_accounts} accounts lag"


def draw_polls(polls: PollsNow) -> Any:
    """Return the polls for a terminal: the next sixty seconds as bars, one cron for comparison, a line per partner."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    load_ = Text.assemble(
        ("next minute  ", "dim"),
        (spark(polls.ahead), "cyan"),
        f"  {sum(polls.ahead)} polls, at most {max(polls.ahead)}/s",
        ("   (one cron: all ", "dim"),
        (str(polls.trackers), "red"),
        (" in its first second)", "dim"),
    )
    fresh = Text.assemble(
        ("accounts     ", "dim"), _fresh(polls), ("   highest lag ", "dim"), ", ".join(polls.worst_accounts)
    )
    partners = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("partner", "now", "polls/s", "allowed", "selected/10 min", "polled", "late", "superseded"):
        partners.add_column(column, no_wrap=True, justify="left" if column in {"partner", "now"} else "right")
    for one in polls.partners:
        shown = ("polls_per_s", "allowed", "selected", "polled", "late", "superseded")
        numbers = (Text(str(getattr(one, name))) for name in shown)
        partners.add_row(Text(one.name), Text(one.state, style=_STATES.get(one.state, "magenta")), *numbers)
    return Group(load_, fresh, Text(), partners)
