"""What fan-out does now, in one line: whom it polls, what waits, and what became of the last minute."""

from tickwright.capabilities.operations.overview.reads import COUNT_MAX
from tickwright.capabilities.operations.overview.views import FanoutNow


def fanout_line(picture: FanoutNow) -> str:
    """Return a picture in one line."""
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
