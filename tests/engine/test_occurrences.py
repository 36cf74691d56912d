"""The producer's loop over its sources: each has its turn, whatever another one does."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from tickwright.domain.calendars.occurrences import Decision, Policies
from tickwright.domain.calendars.recurrence import Recurrence
from tickwright.engine.occurrences import IDLE_S, REST_MIN_S, Due, OccurrenceProducer

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOURLY = Recurrence(None, "UTC", every=timedelta(hours=1))


class Lease:
    """A lease that is held, or lost."""

    fence = 1

    def __init__(self, *, held: bool = True) -> None:
        self._held = held

    def holds(self) -> bool:
        """Return whether it is held."""
        return self._held

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Yield a connection that no source of this test uses."""
        yield object() if self._held else None


class Source:
    """A source of one schedule in memory."""

    name: ClassVar[str] = "memory"
    wakeup_channel: ClassVar[str] = "memory"

    def __init__(self, *, next_s: float | None = 5.0, is_due: bool = True, error: Exception | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.written: list[Mapping[Any, Decision]] = []
        self._next_s, self._is_due, self._error = next_s, is_due, error

    async def lock(self, _connection: Any, _at_once: int) -> Sequence[Any]:
        """Return the schedule's name, or fail."""
        if self._error is not None:
            raise self._error
        return ["one"] if self._is_due else []

    async def due(self, _connection: Any, rows: Sequence[Any]) -> Sequence[Due]:
        """Return the schedule."""
        return [Due(name, HOURLY, NOW, NOW, Policies(), is_open=False) for name in rows]

    async def write(self, _connection: Any, decisions: Mapping[Any, Decision]) -> Mapping[str, int]:
        """Keep the decisions."""
        self.written.append(decisions)
        return {"work": sum(len(one.new) for one in decisions.values())}

    async def next_in_s(self, _connection: Any) -> float | None:
        """Return what the test says."""
        return self._next_s


async def test_each_source_writes_its_own_decisions() -> None:
    """The rest is that of the source that is due first."""
    first, second = Source(next_s=7.0), Source(next_s=3.0)
    producer = OccurrenceProducer((first, second))
    assert await producer.round(Lease()) == 3.0
    assert [list(one.written[0]["one"].new) for one in (first, second)] == [[NOW], [NOW]]
    assert producer.counts == {"work": 2}


async def test_a_source_that_fails_delays_no_other() -> None:
    """OPR-3: its error is raised when the others have had their turn."""
    good = Source()
    with pytest.raises(ZeroDivisionError):
        await OccurrenceProducer((Source(error=ZeroDivisionError("a bug")), good)).round(Lease())
    assert good.counts == {"work": 1}


async def test_nothing_is_decided_without_the_lease() -> None:
    """A producer that lost it asks no source."""
    source = Source()
    assert await OccurrenceProducer((source,)).round(Lease(held=False)) == 0
    assert source.written == []


@pytest.mark.parametrize(
    ("is_due", "next_s", "rest_s"),
    [(True, 0.0, 0.0), (True, -1.0, 0.0), (False, -1.0, REST_MIN_S), (True, 0.01, REST_MIN_S), (False, None, IDLE_S)],
)
async def test_the_rest_is_short_and_not_a_spin(*, is_due: bool, next_s: float | None, rest_s: float) -> None:
    """At once where a round was full; where what is due is locked, or due very soon, a rest between."""
    assert await OccurrenceProducer((Source(is_due=is_due, next_s=next_s),)).round(Lease()) == rest_s
