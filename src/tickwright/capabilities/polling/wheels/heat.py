"""The slice ledger as a heat map: a day in one answer, cell by cell, with how level each of them was.

*Flatness* is the fullest ten seconds of a cell against its average ten seconds: 1 is level. A cell counts the minutes
in which there was a turn.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tickwright.capabilities.polling.wheels.load_views import HeatCell, SliceHeat
from tickwright.capabilities.polling.wheels.slices import clock_and_partner
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.polling.sql", "heat.sql")
DAY = timedelta(days=1)
CELLS_MAX = 2_000
RANGE_MAX = timedelta(days=11)
"""As far as the ledger goes: three days and an interval of a week, and what is to come of one day."""
TENS_A_MINUTE = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTS = ("expected", "selected", "skipped", "deferred", "published", "polled", "late", "superseded", "coalesced")


async def slice_heat(
    pool: Pool,
    *,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    step_minutes: int = 5,
    partner: str | None = None,
) -> SliceHeat:
    """Return what became of a range, in cells of equal length.

    Args:
        pool: Of this process.
        from_at: Inclusive; nothing is a day before ``to_at``.
        to_at: Exclusive; nothing is now. Beyond now it shows what is to come.
        step_minutes: Length of a cell.
        partner: One only.

    Raises:
        Rejected: ``invalid_range``: empty, above 11 days, or of more than 2,000 cells; ``partner_not_found`` (404).
            Permanent.
    """
    now, partner_no = await clock_and_partner(pool, partner)
    width = timedelta(minutes=step_minutes)
    end = _up(to_at or now, width)
    begin = from_at - (from_at - _EPOCH) % width if from_at is not None else end - DAY
    if not timedelta() < end - begin <= min(RANGE_MAX, CELLS_MAX * width):
        raise Rejected(
            "invalid_range", f"to: after from, at most {RANGE_MAX.days} days and {CELLS_MAX} steps after it", field="to"
        )
    async with pool.acquire() as connection:
        rows = await connection.fetch(_SQL["heat"], begin, end, partner_no, step_minutes)
        turns = await connection.fetch(_SQL["last_turns"], begin, end, step_minutes)
    last = {row["from_at"]: row["turns"] for row in turns}
    return SliceHeat(
        from_at=begin,
        to_at=end,
        now=now,
        step_minutes=step_minutes,
        flatness=_flatness(rows),
        cells=[_cell(row, last.get(row["from_at"], 0)) for row in rows],
    )


def _up(at: datetime, width: timedelta) -> datetime:
    return at + (_EPOCH - at) % width


def _cell(row: Any, last_turns: int) -> HeatCell:
    counts = {name: row[name] for name in _COUNTS}
    unanswered = max(0, row["selected"] - row["polled"] - row["superseded"])
    return HeatCell(
        **counts, from_at=row["from_at"], unanswered=unanswered, flatness=_flatness([row]), last_turns=last_turns
    )


def _flatness(rows: Sequence[Any]) -> float | None:
    """Return the fullest ten seconds of some cells against their average; ``None`` where nothing stood."""
    whole = sum(row["load"] for row in rows)
    tens = sum(row["minutes"] for row in rows) * TENS_A_MINUTE
    return None if not whole else max(row["peak"] for row in rows) * tens / whole
