"""Turns: the processes of a group look for work one after the other, without a message between them.

::

    time      |0.0  |0.1  |0.2  |0.3  |0.4  |0.5  |...                  a round: 4 s
    looks      A     B     C     A     B     C                          each process knows its place from its heartbeat
    listens    A ───────────────────────────────── ... ─▶ next round: C   one process at a time is notified

A process looks for all work that is due soon at its turns, so work that is known early is found even if a process
fails: the next turn is a tenth of a second later. Work that is due sooner is announced by a notification. PostgreSQL
delivers a notification to every listening connection of the database, in a transaction of each, so only one process of
a group listens. When it fails, the next turn finds that work.

A process knows how many others there are, and how many come before it in the order of turns. This is a few seconds old
when others come or go. Then turns of different processes are a little nearer or farther from each other, and two
processes may listen, or none for that time. Where a process is alone it has every turn: it can sleep until work is due
instead, and listens always.

The database is authoritative for the places. The reasons and failure cases are in docs/adr/0033.
"""

import hashlib
import json
from collections.abc import Callable
from math import ceil

from tickwright.ports.ids import database_seconds
from tickwright.ports.session import Place

TURN_S = 0.1
"""The time between the turns of two processes, in groups of up to 40. It is 67 to 133 ms, because each process has the
same number of turns in a round."""
ROUND_S = 4.0
"""The longest time between two turns of one process, and how long one process listens."""
LONGER = 1 / 3
"""How much longer turns may be: 39 processes have one turn each in a round, as 40 have, and not two."""
EARLY_S = 0.01
"""A process that looks so shortly before its turn has had it: timers end up to a millisecond early."""


def group_of(work: str, *needs: object) -> str:
    """Return the name of the group of processes that do ``work`` and have the same of what it needs."""
    return f"{work}:{hashlib.sha256(json.dumps(needs).encode()).hexdigest()[:16]}"


class Turns:
    """The turns of this process in one group.

    Args:
        place: Returns the process's place; ``None`` while it is in no group, because it is full or not registered.
        turn_s: The time between the turns of two processes, a third more or less.
    """

    def __init__(self, place: Callable[[], Place | None], turn_s: float = TURN_S) -> None:
        self._place, self._turn_s = place, turn_s

    @property
    def alone(self) -> bool:
        """Whether no other process does this work, as far as this one knows."""
        place = self._place()
        return place is None or place.others == 0

    def rank(self, ahead_s: float = 0.0) -> int:
        """Return how many others of the group come first in the round of now, or of ``ahead_s`` from now."""
        place, now_s = self._place(), database_seconds()
        if place is None or place.others == 0 or now_s is None:
            return 0
        match int((now_s + ahead_s) // ROUND_S) - place.round:
            case 0:
                return place.rank
            case 1:
                return place.rank_next
            case _:  # the last heartbeat is long ago
                return place.others

    def listens(self, ahead_s: float = 0.0) -> bool:
        """Return whether this process listens now, or ``ahead_s`` from now."""
        return self.rank(ahead_s) == 0

    def round_ends_in_s(self) -> float:
        """Return the seconds until another process may be the one that listens."""
        now_s = database_seconds()
        return ROUND_S if now_s is None else ROUND_S - now_s % ROUND_S

    def next_in_s(self) -> float:
        """Return the seconds until this process's next turn."""
        place, now_s = self._place(), database_seconds()
        if place is None or now_s is None:
            return self._turn_s
        size = place.others + 1
        own_turns = max(1, ceil(ROUND_S / self._turn_s / size - LONGER))
        own_gap_s = ROUND_S / own_turns
        turn_s = own_gap_s / size
        wait_s = own_gap_s - (now_s % ROUND_S - place.before * turn_s) % own_gap_s
        return wait_s if wait_s > EARLY_S else wait_s + own_gap_s
