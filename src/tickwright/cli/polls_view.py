"""What is polled now, as a picture: how level the next minute is, and what became of the last turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.cli.sql", "polls.sql")
_BARS = "▁▂▃▄▅▆▇█"
_STATES = {"called": "green", "breaker open": "red", "paused": "yellow"}


@dataclass(frozen=True, slots=True)
class PollsPicture:
    """One look.

    Attributes:
        trackers: About how many there are.
        unplaced: Registered and without a place, up to 10,000.
        ahead: Polls that are released in each of the next sixty seconds.
        partners: What the last ten minutes' turns became, per partner.
        accounts: How fresh they are kept: ``judged``, ``lagging``, ``share``, ``worst``.
    """

    trackers: int
    unplaced: int
    slots: int
    ahead: Sequence[int]
    partners: Sequence[Mapping[str, Any]]
    accounts: Mapping[str, Any]


async def look_at_polls(pool: Pool) -> PollsPicture | None:
    """Look now; ``None`` where nobody polls anything."""
    async with pool.acquire() as connection:
        counts = await connection.fetchrow(_SQL["trackers"])
        if not counts["slots"] and not counts["unplaced"]:
            return None
        ahead = [row["polls"] for row in await connection.fetch(_SQL["ahead"])]
        partners = [dict(row) for row in await connection.fetch(_SQL["partners"])]
        accounts = dict(await connection.fetchrow(_SQL["accounts"]))
    return PollsPicture(**dict(counts), ahead=ahead, partners=partners, accounts=accounts)


def polls_line(picture: PollsPicture) -> str:
    """Return a picture in one line."""
    polled, late = (sum(row[name] for row in picture.partners) for name in ("polled", "late"))
    return (
        f"trackers ≈{picture.trackers} · next minute {sum(picture.ahead)} polls, at most {max(picture.ahead)}/s · "
        f"last ten minutes: polled {polled}, late {late} · {_fresh(picture)}"
    )


def _fresh(picture: PollsPicture) -> str:
    accounts = picture.accounts
    if accounts["share"] is None:
        return "fresh: no poll is judged yet"
    return f"fresh {accounts['share']:.2%}, {accounts['lagging']} of {accounts['judged']} accounts lag"


def draw_polls(picture: PollsPicture) -> RenderableType:
    """Return a picture for a terminal: sixty seconds ahead as bars, one cron beside it, a line per partner."""
    load_ = Text.assemble(
        ("next minute  ", "dim"),
        (spark(picture.ahead), "cyan"),
        f"  {sum(picture.ahead)} polls, at most {max(picture.ahead)}/s",
        ("   (one cron: all ", "dim"),
        (str(picture.trackers), "red"),
        (" in its first second)", "dim"),
    )
    fresh = Text.assemble(
        ("accounts     ", "dim"), _fresh(picture), ("   highest lag ", "dim"), ", ".join(picture.accounts["worst"])
    )
    partners = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("partner", "now", "polls/s", "allowed", "selected/10 min", "polled", "late", "superseded"):
        partners.add_column(column, no_wrap=True, justify="left" if column in {"partner", "now"} else "right")
    for row in picture.partners:
        shown = ("polls_per_s", "allowed", "selected", "polled", "late", "superseded")
        numbers = (escape(str(row[name])) for name in shown)
        partners.add_row(escape(row["name"]), Text(row["state"], style=_STATES.get(row["state"], "magenta")), *numbers)
    return Group(load_, fresh, Text(), partners)


def spark(values: Sequence[int]) -> str:
    """Return a bar per value, scaled to the largest; nothing is a blank."""
    top = max(values, default=0)
    return "".join(" " if not value else _BARS[(value * len(_BARS) - 1) // top] for value in values)
