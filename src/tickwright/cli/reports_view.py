"""What reports do now, in one line: how many are where, what became of the last hour's, and the last file."""

from dataclasses import dataclass

from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.cli.sql", "reports.sql")
COUNT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LastFile:
    """The newest file. ``took_s`` is from the request until it was there."""

    id: int
    type: str
    rows: int
    bytes: int
    address: str
    took_s: float


@dataclass(frozen=True, slots=True)
class ReportsPicture:
    """One look.

    Attributes:
        pending: That nobody has begun yet; counted up to 10,000 together with the two that follow.
        finished: In the last hour, as ``failed``, counted up to 10,000 together.
        last: ``None`` where there is none.
    """

    pending: int
    querying: int
    merging: int
    finished: int
    failed: int
    last: LastFile | None


async def look_at_reports(pool: Pool) -> ReportsPicture | None:
    """Look now; ``None`` where nobody has asked for a report."""
    async with pool.acquire() as connection:
        if not await connection.fetchval(_SQL["has_reports"]):
            return None
        under_way = await connection.fetchrow(_SQL["under_way"])
        over = await connection.fetchrow(_SQL["over_lately"])
        last = await connection.fetchrow(_SQL["last_file"])
    return ReportsPicture(**dict(under_way), **dict(over), last=LastFile(**dict(last)) if last is not None else None)


def reports_line(picture: ReportsPicture) -> str:
    """Return a picture in one line."""
    open_now = picture.pending + picture.querying + picture.merging
    at_least = "≥" if open_now >= COUNT_MAX else ""
    where = f"pending {picture.pending}, querying {picture.querying}, merging {picture.merging}"
    parts = [
        f"reports {at_least}{open_now}: {where}",
        f"last hour: finished {picture.finished}, failed {picture.failed}",
    ]
    if picture.last is not None:
        last = picture.last
        parts.append(f"last file: {last.type} {last.id}, {last.rows} rows, {_size(last.bytes)} in {_took(last.took_s)}")
        parts.append(last.address)
    return " · ".join(parts)


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _size(size_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"
