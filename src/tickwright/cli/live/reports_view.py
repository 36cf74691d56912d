"""What reports do now, in one line: how many are where, what became of the last hour's, and the last file."""

from tickwright.capabilities.operations.overview.reads import COUNT_MAX
from tickwright.capabilities.operations.overview.views import ReportsNow


def reports_line(picture: ReportsNow) -> str:
    """Return a picture in one line."""
    open_now = picture.waiting + picture.running
    still = "≥" if open_now >= COUNT_MAX else ""  # counted together, as those of the last hour are
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
