"""The database's clock, as far as a worker can know it.

"Now" is the database's. A worker reads it with every claim and in between uses its monotonic clock. A sample proves
that the server read ``db`` at some moment before ``received``. So ``db + (monotonic - received)`` is never ahead of the
database's clock: work that fires by it is never early, and late by at most the answer's way back. Of the last samples
the one with the shortest way is used. Source: Cristian's algorithm, with the error on the late side.
"""

from collections import deque
from operator import itemgetter

SAMPLES = 16
STEP_S = 0.25
DRIFT_S = 0.001


class DbClock:
    """A lower bound of the database's clock, in seconds since 1970."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._offset: float | None = None
        self._middle = 0.0

    @property
    def known(self) -> bool:
        """Whether there was a sample."""
        return self._offset is not None

    def sample(self, db_s: float, received_s: float, asked_s: float | None = None) -> bool:
        """Add one reading.

        Args:
            db_s: The database's clock.
            received_s: The monotonic clock when the answer arrived.
            asked_s: The monotonic clock when it was requested, if known: then a slow answer does not count as a step,
                and ``about`` is more exact.

        Returns:
            Whether the clock stepped by more than a quarter of a second against the samples before: then these are
            dropped, and the caller should log it (``db_clock_jump``).
        """
        offset = db_s - received_s
        doubt_s = 0.0 if asked_s is None else received_s - asked_s
        stepped = self._offset is not None and offset + doubt_s < self._offset - STEP_S
        if stepped:
            self._seen.clear()
        self._seen.append((offset, doubt_s))
        self._offset = max(seen for seen, _ in self._seen)
        best, best_doubt_s = min(self._seen, key=itemgetter(1))
        if not best - doubt_s - DRIFT_S <= offset <= best + best_doubt_s + DRIFT_S:  # a small step, or a step forward
            best, best_doubt_s = offset, doubt_s
        self._middle = best + best_doubt_s / 2
        return stepped

    def now(self, monotonic_s: float) -> float:
        """Return a time that the database's clock has certainly reached."""
        if self._offset is None:
            raise ValueError("no sample of the database's clock yet")
        return self._offset + monotonic_s

    def about(self, monotonic_s: float) -> float:
        """Return the most likely time of the database's clock, wrong by at most half of the shortest round trip.

        For instants that several processes share: it is the same for all of them, whatever their distance.
        """
        if self._offset is None:
            raise ValueError("no sample of the database's clock yet")
        return self._middle + monotonic_s

    def monotonic_at(self, db_s: float) -> float:
        """Return the monotonic time at which ``now`` returns ``db_s``."""
        if self._offset is None:
            raise ValueError("no sample of the database's clock yet")
        return db_s - self._offset
