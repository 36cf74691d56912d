"""The parts of a report against time: asked for, begun, done, and which of them its stage waited for. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tickwright.capabilities.reports.requests.views import PartView
from tickwright.ports.views import view

OPEN = frozenset({"due", "running"})
Row = Mapping[str, Any]


def timeline(parts: Sequence[Row]) -> list[PartView]:
    """Return the parts as callers see them.

    Args:
        parts: The rows of the query ``get_parts``; ``now`` is the database's clock.
    """
    last: dict[int, datetime] = {}
    for part in parts:
        end = _end(part)
        if end is not None:
            last[part["stage"]] = max(end, last.get(part["stage"], end))
    marked: set[int] = set()
    views = []
    for part in parts:
        stage, end = part["stage"], _end(part)
        slowest = end is not None and end == last[stage] and stage not in marked
        if slowest:
            marked.add(stage)
        views.append(view(PartView, part, waited_s=_waited_s(part), took_s=_took_s(part), slowest=slowest))
    return views


def _end(part: Row) -> datetime | None:
    """Return until when a part keeps its stage open; nothing for one that waits or was dropped."""
    end: datetime | None = part["now"] if part["state"] in OPEN else part["done_at"]
    return end


def _waited_s(part: Row) -> float | None:
    until = part["began_at"] or (part["now"] if part["state"] in OPEN else None)
    return _between(part["asked_at"], until)


def _took_s(part: Row) -> float | None:
    return _between(part["began_at"], part["now"] if part["state"] == "running" else part["done_at"])


def _between(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else max(0.0, (end - begin).total_seconds())
