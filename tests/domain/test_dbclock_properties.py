"""The worker's estimate of the database's clock, against a simulated one that answers late and steps."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain.dbclock import DRIFT_S, SAMPLES, STEP_S, DbClock

ROUNDING_S = 2e-6  # a float of 1.8e9 seconds is exact to a quarter of a microsecond
WAY_MAX_S = 0.1
EPOCH_S = 1_800_000_000.0


@dataclass(frozen=True)
class Reading:
    """One claim: time passes, the clock steps, the server reads it, the answer travels."""

    wait_s: float
    step_s: float
    way_s: float
    to_s: float | None = None
    """The latency of the request, where the process noted when it sent it."""


def readings(step: st.SearchStrategy[float], most: int = 60) -> st.SearchStrategy[list[Reading]]:
    """Lists of readings whose steps come from ``step``."""
    one = st.builds(Reading, wait_s=st.floats(0.001, 5), step_s=step, way_s=st.floats(0, WAY_MAX_S))
    return st.lists(one, min_size=1, max_size=most)


class World:
    """The true clock, the monotonic one, and a worker that samples."""

    def __init__(self) -> None:
        self.monotonic_s = 1000.0
        self._ahead_s = EPOCH_S
        self.clock = DbClock()
        self.stepped = False

    @property
    def true_s(self) -> float:
        """The time of the database's clock now."""
        return self.monotonic_s + self._ahead_s

    def read(self, reading: Reading) -> None:
        """Let one reading happen."""
        self.monotonic_s += reading.wait_s
        self._ahead_s += reading.step_s
        asked_s = None if reading.to_s is None else self.monotonic_s
        self.monotonic_s += reading.to_s or 0.0
        read_s = self.true_s
        self.monotonic_s += reading.way_s
        self.stepped = self.clock.sample(read_s, self.monotonic_s, asked_s)

    def ahead_s(self) -> float:
        """How far the worker's estimate is ahead of the true time; below zero is behind."""
        return self.clock.now(self.monotonic_s) - self.true_s


@given(readings(st.just(0.0) | st.floats(0, 3600)))
def test_the_clock_is_never_ahead_while_the_database_only_goes_forward(seen: list[Reading]) -> None:
    """Never early: whatever the latencies, and when the database's clock jumps ahead."""
    world = World()
    for reading in seen:
        world.read(reading)
        assert world.ahead_s() <= ROUNDING_S


@given(readings(st.just(0.0)))
def test_the_clock_is_late_by_at_most_the_shortest_recent_latency(seen: list[Reading]) -> None:
    """The sample with the shortest latency of the last ones counts."""
    world = World()
    for reading in seen:
        world.read(reading)
    assert -world.ahead_s() <= min(reading.way_s for reading in seen[-SAMPLES:]) + ROUNDING_S


@given(readings(st.just(0.0)), st.floats(STEP_S + WAY_MAX_S + 0.001, 86_400), st.floats(0, WAY_MAX_S))
def test_a_step_back_is_noticed_with_the_next_sample(seen: list[Reading], back_s: float, way_s: float) -> None:
    """A step back by more than a quarter of a second is reported, and discarded readings start nothing early."""
    world = World()
    for reading in seen:
        world.read(reading)
    world.read(Reading(1.0, -back_s, way_s))
    assert world.stepped
    assert world.ahead_s() <= ROUNDING_S


@given(readings(st.just(0.0) | st.floats(-3600, 3600)))
def test_however_the_clock_steps_the_error_is_bounded_after_each_sample(seen: list[Reading]) -> None:
    """A step back that is too small to be told from a slow answer starts nothing more than a quarter second early."""
    world = World()
    for reading in seen:
        world.read(reading)
        assert world.ahead_s() <= STEP_S + ROUNDING_S


@given(readings(st.floats(-3600, 3600)), st.lists(st.floats(0, WAY_MAX_S), min_size=SAMPLES, max_size=SAMPLES))
def test_sixteen_samples_forget_every_step(seen: list[Reading], ways_s: list[float]) -> None:
    """The error of an undetected step is gone after sixteen samples."""
    world = World()
    for reading in seen:
        world.read(reading)
    for way_s in ways_s:
        world.read(Reading(0.5, 0.0, way_s))
    assert world.ahead_s() <= ROUNDING_S


@given(readings(st.just(0.0)), st.floats(0, 1e6))
def test_waiting_until_an_instant_ends_at_that_instant(seen: list[Reading], later_s: float) -> None:
    """``monotonic_at`` is the inverse of ``now``."""
    world = World()
    for reading in seen:
        world.read(reading)
    target_s = world.clock.now(world.monotonic_s) + later_s
    assert abs(world.clock.now(world.clock.monotonic_at(target_s)) - target_s) < ROUNDING_S


FAR = st.floats(0, 3)


@given(st.lists(st.builds(Reading, st.floats(0.001, 5), st.just(0.0), FAR, FAR), min_size=1, max_size=60))
def test_a_growing_latency_is_no_step_and_makes_no_clock_wrong(seen: list[Reading]) -> None:
    """With its requests' instants a process takes no latency for a step, and is off by at most half a round trip."""
    world = World()
    for reading in seen:
        world.read(reading)
        assert not world.stepped
        assert world.ahead_s() <= ROUNDING_S
    off_s = abs(world.clock.about(world.monotonic_s) - world.true_s)
    assert off_s <= min(one.way_s + (one.to_s or 0) for one in seen[-SAMPLES:]) / 2 + ROUNDING_S


@given(readings(st.just(0.0)), st.floats(-3600, 3600), FAR, FAR)
def test_a_step_of_any_size_is_followed_up_to_half_of_a_round_trip(
    seen: list[Reading], step_s: float, way_s: float, to_s: float
) -> None:
    """Also a step that is too small to be told from latency leaves no larger error than the round trip allows."""
    world = World()
    for reading in seen:
        world.read(replace(reading, to_s=reading.way_s))
    world.read(Reading(1.0, step_s, way_s, to_s))
    assert abs(world.clock.about(world.monotonic_s) - world.true_s) <= way_s + to_s + DRIFT_S + ROUNDING_S
