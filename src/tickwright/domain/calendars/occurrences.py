"""Which occurrences of a schedule get work, and which are skipped: one pure decision for batches and for periodic jobs.

``misfire`` says what becomes of slots that are older than the grace, ``overlap`` of slots that find earlier work open.
The recurrence says when slots are; the caller writes what is decided, and the next slot, in one transaction.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal, NamedTuple

from tickwright.domain.calendars.recurrence import Recurrence

ON_TIME_MAX = 1000
"""Occurrences within the grace that one decision gives work; older ones of them are skipped."""
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies for slots that are late (older than ``grace``) or find work of an earlier slot open.

    Attributes:
        overlap: ``skip``: no work while there is open work, one piece at a time. ``replace``: the newest slot gets
            work, and open work ends. ``queue`` and ``allow``: every slot gets work. A kind of work where pieces wait
            for each other calls it ``queue``, one where they run side by side ``allow``.
        misfire: ``one``: of the late slots the newest, unless one is on time. ``all``: up to ``misfire_max`` of the
            newest. ``none``: no late slot.
        misfire_max: 1 to 1,000.
    """

    overlap: Literal["allow", "skip", "queue", "replace"] = "skip"
    misfire: Literal["one", "all", "none"] = "one"
    misfire_max: int = 100
    grace: timedelta = timedelta(minutes=1)


class Skip(NamedTuple):
    """A range of ``slots`` occurrences without work, from the first to the last of them."""

    slot_at: datetime
    until_at: datetime
    slots: int
    reason: Literal["overlap", "misfire"]


class Decision(NamedTuple):
    """What is written: slots that get work, ascending, and the next slot to decide about.

    Open work ends first where it ``is_replacing``.
    """

    new: tuple[datetime, ...]
    skips: tuple[Skip, ...]
    is_replacing: bool
    next_slot_at: datetime | None


def decide(
    recurrence: Recurrence,
    first: datetime,
    now: datetime,
    policies: Policies,
    *,
    is_open: bool,
    ahead: timedelta = timedelta(),
) -> Decision:
    """Decide about the occurrences from ``first``, the oldest one that is not decided, up to ``now`` and ``ahead``.

    Invariants:
        OCC-1: every occurrence is in ``new`` or in a skip, once.
        OCC-2: deciding again with the same arguments gives the same.
        OCC-3: the next slot is later than all that are decided, and never before ``first``.
    """
    before, edge, until = first - _TICK, now - policies.grace, now + ahead
    keep = {"all": policies.misfire_max, "one": 1, "none": 0}[policies.misfire]
    on_time = recurrence.between(max(before, edge - _TICK), until, ON_TIME_MAX)
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
    return Decision(tuple(new), tuple(skips), is_replacing, recurrence.next_after(max(until, before)))


def _without_overlap(wanted: list[datetime], policies: Policies, skips: list[Skip], *, is_open: bool) -> list[datetime]:
    """Return what may run; the rest becomes a skip."""
    if policies.overlap in {"allow", "queue"} or not wanted:
        return wanted
    if policies.overlap == "replace":
        new, left = wanted[-1:], wanted[:-1]
    else:
        new, left = ([], wanted) if is_open else (wanted[:1], wanted[1:])
    if left:
        skips.append(Skip(left[0], left[-1], len(left), "overlap"))
    return new


def spread_offset(key: str, window: timedelta) -> timedelta:
    """Return the fixed place of a schedule inside its window, by hash, so that schedules of one minute do not collide.

    Returns:
        ``0 <= offset < window``, whole milliseconds; zero for a window below one millisecond.

    Invariants:
        SPR-1: same arguments, same offset, on every node and in every release.
    """
    window_ms = window // timedelta(milliseconds=1)
    if window_ms <= 0:
        return timedelta()
    digest = int.from_bytes(sha256(key.encode()).digest()[:8])
    return timedelta(milliseconds=digest % window_ms)
