"""What fan-out does now, in one line: whom it polls, what waits, and what became of the last minute."""

from dataclasses import dataclass

from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.cli.sql", "fanout.sql")
ENTITIES_MAX = 50_000


@dataclass(frozen=True, slots=True)
class FanoutPicture:
    """One look.

    Attributes:
        entities: That are polled, counted up to 50,000.
        modules: Which they are polled for and somebody has set up.
        queued: Tasks that wait, as a consumer counted last; ``None`` where none did, as for ``dead_letters``.
        succeeded: In the last minute of the consumers that live, as the three that follow.
    """

    entities: int
    modules: int
    consumers: int
    queued: int | None
    dead_letters: int | None
    succeeded: int
    failed: int
    superseded: int
    expired: int


async def look_at_fanout(pool: Pool) -> FanoutPicture | None:
    """Look now; ``None`` where there are no entities."""
    async with pool.acquire() as connection:
        whom = await connection.fetchrow(_SQL["entities"])
        if not whom["known"]:
            return None
        lately = await connection.fetchrow(_SQL["lately"])
    return FanoutPicture(whom["entities"], whom["modules"], **dict(lately))


def fanout_line(picture: FanoutPicture) -> str:
    """Return a picture in one line."""
    at_least = "≥" if picture.entities >= ENTITIES_MAX else ""
    parts = [f"entities {at_least}{picture.entities} in {picture.modules} modules", f"consumers {picture.consumers}"]
    if picture.queued is not None:
        parts.append(f"queued {picture.queued}")
    if picture.dead_letters:
        parts.append(f"dead letters {picture.dead_letters}")
    parts.append(
        f"last minute: succeeded {picture.succeeded}, failed {picture.failed}, "
        f"superseded {picture.superseded}, expired {picture.expired}"
    )
    return " · ".join(parts)
