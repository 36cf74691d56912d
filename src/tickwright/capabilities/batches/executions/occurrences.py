"""Which occurrences of a batch get an execution, and which do not and why: a pure decision.

Slots older than ``grace`` were missed; what becomes of those is ``misfire``. What becomes of a slot that finds an
execution of its batch open is ``overlap``.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from tickwright.domain.recurrence import Recurrence

ON_TIME_MAX = 1000
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Policies:
    """What an operator decided about slots that are late or meet an open execution.

    Attributes:
        misfire_max: Of ``all``: the newest so many.
        grace: Slots that are not older are on time.
    """

    overlap: Literal["skip", "queue", "replace"] = "skip"
    misfire: Literal["one", "all", "none"] = "one"
    misfire_max: int = 100
    grace: timedelta = timedelta(minutes=1)


class Skip(NamedTuple):
    """A run of ``slots`` occurrences without an execution, from the first to the last of them."""

    slot_at: datetime
    until_at: datetime
    slots: int
    reason: Literal["overlap", "misfire"]


class Decision(NamedTuple):
    """What the producer writes.

    Attributes:
        new: Slots that get an execution, ascending.
        is_replacing: Whether open executions end first.
        next_slot_at: The next one to deal with; ``None`` when there is none.
    """

    new: tuple[datetime, ...]
    skips: tuple[Skip, ...]
    is_replacing: bool
    next_slot_at: datetime | None


def decide(recurrence: Recurrence, first: datetime, now: datetime, policies: Policies, *, is_open: bool) -> Decision:
    """Decide about the occurrences from ``first`` up to ``now``.

    Args:
        recurrence: When it occurs.
        first: The oldest one that nobody has dealt with.
        now: By the database's clock.
        policies: Of the batch.
        is_open: Whether an execution of the batch is open.

    Invariants:
        OCC-1: every occurrence is in ``new`` or in a skip, once.
        OCC-2: deciding again with the same arguments gives the same.
    """
    before, edge = first - _TICK, now - policies.grace
    keep = {"all": policies.misfire_max, "one": 1, "none": 0}[policies.misfire]
    on_time = recurrence.between(max(before, edge - _TICK), now, ON_TIME_MAX)
    late = recurrence.between(before, edge - _TICK, keep + 1)
    if policies.misfire == "one" and on_time.count:
        keep = 0  # the one on time is the one that runs
    kept = late.slots[max(0, len(late.slots) - keep) :] if keep else ()
    skips: list[Skip] = []
    for found, taken in ((late, len(kept)), (on_time, len(on_time.slots))):
        if found.count > taken:
            last = found.slots[-1 - taken] if len(found.slots) > taken else found.slots[0]
            skips.append(Skip(found.oldest or first, last, found.count - taken, "misfire"))
    wanted = [*kept, *on_time.slots]
    new = _without_overlap(wanted, policies, skips, is_open=is_open)
    is_replacing = policies.overlap == "replace" and bool(new)
    return Decision(tuple(new), tuple(skips), is_replacing, recurrence.next_after(now))


def _without_overlap(wanted: list[datetime], policies: Policies, skips: list[Skip], *, is_open: bool) -> list[datetime]:
    """Return what may run; the rest becomes a skip."""
    if policies.overlap == "queue" or not wanted:
        return wanted
    if policies.overlap == "replace":
        new, left = wanted[-1:], wanted[:-1]
    else:
        new, left = ([], wanted) if is_open else (wanted[:1], wanted[1:])
    if left:
        skips.append(Skip(left[0], left[-1], len(left), "overlap"))
    return new
