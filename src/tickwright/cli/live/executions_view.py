"""What campaigns and batches do now: a line for each execution that is at work, and for the last one."""

from collections.abc import Sequence

from tickwright.capabilities.operations.overview.views import ExecutionNow

ERROR_CHARS = 120


def execution_lines(pictures: Sequence[ExecutionNow]) -> list[str]:
    """Return a line for each."""
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
