"""The overview as a view in a terminal and as lines in a log, for ``up`` and ``top``."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tickwright.capabilities.jobs.overview import JobsNow, LatenessNow, LatestJob
from tickwright.plugin.overview import COUNT_MAX, OverviewBase, OverviewPart, OverviewParts, spark

_COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "processing": "cyan"}
_SEVERITIES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_WHY_NOT = {
    "nothing_due": "nothing due",
    "capped": "too many to tell",
    "not_catching_up": "not catching up",
    "measuring": "…",
}
BARS = 60
LATENESS_MAX_S = 3600.0


def lines(view: OverviewBase, parts: OverviewParts) -> list[str]:
    """Return the overview in a few lines, for a log or a pipe."""
    words = {"jobs": _jobs_words, "alerts": _alerts_words, "workers": _workers_words}
    first = " · ".join(say(view) for name, say in words.items() if getattr(view, name) is not None)
    return [f"{_stale(view)}{first}", *(line for part in parts for line in _of_part(view, part, part.lines))]


def draw(view: OverviewBase, parts: OverviewParts, title: str) -> RenderableType:
    """Return the overview for a terminal."""
    head = Text(title, style="bold")
    if view.stale_since is not None:
        head.append(f"   stale since {view.stale_since:%H:%M:%S}: {view.stale_why}", style="bold red")
    has_jobs, has_operations = view.jobs is not None, view.workers is not None
    return Group(
        head,
        *((Text(), _numbers(view), Text(), _course(view)) if has_jobs else ()),
        *((Text(), _totals(view)) if has_operations else ()),
        *((Text(), _latest(view.jobs.latest)) if has_jobs else ()),
        *(_as_it_is(item) for part in parts if (drawn := _of_part(view, part, part.draw)) for item in ("", *drawn)),
    )


def _of_part(view: OverviewBase, part: OverviewPart, make: Callable[[OverviewBase], Sequence[Any]]) -> Sequence[Any]:
    """Return what a part shows, or that it is unavailable."""
    if absent := [name for name in part.fields if getattr(view, name) is None]:
        return [f"{', '.join(absent)}: unavailable"]
    try:
        return make(view)
    except Exception as error:  # noqa: BLE001  a plugin's part can raise anything
        return [f"{part.name}: cannot be shown: {error!r}"]


def _as_it_is(item: RenderableType) -> RenderableType:
    """Return an item in which brackets are no markup: a line can have a user's text."""
    return Text(item) if isinstance(item, str) else item


def _numbers(view: OverviewBase) -> RenderableType:
    jobs, grid = view.jobs, Table.grid(padding=(0, 3))
    words = ("due", "oldest", "waiting", "running", "started", "completed", "failed", "late p50, p99", "caught up in")
    grid.add_row(*(Text(word, style="dim") for word in words))
    ends = jobs.finished_per_s
    grid.add_row(
        Text(_jobs(view, jobs.due), style="bold"),
        duration(jobs.oldest_due_s),
        _jobs(view, jobs.waiting),
        str(jobs.running),
        _rate(jobs.started_per_s),
        Text(_rate(None if ends is None else ends.completed), style="green"),
        Text(_rate(None if ends is None else ends.failed), style="red" if ends and ends.failed else "dim"),
        _late_text(jobs.lateness),
        _caught_up(jobs),
    )
    return grid


def _course(view: OverviewBase) -> RenderableType:
    """Return the history: a bar per point of the series, newest at the right."""
    series, grid = view.series, Table.grid(padding=(0, 1))
    if series is None:
        return grid
    shown: Sequence[tuple[str, Sequence[float | None], str]] = (
        ("started/s", series.started_per_s, "cyan"),
        ("due", series.due, "yellow"),
        ("failed/s", series.failed_per_s, "red"),
    )
    for word, values, colour in shown:
        last = values[-BARS:]
        most = max((value or 0 for value in last), default=0)
        grid.add_row(Text(word, style="dim"), Text(spark(last), style=colour), Text(f"≤ {most:g}", style="dim"))
    return grid


def _totals(view: OverviewBase) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    workers, leases, outbox, dead = view.workers, view.leases, view.outbox, view.dead_letters
    roles = ", ".join(f"{role} {count}" for role, count in workers.by_role.items())
    lost = f", {workers.lost_lately} lost in the last hour" if workers.lost_lately else ""
    overdue = f", overdue: {', '.join(leases.overdue)}" if leases.overdue else ""
    failing = f", {outbox.failing} of them failing" if outbox.failing else ""
    rows = (
        ("alerts", _alerts_text(view)),
        ("workers", Text(f"{workers.alive} alive, {workers.draining} draining{lost}   {roles}")),
        ("leases", Text(f"{leases.held} held, {leases.free} free{overdue}", style="red" if overdue else "")),
        (
            "outbox",
            Text(
                f"{_count(outbox.waiting)} wait for {outbox.destinations} destinations{failing}, "
                f"oldest {duration(outbox.oldest_s)}, published {_rate(outbox.published_per_s)}"
            ),
        ),
        ("dead letters", Text(f"{_count(dead.jobs)} jobs, {_count(dead.outbox)} messages")),
    )
    for word, text in rows:
        grid.add_row(Text(word, style="dim"), text)
    return grid


def _alerts_text(view: OverviewBase) -> Text:
    text = Text(_alerts_by_severity(view))
    for alert in view.alerts.newest[:2]:
        text.append(f"   {alert.summary}", style=_SEVERITIES[alert.severity])
    text.truncate(160, overflow="ellipsis")
    return text


def _jobs_words(view: OverviewBase) -> str:
    jobs = view.jobs
    return (
        f"waiting {_jobs(view, jobs.waiting)} · due {_jobs(view, jobs.due)} · running {jobs.running} · "
        f"started {_rate(jobs.started_per_s)} · {_ends_line(jobs)} · late: {_late_text(jobs.lateness)} · "
        f"caught up: {_caught_up(jobs)}"
    )


def _workers_words(view: OverviewBase) -> str:
    return f"workers {view.workers.alive}"


def _alerts_words(view: OverviewBase) -> str:
    return f"alerts {_alerts_by_severity(view)}"


def _alerts_by_severity(view: OverviewBase) -> str:
    alerts = view.alerts
    found = ((alerts.critical, "critical"), (alerts.warning, "warning"), (alerts.info, "info"))
    return ", ".join(f"{count} {word}" for count, word in found if count) or "none"


def _latest(jobs: Sequence[LatestJob]) -> RenderableType:
    table = Table(box=None, header_style="dim", pad_edge=False, expand=True)
    for column in ("job", "type", "status", "attempt", "due"):
        table.add_column(column, no_wrap=True)
    table.add_column("error", ratio=1, overflow="ellipsis", no_wrap=True)
    for job in jobs:
        table.add_row(
            str(job.id),
            Text(job.task_type),
            Text(job.status, style=_COLOURS.get(job.status, "")),
            f"{job.attempts}/{job.max_attempts}",
            job.due_at.strftime("%H:%M:%S"),
            Text(job.error or ""),
        )
    return table


def _ends_line(jobs: JobsNow) -> str:
    ends = jobs.finished_per_s
    if ends is None:
        return "completed …"
    return f"completed {_rate(ends.completed)}, failed {_rate(ends.failed)}"


def _stale(view: OverviewBase) -> str:
    return "" if view.stale_since is None else f"STALE since {view.stale_since:%H:%M:%SZ} ({view.stale_why}) · "


def _jobs(view: OverviewBase, count: int) -> str:
    return f"≥{count}" if view.jobs.partial else _count(count)


def _count(count: int | None) -> str:
    return "…" if count is None else f"≥{count}" if count >= COUNT_MAX else str(count)


def _rate(per_s: float | None) -> str:
    return "…" if per_s is None else f"{per_s:.1f}/s"


def _late_text(late: LatenessNow | None) -> str:
    if late is None:
        return "no starts in the last minute"
    return f"p50 {_at_most(late.p50_s)}, p99 {_at_most(late.p99_s)}"


def _at_most(seconds: float | None) -> str:
    return f">{duration(LATENESS_MAX_S)}" if seconds is None else f"≤{duration(seconds)}"


def _caught_up(jobs: JobsNow) -> str:
    return (
        duration(jobs.caught_up_in_s)
        if jobs.caught_up_in_s is not None
        else _WHY_NOT[jobs.not_caught_up or "measuring"]
    )


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
