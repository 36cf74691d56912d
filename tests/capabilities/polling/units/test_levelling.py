"""Levelling: trackers leave buckets above the allowed load, and no target rises above the mean."""

from hypothesis import given
from hypothesis import strategies as st

from tickwright.capabilities.polling.wheels.loops import Move, allowed_load, level

LOADS = st.lists(st.integers(0, 2000), min_size=12, max_size=60)


def after(loads: list[int], moves: list[Move]) -> list[int]:
    """Return the loads after the moves."""
    moved = list(loads)
    for move in moves:
        moved[move.source] -= move.trackers
        moved[move.target] += move.trackers
    return moved


@given(loads=LOADS)
def test_moves_make_the_sources_level_and_nothing_else_worse(loads: list[int]) -> None:
    """Sources come down to what is allowed as far as there is room below the mean; no target rises above it."""
    sources, targets = range(6), range(6, len(loads))
    moves = level(loads, sources, targets, moves_max=10**6)
    moved = after(loads, moves)
    mean = sum(loads) / len(loads)
    assert sum(moved) == sum(loads)
    assert all(moved[move.target] <= mean + 1 for move in moves)
    assert all(move.trackers > 0 and move.source in sources and move.target in targets for move in moves)
    room = any(moved[target] < mean for target in targets)
    assert all(moved[source] <= allowed_load(mean) for source in sources) or not room


@given(loads=LOADS, moves_max=st.integers(0, 50))
def test_movement_is_bounded(loads: list[int], moves_max: int) -> None:
    """However uneven the wheel is, one step moves no more than it may."""
    assert sum(move.trackers for move in level(loads, range(6), range(6, len(loads)), moves_max)) <= moves_max


def test_what_is_within_its_bounds_stays() -> None:
    """A move costs a write: a load within half a root above the mean stays."""
    assert level([103, 100, 100, 97], [0], [1, 2, 3], 100) == []
    assert level([110, 100, 100, 90], [0], [1, 2, 3], 100) == [Move(0, 3, 10)]
