"""Which entities are slow here, and how many slots of this process they hold at most. Pure: no clock, no store.

An entity is slow for a module while one of its last runs took half of its timeout or more, or ended by it. Its next
run needs one of the slow slots; every other slot is left to entities that are not slow. As many quick runs in a row as
are remembered end it: one that hangs every second or third time is slow all the time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

SLOW_PART = 0.5
SLOW_MAX = 10_000
QUICK_RUNS = 5

Key: TypeAlias = tuple[str, str]


def timed_out_lately(since_timeout_s: float | None, window_s: int) -> bool:
    """Return whether a run is one of the last, by the ledger: it knows when one timed out, and counts no others."""
    return since_timeout_s is not None and 0 <= since_timeout_s < QUICK_RUNS * window_s


class SlotUse:
    """The use that one message makes of a slot."""

    __slots__ = ("_key", "_share", "is_slow")

    def __init__(self, share: "SlowShare", key: Key) -> None:
        self._share, self._key, self.is_slow = share, key, False

    def may_run(self, *, timed_out: bool = False) -> bool:
        """Return whether its entity may run now; one that is slow takes a slow slot, false where all are taken.

        Args:
            timed_out: By the ledger: one of its last runs, perhaps in another process, ended by its timeout.
        """
        if timed_out:
            self._share.heard(self._key)
        if not self.is_slow and self._share.has(self._key):
            self.is_slow = self._share.running < self._share.most
            self._share.running += self.is_slow
            return self.is_slow
        return True

    def ran(self, lasted_s: float, timeout_s: float) -> None:
        """Note how long its run took."""
        self._share.note(self._key, is_slow=lasted_s >= SLOW_PART * timeout_s)


class SlowShare:
    """One for a consumer.

    Args:
        slots: Of the process.
        percent: Of the slots that slow entities hold at most, rounded down; at least one slot.

    Attributes:
        most: Slow slots.
        running: Those that are taken.

    Invariants:
        FAN-10: no more than ``most`` slots run tasks of entities that were known to be slow when they began.
    """

    def __init__(self, slots: int, percent: int) -> None:
        self.most = max(1, slots * percent // 100)
        self.running = 0
        self._slow: dict[Key, int] = {}

    @contextmanager
    def slot(self, entity_code: str, task_type: str) -> Iterator[SlotUse]:
        """Return the use that one message makes of its slot, over at the end of the body."""
        use = SlotUse(self, (entity_code, task_type))
        try:
            yield use
        finally:
            self.running -= use.is_slow

    def note(self, key: Key, *, is_slow: bool) -> None:
        """Note a run, and keep the newest slow ones; one that is forgotten is found again by its next slow run."""
        quick_left = QUICK_RUNS if is_slow else self._slow.get(key, 0) - 1
        self._slow.pop(key, None)
        if quick_left > 0:
            self._keep(key, quick_left)

    def heard(self, key: Key) -> None:
        """Note that the ledger calls it slow, which it says again with each claim for as long as that is so."""
        if key not in self._slow:
            self._keep(key, 1)

    def _keep(self, key: Key, quick_left: int) -> None:
        self._slow[key] = quick_left
        if len(self._slow) > SLOW_MAX:
            del self._slow[next(iter(self._slow))]

    def has(self, key: Key) -> bool:
        """Return whether this entity is slow for this module."""
        return key in self._slow

    @property
    def known(self) -> list[Key]:
        """Entities and modules that are slow, the latest last."""
        return list(self._slow)
