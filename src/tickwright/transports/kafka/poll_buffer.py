"""What was read: polls in piles, how far a partition is done, and who waits. Pure: no I/O, no clock, no threads.

Offsets are committed from here, so the rule is here: the offset to go on from is that of the first record which is
not finished. Whatever lies behind it may be delivered again, and the ledger then knows it.

Offsets go back under a reader where the topic is deleted and made again, or loses its end (an unclean election, a
broker that is restored). What comes then is carried out like any other record, so a record has a number of its own.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tickwright.ports.polls import PollRecord

PILE_MAX = 1000

PileKey = tuple[int, datetime, str]


class Progress:
    """How far a partition is done. It remembers what is open alone: one poll may wait while millions pass it."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()  # offsets by number, neither of them ever descending
        self._next: int | None = None
        self._numbers = itertools.count()

    @property
    def position(self) -> int | None:
        """Where whoever comes next has to begin; ``None`` before the first record."""
        return next(iter(self._open.values())) if self._open else self._next

    @property
    def open(self) -> int:
        """Records that are not finished."""
        return len(self._open)

    @property
    def span(self) -> int:
        """Offsets from ``position`` to the last record: what whoever comes next would read again."""
        return 0 if self._next is None or self.position is None else self._next - self.position

    def read(self, offset: int) -> int:
        """Note a record; return its number.

        Where the offset goes back, open records of higher offsets hold the position at it: theirs are of a log that
        is gone, and committed they would pass records of the new one.
        """
        if self._next is not None and offset < self._next:
            self._open = OrderedDict((number, min(first, offset)) for number, first in self._open.items())
        self._next = offset + 1
        number = next(self._numbers)
        self._open[number] = offset
        return number

    def finish(self, numbers: Iterable[int]) -> None:
        """Note that nothing is left to do for these."""
        for number in numbers:
            self._open.pop(number, None)


@dataclass(slots=True, eq=False)
class Pile:
    """Polls that are carried out together: of one partition, slot, second and partner.

    Attributes:
        since_s: When its first poll was read (monotonic).
        numbers: Of its records, as :class:`Progress` counts them.
    """

    piles: "Piles"
    key: PileKey
    since_s: float
    polls: list[PollRecord] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def columns(self, accounts: Mapping[str, int]) -> tuple[list[int], list[int], list[str]]:
        """Return tracker ids, numbers of accounts and external ids, as a turn has them."""
        numbers = [accounts.get(poll.account_id, 0) for poll in self.polls]
        return [poll.tracker_id for poll in self.polls], numbers, [poll.external_id for poll in self.polls]


class Piles:
    """The piles of one partition that nobody has taken."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._growing: dict[PileKey, Pile] = {}

    def put(self, number: int, poll: PollRecord, now_s: float) -> Pile | None:
        """Add a poll; return its pile when that is a new one."""
        key = poll.slot_id or 0, poll.due_at, poll.partner
        pile, new = self._growing.get(key), None
        if pile is None or len(pile.polls) >= PILE_MAX:
            pile = new = self._growing[key] = Pile(self, key, now_s)
        pile.polls.append(poll)
        pile.numbers.append(number)
        return new

    def close(self, pile: Pile) -> None:
        """Let nothing more be added to a pile: it is taken."""
        if self._growing.get(pile.key) is pile:
            del self._growing[pile.key]


class Waiting:
    """Piles that nobody has taken, by partner, the longest due first."""

    def __init__(self) -> None:
        self._lines: dict[int, list[tuple[float, int, Pile]]] = {}
        self._order = itertools.count()

    def __iter__(self) -> Iterator[tuple[int, Pile]]:
        return ((partner_no, entry[2]) for partner_no, line in self._lines.items() for entry in line)

    def put(self, partner_no: int, pile: Pile) -> None:
        """Let a pile wait."""
        entry = pile.key[1].timestamp(), next(self._order), pile
        heapq.heappush(self._lines.setdefault(partner_no, []), entry)

    def take(self, partner_no: int, most: int, *, among: Container[Piles]) -> list[Pile]:
        """Take a partner's piles that are due longest, of those partitions; the others wait on."""
        line, picked, not_yet = self._lines.get(partner_no, []), list[Pile](), list[tuple[float, int, Pile]]()
        while line and len(picked) < most:
            entry = heapq.heappop(line)
            if entry[2].piles in among:
                entry[2].piles.close(entry[2])
                picked.append(entry[2])
            else:
                not_yet.append(entry)
        for entry in not_yet:
            heapq.heappush(line, entry)
        return picked

    def remove(self, unwanted: Callable[[Pile], bool]) -> None:
        """Forget piles."""
        for partner_no, line in self._lines.items():
            if any(unwanted(entry[2]) for entry in line):
                self._lines[partner_no] = [entry for entry in line if not unwanted(entry[2])]
                heapq.heapify(self._lines[partner_no])
