"""The database's clock, as far as a worker can know it.

"Now" is the database's. A worker asks for it with every claim and in between counts on by its
monotonic clock. A sample says: the server read ``db`` at some moment before ``received``. So
``db + (monotonic - received)`` never runs ahead of the true clock, and work that fires by it is
never early; it is late by at most the answer's way back. Of the last samples the one with the
shortest way wins. Source: Cristian's algorithm, with the error put on the late side.
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
        """Take in one reading.

        Args:
            db_s: What the database's clock said.
            received_s: The monotonic clock when the answer was here.
            asked_s: The monotonic clock when it was asked for, where that is known: then a long way is no step, and
                ``about`` knows better.

        Returns:
            Whether the clock stepped by more than a quarter of a second against the samples before: then
            these are forgotten, and the caller should say so (``db_clock_jump``).
        """
        offset = db_s - received_s
        doubt_s = 0.0 if asked_s is None else received_s - asked_s
        stepped = self._offset is not None and offset + doubt_s < self._offset - STEP_S
        if stepped:
            self._seen.clear()
        self._seen.append((offset, doubt_s))
        self._offset = max(seen for seen, _ in self._seen)
        best, best_doubt_s = min(self._seen, key=itemgetter(1))
        if not best - doubt_s - DRIFT_S <= offset <= best + best_doubt_s + DRIFT_S:  # a small step, or one ahead
            best, best_doubt_s = offset, doubt_s
        self._middle = best + best_doubt_s / 2
        return stepped

    def now(self, monotonic_s: float) -> float:
        """Return a time that the database's clock has reached for certain."""
        if self._offset is None:
            raise ValueError("no sample of the database's clock yet")
        return self._offset + monotonic_s

    def about(self, monotonic_s: float) -> float:
        """Return the time that the database's clock most likely has, early or late by half of the shortest round trip.

        For what several processes share out: the same instant for all of them, however far each is.
        """
        if self._offset is None:
            raise ValueError("no sample of the database's clock yet")
        return self._middle + monotonic_s

    def monotonic_at(self, db_s: float) -> float:
        """Return the monotonic time at which ``now`` will say ``db_s``."""
        if self._offset is None:
            raise ValueError("no sample of the database's clock yet")
        return db_s - self._offset
