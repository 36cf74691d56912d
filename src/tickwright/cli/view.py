"""What happens now, as a picture: for ``up`` and for ``top``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tickwright.capabilities.jobs.entries import LATENESS_BUCKETS_S, Entry
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.cli.sql", "view.sql")
LATEST = 10
COUNT_MAX = 10_000
_COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "processing": "cyan"}


@dataclass(frozen=True, slots=True)
class Lateness:
    """Start minus due, as upper bounds in seconds; nothing before the first start."""

    p50_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None
    starts: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """One look.

    Attributes:
        waiting: Not due yet.
        due: Due and not taken; the age of the oldest of them is ``oldest_due_s``.
        finished: By status, in the last minute.
        latest: The youngest jobs.
    """

    waiting: int
    due: int
    running: int
    oldest_due_s: float
    finished: Mapping[str, int]
    workers: int
    latest: Sequence[Mapping[str, Any]]
    late: Lateness = field(default_factory=Lateness)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "latest": [dict(row) for row in self.latest]}


async def look(pool: Pool, late: Lateness | None = None) -> Picture:
    """Look now."""
    async with pool.acquire() as connection:
        counts = await connection.fetchrow(_SQL["counts"])
        finished = {row["status"]: row["jobs"] for row in await connection.fetch(_SQL["finished_lately"])}
        latest = [dict(row) for row in await connection.fetch(_SQL["latest"], LATEST)]
    return Picture(**dict(counts), finished=finished, latest=latest, late=late or Lateness())


def lateness(entries: Iterable[Entry]) -> Lateness:
    """Return how late jobs of a worker started, from its histograms; each figure is the upper end of its bucket."""
    counts = [sum(column) for column in zip(*(entry.late_counts for entry in entries), strict=True)]
    total = sum(counts)
    if not total:
        return Lateness()
    return Lateness(_quantile(counts, 0.5 * total), _quantile(counts, 0.99 * total), _quantile(counts, total), total)


def _quantile(counts: Sequence[int], rank: float) -> float:
    seen = 0
    for count, bound_s in zip(counts, (*LATENESS_BUCKETS_S, float("inf")), strict=True):
        seen += count
        if seen >= rank:
            return bound_s
    return float("inf")


def status_line(picture: Picture) -> str:
    """Return a picture in one line."""
    done = " ".join(f"{status} {count}" for status, count in sorted(picture.finished.items())) or "nothing finished"
    return (
        f"waiting {_count(picture.waiting)} · due {_count(picture.due)} · running {picture.running} · "
        f"last minute: {done} · late: {_late_text(picture.late)}"
    )


def draw(picture: Picture, title: str) -> RenderableType:
    """Return a picture for a terminal."""
    numbers = Table.grid(padding=(0, 3))
    head = ("waiting", "due", "running", "done/min", "failed/min", "cancelled/min", "late")
    numbers.add_row(*(Text(word, style="dim") for word in head))
    numbers.add_row(
        _count(picture.waiting),
        _count(picture.due),
        str(picture.running),
        Text(str(picture.finished.get("completed", 0)), style="green"),
        Text(str(picture.finished.get("failed", 0)), style="red"),
        Text(str(picture.finished.get("cancelled", 0)), style="yellow"),
        _late_text(picture.late) if picture.late.starts else _duration(picture.oldest_due_s) + " (oldest due)",
    )
    jobs = Table(box=None, header_style="dim", pad_edge=False, expand=True)
    for column in ("job", "type", "status", "attempt", "due"):
        jobs.add_column(column, no_wrap=True)
    jobs.add_column("error", ratio=1, overflow="ellipsis", no_wrap=True)
    for row in picture.latest:
        jobs.add_row(*_job_cells(row))
    return Group(Text(title, style="bold"), Text(), numbers, Text(), jobs)


def _job_cells(row: Mapping[str, Any]) -> tuple[RenderableType, ...]:
    status = row["status"]
    return (
        str(row["id"]),
        escape(row["task_type"]),
        Text(status, style=_COLOURS.get(status, "")),
        f"{row['attempts']}/{row['max_attempts']}",
        row["due_at"].strftime("%H:%M:%S"),
        escape((row["error_message"] or "").splitlines()[0] if row["error_message"] else ""),
    )


def _count(count: int) -> str:
    return f"≥{COUNT_MAX}" if count >= COUNT_MAX else str(count)


def _late_text(late: Lateness) -> str:
    if late.p50_s is None or late.p99_s is None or late.max_s is None:
        return "no starts yet"
    return f"p50 ≤{_duration(late.p50_s)} p99 ≤{_duration(late.p99_s)} max ≤{_duration(late.max_s)}"


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "∞"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
