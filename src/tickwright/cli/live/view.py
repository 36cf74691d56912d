"""The overview as a view in a terminal and as lines in a log, for ``up`` and ``top``."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tickwright.capabilities.operations.overview.reads import COUNT_MAX
from tickwright.capabilities.operations.overview.views import (
    ExecutionNow,
    FanoutNow,
    JobsNow,
    LatenessNow,
    LatestJob,
    OverviewView,
    PollsNow,
    ReportsNow,
)

_BARS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float | None]) -> str:
    """Return a bar per value, scaled to the largest; zero and unknown values are blank."""
    top = max((value or 0 for value in values), default=0)
    return "".join(_bar(value or 0, top) for value in values)


def _bar(value: float, top: float) -> str:
    if value <= 0:
        return " "
    return _BARS[min(len(_BARS) - 1, max(0, -int(-value * len(_BARS) // top) - 1))]


_STATES = {"called": "green", "breaker open": "red", "paused": "yellow"}


def polls_line(picture: PollsNow) -> str:
    """Return the polls in one line."""
    polled, late = (sum(getattr(one, name) for one in picture.partners) for name in ("polled", "late"))
    return (
        f"trackers ≈{picture.trackers} · next minute {sum(picture.ahead)} polls, at most {max(picture.ahead)}/s · "
        f"last ten minutes: polled {polled}, late {late} · {_fresh(picture)}"
    )


def _fresh(picture: PollsNow) -> str:
    if picture.fresh_ratio is None:
        return "fresh: no poll is judged yet"
    return f"fresh {picture.fresh_ratio:.2%}, {picture.lagging_accounts} of {picture.judged_accounts} accounts lag"


def draw_polls(picture: PollsNow) -> RenderableType:
    """Return the polls for a terminal: the next sixty seconds as bars, one cron for comparison, a line per partner."""
    load_ = Text.assemble(
        ("next minute  ", "dim"),
        (spark(picture.ahead), "cyan"),
        f"  {sum(picture.ahead)} polls, at most {max(picture.ahead)}/s",
        ("   (one cron: all ", "dim"),
        (str(picture.trackers), "red"),
        (" in its first second)", "dim"),
    )
    fresh = Text.assemble(
        ("accounts     ", "dim"), _fresh(picture), ("   highest lag ", "dim"), ", ".join(picture.worst_accounts)
    )
    partners = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("partner", "now", "polls/s", "allowed", "selected/10 min", "polled", "late", "superseded"):
        partners.add_column(column, no_wrap=True, justify="left" if column in {"partner", "now"} else "right")
    for one in picture.partners:
        shown = ("polls_per_s", "allowed", "selected", "polled", "late", "superseded")
        numbers = (escape(str(getattr(one, name))) for name in shown)
        partners.add_row(escape(one.name), Text(one.state, style=_STATES.get(one.state, "magenta")), *numbers)
    return Group(load_, fresh, Text(), partners)


def fanout_line(picture: FanoutNow) -> str:
    """Return the fan-out in one line."""
    at_least = "≥" if picture.entities >= COUNT_MAX else ""
    parts = [f"entities {at_least}{picture.entities} in {picture.modules} modules", f"consumers {picture.consumers}"]
    if picture.queued is not None:
        parts.append(f"queued {picture.queued}")
    if picture.dead_letters:
        parts.append(f"dead letters {picture.dead_letters}")
    if picture.called_per_s is not None:
        parts.append(f"{picture.called_per_s:.1f} calls/s")
    parts.append(
        f"last minute: succeeded {picture.succeeded}, failed {picture.failed}, "
        f"superseded {picture.superseded}, expired {picture.expired}"
    )
    return " · ".join(parts)


def reports_line(picture: ReportsNow) -> str:
    """Return the reports in one line."""
    open_now = picture.waiting + picture.running
    still = "≥" if open_now >= COUNT_MAX else ""  # counted together, like those of the last hour
    over = "≥" if picture.finished + picture.failed >= COUNT_MAX else ""
    where = f"pending {still}{picture.pending}, querying {still}{picture.querying}, merging {still}{picture.merging}"
    parts = [
        f"reports {still}{open_now}: {where}",
        f"last hour: finished {over}{picture.finished}, failed {over}{picture.failed}",
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


ERROR_CHARS = 120


def execution_lines(pictures: Sequence[ExecutionNow]) -> list[str]:
    """Return a line per execution."""
    return [_line(one) for one in pictures]


def _line(one: ExecutionNow) -> str:
    parts = [f"batch {one.name} {one.id}: {one.status}{', paused' if one.paused else ''}"]
    if one.took_s is not None:
        parts[0] += f" in {one.took_s:.1f} s" if one.status != "IN_PROGRESS" else f" for {one.took_s:.1f} s"
    if one.chunks:
        parts.append(f"chunks {one.chunks_done}/{one.chunks}, seen {one.seen}/{one.members}, selected {one.selected}")
    if one.actions:
        parts.append(f"released {one.released}/{one.actions}")
    if one.error_message:
        parts.append(" ".join(one.error_message.split())[:ERROR_CHARS])
    return " · ".join(parts)


def other_lines(view: OverviewView) -> list[str]:
    """Return a line per capability, for a log or a pipe."""
    lines = [polls_line(view.polls)] if _polls(view) else []
    return lines + _plain_lines(view)


def other_pictures(view: OverviewView) -> list[RenderableType]:
    """Return the capabilities for a terminal, an empty line before each kind."""
    parts: list[RenderableType] = [Text(), draw_polls(view.polls)] if _polls(view) else []
    if lines := _plain_lines(view):
        parts += [Text(), *(Text(line) for line in lines)]
    return parts


def _polls(view: OverviewView) -> bool:
    return bool(view.polls.trackers or view.polls.unplaced)


def _plain_lines(view: OverviewView) -> list[str]:
    fanout, reports = view.fanout, view.reports
    lines = [fanout_line(fanout)] if fanout.entities or fanout.consumers else []
    if reports.waiting or reports.running or reports.finished or reports.failed or reports.last is not None:
        lines.append(reports_line(reports))
    return lines + execution_lines(view.executions.latest)


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


def lines(view: OverviewView) -> list[str]:
    """Return the overview in a few lines, for a log or a pipe."""
    jobs = view.jobs
    first = (
        f"{_stale(view)}waiting {_jobs(view, jobs.waiting)} · due {_jobs(view, jobs.due)} · running {jobs.running} · "
        f"started {_rate(jobs.started_per_s)} · {_ends_line(jobs)} · late: {_late_text(jobs.lateness)} · "
        f"caught up: {_caught_up(jobs)} · alerts {_alerts_words(view)} · workers {view.workers.alive}"
    )
    return [first, *other_lines(view)]


def draw(view: OverviewView, title: str) -> RenderableType:
    """Return the overview for a terminal."""
    head = Text(title, style="bold")
    if view.stale_since is not None:
        head.append(f"   stale since {view.stale_since:%H:%M:%S}: {view.stale_why}", style="bold red")
    return Group(
        head,
        Text(),
        _numbers(view),
        Text(),
        _course(view),
        Text(),
        _standing(view),
        Text(),
        _latest(view.jobs.latest),
        *other_pictures(view),
    )


def _numbers(view: OverviewView) -> RenderableType:
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


def _course(view: OverviewView) -> RenderableType:
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


def _standing(view: OverviewView) -> RenderableType:
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
                f"{_count(view, outbox.waiting)} wait for {outbox.destinations} destinations{failing}, "
                f"oldest {duration(outbox.oldest_s)}, published {_rate(outbox.published_per_s)}"
            ),
        ),
        ("dead letters", Text(f"{_count(view, dead.jobs)} jobs, {_count(view, dead.outbox)} messages")),
    )
    for word, text in rows:
        grid.add_row(Text(word, style="dim"), text)
    return grid


def _alerts_text(view: OverviewView) -> Text:
    text = Text(_alerts_words(view))
    for alert in view.alerts.newest[:2]:
        text.append(f"   {alert.summary}", style=_SEVERITIES[alert.severity])
    text.truncate(160, overflow="ellipsis")
    return text


def _alerts_words(view: OverviewView) -> str:
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
            escape(job.task_type),
            Text(job.status, style=_COLOURS.get(job.status, "")),
            f"{job.attempts}/{job.max_attempts}",
            job.due_at.strftime("%H:%M:%S"),
            escape(job.error or ""),
        )
    return table


def _ends_line(jobs: JobsNow) -> str:
    ends = jobs.finished_per_s
    if ends is None:
        return "completed …"
    return f"completed {_rate(ends.completed)}, failed {_rate(ends.failed)}"


def _stale(view: OverviewView) -> str:
    return "" if view.stale_since is None else f"STALE since {view.stale_since:%H:%M:%SZ} ({view.stale_why}) · "


def _jobs(view: OverviewView, count: int) -> str:
    return f"≥{count}" if view.jobs.partial else _count(view, count)


def _count(view: OverviewView, count: int) -> str:
    return f"≥{count}" if count >= view.jobs.capped_at else str(count)


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
