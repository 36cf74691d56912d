"""Turns: together the processes of a group look often enough, whatever their number, and one of them listens."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from tickwright.engine.wakeup import turns
from tickwright.engine.wakeup.turns import EARLY_S, ROUND_S, TURN_S, Turns
from tickwright.ports.session import Place

FROM_S = 1_764_000_000.0


class Clock:
    """The database's clock of a test."""

    def __init__(self) -> None:
        self.now_s = FROM_S

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that does not move until the test moves it."""
    clock = Clock()
    monkeypatch.setattr(turns, "database_seconds", clock)
    return clock


def place(others: int, before: int, *, rank: int = 1, rank_next: int = 1) -> Place:
    """Return a place as a heartbeat in the round of ``FROM_S`` has read it."""
    return Place(others, before, rank, rank_next, int(FROM_S // ROUND_S))


def of(found: Place | None) -> Turns:
    """Return the turns of a process with that place."""
    return Turns(lambda: found)


def turns_of(group: list[Turns], clock: Clock, until_s: float) -> list[float]:
    """Return every turn of a group, in order."""
    found = []
    for one in group:
        clock.now_s = FROM_S
        while (at_s := clock.now_s + one.next_in_s()) < FROM_S + until_s:
            found.append(at_s - FROM_S)
            clock.now_s = at_s + 1e-6
    return sorted(found)


def gaps(found: list[float]) -> list[float]:
    """Return the times between turns."""
    return [after - before for before, after in pairwise(found)]


@pytest.mark.parametrize("size", [2, 3, 7, 10, 13, 29, 30, 39, 40, 41, 100, 1000])
def test_a_group_looks_every_tenth_of_a_second(clock: Clock, size: int) -> None:
    """Or a third later, whatever its size; each process looks in every round, and all of them equally often."""
    group = [of(place(size - 1, before)) for before in range(size)]
    assert max(gaps(turns_of(group, clock, 3 * ROUND_S))) <= TURN_S * 4 / 3 + 1e-5
    counts = [len(turns_of([one], clock, 8 * ROUND_S)) for one in group]
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 7
    assert sum(counts) <= 8 * max(size, 1.5 * ROUND_S / TURN_S), "turns cost claims"


def test_a_process_that_looks_a_little_early_has_had_its_turn(clock: Clock) -> None:
    """Its timer may end early, and its clock be corrected by the look itself."""
    one = of(place(3, 1))
    clock.now_s += one.next_in_s() - EARLY_S / 2
    assert one.next_in_s() > 3 * TURN_S


@pytest.mark.parametrize("size", [2, 3, 10, 40])
def test_a_process_that_fails_leaves_a_gap_of_one_turn(clock: Clock, size: int) -> None:
    """The others look when it would not have been their turn for longer: never two turns."""
    for dead in range(size):
        group = [of(place(size - 1, before)) for before in range(size) if before != dead]
        assert max(gaps(turns_of(group, clock, 3 * ROUND_S))) <= 2 * TURN_S * 4 / 3 + 1e-5


@pytest.mark.parametrize("size", [2, 5, 10, 40])
def test_heartbeats_of_different_ages_move_turns_by_one_at_most(clock: Clock, size: int) -> None:
    """A session has come: some know, others do not yet. The gaps stay below three turns."""
    for known_by in range(size):
        group = [of(place(size if one < known_by else size - 1, one)) for one in range(size)]
        group.append(of(place(size, size)))
        assert max(gaps(turns_of(group, clock, 3 * ROUND_S))) <= 3 * TURN_S


def test_a_process_listens_in_the_rounds_of_its_heartbeat(clock: Clock) -> None:
    """In a round that no heartbeat has told of it does not listen."""
    first, second = of(place(1, 0, rank=0)), of(place(1, 1, rank_next=0))
    assert (first.listens(), second.listens()) == (True, False)
    assert second.listens(ahead_s=first.round_ends_in_s() + 0.001)
    clock.now_s = FROM_S + ROUND_S
    assert (first.listens(), second.listens()) == (False, True)
    clock.now_s = FROM_S + 2 * ROUND_S
    assert (first.listens(), second.listens()) == (False, False)
    assert of(place(3, 1, rank=0, rank_next=0)).rank() == 3


@pytest.mark.parametrize("found", [None, place(0, 0)], ids=["in no group", "alone"])
def test_a_process_without_others_listens_always(clock: Clock, found: Place | None) -> None:
    """A full process is in no group, and a job may still be meant for it only."""
    clock.now_s += 100 * ROUND_S
    assert of(found).alone
    assert of(found).listens()


MUTANTS: dict[str, Callable[[Turns], float]] = {
    "each looks once a round": lambda _: ROUND_S,
    "all look at the same time": lambda one: one.round_ends_in_s(),
}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_suite_notices_turns_that_leave_gaps(clock: Clock, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    """The size of the group decides the gaps then."""
    monkeypatch.setattr(Turns, "next_in_s", MUTANTS[mutant])
    with pytest.raises(AssertionError):
        test_a_group_looks_every_tenth_of_a_second(clock, 10)
