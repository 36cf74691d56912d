"""The part of reports in the overview."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from tickwright.plugin import Context
from tickwright.plugin.findings import Finding, role_finding
from tickwright.plugin.overview import ANSWER_S, COUNT_MAX, OverviewBase, OverviewPart, Rates, Reading, Shown
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.reports.sql", "overview.sql")


class LastFile(msgspec.Struct, frozen=True):
    """The newest finished report. ``took_s`` is from the request until its file existed."""

    id: int
    type: str
    rows: int
    bytes: int
    address: str
    took_s: float


class ReportsNow(msgspec.Struct, frozen=True):
    """Reports: ``waiting`` pending, ``running`` querying or merging; finished and failed in the last hour."""

    waiting: int
    running: int
    pending: int
    querying: int
    merging: int
    finished: int
    failed: int
    last: LastFile | None


async def read_reports(connection: Connection) -> ReportsNow:
    """Return the reports by status, and the last file."""
    row = await connection.fetchrow(SQL["overview"], COUNT_MAX, timeout=ANSWER_S)
    last = None if row["last"] is None else msgspec.json.decode(row["last"], type=LastFile)
    counts = {name: row[name] for name in ("pending", "querying", "merging", "finished", "failed")}
    return ReportsNow(waiting=row["pending"], running=row["querying"] + row["merging"], last=last, **counts)


class ReportsPart(OverviewPart):
    """Reports by status, and the last file."""

    fields: ClassVar = {"reports": ReportsNow}
    lists = ("reports",)

    def readings(self) -> Mapping[str, Reading]:
        """Return the reading of reports."""
        return {"reports": read_reports}

    def show(self, read: Mapping[str, Any], rates: Rates) -> Shown:
        """Return the figures of reports."""
        return Shown({"reports": read["reports"]}, {"reports": read["reports"]})

    def lines(self, view: OverviewBase) -> Sequence[str]:
        """Return one line where reports are in use."""
        now = view.reports
        is_used = now.waiting or now.running or now.finished or now.failed or now.last is not None
        return [line_of(now)] if is_used else ()


def line_of(reports: ReportsNow) -> str:
    """Return the reports in one line."""
    unfinished = reports.waiting + reports.running
    still = "≥" if unfinished >= COUNT_MAX else ""  # counted together, like those of the last hour
    over = "≥" if reports.finished + reports.failed >= COUNT_MAX else ""
    where = f"pending {still}{reports.pending}, querying {still}{reports.querying}, merging {still}{reports.merging}"
    parts = [
        f"reports {still}{unfinished}: {where}",
        f"last hour: finished {over}{reports.finished}, failed {over}{reports.failed}",
    ]
    if reports.last is not None:
        last = reports.last
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


async def has_report_types(pool: Pool) -> bool:
    """Return whether there is a report type."""
    return bool(await pool.fetchval(SQL["is_used"]))


async def examine(context: Context, alive: Mapping[str, int]) -> list[Finding]:
    """Find the functions and sources that report types need and no live process serves."""
    if not await has_report_types(context.pool):
        return []
    found = [role_finding(alive, "report-listener", "no report is made")]
    unserved = await context.pool.fetch(SQL["unserved"])
    if not unserved:
        return [*found, Finding("report listeners", "ok", "every listener of every report type is served")]
    remedy = "run report-listener with the program (TICKWRIGHT_APP) or the TOML file (TICKWRIGHT_CONFIG) that has it"
    return found + [
        Finding("report listeners", "warn", f"no live process serves {row['served_by']}, for {row['types']}", remedy)
        for row in unserved
    ]
