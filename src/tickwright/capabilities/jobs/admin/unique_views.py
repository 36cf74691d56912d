"""What is shown of unique jobs."""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from tickwright.capabilities.jobs.unique import UniqueRequest, unique_of
from tickwright.ports.views import Reason


class UniqueView(UniqueRequest, kw_only=True):
    """The rule of a unique job, and what equal requests did to it.

    ``holder_id`` is the last job of these arguments, as long as it is known; it holds them from ``held_from``, and with
    a period at most ``until`` then. ``replaced`` is how many requests replaced something of this job, ``kept`` how many
    were answered with it (simultaneous ones, and those in transactions of callers, are not counted).
    """

    holder_id: int | None
    held_from: datetime | None
    until: datetime | None
    replaced: int
    kept: int


class _Known(msgspec.Struct):
    holder_id: int | None = None
    held_from: datetime | None = None
    until: datetime | None = None
    replaced: int = 0
    kept: int | None = 0


def unique_view(job_id: int, known: str | None) -> UniqueView | None:
    """Return a job's rule and what is known of its arguments, from the fragment ``unique_now``."""
    rule = unique_of(known)
    if known is None or rule is None:
        return None
    now = msgspec.json.decode(known, type=_Known)
    kept = now.kept or 0 if now.holder_id == job_id else 0
    return UniqueView(
        **msgspec.structs.asdict(rule.shown()), holder_id=now.holder_id, held_from=now.held_from, until=now.until,
        replaced=now.replaced, kept=kept,
    )  # fmt: skip


def unique_reasons(job_id: int, unique: UniqueView | None) -> Iterator[Reason]:
    """Explain what equal requests did to a unique job."""
    if unique is None:
        return
    if unique.replaced:
        text = f"{_times(unique.replaced)} an equal request replaced its {' and '.join(unique.on_conflict)}"
        yield Reason("replaced", text)
    if unique.kept:
        yield Reason("kept", f"{_times(unique.kept)} it was kept instead of inserting an equal one")
    if unique.holder_id == job_id:
        yield Reason("unique", f"it is unique {_rule_text(unique)}")
    elif unique.holder_id is not None:
        text = f"it is unique {_rule_text(unique)}; job {unique.holder_id} has its arguments by now"
        yield Reason("unique_passed_on", text)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _rule_text(unique: UniqueView) -> str:
    by = "by all arguments" if unique.by is None else f"by {', '.join(unique.by)}" if unique.by else "in its type"
    period = "" if unique.period is None else f", for {unique.period} from its insertion"
    return f"{by} while {' or '.join(unique.over)}{period}"
