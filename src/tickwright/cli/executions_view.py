"""What campaigns and batches do now: a line for each execution that is at work, and for the last one."""

from collections.abc import Sequence
from dataclasses import dataclass

from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.cli.sql", "executions.sql")
ERROR_CHARS = 120


@dataclass(frozen=True, slots=True)
class ExecutionPicture:
    """One execution, as it is now.

    Attributes:
        members: Of its audience, counted when it was cut into chunks; 0 before that.
        took_s: Since it began, or until it ended; ``None`` while nobody has begun it.
    """

    id: int
    name: str
    status: str
    paused: bool
    chunks: int
    chunks_done: int
    members: int
    seen: int
    selected: int
    actions: int
    released: int
    took_s: float | None
    error_message: str | None


async def look_at_executions(pool: Pool) -> list[ExecutionPicture]:
    """Look now; up to five that are at work, and the newest one. Empty where nothing was ever executed."""
    return [ExecutionPicture(**dict(row)) for row in await pool.fetch(_SQL["executions"])]


def execution_lines(pictures: Sequence[ExecutionPicture]) -> list[str]:
    """Return a line for each."""
    return [_line(one) for one in pictures]


def _line(one: ExecutionPicture) -> str:
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
