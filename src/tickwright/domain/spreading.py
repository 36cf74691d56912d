"""Which trackers of a wheel move so that the load stays level.

The database chooses a tracker's first time slot (``tickwright.place_of``). A wheel of ``interval_minutes`` has that
many slots of a minute, each with six *buckets* of ten seconds. Load that is even in buckets is even in longer slices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, sqrt

BUCKET_S = 10
BUCKETS_PER_SLOT = 60 // BUCKET_S


@dataclass(frozen=True, slots=True)
class Move:
    """A number of trackers of one partner that move from one bucket of a wheel to another."""

    source: int
    target: int
    trackers: int


def allowed_load(mean: float) -> int:
    """Return the most that a bucket may hold before trackers are moved out of it.

    Random ends vary loads by about half the root of their mean; moving only the surplus moves a few percent.
    """
    return ceil(mean + 0.5 * sqrt(mean))


def level(loads: Sequence[int], sources: Sequence[int], open_targets: Sequence[int], moves_max: int) -> list[Move]:
    """Return the moves that reduce ``sources`` to the allowed load.

    Args:
        loads: Trackers in each bucket of one partner's wheel.
        sources: Buckets that may lose trackers now.
        open_targets: Buckets that may receive trackers now.
        moves_max: Trackers that may move in total.

    Returns:
        Moves from buckets above :func:`allowed_load` into the emptiest ones, never above the mean.
    """
    mean = sum(loads) / len(loads)
    allowed, full = allowed_load(mean), ceil(mean)
    given = set(sources)
    emptiest = [(loads[bucket], bucket) for bucket in open_targets if loads[bucket] < full and bucket not in given]
    heapify(emptiest)
    moves: list[Move] = []
    for source in sorted(sources, key=lambda bucket: -loads[bucket]):
        surplus = min(loads[source] - full, moves_max) if loads[source] > allowed else 0
        while surplus > 0 and emptiest:
            load, target = heappop(emptiest)
            step = min(surplus, full - load)
            moves.append(Move(source, target, step))
            surplus, moves_max = surplus - step, moves_max - step
            if load + step < full:
                heappush(emptiest, (load + step, target))
    return moves
